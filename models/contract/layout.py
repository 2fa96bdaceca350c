"""The contract kit's checks of the layout: start, document, prefix, order and is_global."""

from dataclasses import replace
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lra.models.contract.case import ROWS, Case, Result, call, edges, inapplicable, traits_of, worst
from lra.models.contract.states import stream, streaming_mixer
from lra.models.contract.values import attention
from lra.models.mixer import Layout, Positions, Remembers, Unsupported
from lra.models.multi_head import MultiHead
from lra.models.positions import At, Spacing
from lra.models.state import join

NOT_CLAIMED = inapplicable("traits.supports does not list it")
STEPS = 3
"""Tokens behind prompts of different lengths."""


def check_start(case: Case) -> Result:
    """`start` shifts each row by its offset, as in a longer sequence, and after prompts."""
    traits = traits_of(case.build())
    if "start" not in traits.supports:
        return NOT_CLAIMED
    seen = []
    for positions in (Positions.none, *case.inside(traits)):
        seen += [_shifted(case, positions), _behind_prompts(case, positions)]
    return worst(seen)


def _shifted(case: Case, positions: Positions) -> Result:
    """Compare one pass over shifted rows with each row alone, and with rows that start at 0."""
    mixer = case.mixer(positions=positions)
    length = max(1, case.max_length // 2)
    x = case.input(length)
    start = torch.tensor([0, length // 3, case.max_length - length], device=case.device)
    try:
        y = call(mixer, x, start=start)
    except Unsupported as refusal:
        return inapplicable(f"refused without a state: {refusal}")
    plain = call(mixer, x)
    encoding = f"positions={positions.value}"
    seen = [case.agree(f"start of 0 against none, {encoding}", y[0], plain[0])]
    alone = call(mixer, x[-1:], start=start[-1:])
    seen.append(case.agree(f"start of the last row alone, {encoding}", alone, y[-1:]))
    found = worst(seen)
    if not found.passed:
        return found.because("the start of one row is applied to another, or to all")
    return _longer(case, mixer, positions).because(
        "start reaches queries but not keys, or is not added to the position"
    )


def _longer(case: Case, mixer: nn.Module, positions: Positions) -> Result:
    """Compare shifted rows with the end of a longer sequence.

    If the mixer has projections, these are compared. Otherwise the tokens before the rows are
    padding: a power of two that fits into the first half, so that blocks stay aligned.
    """
    shift = 1 << (case.max_length.bit_length() - 2) if case.max_length > 1 else 0
    x = case.input(case.max_length - shift)
    longer = torch.cat((case.input(shift, salt=8), x), dim=1) if shift else x
    start = torch.full((ROWS,), shift, device=case.device)
    what = f"start of {shift} against {shift} tokens before, positions={positions.value}"
    parts = attention(mixer)
    if parts is not None:
        _, project = parts
        here = project(x, Layout(start=start))
        there = project(longer, Layout())
        seen = [
            case.agree(f"projections, {what}", q, k[:, :, shift:])
            for q, k in zip(here, there, strict=True)
        ]
        return worst(seen)
    if positions == Positions.none or "keep" not in traits_of(mixer).supports:
        return inapplicable("no positions inside the mixer to shift")
    keep = (torch.arange(case.max_length, device=case.device) >= shift).expand(ROWS, -1)
    return case.agree(what, call(mixer, x, start=start), call(mixer, longer, keep)[:, shift:])


def _behind_prompts(case: Case, positions: Positions) -> Result:
    """Continue rows after prompts of different lengths in one batch; compare with one pass."""
    mixer = streaming_mixer(case, positions)
    if isinstance(mixer, str):
        return inapplicable(mixer)
    x = case.input(case.middling)
    if case.middling < STEPS + 2:
        return inapplicable("sequences are too short to be continued")
    prompts = [0, case.middling // 3, case.middling - STEPS]
    states, pieces, wanted = [], [], []
    whole = call(mixer, x)
    for row, cut in enumerate(prompts):
        state = cast(Remembers, mixer).initial_state(1, case.middling)
        if cut:
            _, state = stream(mixer, [x[row : row + 1, :cut]], state)
        states.append(state)
        pieces.append(x[row, cut : cut + STEPS])
        wanted.append(whole[row, cut : cut + STEPS])
    y, _ = stream(mixer, [torch.stack(pieces)], join(*states), first=prompts)
    return case.agree(
        f"rows continued behind prompts of {prompts}, positions={positions.value}",
        y,
        torch.stack(wanted),
    ).because("the position of one row in its stream is used for all")


def check_document(case: Case) -> Result:
    """Each document gives the same result alone, also under padding; `sight` tries mixed ones."""
    traits = traits_of(case.build())
    if "document" not in traits.supports:
        return NOT_CLAIMED
    seen = []
    for positions in (Positions.none, *case.inside(traits)):
        mixer, length = case.mixer(positions=positions), case.length(positions)
        x, third, how = case.input(length), length // 3, f"positions={positions.value}"
        if positions != Positions.none and not _shifts_freely(case, mixer, x):
            continue
        index = torch.arange(length, device=case.device).expand(ROWS, -1)
        one = torch.full_like(index, 4)
        plain = call(mixer, x)
        seen.append(case.agree(f"one document, {how}", call(mixer, x, document=one), plain))
        if positions == Positions.none:
            lone = call(mixer, x.flatten(0, 1)[:, None]).reshape(x.shape)
            y = call(mixer, x, document=index)
            seen.append(case.agree("a document for each token", y, lone))
        # Numbers in no order; the middle one has one token.
        following = torch.where(index < third, 9, torch.where(index > third, 2, -5))
        following[1] = 4
        y = call(mixer, x, document=following)
        seen.append(case.agree(f"a row of one document, {how}", y[1:2], call(mixer, x[1:2])))
        for mask in [None, case.holes()[:1]] if "keep" in traits.supports else [None]:
            if mask is None and "keep" in traits.supports and positions != Positions.none:
                continue
            keep = None if mask is None else mask[:, :length]
            y = call(mixer, x[:1], keep, document=following[:1])[0]
            for number in (9, -5, 2):
                own = following[0] == number
                alone = call(mixer, x[:1, own], None if keep is None else keep[:, own])[0]
                real = slice(None) if keep is None else keep[0, own]
                what = f"document {number} alone, {how}{'' if mask is None else ', under a mask'}"
                seen.append(case.agree(what, y[own][real], alone[real]))
    return worst(seen).because("layout.document is not applied, or not on every path")


def _shifts_freely(case: Case, mixer: nn.Module, x: Float[Tensor, "b l d"]) -> bool:
    """Tell whether only differences of positions matter, so that documents may be moved."""
    if "start" not in traits_of(mixer).supports:
        return False
    try:
        shifted = call(mixer, x, start=torch.full((ROWS,), x.shape[1], device=case.device))
    except Unsupported:  # it takes a start beside a state alone
        return False
    return case.agree("shifted", shifted, call(mixer, x)).passed


def check_prefix(case: Case) -> Result:
    """Each row has its prefix, and what follows the prefix changes nothing in it.

    Who sees whom beside it is tried by `sight`.
    """
    traits = traits_of(case.build())
    if "prefix" not in traits.supports:
        return NOT_CLAIMED
    seen = []
    for positions in (Positions.none, *case.inside(traits)):
        mixer, length = case.mixer(positions=positions), case.length(positions)
        x, how = case.input(length), f"positions={positions.value}"
        plain = call(mixer, x)
        if not traits.causal:
            y = call(mixer, x, prefix=torch.full((ROWS,), length // 2, device=case.device))
            return case.agree(f"prefix without a causal mask, {how}", y, plain).because(
                "prefix removes tokens from attention; it must add some, if a mixer is causal"
            )
        prefixes = [0, length // 3 + 1, length]
        prefix = torch.tensor(prefixes, device=case.device)
        y = call(mixer, x, prefix=prefix)
        seen.append(case.agree(f"a prefix of no tokens, {how}", y[0], plain[0]))
        for row, count in enumerate(prefixes):
            own = prefix[row : row + 1]
            alone = call(mixer, x[row : row + 1], prefix=own)[0]
            seen.append(case.agree(f"prefix of row {row} alone, {how}", alone, y[row]))
            for end in {count, length - 1} - {0}:
                if end >= count:
                    first = call(mixer, x[row : row + 1, :end], prefix=own)[0]
                    what = f"the first {end} tokens alone, a prefix of {count}, {how}"
                    seen.append(case.agree(what, first, y[row, :end]))
    found = worst(seen).because("the prefix of one row is applied to another, or opens too much")
    twin = _bidirectional(case, case.mixer()) if found.passed else None
    if twin is None:
        return found
    x = case.input(case.middling)
    whole = torch.full((ROWS,), case.middling, device=case.device)
    return case.agree(
        "a prefix of all against the bidirectional form",
        call(case.mixer(), x, prefix=whole),
        call(twin, x),
    ).because("tokens of the prefix get other weights than earlier tokens")


def check_ranks(case: Case) -> Result:
    """Equal ranks hide nothing, ascending ones act like causality; each row has separate ranks.

    Who sees whom by others is tried by `sight`.
    """
    traits = traits_of(case.build())
    if "order" not in traits.supports:
        return NOT_CLAIMED
    if traits.causal:
        return Result(False, "order is supported by a causal mixer").because(
            "ranks are for mixers that attend to both sides: remove order from a causal one"
        )
    seen = []
    for positions in (Positions.none, *case.inside(traits)):
        mixer, length = case.mixer(positions=positions), case.length(positions)
        x, how = case.input(length), f"positions={positions.value}"
        generator = torch.Generator().manual_seed(case.seed + 7)
        order = torch.randint(5, (ROWS, length), generator=generator)
        order[0] = torch.randperm(length, generator=generator)
        order = order.to(case.device)
        same = torch.full_like(order, 3)
        plain = call(mixer, x)
        seen.append(
            case.agree(f"ranks that are all equal, {how}", call(mixer, x, order=same), plain)
        )
        y = call(mixer, x, order=order)
        for row in range(ROWS):
            alone = call(mixer, x[row : row + 1], order=order[row : row + 1])[0]
            seen.append(case.agree(f"ranks of row {row} alone, {how}", alone, y[row]))
        if getattr(mixer, "attends_in_order", False):
            seen.append(_queries(case, mixer, x, order))
    found = worst(seen)
    if not found.passed:
        return found.because("layout.order is not applied, is shared by rows, or opens too much")
    mixer, x = case.mixer(), case.input(case.middling)
    twin = _twin(case, mixer, causal=True)
    if twin is None:
        return found
    ascending = torch.arange(case.middling, device=case.device).expand(ROWS, -1)
    return case.agree(
        "ascending ranks against the causal form", call(mixer, x, order=ascending), call(twin, x)
    ).because("a token of equal or lower rank is hidden, or gets another weight")


def _queries(
    case: Case, mixer: nn.Module, x: Float[Tensor, "b l d"], order: Int[Tensor, "b l"]
) -> Result:
    """Compare a second stream of queries at the ranks of the keys with one pass.

    The check then tries queries of lower rank, which must not depend on higher ranks.
    """
    at, keys = At(Spacing(), Spacing()), Layout(order=order)
    attend = cast(MultiHead, mixer).attend
    seen = [
        case.agree(
            "queries at the keys' ranks", attend(x, keys, x, keys, at), call(mixer, x, order=order)
        )
    ]
    below = Layout(order=order - 1)
    for rank in (1, 3):
        own = order <= rank
        loud = torch.where((order < rank)[..., None], x, case.noise(x))
        here, there = (attend(x, below, source, keys, at)[own] for source in (x, loud))
        seen.append(case.agree(f"queries below rank {rank}", there, here))
    return worst(seen).because("attend does not apply the ranks of queries, or those of keys")


def _twin(case: Case, mixer: nn.Module, *, causal: bool) -> nn.Module | None:
    """Return a mixer of the other direction with the same weights, or None if there is none."""
    try:
        twin = replace(case, causal=causal).mixer()
    except Unsupported:
        return None
    mine, other = mixer.state_dict(), twin.state_dict()
    if {n: t.shape for n, t in mine.items()} != {n: t.shape for n, t in other.items()}:
        return None
    twin.load_state_dict(mine)
    return twin


def _bidirectional(case: Case, mixer: nn.Module) -> nn.Module | None:
    """Return the mixer without causality, with the same weights, or None if there is none.

    It is also None if its first token does not depend on the last: a prefix would then attend to
    more than the mixer does.
    """
    twin = _twin(case, mixer, causal=False)
    if twin is None:
        return None
    x = case.input(case.middling, rows=1)
    loud = torch.cat((x[:, :-1], case.noise(x)[:, -1:]), dim=1)
    return twin if (call(twin, loud) - call(twin, x))[0, 0].any() else None


def check_is_global(case: Case) -> Result:
    """Global tokens attend to all, and all to them, as far as causality and padding allow."""
    mixer = case.mixer()
    traits = traits_of(mixer)
    if "is_global" not in traits.supports:
        return NOT_CLAIMED
    x, flags = case.input(), case.globals()
    y = call(mixer, x, is_global=flags)
    seen = [case.agree("no global token", y[2:], call(mixer, x[2:]))]
    for row in range(ROWS):
        alone = call(mixer, x[row : row + 1], is_global=flags[row : row + 1])[0]
        seen.append(case.agree(f"global tokens of row {row} alone", alone, y[row]))
    if "keep" in traits.supports:
        keep = case.holes() | flags
        loud = torch.where(keep[..., None], x, case.noise(x))
        here, there = (call(mixer, z, keep, is_global=flags)[keep] for z in (x, loud))
        seen.append(case.agree("with global tokens, padding replaced by outliers", there, here))
    if traits.causal:
        for cut in edges(case.max_length):
            before = case.before([cut]).expand(ROWS, -1)[..., None]
            loud = torch.where(before, x, case.noise(x))
            there = call(mixer, loud, is_global=flags)[:, :cut]
            seen.append(
                case.agree(f"with global tokens, outliers from {cut} on", there, y[:, :cut])
            )
    found = worst(seen)
    if not found.passed:
        return found.because("global tokens open a path that ignores row, mask or direction")
    for row, token in flags.nonzero().tolist():
        blind = _unseeing(case, mixer, flags, row, token)
        if blind is not None:
            return Result(False, blind).because("layout.is_global is not applied")
    return found


def _unseeing(
    case: Case, mixer: nn.Module, flags: Bool[Tensor, "b l"], row: int, token: int
) -> str | None:
    """Return a token that global token `token` does not reach or is not reached by, or None."""
    own = flags[row : row + 1]
    x = case.input()[row : row + 1].requires_grad_()
    y = call(mixer, x, is_global=own)
    direction = case.input(salt=3)[row, token]
    gradient = torch.autograd.grad((y[0, token] * direction).sum(), x)[0][0]
    sees = gradient.abs().amax(1) > 0
    loud = x.detach().clone()
    loud[0, token] = case.noise(loud)[0, token]
    seen_by = (call(mixer, loud, is_global=own) - y)[0].abs().amax(1) > 0
    if mixer_is_causal := traits_of(mixer).causal:
        index = torch.arange(case.max_length, device=case.device)
        sees, seen_by = sees | (index > token), seen_by | (index < token)
    earlier = " earlier" if mixer_is_causal else ""
    if not sees.all():
        return f"global token {token} does not reach the{earlier} token {int((~sees).nonzero()[0])}"
    if not seen_by.all():
        return f"token {int((~seen_by).nonzero()[0])} does not attend to global token {token}"
    return None
