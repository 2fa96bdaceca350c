"""The contract kit's checks along time: `extend`, its states and its gradients."""

import random
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from lra.models.contract.calls import cut_pieces
from lra.models.contract.case import (
    ROWS,
    SHORT,
    Case,
    Result,
    call,
    edges,
    fix_seed,
    inapplicable,
    traits_of,
    worst,
)
from lra.models.mixer import Extends, Flow, Layout, Positions, Remembers, State, Unsupported
from lra.models.state import join, select

MEMORY = 6
"""Tokens that are remembered where a stream is to outgrow its memory."""

PARTITIONS = 16
"""Drawn ways to cut a stream."""

REMEMBERED = 32
"""The same where a mixer may see a few tokens more by a kernel that no memory shortens."""


def streaming_mixer(
    case: Case, positions: Positions = Positions.none, max_length: int | None = None
) -> nn.Module | str:
    """Return the mixer, or the reason why it has no state along time, as a string."""
    mixer = case.mixer(positions=positions, max_length=max_length)
    if not traits_of(mixer).causal:
        return "it is not causal"
    if not isinstance(mixer, Remembers):
        return "it has no `initial_state` and `extend`"
    try:
        mixer.initial_state(ROWS, case.middling)
    except Unsupported as refusal:
        return f"refused: {refusal}"
    return mixer


def stream(
    mixer: nn.Module, pieces: list[Tensor], state: State, *, first: int | list[int] = 0
) -> tuple[Tensor, State]:
    """Extend piece by piece from position `first`; return the outputs and the last state."""
    position, out = torch.tensor(first, device=pieces[0].device).expand(pieces[0].shape[0]), []
    for piece in pieces:
        start = position if "start" in traits_of(mixer).supports else None
        flow = cast(Remembers, mixer).extend(Flow(piece, state), Layout(start=start))
        position, state = position + piece.shape[1], flow.state
        out.append(flow.x)
    return torch.cat(out, dim=1), state


def initial_state(mixer: nn.Module, case: Case, memory: int | None = None) -> State:
    """Return the empty state of `ROWS` streams that remember `memory` tokens."""
    return cast(Remembers, mixer).initial_state(ROWS, memory or case.middling)


def mixed_cut(length: int) -> list[int]:
    """Return piece lengths that alternate and repeat chunks and single tokens."""
    third = length // 3
    singles = min(2, length - third)
    return [part for part in (third, *[1] * singles, length - third - singles) if part > 0]


def check_flow(case: Case) -> Result:
    """The other parts of a flow pass: penalties are added once, and no state appears.

    They depend on the tokens and the state alone, and the same segment costs the same again.
    """
    mixer = case.mixer().train()
    if not isinstance(mixer, Extends):
        return inapplicable("it has no `extend`")
    length = min(SHORT, case.max_length)
    pieces = list(torch.split(case.input(length), -(-length // 3), dim=1))
    seen = _flowing(case, mixer, pieces, None)
    if not isinstance(streaming_mixer(case), str):
        try:
            seen += _flowing(case, mixer, pieces, max(1, length // 6))  # less than a segment
        except ValueError:  # it says that its memory is too small for these
            seen += _flowing(case, mixer, pieces, length)
    if "keep" in traits_of(mixer).supports:
        x, keep = case.input(), case.holes()
        loud = torch.where(keep[..., None], x, case.noise(x))
        with fix_seed(19):
            wanted = mixer.extend(Flow(x), Layout(keep)).penalties
        with fix_seed(19):
            found = mixer.extend(Flow(loud), Layout(keep)).penalties
        for name in wanted:
            seen.append(
                case.agree(f"penalty {name}, outliers as padding", found[name], wanted[name])
            )
    return worst(seen).because("a penalty is stored, doubled, or counted again after a state")


def _flowing(case: Case, mixer: Extends, pieces: list[Tensor], memory: int | None) -> list[Result]:
    """Pass segments on with penalties that exist already; with `memory` None, without a state."""
    supports = traits_of(cast(nn.Module, mixer)).supports
    state: State = None if memory is None else initial_state(cast(nn.Module, mixer), case, memory)
    one, place, seen = torch.ones((), dtype=case.dtype, device=case.device), 0, []
    for number, x in enumerate(pieces):
        starts = state is not None and "start" in supports
        layout = Layout(start=torch.full((ROWS,), place, device=case.device) if starts else None)
        flow, alone = mixer.extend(Flow(x, state), layout), mixer.extend(Flow(x), Layout())
        names = {"of another", *flow.penalties}
        again = mixer.extend(Flow(x, state, penalties=dict.fromkeys(names, one)), layout)
        if set(again.penalties) != names or (state is None) != (flow.state is None):
            return [
                Result(False, "extend loses penalties, or adds a state").because(
                    "it creates a new Flow: return flow._replace(x=...)"
                )
            ]
        for name in sorted(names):
            own, other = (each.penalties.get(name, 0 * one) for each in (flow, alone))
            where = f"penalty {name} of segment {number + 1}"
            added = again.penalties[name] - 1
            seen.append(case.agree(f"{where}, added to an existing one", added, own))
            times = (own / other).item() if other.any() else 1.0
            if abs(times - round(times)) < 1e-9 and round(times) > 1:
                seen.append(Result(False, f"{where} is {times:.0f} times the one without a state"))
        state, place = flow.state, place + x.shape[1]
    return seen


def check_extend(case: Case) -> Result:
    """However a stream is cut and wherever it begins, `extend` gives the result of one pass."""
    mixer, longest = streaming_mixer(case), case.max_length
    if isinstance(mixer, str):
        return inapplicable(mixer)
    source, x = random.Random(case.seed), case.input(longest)
    cuts = [[longest], [1] * longest, *(cut_pieces(longest, source) for _ in range(PARTITIONS))]
    cuts += [[cut, 1, 1, longest - cut - 2] for cut in edges(longest) if cut < longest - 2]
    with torch.no_grad():
        wanted = call(mixer, x)
        for number, cut in enumerate(cuts):
            row = slice(number % ROWS, number % ROWS + 1) if number % 2 else slice(None)
            state = cast(Remembers, mixer).initial_state(len(x[row]), longest)
            y, _ = stream(mixer, list(torch.split(x[row], cut, dim=1)), state)
            found = case.agree(f"a stream in pieces of {_short(cut)}", y, wanted[row])
            if not found.passed:
                return found.because(
                    "the state is not handed over an edge of pieces that is no edge of chunks"
                )
    return found


def _short(pieces: list[int]) -> str:
    """Return lengths of pieces, of many the first and their number."""
    first = ", ".join(map(str, pieces[:6]))
    return first if len(pieces) <= 6 else f"{first}, … ({len(pieces)} pieces)"


def tensors(state: State) -> list[Tensor]:
    """Return every tensor of a state, in order."""
    if isinstance(state, tuple):
        return [tensor for part in state for tensor in tensors(part)]
    return [] if state is None else [state]


def shapes_of(state: State) -> list[tuple[tuple[int, ...], torch.dtype]]:
    """Return shape and dtype of every tensor of a state."""
    return [(tuple(tensor.shape), tensor.dtype) for tensor in tensors(state)]


def check_state(case: Case) -> Result:
    """A state starts as zeros, has the batch first, keeps its shape, and can be cut and joined."""
    mixer = streaming_mixer(case)
    if isinstance(mixer, str):
        return inapplicable(mixer)
    length = case.middling
    cut = length // 2 + 1
    early, late = torch.split(case.input(length), [cut, length - cut], dim=1)
    fresh = initial_state(mixer, case)
    if any(tensor.any() for tensor in tensors(fresh)):
        return Result(False, "the empty state is not zeros, and zeros must mean empty")
    before = shapes_of(fresh)
    if any(not shape or shape[0] != ROWS for shape, _ in before):
        return Result(False, f"the batch is not the first axis of every tensor: {before}")
    _, state = stream(mixer, [early], fresh)
    if any(tensor.any() for tensor in tensors(fresh)):
        return Result(False, "extend wrote into the given state: return a new one")
    wanted, after = stream(mixer, [late], state, first=cut)
    for shapes in (shapes_of(state), shapes_of(after)):
        if shapes != before:
            return Result(False, f"the state changed shape: {shapes}, wanted {before}")
    turned = join(*(select(state, slice(row, row + 1)) for row in reversed(range(ROWS))))
    y, _ = stream(mixer, [late.flip(0)], turned, first=cut)
    joined = case.agree("rows selected and joined in reverse", y.flip(0), wanted).because(
        "a row of the state depends on its place: an index, or an axis before the batch"
    )
    if length > cut + 1:
        _, after = stream(mixer, [late[:, :-1], late[:, -1:]], state, first=cut)
    return worst([joined, _compare_storage(after)])


def _compare_storage(state: State) -> Result:
    """Compare the size of each tensor of a state with its memory: a view keeps a larger tensor.

    The last piece was one token, because a view of the states of all tokens is usual, and is freed
    by the next piece.
    """
    for tensor in tensors(state):
        size, stored = tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes()
        if stored > 3 * size:
            what = f"after a single token, a tensor of {size} bytes in the state keeps {stored}"
            return Result(False, what).because("it is a view: clone() the part that is needed")
    return Result(True, "every tensor of the state has a memory of its size")


def check_forgetting(case: Case) -> Result:
    """A state that grows with its memory makes `memory` tokens visible, the newest included.

    With `by_segment`, and in training, all of a segment may see those before it.
    """
    pieces = [REMEMBERED, 1, 1, REMEMBERED + 2, 3, 1]
    mixer = streaming_mixer(case, max_length=max(case.max_length, sum(pieces)))
    if isinstance(mixer, str):
        return inapplicable(mixer)
    if (reason := _never_full(case, mixer, pieces)) is not None:
        return inapplicable(f"{reason}")
    traits, x = traits_of(mixer), case.input(sum(pieces))
    place, seen = torch.arange(sum(pieces), device=case.device)[:, None], []

    def streamed(*several: Tensor) -> Tensor:
        x = torch.cat(several)
        state = cast(Remembers, mixer).initial_state(len(x), REMEMBERED)
        return stream(mixer, list(torch.split(x, pieces, dim=1)), state)[0]

    for training in (False,) if traits.training_noise else (True, False):
        mixer.train(training)
        # How many tokens before a segment its first token sees.
        reach = REMEMBERED if training or traits.by_segment else REMEMBERED - 1
        firsts = [sum(pieces[:number]) for number in range(2, len(pieces))]
        louds = [torch.where(place < first - reach, case.noise(x), x) for first in firsts]
        plain, *changed = torch.split(streamed(x, *louds), ROWS)
        for y, first, size in zip(changed, firsts, pieces[2:], strict=True):
            own = slice(first, first + size)
            what = f"outliers {reach + 1} tokens and more before a segment of {size}"
            seen.append(case.agree(what, y[:, own], plain[:, own]))
    found = worst(seen)
    if traits.summarises:
        what = "change values" if not found.passed else "change nothing: summarises is True"
        return Result(not found.passed, f"tokens from before its memory {what}")
    if not found.passed:
        return found.because("more than `memory` tokens stay visible: see Traits.summarises")
    loud = torch.where(place == len(place) - 1 - reach, case.noise(x), x)
    in_pass, in_stream = (
        not torch.equal(run(loud)[:, -1], run(x)[:, -1]) for run in (partial(call, mixer), streamed)
    )
    if in_pass and not in_stream:
        return Result(False, f"in a memory of {REMEMBERED} tokens, the oldest has no effect")
    return found


def _never_full(case: Case, mixer: nn.Module, pieces: list[int]) -> str | None:
    """Return a reason why no stream outgrows the memory, judged by the state's size, or None."""
    sizes = [
        shapes_of(initial_state(mixer, case, memory)) for memory in (REMEMBERED, 2 * REMEMBERED)
    ]
    longer = streaming_mixer(case, max_length=2 * max(case.max_length, sum(pieces)))
    if not isinstance(longer, str):
        sizes.append(shapes_of(initial_state(longer, case, REMEMBERED)))
    if all(size == sizes[0] for size in sizes):
        return "its state has one size, whatever it remembers"
    try:
        tokens = torch.split(case.input(sum(pieces)), pieces, dim=1)
        stream(mixer, [*tokens], initial_state(mixer, case, REMEMBERED))
    except ValueError as refusal:
        return f"it refuses a longer memory: {refusal}"
    return None
