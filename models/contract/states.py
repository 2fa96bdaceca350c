"""The contract kit's checks along time: `extend`, its states and its gradients."""

from typing import cast

import torch
from torch import Tensor, nn

from models.contract.case import ROWS, Case, Result, call, traits_of, worst
from models.mixer import Extends, Flow, Layout, Positions, Remembers, State, Unsupported
from models.state import join, select

STEPS = 2
"""Single tokens behind a prompt: the second reads a state that a step made."""


def remembering(
    case: Case, positions: Positions = Positions.none, max_length: int | None = None
) -> nn.Module | str:
    """Return the mixer, or the reason why it has no state along time to check."""
    mixer = case.mixer(positions=positions, max_length=max_length)
    if not traits_of(mixer).causal:
        return "not applicable: it is not causal"
    if not isinstance(mixer, Remembers):
        return "not offered: it has no `initial_state` and `extend`"
    try:
        mixer.initial_state(ROWS, case.middling)
    except Unsupported as refusal:
        return f"not offered: {refusal}"
    return mixer


def stream(
    mixer: nn.Module, pieces: list[Tensor], state: State, *, first: int | list[int] = 0
) -> tuple[Tensor, State]:
    """Extend piece by piece from `first`, of all rows or of each; return outputs and last state."""
    position, out = torch.tensor(first).expand(pieces[0].shape[0]), []
    for piece in pieces:
        start = position if "start" in traits_of(mixer).supports else None
        flow = cast(Remembers, mixer).extend(Flow(piece, state), Layout(start=start))
        position, state = position + piece.shape[1], flow.state
        out.append(flow.x)
    return torch.cat(out, dim=1), state


def empty(mixer: nn.Module, case: Case, memory: int | None = None) -> State:
    """Return the state of `ROWS` streams with room for `memory` tokens, or those of a stream."""
    return cast(Remembers, mixer).initial_state(ROWS, memory or case.middling)


def partitions(length: int) -> dict[str, list[int]]:
    """Return ways to cut a stream."""
    third = length // 3
    return {
        "all at once": [length],
        "awkward thirds": [part for part in (third, 1, length - third - 1) if part > 0],
        "one by one": [1] * length,
    }


def mixed(length: int) -> list[int]:
    """Return a cut in which chunks and single tokens follow each other and themselves."""
    third = length // 3
    singles = min(2, length - third)
    return [part for part in (third, *[1] * singles, length - third - singles) if part > 0]


def check_without_state(case: Case) -> Result:
    """Without a state `extend` is the pass, under a mask as well, and keeps the rest of the flow.

    The frame calls `extend` wherever it is offered, also where there is no state along time.
    """
    mixer = case.mixer()
    if not isinstance(mixer, Extends):
        return Result(True, "not offered: it has no `extend`")
    penalty = {"of another": torch.ones((), dtype=case.dtype)}
    seen = []
    for name, mask in case.masks(traits_of(mixer)).items():
        given = Flow(case.input(), penalties=penalty)
        flow = mixer.extend(given, Layout(keep=mask))
        y, wanted = flow.x, call(mixer, case.input(), mask)
        if mask is not None:
            y, wanted = y[mask], wanted[mask]
        seen.append(case.agree(f"extend without a state, {name}", y, wanted))
        if flow.state is not None or not penalty.items() <= flow.penalties.items():
            return Result(
                False, "extend without a state loses penalties, or invents a state"
            ).because("it makes a new Flow: return flow._replace(x=...)")
    return worst(seen).because("extend goes another way than forward and forgets the layout")


def check_extend(case: Case) -> Result:
    """However a stream is cut, `extend` gives what one pass gives; with positions inside, too."""
    length, seen = case.middling, []
    x, ways = case.input(length), partitions(length)
    for positions in (Positions.none, *case.inside(traits_of(case.build()))):
        mixer = remembering(case, positions)
        if isinstance(mixer, str):
            return Result(True, mixer)
        wanted = call(mixer, x)
        for name, cut in ways.items():
            y, _ = stream(mixer, list(torch.split(x, cut, dim=1)), empty(mixer, case))
            seen.append(case.agree(f"{name}, positions={positions.value}", y, wanted))
        ways = {"chunks and single tokens": mixed(length)}
    return worst(seen)


def prefills(longest: int) -> list[int]:
    """Return the lengths of prompts after which single steps are compared with one pass.

    A family works in chunks, blocks or windows of some C tokens, which it need not tell: with 0 and
    1, C - 1, C and C + 1 are among these for every C that is a power of two.
    """
    edges = (2**power for power in range(longest.bit_length()))
    near = {edge + step for edge in edges for step in (-1, 0, 1)}
    return sorted(length for length in near if 0 <= length <= longest - STEPS)


def check_prefill(case: Case) -> Result:
    """Single steps behind a prompt of whatever length give what one pass gives."""
    longest = case.max_length + 1 + STEPS  # so that a chunk of the longest length is among them
    mixer = remembering(case, max_length=longest)
    if isinstance(mixer, str):
        return Result(True, mixer)
    x, seen = case.input(longest), []
    with torch.no_grad():
        wanted = call(mixer, x)
        for cut in prefills(longest):
            state = empty(mixer, case, longest)
            if cut:
                _, state = stream(mixer, [x[:, :cut]], state)
            steps = list(torch.split(x[:, cut : cut + STEPS], 1, dim=1))
            y, _ = stream(mixer, steps, state, first=cut)
            what = f"{STEPS} steps behind a prompt of {cut}"
            seen.append(case.agree(what, y, wanted[:, cut : cut + STEPS]))
    return worst(seen)


def tensors(state: State) -> list[Tensor]:
    """Return every tensor of a state, in order."""
    if isinstance(state, tuple):
        return [tensor for part in state for tensor in tensors(part)]
    return [] if state is None else [state]


def describe(state: State) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and dtype of every tensor of a state."""
    return [(tuple(tensor.shape), tensor.dtype) for tensor in tensors(state)]


def check_state(case: Case) -> Result:
    """A state starts as zeros, has the batch first, keeps its shape, and can be cut and joined."""
    mixer = remembering(case)
    if isinstance(mixer, str):
        return Result(True, mixer)
    length = case.middling
    cut = length // 2 + 1
    early, late = torch.split(case.input(length), [cut, length - cut], dim=1)
    fresh = empty(mixer, case)
    if any(tensor.any() for tensor in tensors(fresh)):
        return Result(False, "the empty state is not zeros: zeros mean empty")
    before = describe(fresh)
    if any(not shape or shape[0] != ROWS for shape, _ in before):
        return Result(False, f"the batch is not the first axis of every tensor: {before}")
    _, state = stream(mixer, [early], fresh)
    if any(tensor.any() for tensor in tensors(fresh)):
        return Result(False, "extend wrote into the state that it was given: return a new one")
    wanted, after = stream(mixer, [late], state, first=cut)
    for shapes in (describe(state), describe(after)):
        if shapes != before:
            return Result(False, f"the state changed shape: {shapes}, wanted {before}")
    turned = join(*(select(state, slice(row, row + 1)) for row in reversed(range(ROWS))))
    y, _ = stream(mixer, [late.flip(0)], turned, first=cut)
    return case.agree("rows selected and joined in reverse", y.flip(0), wanted)


def check_history(case: Case) -> Result:
    """Gradients flow from one segment into the one before: the mixer does not detach.

    Those of the input and of every parameter are those of one pass, whose are finite differences.
    """
    mixer = remembering(case)
    if isinstance(mixer, str):
        return Result(True, mixer)
    length = case.middling
    cut = length // 2 + 1
    x = case.input(length).requires_grad_()
    direction = case.input(length, salt=3)[:, cut:]
    pieces = list(torch.split(x, [cut, length - cut], dim=1))
    y, _ = stream(mixer, pieces, empty(mixer, case))
    moved = {"the input": x, **{n: p for n, p in mixer.named_parameters() if p.requires_grad}}

    def gradients(y: Tensor) -> tuple[Tensor, ...]:
        late = (y[:, cut:] * direction).sum()
        return torch.autograd.grad(late, [*moved.values()], materialize_grads=True)

    pairs = zip(moved, gradients(y), gradients(call(mixer, x)), strict=True)
    return worst(
        [
            case.agree(f"gradient of the second segment by {name}", seen, wanted)
            for name, seen, wanted in pairs
        ]
    )
