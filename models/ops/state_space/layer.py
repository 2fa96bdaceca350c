"""A layer of state spaces as a mixer, with a skip connection D and an output map.

    y = states(u) + D u,   out = mixed(y)

If all channels share the states,

    x_t = a x_{t-1} + e(u_t),   states(u)_t = Re(C x_t)

and in the bidirectional form, a second C reads the same recurrence from the last token to this one.
"""

from collections.abc import Callable, Sequence
from typing import ClassVar, cast

import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.linear_map import projection
from lra.models.mixer import (
    Family,
    Flow,
    Growth,
    Layout,
    Need,
    Share,
    Site,
    State,
    Traits,
    blanked,
    options,
)
from lra.models.ops.numerics import full_precision, sum_dtype
from lra.models.ops.recurrent.layer import BOTH_WAYS, directions, reading_order


@options
class StateSpace(Family):
    """Base class of state spaces; a family defines `read` and `mixed`.

    The family's `build` makes the parameters of the states, then calls `complete`.
    """

    bidirectional: bool = True
    dropout: Share = 0.0
    """Dropout rate before the output map."""
    tied_dropout = False
    needs: ClassVar[Sequence[Need]] = (BOTH_WAYS,)

    def complete(
        self, site: Site, *, state: tuple[int, ...], gates: int, operations: Growth
    ) -> None:
        """Add the skip connection D, the output map and the layer's traits.

        Args:
            site: The options of the model and the layer.
            state: Shape of the complex state of one row.
            gates: Width of the output map, as a multiple of the model's width; 0: no output map.
            operations: How the number of operations grows with the length.
        """
        self.remembered = state
        self.skip = nn.Parameter(torch.empty(site.width))
        nn.init.normal_(self.skip)
        if gates:
            self.out_proj = projection(site.width, gates * site.width, bias=True)
        self.traits = Traits(
            supports=frozenset({"keep", "start"}),  # kernels read across documents
            causal=directions(site, bidirectional=self.bidirectional) == 1,
            operations=operations,
            training_noise=self.dropout > 0,
        )

    def read(
        self,
        u: Float[Tensor, "b l d"],
        before: Complex[Tensor, "b *n"] | None,
        keep: Bool[Tensor, "b l"] | None,
    ) -> tuple[list[Float[Tensor, "b l d"]], Complex[Tensor, "b *n"] | None]:
        """Return the outputs of each direction, and the states after the last token.

        Args:
            u: Inputs, 0 at padding.
            before: States before the first token; None: there are none, and none are returned.
            keep: True for real tokens; None: all are real.
        """
        raise NotImplementedError

    def mixed(self, y: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        """Return the output map of the family, applied to the outputs `y`."""
        raise NotImplementedError

    def dropped(self, y: Float[Tensor, "b l d"]) -> Float[Tensor, "b l d"]:
        """Return `y` after dropout in training; `tied_dropout`: of channels at all tokens."""
        if self.tied_dropout:
            return F.dropout1d(y.mT, self.dropout, self.training).mT
        return F.dropout(y, self.dropout, self.training)

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Return mixed(states(u) + D u) for `flow.x`, and the state after it, if one is given."""
        x, state, before = blanked(flow.x, layout, self.traits), flow.state, None
        u = x.to(sum_dtype(x))
        if state is not None:
            before = torch.view_as_complex(cast(Tensor, state).to(u.dtype))
        with full_precision(x):
            parts, after = self.read(u, before, layout.keep)
            y = sum(parts, start=self.skip.to(u.dtype) * u)
        if after is not None:
            state = torch.view_as_real(after).to(cast(Tensor, state).dtype)
        y = blanked(y.to(x.dtype), layout, self.traits)
        return flow._replace(x=self.mixed(y), state=state)

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return zeros for real and imaginary parts of each state, for any memory."""
        del memory
        like = self.skip
        return like.new_zeros(batch_size, *self.remembered, 2, dtype=sum_dtype(like))


def read_shared(
    recurrence: Callable[..., Complex[Tensor, "b l n"]],
    readout: Float[Tensor, "s 2 d n"],
    u: Float[Tensor, "b l d"],
    before: Complex[Tensor, "b n"] | None,
    keep: Bool[Tensor, "b l"] | None,
) -> tuple[list[Float[Tensor, "b l d"]], Complex[Tensor, "b n"] | None]:
    """Return Re(C x_t) for each of s directions, and the states after the last token.

    Args:
        recurrence: Returns the states x_t from inputs and from the states before them.
        readout: Real and imaginary part of C for each direction.
        u: Inputs, 0 at padding.
        before: States before the first token; None: there are none, and none are returned.
        keep: True for real tokens; None: all are real.
    """
    parts, after = [], None
    for side, (real, imaginary) in enumerate(readout):
        # Padding is read after the real tokens, so that it does not add to their distances.
        order = reading_order(keep, backwards=bool(side))
        states = recurrence(order.reorder(u), before)
        read = F.linear(states.real, real) - F.linear(states.imag, imaginary)
        parts.append(order.back(read))
        if before is not None:
            after = states[:, -1].clone()
    return parts, after
