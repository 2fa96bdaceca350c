"""A layer around states that decay, as a mixer: what reads them from each end, and their borders.

    y = merged(o),   o = what tokens read of the states       causal, or bidirectional=False
                     the sum of that from both ends            else

Two-sided, the same weights read a row once more from its end; a token reads itself twice.

A family says what reads (`read`), what a row is remembered by (`empty`), what follows (`merged`).
Rows are read document after document and then padding, see `reading`, so that nothing stands in a
gap. Ranks that share rows hand on what a row is remembered by.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from models.mixer import Family, Flow, Layout, Site, State, Traits, blanked
from models.ops.convolution.short import short_convolution
from models.ops.recurrent.layer import directions, reading

Parts = tuple[Tensor, ...]
"""What a row is remembered by: tensors whose zeros mean empty, batch first."""


class Borders(NamedTuple):
    """What tokens of a row, as they are read, do not see of those before them."""

    keep: Bool[Tensor, "b l"] | None
    """False: padding, which stands last. None: all are real."""
    document: Int[Tensor, "b l"] | None

    def after_borders(
        self, g: Float[Tensor, "b h l"] | Float[Tensor, "b h l k"]
    ) -> Float[Tensor, "b h l"] | Float[Tensor, "b h l k"]:
        """Return logarithms of decays that leave nothing at the first token of a document."""
        if self.document is None:
            return g
        begins = F.pad(self.document[:, 1:] != self.document[:, :-1], (1, 0))[:, None]
        return g.masked_fill(begins if g.ndim == 3 else begins[..., None], -torch.inf)


class GatedMixer(Family):
    """The frame: a family's constructor makes its projections, then calls `complete`."""

    def complete(self, site: Site, *, bidirectional: bool) -> None:
        """Say what the layer guarantees."""
        self.traits = Traits(
            supports=frozenset({"keep", "start", "document", "context"}),
            causal=directions(site, bidirectional=bidirectional) == 1,
            options=frozenset({"head_width", "qkv_bias", "output_bias"}),
        )

    def read(
        self, x: Float[Tensor, "b l d"], before: Parts, borders: Borders
    ) -> tuple[Float[Tensor, "b l e"], Parts]:
        """Return what tokens read, and what is remembered behind the last real one."""
        raise NotImplementedError

    def empty(self, batch_size: int) -> Parts:
        """Return what nothing is remembered by."""
        raise NotImplementedError

    def merged(
        self, o: Float[Tensor, "b l e"], x: Float[Tensor, "b l d"]
    ) -> Float[Tensor, "b l d"]:
        """Return what is made of what tokens read."""
        raise NotImplementedError

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Mix along the length."""
        return self.extend(Flow(x), layout).x

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Continue from `flow.state`; with state None, from an empty one.

        Behind a state, documents stand one after the other, the first being that of the state.
        """
        x = blanked(flow.x, layout, self.traits)
        context = layout.context
        if context is not None and layout.document is not None:
            # Tokens of one document may lie on any ranks: each rank reads whole rows.
            keep, document = (
                None if fact is None else context.joined(fact)
                for fact in (layout.keep, layout.document)
            )
            rows, _ = context.halo(x, context.whole, context.whole, 1)
            o, _ = self._from_all_ends(rows, None, Layout(keep=keep, document=document))
            return flow.with_x(self.merged(context.part(o), x))
        o, after = self._from_all_ends(x, flow.state, layout)
        return flow._replace(x=self.merged(o, x), state=after)

    def _from_all_ends(
        self, x: Float[Tensor, "b l d"], state: State, layout: Layout
    ) -> tuple[Float[Tensor, "b l e"], State]:
        o, after = self._from_one_end(x, state, layout, backwards=False)
        if not self.traits.causal:
            o = o + self._from_one_end(x, None, layout, backwards=True)[0]
        return o, None if state is None else after

    def _from_one_end(
        self, x: Float[Tensor, "b l d"], state: State, layout: Layout, *, backwards: bool
    ) -> tuple[Float[Tensor, "b l e"], Parts]:
        before: Parts = self.empty(len(x)) if state is None else state  # type: ignore[assignment]
        together = layout.document if state is None else None
        order = reading(layout.keep, backwards=backwards, document=together)
        keep, document = (
            None if fact is None else order.of(fact) for fact in (layout.keep, layout.document)
        )
        context, here = layout.context, Borders(keep, document)
        if context is None:
            o, after = self.read(order.of(x), before, here)
            return order.back(o), after
        tied = (x, *self.parameters())
        received = context.received(before, tied, backwards=backwards)
        o, after = self.read(order.of(x), received, here)
        # A rank without a real token hands on what it got: padding changes nothing.
        handed_on = [new.to(old.dtype) for new, old in zip(after, before, strict=True)]
        return order.back(context.handed_on(o, handed_on, backwards=backwards)), after

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return what nothing is remembered by, of one size for any memory."""
        del memory
        return self.empty(batch_size)


class ShortConvolution(nn.Module):
    """A causal convolution of every channel with taps of its own, drawn as PyTorch draws them.

    Args:
        width: Channels.
        taps: Tokens that one sees, its own included.
        bias: Whether a number is added to each channel.
    """

    def __init__(self, width: int, taps: int, *, bias: bool) -> None:
        super().__init__()
        if taps < 2:
            raise ValueError(f"convolution counts taps, at least 2, or null: got {taps}")
        self.taps = taps
        self.weight = nn.Parameter(torch.empty(width, taps))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -(taps**-0.5), taps**-0.5)

    def forward(
        self, x: Float[Tensor, "b l d"], before: Float[Tensor, "b m d"], borders: Borders
    ) -> tuple[Float[Tensor, "b l d"], Float[Tensor, "b m d"]]:
        """Return the convolved inputs, and the last `taps - 1` real ones."""
        if borders.keep is not None:
            x = x.masked_fill(~borders.keep[..., None], 0)
        y, after = short_convolution(x, self.weight, self.bias, before, borders.document)
        if borders.keep is not None:
            place = borders.keep.sum(1)[:, None] + torch.arange(self.taps - 1, device=x.device)
            whole = torch.cat((before.to(x.dtype), x), 1)
            after = whole.gather(1, place[..., None].expand(-1, -1, x.shape[2])).to(before.dtype)
            if borders.document is not None:
                last = (borders.keep.sum(1)[:, None] - 1).clamp(min=0)
                ids = torch.cat(
                    (borders.document[:, :1].expand(-1, self.taps - 1), borders.document), 1
                )
                same = ids.gather(1, place) == borders.document.gather(1, last)
                after = after * same[..., None]
        return y.to(x.dtype), after

    def empty(self, batch_size: int) -> Float[Tensor, "b m d"]:
        """Return zeros for the inputs before the first."""
        return self.weight.new_zeros(batch_size, self.taps - 1, len(self.weight))
