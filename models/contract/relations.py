"""Relations that every drawn call keeps: each is one sentence, one driver holds calls to it.

`draws`: a pass that draws dropout or noise is compared with passes of the same shape alone, which
draw the same numbers. `chooses`: rounding may change a choice, so lower precisions are left alone.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache

import torch
from torch import Tensor, nn

from lra.models.contract.calls import (
    STATE_ENTRIES,
    Call,
    calls_of,
    fewer_calls_of,
    plain_call,
    possible,
)
from lra.models.contract.case import Case, Result, inapplicable, worst
from lra.models.contract.facts import visible
from lra.models.contract.gradients import compare_slope
from lra.models.contract.guards import Violation, guard
from lra.models.contract.passes import HALF, TOLERANCE, Path, shared_mixer
from lra.models.mixer import Unsupported

SLOPE_TOLERANCE = {"float64": 1e-8, "float32": 5e-4, "bfloat16": 0.8, "autocast": 0.8}
"""Largest relative difference of a gradient from that of `forward` in float64: of its largest
number, and in half precision of its norm: that of a detached path is 1."""
FEW = 16
"""Tokens from which on gradients are compared in lower precisions."""
OTHER = 10_000
"""Salt of an input that no call has: theirs are their seeds."""
INPUTS = 4
"""Further inputs for which a token must be lost."""
THOROUGH = ("ways",)
"""Relations that are tried with each pair of entry and mode at each other setting: what an entry
does in one mode is seen only by comparison with `forward`."""
FAILURES = 8
"""Failing calls of which the plainest is named."""


def keeps_form(path: Path) -> Iterator[Result]:
    """Shape and dtype are those of the input, under autocast bfloat16 or float32; all is finite."""
    y, allowed = path.y, {path.dtype, *((torch.bfloat16,) if path.auto else ())}
    yield Result(
        y.shape == path.x.shape and y.dtype in allowed,
        f"got {tuple(y.shape)} {y.dtype}, wanted {tuple(path.x.shape)} {path.dtype}",
    )
    yield Result(bool(y.isfinite().all()), "values are not finite")
    if path.call.gradient == "recorded" and not path.real.all():  # others are tried by `gradients`
        learnt = [each for each in path.mixer.parameters() if each.requires_grad]
        for gradient in torch.autograd.grad(path.run().sum(), learnt, materialize_grads=True):
            yield Result(bool(gradient.isfinite().all()), "a gradient is not finite")


def changes_nothing(path: Path) -> Iterator[Result]:
    """Input, masks, gradients, weights, random states and PyTorch's switches stay as they are."""
    given = {f"layout.{name}": fact for name, fact in path.facts.items()}
    recorded = path.call.gradient == "recorded"
    x = path.x.clone().requires_grad_(recorded)
    try:
        y = path.run(x, seed=17 if path.call.training else 18, watched=given)
        if y.requires_grad:
            back = path.case.input(path.call.length, rows=path.call.rows, salt=3).to(y)
            with guard(path.mixer, given | {"x": x, "the gradient of the output": back}):
                torch.autograd.grad(y, x, back, materialize_grads=True)
    except Violation as violation:
        yield Result(False, str(violation))
        return
    if not path.y.isnan().any():  # not to the last bit, which may depend on where memory lies
        yield path.agree("the same call a second time", y, path.y)


def equals_forward(path: Path) -> Iterator[Result]:
    """The result is that of `forward` in evaluation in float64, by a mixer that does only that."""
    if path.draws or (path.chooses and path.call.precision in HALF):
        return
    path.disturb()
    y, wanted = path.run().detach()[path.real], path.plain.y[path.real]
    found = path.agree("against forward in evaluation", y, wanted)
    gated = path.call.entry == "gated_extend"
    if gated and not found.passed:  # `forward` may return u (h - x), or h alone
        none = path.run(residual=path.plain.y.to(path.dtype))[path.real]
        found = path.agree("with h as its residual", none + wanted, wanted)
    yield found
    if gated:
        yield from _gated(path, y)


def _gated(path: Path, y: Tensor) -> Iterator[Result]:
    """Compare u (h - residual) at other residuals with `y`, and without h."""
    other = path.case.input(path.call.length, rows=path.call.rows, salt=OTHER).to(path.x)
    once, twice = (
        path.run(residual=path.x + times * (other - path.x))[path.real] - y for times in (1, 2)
    )
    yield Result(bool(once.any()) or not len(y), "gated_extend does not read its residual")
    yield path.agree("twice as far from x, the residual by gated_extend", twice, 2 * once)
    path.drop = torch.zeros_like
    kept = torch.equal(path.run().detach()[path.real], y) and len(y)
    path.drop = nn.Identity()
    yield Result(not kept, "gated_extend does not call the dropout that it is given")


def ignores_other_rows(path: Path) -> Iterator[Result]:
    """A row's result depends neither on other rows nor on its place among them."""
    rows, y = len(path.x), path.y
    if rows == 1:
        return
    row = path.source.randrange(rows)
    loud, keep = path.case.noise(path.x).to(path.x), path.real[row]
    loud[row] = path.x[row]
    yield path.agree(f"row {row} among outliers", path.run(loud)[row][keep], y[row][keep])
    if not path.comparable:
        return
    flipped = path.run(path.x.flip(0), {name: fact.flip(0) for name, fact in path.facts.items()})
    yield path.agree("rows in reverse order", flipped.flip(0)[path.real], y[path.real])
    own = slice(row, row + 1)
    alone = path.run(path.x[own], {name: fact[own] for name, fact in path.facts.items()})[0]
    yield path.agree(f"row {row} alone", alone[keep], y[row][keep])


def ignores_padding(path: Path) -> Iterator[Result]:
    """A row with padding behind it gives what the row gives alone."""
    padded = path.call.mask in ("behind", "row") and not path.traits.hides_others
    if not padded or not path.comparable:
        return
    for row in sorted({0, len(path.x) - 1}):
        if size := int(path.real[row].sum()):
            alone = path.run(path.x[row : row + 1, :size], {})[0]
            yield path.agree(f"row {row} without its padding", path.y[row, :size], alone)


def ignores_empty_masks(path: Path) -> Iterator[Result]:
    """Facts that hide nothing and open nothing give the result without facts."""
    if not path.comparable or path.traits.hides_others:
        return
    rows, like = len(path.x), path.real
    nothing = {
        "keep": torch.ones_like(like),
        "document": torch.full_like(like, 7, dtype=torch.long),
        "prefix": torch.zeros(rows, dtype=torch.long, device=like.device),
        "order": torch.full_like(like, 3, dtype=torch.long),
        "is_global": torch.zeros_like(like),
    }
    if path.facts:
        y = path.run(path.x, {name: nothing[name] for name in path.facts})
        yield path.agree(f"{' and '.join(path.facts)} that hide nothing", y, path.run(path.x, {}))


def document_alone(path: Path) -> Iterator[Result]:
    """A document gives what it gives alone, with its padding."""
    if "document" not in path.facts or path.facts.keys() - {"document", "keep"}:
        return
    if path.call.positions != "none" or not path.comparable:
        return
    for row in {0, path.source.randrange(len(path.x)), len(path.x) - 1}:
        number = path.facts["document"][row][path.source.randrange(path.call.length)]
        own = path.facts["document"][row] == number
        first, *_, last = own.nonzero()[:, 0].tolist() * 2
        if last - first + 1 > int(own.sum()):
            continue  # in pieces, between which distances count
        others = {n: each[row : row + 1, own] for n, each in path.facts.items() if n == "keep"}
        alone = path.run(path.x[row : row + 1, own], others)[0]
        real = path.real[row, own]
        what = f"document {int(number)} of row {row} alone"
        yield path.agree(what, path.y[row, own][real], alone[real])


def sees_what_masks_leave(path: Path) -> Iterator[Result]:
    """No token depends on tokens that are hidden from it; a mask hides nothing else."""
    traits, (rows, length) = path.traits, path.x.shape[:2]
    if traits.hides_others and "keep" in path.facts:
        return
    may = visible(path.facts, length, causal=traits.causal, rows=rows).to(path.x.device)
    if traits.reach is not None and "is_global" not in path.facts:
        place = _places(path)
        may &= (place[:, None] - place[..., None]).abs() <= traits.reach
    if bool(may.all()):
        return
    every = torch.arange(rows, device=may.device)
    for number in range(2):
        query = _real_tokens(path)
        seen = may[every, query]
        compared = ~(may & ~seen[:, None]).any(-1) & path.real
        what = f"hidden from tokens {query.tolist()} of the rows"
        if not traits.selection_leak:
            noise = path.case.noise(path.x, salt=99 + number).to(path.x)
            there = path.run(torch.where(seen[..., None], path.x, noise))
            yield path.agree(f"outliers {what}", there[compared], path.y[compared])
    if path.call.gradient != "recorded" or path.call.precision in HALF:
        return
    own = path.real[every, query][:, None]
    gradient = _gradient_of(path, query, path.facts) * own[..., None]
    past = gradient.masked_fill(seen[..., None], 0)
    # float32 rounds in proportion to all of the gradient: Fourier transforms give no exact 0.
    pair = (past, torch.zeros_like(past)) if path.exact else (gradient, gradient - past)
    limit = TOLERANCE[path.call.precision]
    yield path.case.agree(f"gradients of tokens {what}", *pair, limit)
    moving = {
        "holes",
        "front",
        "document",
    }  # segments may count real tokens, or those of a document
    moved = path.traits.reach is not None and not moving.isdisjoint(path.masks)
    if path.facts and not (path.draws or path.chooses or moved):
        blind, again = [*_blind(path, query, seen & own, gradient)], _real_tokens(path)
        # A token at one place of a block may read nothing, and padding moves blocks.
        if blind and [*_blind(path, again, may[every, again] & path.real[every, again][:, None])]:
            yield from blind


def _places(path: Path) -> Tensor:
    """Return the number of each token in its document, [b l]; others may count, or not."""
    before, documents = path.real.cumsum(1), path.facts.get("document")
    if documents is None:
        return before
    same = (documents[:, :, None] == documents[:, None]) & path.real[:, None]
    return same.tril().sum(-1)


def _real_tokens(path: Path) -> Tensor:
    """Draw a token of each row that is not padding; 0 if there is none."""
    tokens = [row.nonzero()[:, 0].tolist() or [0] for row in path.real]
    return torch.tensor([path.source.choice(each) for each in tokens], device=path.x.device)


def _gradient_of(
    path: Path, query: Tensor, facts: Mapping[str, Tensor], salt: int | None = None
) -> Tensor:
    """Return the gradient of one output of each row, [b l d]; with a salt, at another input."""
    x = path.x if salt is None else path.case.input(path.call.length, rows=len(query), salt=salt)
    x = x.to(path.x).clone().requires_grad_()
    direction = path.case.input(1, salt=3)[0, 0].to(x)
    total = (path.run(x, facts)[torch.arange(len(query)), query] @ direction).sum()
    return torch.autograd.grad(total, x, materialize_grads=True)[0]


def _blind(
    path: Path, query: Tensor, seen: Tensor, gradient: Tensor | None = None
) -> Iterator[Result]:
    """Find a token that a query reads without masks, and under one that leaves it for no input.

    Args:
        path: The call under the mask.
        query: The token of each row that reads.
        seen: What it may read under the mask.
        gradient: That of `_gradient_of` under the mask, where it is known.
    """
    place, lost = torch.arange(path.x.shape[1], device=query.device), seen
    # Weights of a single input may be 0, as those of ReLU.
    for salt in (None, *range(OTHER, OTHER + INPUTS)):
        if gradient is None or salt is not None:
            gradient = _gradient_of(path, query, path.facts, salt)
        read = gradient.abs().amax(-1) > 0
        unread = seen & ~read & (place != query[:, None])  # not all attend to themselves
        if not bool((lost & unread).any()):
            return
        plain = _gradient_of(path, query, {}, salt).abs().amax(-1) > 0
        here = unread & plain
        if "prefix" in path.facts and path.traits.causal:  # which opens later tokens
            opened = seen & (place > query[:, None]) & ~plain
            here |= opened & ~(opened & read).any(1, keepdim=True)
        lost = lost & here
        if not bool(lost.any()):
            return
    row, token = lost.nonzero()[0].tolist()
    yield Result(
        False,
        f"token {int(query[row])} of row {row} does not attend to token {token}, although the "
        "mask leaves it",
    )


def gradients_are_derivatives(path: Path) -> Iterator[Result]:
    """Gradients of x + mixer(x) are derivatives, at each use of the graph, as by `forward`."""
    if path.call.gradient != "recorded":
        return
    direction = path.case.input(path.call.length, rows=path.call.rows, salt=3)
    direction = direction * (path.real & path.steady)[..., None]
    y, total, moved = path.gradients(direction)
    parts = [*moved.values()]
    first = torch.autograd.grad(total, parts, retain_graph=True, materialize_grads=True)
    again = torch.autograd.grad(total, parts, retain_graph=True, materialize_grads=True)
    found = dict(zip(moved, first, strict=True))
    for (name, here), there in zip(found.items(), again, strict=True):
        yield Result(bool(here.isfinite().all()), f"gradient of {name} is not finite")
        yield path.agree(f"gradient of {name} by a second backward pass", there, here)
    if path.call.strides != "contiguous" and y.requires_grad:
        x = moved["the input"]
        spread = torch.autograd.grad(y.sum(), x, retain_graph=True)[0]
        written = torch.autograd.grad(y, x, torch.ones_like(y))[0]
        yield path.agree("gradient of a sum, whose strides are 0", spread, written)
    if path.exact and not path.traits.surrogate_gradient:
        yield _slope(path, direction, moved, found)
    few = not path.exact and path.call.length < FEW
    if not (path.draws or path.chooses or few or path.call.entry == "gated_extend"):
        yield from _as_forward(path, direction, found)
    if path.exact and not path.draws and path.call.seed % 4 == 0:
        yield from _frozen(path, direction, found)


def _slope(
    path: Path, direction: Tensor, moved: Mapping[str, Tensor], known: Mapping[str, Tensor]
) -> Result:
    """Compare with finite differences, all tensors at once; of a failure, name the tensor."""

    def compare(what: str, names: Iterable[str]) -> Result:
        parts = [(moved[name], known[name]) for name in names]
        return compare_slope(
            what, parts, lambda: path.gradients(direction, moved["the input"])[1], path.call.seed
        )

    found = compare("all at once", moved)
    if found.passed:
        return found
    # Fewer choices change within a step where one tensor moves alone.
    return worst(compare(name, [name]) for name in moved).because(
        "a path is detached, or a backward pass is not the derivative of its forward pass; if "
        "that is intended, set traits.surrogate_gradient=True"
    )


def _as_forward(path: Path, direction: Tensor, found: Mapping[str, Tensor]) -> Iterator[Result]:
    """Compare gradients with those of `forward` in evaluation."""
    _, total, moved = path.plain.gradients(direction)
    wanted = torch.autograd.grad(total, [*moved.values()], materialize_grads=True)
    half, limit = path.call.precision in HALF, SLOPE_TOLERANCE[path.call.precision]
    largest = max(_size(each, half) for each in wanted)
    for (name, gradient), right in zip(found.items(), wanted, strict=True):
        size = max(_size(right, half), (0.1 if half else 0.01) * largest, 1e-3)
        differs = _size(gradient.to(right) - right, half) / size
        text = f"gradient of {name} against that of forward: relative difference {differs:.1e}"
        yield Result(differs <= limit, f"{text}, wanted {limit:.0e}")


def _size(x: Tensor, half: bool) -> float:
    """Return the largest number of a tensor; in half precision its norm."""
    return float(x.norm() if half else x.abs().max()) if x.numel() else 0.0


def _frozen(path: Path, direction: Tensor, found: Mapping[str, Tensor]) -> Iterator[Result]:
    """Compare with gradients past frozen parts, all or some of them, and past a frozen input."""
    learnt = {n: each for n, each in path.mixer.named_parameters() if each.requires_grad}
    parts = sorted({name.rpartition(".")[0] for name in learnt})
    half = path.source.sample(parts, len(parts) // 2)
    rest = [each for each in parts if each not in half]
    for part, needed in ((parts, True), (half, True), (half, False), (rest, False), ([], False)):
        frozen = [name for name in learnt if name.rpartition(".")[0] in part]
        try:
            for name in frozen:
                learnt[name].requires_grad_(False)
            _, total, moved = path.gradients(direction, None if needed else path.x.clone())
            moved = {name: each for name, each in moved.items() if each.requires_grad}
            if not total.requires_grad:
                continue
            gradients = torch.autograd.grad(total, [*moved.values()], materialize_grads=True)
        finally:
            for name in frozen:
                learnt[name].requires_grad_()
        still = [*part, *([] if needed else ["the input"])]
        for name, gradient in zip(moved, gradients, strict=True):
            what = f"gradient of {name} while {', '.join(still)} needs none"
            yield path.agree(what, gradient, found[name])


Relation = Callable[[Path], Iterator[Result]]
RELATIONS: Mapping[str, Relation] = {
    "untouched": changes_nothing,
    "form": keeps_form,
    "ways": equals_forward,
    "batch": ignores_other_rows,
    "padding": ignores_padding,
    "unhidden": ignores_empty_masks,
    "document": document_alone,
    "sight": sees_what_masks_leave,
    "gradients": gradients_are_derivatives,
}


@lru_cache(maxsize=1024)
def path_of(case: Case, call: Call) -> Path:
    """Return the path of a call, which all relations share."""
    return Path(case, call)


def forget() -> None:
    """Free the mixers, inputs and outputs of all calls, which the relations share."""
    path_of.cache_clear()
    shared_mixer.cache_clear()


def hold(case: Case, call: Call, relation: str) -> Result:
    """Hold one call to one relation."""
    last = Result(True, "nothing to compare")
    try:
        path = path_of(case, call)
        path.source.seed(call.seed)  # so that `repeat` draws the same, whatever was held before
        for last in RELATIONS[relation](path):
            if not last.passed:
                break
    except Unsupported as refusal:
        if call.entry in STATE_ENTRIES and call.site == "second":  # no state with a CLS vector
            return inapplicable(str(refusal))
        return Result(False, f"raised Unsupported: {refusal}")
    except Exception as error:  # noqa: BLE001 - whatever a stranger's code raises is a finding
        return Result(False, f"raised {type(error).__name__}: {error}")
    return last


def drive(case: Case, relation: str) -> Result:
    """Hold every drawn call to one relation, and name the plainest call that fails."""
    calls = calls_of(case) if relation in THOROUGH else fewer_calls_of(case)
    failed = []
    for call in calls:
        found = hold(case, call, relation)
        if not found.passed:
            failed.append(plainest(case, call, relation, found))
            if len(failed) == FAILURES:
                break
    if not failed:
        return Result(True, f"{len(calls)} drawn calls")
    call, found = min(failed, key=lambda pair: len(repr(pair[0])))
    return Result(False, f"{found.detail}; in {call!r}")


def plainest(case: Case, call: Call, relation: str, found: Result) -> tuple[Call, Result]:
    """Set one setting after another to that of a plain call, as long as the relation fails."""
    plain = plain_call(case)._asdict()
    for name in Call._fields:
        simpler = call._replace(**{name: plain[name]})
        if simpler != call and name != "seed" and possible(simpler):
            again = hold(case, simpler, relation)
            if not again.passed:
                call, found = simpler, again
    return call, found
