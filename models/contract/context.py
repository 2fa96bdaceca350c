"""The contract kit's check of context parallelism, on ranks that are threads of this process.

They exchange tensors through queues, so that a family is tried as it is among processes, without
any: the same operations in the same order, forward and backward. A rank that does not answer is a
finding, not a wait without end.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Queue
from typing import Any, NamedTuple, TypeVar, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from models.context import Context, shares
from models.contract.case import Case, Result, traits_of, worst
from models.contract.layout import NOT_CLAIMED
from models.mixer import Layout, Positions, Traits, Unsupported
from models.transport import Addressed, Request

T = TypeVar("T")

RANKS = 3
"""The most that are tried: a middle one, and parts that differ by a token."""
PATIENCE_S = 60.0
"""After this long without an answer of another rank, something is wrong."""


class _Ready(NamedTuple):
    """A tensor that another thread will put into a queue."""

    box: "Queue[Tensor]"
    into: Tensor

    def wait(self) -> None:
        """Return when it has come."""
        self.into.copy_(self.box.get(timeout=PATIENCE_S))


@dataclass
class Threads:
    """One rank of a group of threads."""

    rank: int
    boxes: list[list["Queue[Tensor]"]] = field(repr=False)
    """From each rank to each."""

    @property
    def ranks(self) -> int:
        """How many there are."""
        return len(self.boxes)

    def start(self, sends: Addressed, receives: Addressed) -> list[Request]:
        """Put copies into queues, and say where others are to come from."""
        for rank, x in sends:
            self.boxes[self.rank][rank].put(x.clone())
        return [_Ready(self.boxes[rank][self.rank], x) for rank, x in receives]

    def gather(self, x: Tensor) -> Tensor:
        """Send to all, and wait for all."""
        whole = x.new_empty((self.ranks, *x.shape))
        everyone = range(self.ranks)
        requests = self.start([(rank, x) for rank in everyone], [(i, whole[i]) for i in everyone])
        for request in requests:
            request.wait()
        return whole

    def reduce(self, x: Tensor, *, largest: bool = False) -> None:
        """Gather, and reduce in the same order everywhere."""
        whole = self.gather(x)
        x.copy_(whole.amax(0) if largest else whole.sum(0))


def among_threads(ranks: int, run: Callable[[Threads], T]) -> list[T]:
    """Return what `run` gives on each rank of a group of threads; an error of any is raised."""
    boxes: list[list[Queue[Tensor]]] = [[Queue() for _ in range(ranks)] for _ in range(ranks)]
    with ThreadPoolExecutor(ranks) as pool:
        started = [pool.submit(run, Threads(rank, boxes)) for rank in range(ranks)]
        errors = [error for future in started if (error := future.exception()) is not None]
    # One rank's own error makes the others wait in vain.
    for error in sorted(errors, key=lambda each: type(each).__name__ == "Empty"):
        raise error
    return [future.result() for future in started]


class Derived(NamedTuple):
    """What a pass gives."""

    y: Float[Tensor, "b l d"]
    by_input: Float[Tensor, "b l d"]
    by_parameters: list[Tensor]


def derived(
    mixer: nn.Module, x: Float[Tensor, "b l d"], given: Float[Tensor, "b l d"], layout: Layout
) -> Derived:
    """Return the output and, for the gradient `given`, those of input and parameters."""
    x = x.detach().clone().requires_grad_()
    learned = [each for each in mixer.parameters() if each.requires_grad]
    y = cast(Tensor, mixer(x, layout))
    found = torch.autograd.grad(y, [x, *learned], given, allow_unused=True)
    parts = [
        torch.zeros_like(a) if b is None else b for a, b in zip([x, *learned], found, strict=True)
    ]
    return Derived(y.detach(), parts[0], parts[1:])


def on_ranks(
    mixer: nn.Module,
    x: Float[Tensor, "b l d"],
    given: Float[Tensor, "b l d"],
    keep: Bool[Tensor, "b l"] | None,
    lengths: tuple[int, ...],
) -> Derived:
    """Return the same, of ranks that each hold a part of `lengths` tokens, put together."""

    def run(transport: Threads) -> Derived:
        context = Context(lengths, transport)
        mask = None if keep is None else context.part(keep)
        layout = Layout(keep=mask, context=context)
        return derived(mixer, context.part(x), context.part(given), layout)

    found = among_threads(len(lengths), run)
    return Derived(
        torch.cat([each.y for each in found], 1),
        torch.cat([each.by_input for each in found], 1),
        [
            torch.stack(parts).sum(0)
            for parts in zip(*(each.by_parameters for each in found), strict=True)
        ],
    )


def check_context(case: Case) -> Result:
    """Ranks that share sequences compute what one does: outputs and all gradients."""
    traits = traits_of(case.build())
    if "context" not in traits.supports:
        return NOT_CLAIMED
    if case.max_length < RANKS:
        return Result(True, f"not applicable: max_length is {case.max_length}")
    seen = []
    for positions in (Positions.none, *case.inside(traits)):
        mixer = case.mixer(positions=positions)
        if "context" in traits_of(mixer).supports:
            seen += _compared(case, mixer, traits, positions)
    return worst(seen)


def _compared(case: Case, mixer: nn.Module, traits: Traits, positions: Positions) -> list[Result]:
    length = max(RANKS, case.max_length // 2)
    cuts = [shares(length, 2), shares(length, RANKS)]
    x, given = case.input(length), case.input(length, salt=7)
    masks: dict[str, Any] = {"no mask": None}
    if "keep" in traits.supports:
        masks["padding"] = case.holes()[:, :length]
    seen = []
    for name, keep in masks.items():
        asked = given if keep is None else given * keep[..., None]
        whole = derived(mixer, x, asked, Layout(keep=keep))
        for lengths in cuts:
            label = f"parts of {[*lengths]}, {name}, positions={positions.value}"
            try:
                shared = on_ranks(mixer, x, asked, keep, lengths)
            except Unsupported as refusal:
                seen.append(Result(True, f"refused: {refusal}"))
                continue
            pairs = [
                ("output", shared.y, whole.y),
                ("gradient of x", shared.by_input, whole.by_input),
            ]
            named = [name for name, each in mixer.named_parameters() if each.requires_grad]
            pairs += [
                (f"gradient of {parameter}", one, other)
                for parameter, one, other in zip(
                    named, shared.by_parameters, whole.by_parameters, strict=True
                )
            ]
            seen += [
                _agreeing(case, f"{what}, {label}", one, other, keep) for what, one, other in pairs
            ]
    return seen


def _agreeing(
    case: Case, what: str, seen: Tensor, wanted: Tensor, keep: Bool[Tensor, "b l"] | None
) -> Result:
    if keep is not None and seen.shape[:2] == keep.shape:
        seen, wanted = (each * keep[..., None] for each in (seen, wanted))
    return case.agree(what, seen, wanted).because(
        "what other ranks hold is left out, or counted twice"
    )
