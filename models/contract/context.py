"""The contract kit's check of context parallelism, on ranks that are threads of this process.

They exchange tensors through queues, so that a family is tried as it is among processes, without
any: the same operations in the same order, forward and backward. A rank that does not answer is a
finding, not a wait without end.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, Queue
from typing import NamedTuple, TypeAlias, TypeVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.context import Context, shares
from lra.models.contract.case import (
    AGREEMENT,
    ROWS,
    SHORT,
    Case,
    Result,
    inapplicable,
    traits_of,
    worst,
)
from lra.models.contract.facts import Facts, few_layouts, layout_of, layouts
from lra.models.contract.layout import NOT_CLAIMED
from lra.models.mixer import Extends, Flow, Layout, Positions, Traits, Unsupported
from lra.models.transport import Addressed, Request

T = TypeVar("T")

RANKS = 3
"""The most that are tried: a middle one, and parts that differ by a token."""
PATIENCE_S = 60.0
"""After this long without an answer of another rank, something is wrong."""


Box: TypeAlias = "Queue[Tensor | None]"
"""What one rank sends to another; None behind the last, since the sender has ended."""


class _Ready(NamedTuple):
    """A tensor that another thread will put into a queue."""

    box: Box
    into: Tensor

    def wait(self) -> None:
        """Return when it has come; queue.Empty where it never will."""
        sent = self.box.get(timeout=PATIENCE_S)
        if sent is None:
            raise Empty
        self.into.copy_(sent)


@dataclass
class Threads:
    """One rank of a group of threads."""

    rank: int
    boxes: list[list[Box]] = field(repr=False)
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
    boxes: list[list[Box]] = [[Queue() for _ in range(ranks)] for _ in range(ranks)]

    def to_the_end(rank: int) -> T:
        try:
            return run(Threads(rank, boxes))
        finally:
            for box in boxes[rank]:
                box.put(None)

    with ThreadPoolExecutor(ranks) as pool:
        started = [pool.submit(to_the_end, rank) for rank in range(ranks)]
        errors = [error for future in started if (error := future.exception()) is not None]
    # One rank's own error makes the others wait in vain.
    for error in sorted(errors, key=lambda each: isinstance(each, Empty)):
        raise error
    return [future.result() for future in started]


class Derived(NamedTuple):
    """What a pass gives."""

    y: Float[Tensor, "b l d"]
    by_input: Float[Tensor, "b l d"]
    by_parameters: list[Tensor]


class Try(NamedTuple):
    """One pass that ranks share."""

    length: int
    ranks: int
    facts: Facts
    training: bool = True
    """As a stack trains, by `extend` where it is offered; else `forward`, in evaluation."""
    gradients: bool = True
    """Whether those are compared, too."""
    single: bool = False
    """In float32."""


def derived(
    mixer: nn.Module,
    x: Float[Tensor, "b l d"],
    given: Float[Tensor, "b l d"],
    layout: Layout,
    *,
    gradients: bool = True,
) -> Derived:
    """Return the output and, for the gradient `given`, those of input and parameters."""
    if not gradients:
        with torch.no_grad():
            return Derived(cast(Tensor, mixer(x, layout)), torch.zeros_like(x), [])
    x = x.detach().clone().requires_grad_()
    learned = [each for each in mixer.parameters() if each.requires_grad]
    extends = mixer.training and isinstance(mixer, Extends)
    y = cast(Extends, mixer).extend(Flow(x), layout).x if extends else mixer(x, layout)
    found = torch.autograd.grad(y, [x, *learned], given, materialize_grads=True, allow_unused=True)
    return Derived(y.detach(), found[0], [*found[1:]])


def on_ranks(
    mixer: nn.Module,
    x: Float[Tensor, "b l d"],
    given: Float[Tensor, "b l d"],
    facts: Facts,
    lengths: tuple[int, ...],
    *,
    gradients: bool = True,
) -> Derived:
    """Return the same, of ranks that each hold a part of `lengths` tokens, put together."""

    def run(transport: Threads) -> Derived:
        context = Context(lengths, transport)
        parts = {n: context.part(fact) if fact.dim() == 2 else fact for n, fact in facts.items()}
        layout = layout_of(parts)._replace(context=context)
        x_part, given_part = context.part(x), context.part(given)
        return derived(mixer, x_part, given_part, layout, gradients=gradients)

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
        return inapplicable(f"max_length is {case.max_length}")
    return worst(_shared(case, traits)).because(
        "what other ranks hold is left out, or counted twice"
    )


def _shared(case: Case, traits: Traits) -> Iterator[Result]:
    """Yield what each comparison of ranks with one process says."""
    for positions in (Positions.none, *case.inside(traits)):
        mixer = case.mixer(positions=positions)
        if "context" not in traits_of(mixer).supports:
            continue
        short = min(SHORT, case.max_length)
        *_, together = layouts(case, traits, short).values()
        tries = [Try(short, RANKS, together)]
        if positions == Positions.none:
            tries = _tries(case, traits)
        for each in tries:
            try:
                yield from _compared(case, mixer, each, positions)
            except Unsupported as refusal:
                yield Result(True, f"refused: {refusal}")


def _tries(case: Case, traits: Traits) -> list[Try]:
    """Return what is tried where no position is inside the mixer."""
    length, short = max(RANKS, case.max_length // 2), min(SHORT, case.max_length)
    tiny = min(RANKS + 1, case.max_length)  # parts shorter than most reaches
    tries = [Try(length, 2, {}, training=False)]
    few = [*few_layouts(case, traits, short).values()]
    tries += [Try(short, RANKS, facts, gradients=facts is few[-1]) for facts in few]
    tries.append(Try(short, 2, few[-1], gradients=False, single=True))
    *_, together = layouts(case, traits, tiny).values()
    tries += [Try(tiny, RANKS, {}, gradients=False), Try(tiny, RANKS, together)]
    if "keep" in traits.supports:
        keep = torch.ones(ROWS, short, dtype=torch.bool, device=case.device)
        first, *_, last = shares(short, RANKS)
        keep[:, short - last :] = keep[0, :first] = False
        tries.append(Try(short, RANKS, {"keep": keep}))
    return tries


def _compared(case: Case, mixer: nn.Module, each: Try, positions: Positions) -> list[Result]:
    """Compare one pass of ranks with that of one process."""
    mixer = mixer.to(torch.float32 if each.single else case.dtype).train(each.training)
    if each.training and traits_of(mixer).training_noise:
        mixer.eval()
    dtype = torch.float32 if each.single else case.dtype
    x, given = (case.input(each.length, salt=salt).to(dtype) for salt in (0, 7))
    keep = each.facts.get("keep")
    asked = given if keep is None else given * keep[..., None]
    lengths = shares(each.length, each.ranks)
    facts = " and ".join(each.facts) or "no mask"
    label = f"parts of {[*lengths]}, {facts}, positions={positions.value}"
    label += ", in training" if mixer.training else ""
    label += ", in float32" if each.single else ""
    whole = derived(mixer, x, asked, layout_of(each.facts), gradients=each.gradients)
    shared = on_ranks(mixer, x, asked, each.facts, lengths, gradients=each.gradients)
    named = [name for name, each in mixer.named_parameters() if each.requires_grad]
    pairs = [("output", shared.y, whole.y), ("gradient of x", shared.by_input, whole.by_input)]
    of_parameters = zip(named, shared.by_parameters, whole.by_parameters, strict=each.gradients)
    pairs += [(f"gradient of {name}", one, other) for name, one, other in of_parameters]
    real = 1.0 if keep is None else keep[..., None]
    return [
        case.agree(
            f"{what}, {label}",
            *((one * real, other * real) if one.shape == x.shape else (one, other)),
            AGREEMENT[dtype],
        )
        for what, one, other in pairs
    ]
