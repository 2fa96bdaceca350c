"""The contract kit's checks of the layout: start, prefix, order and is_global."""

from dataclasses import replace
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lra.models.contract.case import ROWS, Case, Result, call, inapplicable, traits_of, worst
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


def check_prefix(case: Case) -> Result:
    """A prefix of all tokens gives the bidirectional form; `sight` tries who attends to whom."""
    mixer = case.mixer()
    if "prefix" not in traits_of(mixer).supports:
        return NOT_CLAIMED
    twin = _bidirectional(case, mixer) if case.causal else None
    if twin is None:
        return inapplicable("it has no bidirectional form with the same weights")
    x = case.input(case.middling)
    whole = torch.full((ROWS,), case.middling, device=case.device)
    return case.agree(
        "a prefix of all against the bidirectional form",
        call(mixer, x, prefix=whole),
        call(twin, x),
    ).because("tokens of the prefix get other weights than earlier tokens")


def check_ranks(case: Case) -> Result:
    """Ascending ranks give the causal form, queries of lower rank see no higher ranks."""
    mixer, x = case.mixer(), case.input(case.middling)
    if "order" not in traits_of(mixer).supports:
        return NOT_CLAIMED
    if getattr(mixer, "attends_in_order", False):
        generator = torch.Generator().manual_seed(case.seed + 7)
        order = torch.randint(5, x.shape[:2], generator=generator).to(case.device)
        if not (found := _queries(case, mixer, x, order)).passed:
            return found
    twin = _twin(case, mixer, causal=True)
    if twin is None:
        return inapplicable("it has no causal form with the same weights")
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
    """Global tokens attend to all, and all to them, as far as causality allows."""
    mixer, flags = case.mixer(), case.globals()
    if "is_global" not in traits_of(mixer).supports:
        return NOT_CLAIMED
    for row, token in flags.nonzero().tolist():
        blind = _unseeing(case, mixer, flags, row, token)
        if blind is not None:
            return Result(False, blind).because("layout.is_global is not applied")
    return Result(True, "global tokens attend to all, and all to them")


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
