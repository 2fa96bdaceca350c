"""A layer around states that decay, as a mixer: what reads them from each end, and their borders.

    y = merged(o),   o = what tokens read of the states       causal, or bidirectional=False
                     the sum of that from both ends            else

Two-sided, the same weights read a row once more from its end; a token reads itself twice.

    merged(o) = W_O (act(W_G x) * norm_h(o))

A family says of what widths its heads are and how they read states; its convolutions' last inputs
are remembered too. Rows are read document after document and then padding (`reading_order`), so
that nothing stands in a gap.
"""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.linear_map import projection
from lra.models.mixer import (
    Family,
    Flow,
    Layout,
    Need,
    Roles,
    Site,
    State,
    Traits,
    blanked,
    options,
)
from lra.models.multi_head import APPLIED, biases
from lra.models.ops.convolution.short import short_convolution
from lra.models.ops.gated.head_norm import Gate, GatedHeadNorm
from lra.models.ops.numerics import sum_dtype
from lra.models.ops.recurrent.layer import BOTH_WAYS, directions, reading_order

Parts = tuple[Tensor, ...]
"""What a row is remembered by: tensors whose zeros mean empty, batch first."""


class Borders(NamedTuple):
    """Which tokens of a row are hidden from later ones: padding, and other documents."""

    keep: Bool[Tensor, "b l"] | None
    """False: padding, which stands last. None: all are real."""
    document: Int[Tensor, "b l"] | None
    backwards: bool = False
    """Whether the row is read from its end."""
    whole: bool = False
    """Whether there is no earlier state, and the last state is not needed."""

    def begins(self) -> Bool[Tensor, "b l"] | None:
        """Return which tokens begin a document after another one; None: there is one document."""
        if self.document is None:
            return None
        return F.pad(self.document[:, 1:] != self.document[:, :-1], (1, 0))

    def without_first(self, o: Float[Tensor, "b h l v"]) -> Float[Tensor, "b h l v"]:
        """Return `o` with zeros at the first token of each document after the first document."""
        begins = self.begins()
        return o if begins is None else o.masked_fill(begins[:, None, :, None], 0)

    def after_borders(
        self, g: Float[Tensor, "b h l"] | Float[Tensor, "b h l k"]
    ) -> Float[Tensor, "b h l"] | Float[Tensor, "b h l k"]:
        """Return log decays `g` with -inf where a new document begins, which clears the state."""
        begins = self.begins()
        if begins is None:
            return g
        begins = begins[:, None] if g.ndim == 3 else begins[:, None, :, None]
        return g.masked_fill(begins, -torch.inf)


def by_head(x: Float[Tensor, "b l e"], heads: int) -> Float[Tensor, "b h l k"]:
    """Return `x` split into heads: (b, l, h k) becomes (b, h, l, k)."""
    return x.view(*x.shape[:2], heads, -1).transpose(1, 2)


class GatedMixer(Family):
    """The base class of gated recurrences: a family adds its projections, then calls `complete`.

    Options:
        bias: Whether projections have biases, unless the backbone sets this (`qkv_bias`,
            `output_bias`).
        chunk: Number of tokens per chunk of the parallel form; it affects only speed and memory.
        convolution: Number of tokens that the short convolution of queries, keys and values reads,
            before SiLU; None: no convolution.
        gate: Activation of the output gate.
        value_expansion: Width of a head's values, as a multiple of the head width.
    """

    heads: int
    convolutions: "ShortConvolutions"
    """Of what is projected, which `read` hands on; may be none."""
    norm: GatedHeadNorm
    out_proj: nn.Linear
    head_epsilon = 1e-5

    def complete(self, site: Site, *, state: tuple[int, ...], bidirectional: bool) -> None:
        """Set the layer's traits and the shape of one row's states."""
        self.heads, self.state_shape = site.heads, state
        self.traits = Traits(
            supports=frozenset({"keep", "start", "document"}),  # states are cleared at borders
            causal=directions(site, bidirectional=bidirectional) == 1,
            options=APPLIED,  # the options of the site that this layer uses
        )

    def read(
        self, x: Float[Tensor, "b l d"], before: Parts, borders: Borders
    ) -> tuple[Float[Tensor, "b l e"], Parts]:
        """Return the output of each token of `x`, and the state after the last token.

        `before` is the state before the first token. A row has no padding if its state is used.
        """
        raise NotImplementedError

    def output_gate(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b l e"] | None:
        """Return the gate for the normed heads, or None without a gate."""
        return None if self.norm.gate == Gate.none else cast(nn.Linear, self.gate_proj)(x)

    def merged(
        self, o: Float[Tensor, "b l e"], x: Float[Tensor, "b l d"]
    ) -> Float[Tensor, "b l d"]:
        """Return W_O (act(W_G x) * norm_h(o)): outputs after norm, gate and projection."""
        return cast(Tensor, self.out_proj(self.norm(o, self.output_gate(x))))

    def empty(self, batch_size: int) -> Parts:
        """Return zeros for the states (float32 or float64) and for inputs of convolutions."""
        like = self.out_proj.weight
        states = like.new_zeros((batch_size, *self.state_shape), dtype=sum_dtype(like))
        return states, *self.convolutions.empty(batch_size)

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Return the outputs for `flow.x`, and the state after it; with state None, only outputs.

        With a state, the first document of `flow.x` continues the last document of the state.
        """
        x = blanked(flow.x, layout, self.traits)
        o, after = self._read_from_one_end(x, flow.state, layout, backwards=False)
        if not self.traits.causal:
            o = o + self._read_from_one_end(x, None, layout, backwards=True)[0]
        return flow._replace(x=self.merged(o, x), state=None if flow.state is None else after)

    def _read_from_one_end(
        self, x: Float[Tensor, "b l d"], state: State, layout: Layout, *, backwards: bool
    ) -> tuple[Float[Tensor, "b l e"], Parts]:
        """Return the outputs for `x`, in its order, and the state after the last token read."""
        before: Parts = self.empty(len(x)) if state is None else state  # type: ignore[assignment]
        grouping = layout.document if state is None else None
        order = reading_order(layout.keep, backwards=backwards, document=grouping)
        keep, document = (
            None if fact is None else order.reorder(fact) for fact in (layout.keep, layout.document)
        )
        borders = Borders(keep, document, backwards, whole=state is None)
        o, after = self.read(order.reorder(x), before, borders)
        return order.back(o), after

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return the empty state, of one size for any `memory`."""
        del memory
        return self.empty(batch_size)


@options
class CausalRecurrence(GatedMixer):
    """Base class of recurrences that read rows from the beginning only."""

    bias: bool = False
    bidirectional = False

    def projections(self, site: Site, *widths: int) -> list[nn.Linear]:
        """Return linear maps from the model's width to each of `widths`."""
        with_biases = biases(site, self.bias, default=False)
        return [projection(site.width, width, bias=with_biases.qkv) for width in widths]

    def projection_back(self, site: Site, width: int) -> nn.Linear:
        """Return the linear map from `width` channels to the model's width."""
        return projection(width, site.width, bias=biases(site, self.bias, default=False).output)

    def add_output_gate(self, site: Site, width: int) -> None:
        """Make the projection of the output gate."""
        (self.gate_proj,) = self.projections(site, width)

    def finish(self, site: Site, *, keys: int, values: int, gate: Gate) -> None:
        """Add gate, norm and output projection, and `complete` the layer."""
        if gate != Gate.none:
            self.add_output_gate(site, site.heads * values)
        self.norm = GatedHeadNorm(values, gate=gate, epsilon=self.head_epsilon)
        self.out_proj = self.projection_back(site, site.heads * values)
        state = site.heads, keys, values
        self.complete(site, state=state, bidirectional=self.bidirectional)


@options
class Recurrence(CausalRecurrence):
    """Base class of recurrences that can also read rows from their end."""

    bidirectional: bool = True
    needs: ClassVar[Sequence[Need]] = (BOTH_WAYS,)


class ShortConvolution(Roles):
    """A causal convolution with separate taps for every channel, initialised as in PyTorch.

    Args:
        width: Number of channels.
        taps: Number of tokens that an output reads, including the current one.
        bias: Whether a number is added to each channel.
    """

    no_matrices = ("weight",)

    def __init__(self, width: int, taps: int, *, bias: bool) -> None:
        super().__init__()
        if taps < 2:
            raise ValueError(
                "convolution is the number of positions that it reads, at least 2, or null for "
                f"no convolution: got {taps}"
            )
        self.taps = taps
        self.weight = nn.Parameter(torch.empty(width, taps))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None
        for parameter in self.parameters():  # as PyTorch's convolutions start
            nn.init.uniform_(parameter, -(taps**-0.5), taps**-0.5)

    def forward(
        self,
        x: Float[Tensor, "b l d"],
        before: Float[Tensor, "b m d"],
        borders: Borders,
        *,
        centred: bool = False,
    ) -> tuple[Float[Tensor, "b l d"], Float[Tensor, "b m d"]]:
        """Return the convolved inputs, and the last `taps - 1` inputs.

        With `centred`, half of the taps read later tokens, `before` is ignored, and rows that are
        read from their end get the same result.
        """
        if borders.keep is not None:
            x = x.masked_fill(~borders.keep[..., None], 0)
        if centred:
            return self._convolve_centred(x, borders), before
        earlier = None if borders.whole else before
        y, after = short_convolution(x, self.weight, self.bias, earlier, borders.document)
        return y.to(x.dtype), after

    def _convolve_centred(
        self, x: Float[Tensor, "b l d"], borders: Borders
    ) -> Float[Tensor, "b l d"]:
        """Return y_t = sum_j w_j x_(t + j - taps // 2) + b, within the document of token t."""
        half, length = self.taps // 2, x.shape[1]
        weight = self.weight.flip(1) if borders.backwards else self.weight  # the row is reversed
        padded = F.pad(x, (0, 0, half, half))
        document = borders.document
        if document is not None:
            padded_document = F.pad(document, (half, half))
        y = torch.zeros_like(x) if self.bias is None else self.bias.to(x.dtype).expand_as(x)
        for tap in range(self.taps):
            tap_input = padded[:, tap : tap + length]
            if document is not None:
                tap_input = (
                    tap_input * (padded_document[:, tap : tap + length] == document)[..., None]
                )
            y = y + tap_input * weight[:, tap].to(x.dtype)
        return y

    def empty(self, batch_size: int) -> Float[Tensor, "b m d"]:
        """Return zeros for the inputs before the first token."""
        return self.weight.new_zeros(batch_size, self.taps - 1, len(self.weight))


class ShortConvolutions(nn.ModuleList):
    """One short convolution for each of several tensors, e.g. queries, keys and values; or none.

    Args:
        widths: Number of channels of each tensor.
        taps: Number of tokens that a convolution reads, including the current one; None: there
            are no convolutions.
        bias: Whether a number is added to each channel.
    """

    def __init__(self, widths: Sequence[int], taps: int | None, *, bias: bool = False) -> None:
        wanted = () if taps is None else [(width, taps) for width in widths]
        super().__init__(ShortConvolution(width, tokens, bias=bias) for width, tokens in wanted)

    def forward(
        self,
        streams: Sequence[Tensor],
        before: Sequence[Tensor],
        borders: Borders,
        *,
        centred: bool = False,
        silu: bool = False,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return the convolutions of `streams`, after SiLU if `silu`, and their last inputs.

        `before` are the inputs of each tensor before the first token. Without convolutions, the
        tensors are returned unchanged.
        """
        if not len(self):
            return [*streams], []
        results = [
            layer(stream, inputs, borders, centred=centred)
            for layer, stream, inputs in zip(self, streams, before, strict=True)
        ]
        return [F.silu(y) if silu else y for y, _ in results], [after for _, after in results]

    def empty(self, batch_size: int) -> Parts:
        """Return zeros for the inputs before the first token."""
        return tuple(cast(ShortConvolution, layer).empty(batch_size) for layer in self)
