"""mLSTM (xLSTM): linear attention with an exponential input gate, a forget gate and a normaliser.

    S_t = f_t S_(t-1) + i_t k_t v_t^T,   z_t = f_t z_(t-1) + i_t k_t,   f = sigma(.), i = exp(.)
    o_t = S_t^T q_t / max(|z_t · q_t|, 1)
    y = W_O ((norm_h(o) + s c) silu(W_z x)),   c = silu(convolved(u)),   u = W_u x

q and k are computed from c and v from u, each by a map with blocks of 4 channels; k is divided by
the square root of its width. The gates are linear functions of q, k and v, before sigma and exp.
norm_h normalises heads by mean and variance.

Cost       The projections of e = 2 d channels take 12 d^2 operations a token, and each head takes
           those of `exponential_product`. State: k (v + 1) + 1 numbers a head, and the last 3
           inputs of the convolution.
Source     Beck et al. 2024, arXiv:2405.04517, equations 19 to 27 and figure 11, and its package,
           xlstm.
Notation   the paper's n is z, its projection factor `expansion`.
Published  The paper's models are causal, with 4 heads, e = 2 d, maps in blocks of 4 channels, and
           convolutions of 4 taps. Their layers have LayerNorm, no feed-forward network
           (model.backbone.feed_forward=none) and no positions (model.backbone.positions=none).
Differs    Gates and the maps within blocks are drawn as in the package, which adds 1e-6 to the
           divisor.
"""

from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import Count, Site, options
from lra.models.ops.block_map import BlockMap
from lra.models.ops.gated.exponential_product import exponential_product
from lra.models.ops.gated.head_norm import normed_heads
from lra.models.ops.gated.layer import Borders, Parts, Recurrence, ShortConvolutions, by_head
from lra.models.ops.numerics import full_precision, sum_dtype

EPSILON = 1e-5


@options
class MLSTM(Recurrence):
    """A matrix memory between two projections."""

    expansion: Count = 2
    """Width of all heads together, as a multiple of the model's width."""
    block_size: Count = 4
    """Block size of the block-diagonal maps to queries, keys and values."""
    convolution: int | None = 4
    """Number of tokens that the short convolution before queries and keys reads; None: no
    convolution and no SiLU."""
    chunk: Count = 32
    version = 2  # maps begin as in the package, and biases of gates do not decay
    undecayed = ("enter.bias", "forget.bias")

    def build(self, site: Site) -> None:
        """Make projections, block-diagonal maps and gates; ValueError for a bad `block_size`."""
        width = self.expansion * site.inner_width
        if width % self.block_size:
            raise ValueError(
                f"block_size must divide the {width} channels of all heads together: got "
                f"block_size={self.block_size}"
            )
        self.gate_proj, self.input_proj = self.projections(site, width, width)
        self.convolutions = ShortConvolutions([width], self.convolution, bias=True)
        deviation = (2 / (5 * site.width)) ** 0.5  # this and all initial values: as in xlstm
        self.query_map, self.key_map, self.value_map = (
            BlockMap(width, self.block_size, deviation) for _ in range(3)
        )
        self.enter = nn.Linear(3 * width, site.heads)
        self.forget = nn.Linear(3 * width, site.heads)
        for gate in (self.enter, self.forget):
            nn.init.zeros_(gate.weight)
        nn.init.normal_(self.enter.bias, std=0.1)
        with torch.no_grad():
            self.forget.bias.copy_(torch.linspace(3, 6, site.heads))
        self.skip = nn.Parameter(torch.ones(width))
        self.norm_weight = nn.Parameter(torch.ones(width))
        self.out_proj = self.projection_back(site, width)
        key_width = width // site.heads
        state = site.heads, key_width, key_width + 1  # S, and z as one more column
        self.complete(site, state=state, bidirectional=self.bidirectional)  # sets traits

    def read(
        self, x: Float[Tensor, "b l d"], before: Parts, borders: Borders
    ) -> tuple[Float[Tensor, "b l e"], Parts]:
        """Return the heads' outputs, followed by c for the skip, and the state after the sequence.

        In the backward direction, zeros take the place of c, so that the skip is added once.
        `before` is the state before `x`; `borders` has padding and the borders of documents.
        """
        state, level, *inputs = before
        u = self.input_proj(x)
        (c,), tails = self.convolutions([u], inputs, borders, silu=True)
        mapped = (self.query_map(c), self.key_map(c), self.value_map(u))
        gate_inputs = torch.cat(mapped, -1)
        enter, forget = self.enter(gate_inputs), self.forget(gate_inputs)
        q, k, v = (by_head(stream, self.heads) for stream in mapped)
        with full_precision(x):
            dtype = sum_dtype(x)
            decays = borders.after_borders(F.logsigmoid(forget.to(dtype)).transpose(1, 2))
            o, (state, level) = exponential_product(
                q, k * k.shape[-1] ** -0.5, v, decays, enter.to(dtype).transpose(1, 2),
                state=(state, level), chunk=self.chunk, keep=borders.keep,
            )  # fmt: skip
        o = o.transpose(1, 2).flatten(2)
        if not borders.backwards:
            o = torch.cat((o, c.to(o.dtype)), -1)  # `merged` adds c after the norm
        else:
            o = F.pad(o, (0, o.shape[-1]))
        return o, (state, level, *tails)

    def merged(
        self, o: Float[Tensor, "b l e"], x: Float[Tensor, "b l d"]
    ) -> Float[Tensor, "b l d"]:
        """Norm the heads in the first half of `o`, add the skip of c, gate and project."""
        o, c = o.chunk(2, -1)
        heads = normed_heads(o.view(*o.shape[:-1], self.heads, -1), EPSILON)
        normed = heads.flatten(-2).to(o.dtype) * self.norm_weight.to(o.dtype)
        y = (normed + self.skip.to(o.dtype) * c) * F.silu(self.gate_proj(x))
        return cast(Tensor, self.out_proj(y))

    def empty(self, batch_size: int) -> Parts:
        """Return zeros for the states, their logarithmic levels, and the convolution's inputs."""
        state, *tails = super().empty(batch_size)
        return state, state.new_zeros(batch_size, self.heads), *tails
