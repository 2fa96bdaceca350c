"""Context parallelism: ranks that hold parts of every sequence, and what they exchange.

Rank r of a context group holds the r-th contiguous part of each sequence; parts may differ in
length. A mixer finds the group in `Layout.context` and asks it for what lies on other ranks. Every
operation here is called by all ranks of the group in the same order, and its gradient is exchanged
the same way in backward: the loss is the sum of what the ranks compute, gradients of parameters are
to be summed over ranks.

    halo        neighbouring tokens, of as many ranks as the reach takes
    collected   a small tensor of every rank, one behind the other
    joined      all parts, without gradient: for answers, not for tokens' vectors
    total       the sum of all ranks' tensors           largest    their maximum, without gradient
    passed_on   a state along time, from rank to rank, one after the other
    shifting    what the rank before holds: one step of a ring

Nothing but `collected` and `passed_on` waits for more than its neighbours, and what is sent is
counted in `lra.models.transport.SENT`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from lra.models.transport import SENT, Addressed, Request, Transport


class Neighbours(NamedTuple):
    """Tokens around a part: what `Context.halo` found."""

    before: int
    """Tokens of earlier ranks that now stand first; fewer than asked for at the beginning."""
    behind: int
    """Tokens of later ranks that now stand last."""


@dataclass(frozen=True, eq=False)
class Context:
    """The ranks that share each sequence, and the lengths of their parts in this pass."""

    lengths: tuple[int, ...]
    """Tokens of each rank's part."""
    transport: Transport

    def __post_init__(self) -> None:
        if len(self.lengths) != self.transport.ranks:
            raise ValueError(
                f"a context has a length for each of {self.transport.ranks} ranks: got "
                f"{[*self.lengths]}"
            )
        if min(self.lengths) < 1:
            raise ValueError(
                f"each of {self.ranks} ranks needs a part of every sequence: got lengths "
                f"{[*self.lengths]}; use fewer ranks (hardware.context), or longer sequences"
            )

    @classmethod
    def of(cls, transport: Transport, length: int) -> "Context":
        """Return the context in which sequences have `length` tokens in all."""
        return cls(shares(length, transport.ranks), transport)

    @property
    def rank(self) -> int:
        """This process among those that share each sequence."""
        return self.transport.rank

    @property
    def ranks(self) -> int:
        """How many share each sequence."""
        return len(self.lengths)

    @property
    def length(self) -> int:
        """Tokens of this rank's part."""
        return self.lengths[self.rank]

    @property
    def offset(self) -> int:
        """Tokens before this rank's part."""
        return self.offset_of(self.rank)

    @property
    def whole(self) -> int:
        """Tokens of a sequence."""
        return sum(self.lengths)

    def offset_of(self, rank: int) -> int:
        """Return the number of tokens before a rank's part."""
        return sum(self.lengths[:rank])

    def part(self, x: Tensor, axis: int = 1) -> Tensor:
        """Return this rank's part of what has the whole length."""
        if x.shape[axis] != self.whole:
            raise ValueError(
                f"a part is cut from the whole length of {self.whole}: got {x.shape[axis]}"
            )
        return x.narrow(axis, self.offset, self.length)

    def longer_first(self, tokens: int = 1) -> "Context":
        """Return the context in which so many tokens more stand before all others."""
        return Context((self.lengths[0] + tokens, *self.lengths[1:]), self.transport)

    # What ranks exchange. All call these in the same order.

    def halo(self, x: Tensor, left: int, right: int, axis: int = 2) -> tuple[Tensor, Neighbours]:
        """Return a part between its neighbouring tokens, as many as there are up to the reaches.

        Args:
            x: Of this rank's part along `axis`.
            left: Tokens wanted before it.
            right: Tokens wanted behind it.
            axis: The length.
        """
        wanted = self.around(left, right)
        if x.is_floating_point():
            widened = cast(Tensor, _Halo.apply(x, self, left, right, axis))  # type: ignore[no-untyped-call]
        else:
            widened = self._gather_around(x, left, right, axis)
        return widened, wanted

    def around(self, left: int, right: int) -> Neighbours:
        """Return how many tokens `halo` finds."""
        behind = self.whole - self.offset - self.length
        return Neighbours(min(left, self.offset), min(right, behind))

    def kept_around(self, keep: Tensor | None, left: int, right: int) -> Tensor | None:
        """Return the mask of padding [b l] with that of the neighbouring tokens."""
        return None if keep is None else self.halo(keep, left, right, 1)[0]

    def collected(self, x: Tensor) -> Tensor:
        """Return the tensors of all ranks, which have one shape, [ranks *x]."""
        if x.is_floating_point():
            return cast(Tensor, _Collected.apply(x, self))  # type: ignore[no-untyped-call]
        return self._all_gather(x)

    def joined(self, x: Tensor, axis: int = 1) -> Tensor:
        """Return the parts of all ranks one behind the other, without a gradient."""
        x = x.detach().movedim(axis, 0)
        room = x.new_zeros((max(self.lengths), *x.shape[1:]))
        room[: len(x)] = x
        parts = zip(self._all_gather(room), self.lengths, strict=True)
        return torch.cat([part[:length] for part, length in parts]).movedim(0, axis)

    def total(self, x: Tensor) -> Tensor:
        """Return the sum of the tensors of all ranks."""
        return cast(Tensor, _Total.apply(x, self))  # type: ignore[no-untyped-call]

    def largest(self, x: Tensor) -> Tensor:
        """Return the elementwise maximum over ranks, without a gradient."""
        return self._reduced(x, largest=True)

    def received(
        self, like: Sequence[Tensor], tied: Sequence[Tensor], *, backwards: bool = False
    ) -> tuple[Tensor, ...]:
        """Wait for the state that the rank before hands on; the first one gets `like`.

        Args:
            like: The state of no tokens.
            tied: Input and parameters of what reads on: where any of these has a gradient, that
                of the state goes back to the rank that it came from.
            backwards: From the last rank to the first.
        """
        state = _Received.apply(self, backwards, len(like), *like, *tied)  # type: ignore[no-untyped-call]
        return cast(tuple[Tensor, ...], state)

    def handed_on(self, y: Tensor, state: Sequence[Tensor], *, backwards: bool = False) -> Tensor:
        """Send the state behind this part to the next rank; return `y`, to be used from here on."""
        return cast(
            Tensor,
            _HandedOn.apply(self, backwards, y, *state),  # type: ignore[no-untyped-call]
        )

    def shifting(
        self, parts: Sequence[Tensor], axes: Sequence[int], source: int
    ) -> tuple[list[Tensor], list[Request]]:
        """Begin to send tensors of `source` to the next rank, and to receive those before.

        Args:
            parts: What this rank holds of the part of rank `source`.
            axes: The length of each; -1: it has none.
            source: Whose part it is.

        Returns:
            What is received, complete once each of the requests has been waited for.
        """
        before = (source - 1) % self.ranks
        buffers = []
        for part, axis in zip(parts, axes, strict=True):
            shape = list(part.shape)
            if axis >= 0:
                shape[axis] = self.lengths[before]
            buffers.append(part.new_empty(shape))
        after, behind = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        sends = [(after, part) for part in parts]
        received = [(behind, buffer) for buffer in buffers]
        return buffers, [*self._start(sends, received)]

    def _start(self, sends: Addressed, receives: Addressed) -> Sequence[Request]:
        """Begin to send to ranks, and to receive into contiguous buffers."""
        sends = [(rank, x.detach().contiguous()) for rank, x in sends if x.numel()]
        for _, x in sends:
            SENT.add(x)
        return self.transport.start(sends, [(rank, x) for rank, x in receives if x.numel()])

    def _exchange(self, sends: Addressed, receives: Addressed) -> None:
        for request in self._start(sends, receives):
            request.wait()

    def _all_gather(self, x: Tensor) -> Tensor:
        SENT.add(x, self.ranks - 1)
        return self.transport.gather(x.detach().contiguous())

    def _reduced(self, x: Tensor, *, largest: bool = False) -> Tensor:
        x = x.detach().clone(memory_format=torch.contiguous_format)
        SENT.add(x, 2 * (self.ranks - 1) / self.ranks)
        self.transport.reduce(x, largest=largest)
        return x

    def _borders(self, rank: int, left: int, right: int) -> Iterator[tuple[int, int, int]]:
        """Yield what a rank needs around its part: owner, and positions from and to."""
        begin = self.offset_of(rank)
        end = begin + self.lengths[rank]
        for low, high in ((max(0, begin - left), begin), (end, min(end + right, self.whole))):
            for owner in range(self.ranks):
                first = max(low, self.offset_of(owner))
                last = min(high, self.offset_of(owner) + self.lengths[owner])
                if first < last:
                    yield owner, first, last

    def _gather_around(self, x: Tensor, left: int, right: int, axis: int) -> Tensor:
        shape = list(x.shape)
        pieces = []
        for owner, first, last in self._borders(self.rank, left, right):
            shape[axis] = last - first
            pieces.append((owner, first, x.new_empty(shape)))
        sends = [
            (rank, x.narrow(axis, first - self.offset, last - first))
            for rank in range(self.ranks)
            for owner, first, last in self._borders(rank, left, right)
            if owner == self.rank
        ]
        self._exchange(sends, [(owner, piece) for owner, _, piece in pieces])
        before = [piece for _, first, piece in pieces if first < self.offset]
        behind = [piece for _, first, piece in pieces if first >= self.offset]
        return torch.cat([*before, x, *behind], dim=axis)

    def _give_back(self, gradient: Tensor, left: int, right: int, axis: int) -> Tensor:
        """Return the gradient of a part, with what other ranks' halos say of it."""
        begin = self.offset - self.around(left, right).before
        total = gradient.narrow(axis, self.offset - begin, self.length).clone()
        sends = [
            (owner, gradient.narrow(axis, first - begin, last - first))
            for owner, first, last in self._borders(self.rank, left, right)
        ]
        pieces = []
        shape = list(total.shape)
        for rank in range(self.ranks):
            for owner, first, last in self._borders(rank, left, right):
                if owner == self.rank:
                    shape[axis] = last - first
                    pieces.append((rank, first - self.offset, total.new_empty(shape)))
        self._exchange(sends, [(rank, piece) for rank, _, piece in pieces])
        for _, first, piece in pieces:
            total.narrow(axis, first, piece.shape[axis]).add_(piece)
        return total


def shares(length: int, ranks: int) -> tuple[int, ...]:
    """Cut a length into contiguous parts, the first ones a token longer where it is no multiple."""
    least, more = divmod(length, ranks)
    return tuple(least + (rank < more) for rank in range(ranks))


class _Halo(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0917  autograd functions have no keywords
        ctx: Any, x: Tensor, context: Context, left: int, right: int, axis: int
    ) -> Tensor:
        ctx.how = context, left, right, axis
        return context._gather_around(x, left, right, axis)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        context, left, right, axis = ctx.how
        return context._give_back(gradient, left, right, axis), None, None, None, None


class _Collected(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, context: Context) -> Tensor:
        ctx.context = context
        return context._all_gather(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        context: Context = ctx.context
        return context._reduced(gradient)[context.rank], None


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, context: Context) -> Tensor:
        ctx.context = context
        return context._reduced(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.context._reduced(gradient), None


def _neighbours(context: Context, backwards: bool) -> tuple[int | None, int | None]:
    """Return the rank that hands on to this one, and the one that it hands on to."""
    step = -1 if backwards else 1
    before, after = context.rank - step, context.rank + step
    inside = range(context.ranks)
    return before if before in inside else None, after if after in inside else None


class _Received(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, context: Context, backwards: bool, number: int, *given: Tensor
    ) -> tuple[Tensor, ...]:
        ctx.how, like = (context, backwards, len(given)), given[:number]
        before, _ = _neighbours(context, backwards)
        state = tuple(part.detach().clone(memory_format=torch.contiguous_format) for part in like)
        if before is not None:
            context._exchange([], [(before, part) for part in state])
        return state

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        context, backwards, number = ctx.how
        before, _ = _neighbours(context, backwards)
        if before is not None:
            context._exchange([(before, part) for part in gradients], [])
        return None, None, None, *(None for _ in range(number))


class _HandedOn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, context: Context, backwards: bool, y: Tensor, *state: Tensor) -> Tensor:
        ctx.how, ctx.like = (context, backwards), [(part.shape, part.dtype) for part in state]
        _, after = _neighbours(context, backwards)
        if after is not None:
            context._exchange([(after, part) for part in state], [])
        return y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        context, backwards = ctx.how
        _, after = _neighbours(context, backwards)
        parts = [gradient.new_zeros(shape, dtype=dtype) for shape, dtype in ctx.like]
        if after is not None:
            context._exchange([], [(after, part) for part in parts])
        return None, None, gradient, *parts
