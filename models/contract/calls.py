"""Drawn calls: each pair of settings that may choose another path in a mixer's code comes once.

The message of a failure names its call, and one line repeats it:

    repeat(MyMixer, "batch", Call(entry="extend", mask="front"), causal=True)
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any, NamedTuple, cast

import torch

from lra.models.contract.case import SHORT, Case, traits_of
from lra.models.contract.facts import PADDING, masks_for
from lra.models.mixer import Extends, GatesResidual, Remembers, Unsupported
from lra.models.multi_head import MultiHead

STATE_ENTRIES = ("stream", "prefill")
"""Ways to call `extend` behind a state: in drawn pieces, or a prompt and then single tokens."""
BANDS = {"one": (1, 1), "few": (2, 15), "short": (16, 63), "middle": (64, 127), "long": (128, 255)}
"""Lengths are drawn between these, and the site's longest comes, too."""
MANY = 9
"""Rows, more than a byte has bits."""
MODES: Mapping[str, tuple[bool, str]] = {
    "evaluation": (False, "none"),
    "training": (True, "none"),
    "evaluation with dropout": (False, "drawn"),
    "training with silent dropout": (True, "silent"),
    "training with dropout": (True, "drawn"),
}
"""Training, and the kind of dropout; those with dropout are for mixers that drop weights."""


NUMBERS = (
    *[("exact", "recorded")] * 3,  # most relations are strictest here, or apply here alone
    ("exact", "no_grad"),
    ("exact", "inference_mode"),
    ("float32", "recorded"),
    ("float32", "no_grad"),
    ("bfloat16", "recorded"),
    ("bfloat16", "no_grad"),
    ("autocast", "recorded"),
    ("autocast", "inference_mode"),
)
"""Precisions (`exact` is the kit's own) and what autograd does; some come several times."""


class Call(NamedTuple):
    """The settings of one call; what is left out has the value of a plain pass."""

    entry: str = "forward"
    """The method: forward, extend, gated_extend, attend, attention_core, or one of
    `STATE_ENTRIES`."""
    training: bool = False
    dropout: str = "none"
    """Attention dropout: `none`, `silent` (by the code that drops, but drops nothing), `drawn`."""
    mask: str = "none"
    """Name of the facts of the layout: see `lra.models.contract.facts.draw_facts`."""
    rows: int = 3
    length: int = SHORT
    positions: str = "none"
    """The encoding that the mixer applies itself."""
    precision: str = "float64"
    """float64, float32, bfloat16, or autocast of float32."""
    gradient: str = "recorded"
    """`recorded` by autograd, `no_grad` or `inference_mode`."""
    strides: str = "contiguous"
    """How the input lies in memory: see `lra.models.contract.passes.STRIDES`."""
    site: str = "first"
    """`second`: another layer, depth, width, number of heads, longest length, with a CLS vector."""
    seed: int = 0
    """Decides input, masks and pieces."""

    def __repr__(self) -> str:
        """Return the Python that makes it again, without defaults."""
        told = {name: value for name, value in self._asdict().items() if value != PLAIN[name]}
        return f"Call({', '.join(f'{name}={value!r}' for name, value in told.items())})"


PLAIN: Mapping[str, Any] = Call._field_defaults


def draw_pairs(
    levels: Mapping[str, Sequence[Any]],
    possible: Callable[[Mapping[str, Any]], bool],
    source: random.Random,
) -> Iterator[dict[str, Any]]:
    """Yield settings until every possible pair of two names' values has come once.

    Args:
        levels: The values of each name.
        possible: Tells whether settings, of which some may be absent, can go together.
        source: Decides the order.
    """
    waiting = [
        ((first, a), (second, b))
        for first, second in combinations(levels, 2)
        for a in levels[first]
        for b in levels[second]
        if possible({first: a, second: b})
    ]
    source.shuffle(waiting)
    missing = {frozenset(pair) for pair in waiting}
    for pair in waiting:
        if frozenset(pair) not in missing:
            continue
        chosen: dict[str, Any] = dict(pair)
        for name in source.sample([*levels], len(levels)):
            if name not in chosen:
                offered = [each for each in levels[name] if possible(chosen | {name: each})]
                new = {
                    each: sum(
                        frozenset(((name, each), other)) in missing for other in chosen.items()
                    )
                    for each in source.sample(offered, len(offered))
                }
                if not new:
                    break
                chosen[name] = max(new, key=new.__getitem__)
        missing -= {frozenset(each) for each in combinations(chosen.items(), 2)}
        if len(chosen) == len(levels):
            yield chosen


def cut_pieces(length: int, source: random.Random) -> list[int]:
    """Cut a length into pieces of any size, of multiples of one chunk, or of a few tokens."""
    pieces, chunk = list[int](), source.choice((8, 16, 32, 64, 128))
    size: Callable[[], int] = source.choice(
        (
            lambda: source.randint(1, length),
            lambda: chunk * source.randint(1, 3),
            lambda: source.randint(1, 9),
        )
    )
    while (rest := length - sum(pieces)) > 0:
        pieces.append(min(size(), rest))
    return pieces


def entries_of(case: Case) -> list[str]:
    """Return the ways to call the mixer that it offers."""
    mixer = case.build()
    traits, offered = traits_of(mixer), ["forward"]
    if isinstance(mixer, Extends):
        offered.append("extend")
    if isinstance(mixer, GatesResidual):
        offered.append("gated_extend")
    if traits.cross and not traits.causal and callable(getattr(mixer, "attend", None)):
        offered.append("attend")
    try:
        if type(mixer).forward is MultiHead.forward and not cast(Any, mixer).mean_at_padding:
            cast(MultiHead, mixer).attention_core()
            offered.append("attention_core")
    except Unsupported:
        pass
    try:
        if traits.causal and isinstance(mixer, Remembers):
            mixer.initial_state(1, 2)
            offered += STATE_ENTRIES
    except Unsupported:
        pass
    return offered


def precisions_of(case: Case) -> list[str]:
    """Return the precisions of calls, first the kit's own."""
    lower = ["float32", "bfloat16", "autocast"]
    return ["float64", *lower] if case.dtype is torch.float64 else lower


def plain_call(case: Case) -> Call:
    """Return `forward` in evaluation in the kit's own precision, of at most the longest length."""
    return Call(length=min(SHORT, case.max_length), precision=precisions_of(case)[0])


@lru_cache(maxsize=16)
def calls_of(case: Case) -> list[Call]:
    """Draw the calls of a case: pairs of settings, with entry and mode taken as one of them."""
    traits, source = traits_of(case.build()), random.Random(case.seed)
    bands = {name: (low, high) for name, (low, high) in BANDS.items() if low < case.max_length}
    modes = [*MODES] if traits.weight_dropout else [*MODES][:2]
    ways = [
        (entry, *MODES[mode])
        for entry in entries_of(case)
        for mode in (modes[:2] if entry in STATE_ENTRIES[1:] else modes)
    ]
    levels: dict[str, list[Any]] = {
        "way": ways,
        "mask": masks_for(traits),
        "rows": [1, 3, MANY],
        "length": [*bands, "longest"],
        "positions": ["none", *(each.value for each in case.inside(traits))],
        "numbers": [*enumerate(NUMBERS)],
        "strides": ["contiguous", "length first", "width before length", "every other channel"],
        "site": ["first", "second"],
    }
    calls = []
    for number, told in enumerate(draw_pairs(levels, _possible, source)):
        (entry, training, dropout), band = told.pop("way"), told.pop("length")
        _, (precision, gradient) = told.pop("numbers")
        low, high = bands.get(band, (case.max_length, case.max_length))
        length = source.randint(low, min(high, case.max_length))
        calls.append(
            Call(
                **told,
                entry=entry,
                training=training,
                dropout=dropout,
                length=length,
                precision=precisions_of(case)[0] if precision == "exact" else precision,
                gradient=gradient,
                seed=number + 1,
            )
        )
    return calls


@lru_cache(maxsize=16)
def fewer_calls_of(case: Case) -> list[Call]:
    """Return the drawn calls that are needed for pairs of settings, with entry and mode as two."""
    held, fewer = Counter[tuple[Any, ...]](), []
    for call in calls_of(case):
        pairs = [*combinations(_settings(call), 2)]
        if any(held[pair] < max(times for _, _, times in pair) for pair in pairs):
            fewer.append(call)
            held.update(pairs)
    return fewer


def _settings(call: Call) -> list[tuple[str, Any, int]]:
    """Return the settings of a call by name, and how often each pair with one of them has to come.

    As often as in `NUMBERS` for precisions, in any case once.
    """
    numbers = call.precision, call.gradient
    if numbers not in NUMBERS:
        numbers = "exact", call.gradient
    settings = {
        "entry": call.entry,
        "mode": (call.training, call.dropout),
        "mask": call.mask,
        "rows": call.rows,
        "length": next((n for n, (_, high) in BANDS.items() if call.length <= high), "longest"),
        "positions": call.positions,
        "numbers": numbers,
        "strides": call.strides,
        "site": call.site,
    }
    times = NUMBERS.count(numbers)
    return [(name, each, times if name == "numbers" else 1) for name, each in settings.items()]


def possible(call: Call) -> bool:
    """Tell whether the settings of a call can go together."""
    told = {"way": (call.entry, call.training), "numbers": (0, (call.precision, call.gradient))}
    return _possible(call._asdict() | told)


def _possible(told: Mapping[str, Any]) -> bool:
    """Tell whether settings, of which some may be absent, can go together."""
    entry, training, *_ = told.get("way", (None, False))
    mask, encoded = told.get("mask", "none"), told.get("positions", "none") != "none"
    if entry in STATE_ENTRIES and mask != "none":  # a state continues full rows
        return False
    if entry == "attend" and (encoded or not {*mask.split("+")} <= {"none", *PADDING}):
        return False
    if told.get("rows") == MANY and told.get("length") in ("long", "longest"):  # takes too long
        return False
    if entry == "attention_core" and told.get("site") == "second":  # a CLS vector is not its part
        return False
    _, (_, gradient) = told.get("numbers", (0, ("exact", "recorded")))
    return not (training and gradient == "inference_mode")
