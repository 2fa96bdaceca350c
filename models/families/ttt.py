"""TTT-Linear (test-time training): the state is a linear model, trained on the tokens it reads.

    loss_t(W, b) = |LN(k_t W + b) - (v_t - k_t)|^2 / 2       G_t: its gradient at Z_t = k_t W + b
    W_t = W - tau_i sum_j r_j k_j' G_j,   b_t alike          j: from the block's first token to t
    o_t = q_t + LN(q_t W_t + b_t),   y = W_O LN(o)

All tokens of a block of 16 compute their gradients at the W, b with which the block starts. W, b
after its last token are those with which the next block starts. r = rate * sigmoid(x w + c) / k is
a learning rate for each token and head, and tau_i = max(0, 1 / i + a_i) is a factor for each
position i = 1 ... 16 of a block. Queries and keys are rotated by their position. An additional
channel of ones in q and k makes b a row of W.

Cost       The projections take 8 d^2 operations a token, and each head 6 k^2 + 64 k; blocks are
           computed one after the other. State: W, b and the sums of the incomplete block, 2 (k + 1)
           k numbers a head.
Source     Sun et al. 2024, arXiv:2407.04620, and the code, test-time-training/ttt-lm-pytorch.
Notation   X_K, X_Q, X_V are k, q, v; eta_ij = tau_i r_j.
Published  The paper's models are causal, without biases and positions
           (model.backbone.positions=none). In blocks of a Transformer they have no gate; in blocks
           of Mamba they have `share_query_key` and `gate`.
Differs    Rotation pairs the channels i and i + k / 2.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.linear_map import projection
from lra.models.mixer import Count, Positive, Site
from lra.models.multi_head import biases
from lra.models.ops.gated.layer import Borders, GatedMixer, Parts, ShortConvolutions, by_head
from lra.models.ops.numerics import full_precision, sum_dtype
from lra.models.ops.recurrent.layer import BOTH_WAYS
from lra.models.positions import rotate

EPSILON = 1e-6
TAPS = 4


class TTT(GatedMixer):
    """TTT-Linear.

    Args:
        block: Number of tokens of a block; their gradients are computed at the same weights.
        rate: Largest learning rate of a token, before division by the head width.
        share_query_key: Whether queries and keys share one projection and then have separate
            convolutions.
        gate: Whether the normalised outputs are gated.

    Raises:
        ValueError: A number is out of range, or the width of a head is odd.
    """

    version = 2  # biases of gates do not decay
    no_matrices = ("bias", "norm_weight", "norm_bias")
    undecayed = ("rate_map.bias", "place_rate")
    needs = (BOTH_WAYS,)

    def __init__(
        self,
        site: Site,
        *,
        block: Count = 16,
        rate: Positive = 1.0,
        share_query_key: bool = False,
        gate: bool = False,
        bidirectional: bool = True,
        bias: bool = False,
    ) -> None:
        """Make the projections, the initial W and b, and the learning rates."""
        super().__init__()
        if site.head_width % 2:
            raise ValueError(
                "TTT rotates pairs of channels by positions, so the width of a head must be even: "
                f"got {site.head_width} channels per head; change heads or head_width"
            )
        with_biases = biases(site, bias, default=False)
        width, key_width = site.inner_width, site.head_width
        self.heads, self.rate = site.heads, rate
        self.q_proj = projection(site.width, width, bias=with_biases.qkv)
        self.k_proj = (
            None if share_query_key else projection(site.width, width, bias=with_biases.qkv)
        )
        self.value_map = projection(site.width, width, bias=with_biases.qkv)
        self.convolutions = ShortConvolutions(
            (width, width), TAPS if share_query_key else None, bias=True
        )
        self.rate_map = nn.Linear(site.width, site.heads)
        nn.init.normal_(self.rate_map.weight, std=0.02)
        nn.init.zeros_(self.rate_map.bias)
        self.place_rate = nn.Parameter(torch.zeros(block))
        self.weight = nn.Parameter(torch.empty(site.heads, key_width, key_width))
        nn.init.normal_(self.weight, std=0.02)
        self.bias = nn.Parameter(torch.zeros(site.heads, 1, key_width))
        self.norm_weight = nn.Parameter(torch.ones(site.heads, 1, key_width))
        self.norm_bias = nn.Parameter(torch.zeros(site.heads, 1, key_width))
        self.gate_proj = projection(site.width, width, bias=with_biases.qkv) if gate else None
        self.post_norm = nn.LayerNorm(width, eps=EPSILON)
        self.out_proj = projection(width, site.width, bias=with_biases.output)
        state = site.heads, key_width + 1, key_width  # W, and b as one more row
        self.complete(site, state=state, bidirectional=bidirectional)  # sets traits
        # Blocks are counted from the first token of a row, so documents cannot restart them.
        self.traits = replace(self.traits, supports=self.traits.supports - {"document"})

    def read(
        self, x: Float[Tensor, "b l d"], before: Parts, borders: Borders
    ) -> tuple[Float[Tensor, "b l e"], Parts]:
        """Return the output of each token of `x`, after the state `before`, and the next state.

        A state has the change of W and b, the sums of the incomplete block, the number of its
        tokens, and inputs of the convolutions.
        """
        trained, sums, place, *inputs = before
        q, v = self.q_proj(x), self.value_map(x)
        streams, tails = self.convolutions(
            [q, q if self.k_proj is None else self.k_proj(x)], inputs, borders
        )
        with full_precision(x):
            dtype = sum_dtype(x)
            rates = self.rate_map(x).to(dtype).sigmoid() * (self.rate / self.weight.shape[-1])
            heads = [by_head(stream.to(dtype), self.heads) for stream in (*streams, v)]
            blocks = _Blocks(x, place[:, 0], borders.keep, len(self.place_rate))
            q, k, v, rates = (blocks.to_blocks(part) for part in (*heads, rates.mT[..., None]))
            # Each block becomes a row, because positions count from its first token.
            q, k = (rotate(part.flatten(0, 2)[:, None]).view_as(part) for part in (q, k))
            o, trained, sums = self._train((q, k, v), rates * blocks.real, (trained, sums), blocks)
        o = blocks.back(o).to(x.dtype)
        return o.transpose(1, 2).flatten(2), (trained, sums, blocks.place[:, None], *tails)

    def _train(
        self,
        streams: Sequence[Float[Tensor, "b h n c k"]],
        rates: Float[Tensor, "b h n c 1"],
        state: tuple[Tensor, Tensor],
        blocks: "_Blocks",
    ) -> tuple[Float[Tensor, "b h n c k"], Tensor, Tensor]:
        """Train W and b on n blocks of c tokens, one after another; return outputs and the state.

        `streams` are queries, keys and values; `rates` are the learning rates r. `state` has the
        change of W and b so far, and sum_j r_j k_j' G_j of the first, incomplete block.
        """
        (q, k, v), (trained, sums) = streams, state
        dtype = q.dtype
        begin = torch.cat((self.weight, self.bias), 1).to(dtype)
        scale, shift = self.norm_weight.to(dtype), self.norm_bias.to(dtype)
        size = q.shape[3]
        places = 1 / torch.arange(1, size + 1, device=q.device, dtype=dtype)
        tau = (places + self.place_rate.to(dtype)).clamp(min=0)[:, None]
        # A channel of ones in queries and keys makes b a row of W.
        queries, keys = F.pad(q, (0, 1), value=1.0), F.pad(k, (0, 1), value=1.0)
        eta = (tau * rates.mT).tril() * (queries @ keys.mT)
        # unbind, because the gradient of a single slice would be as large as all blocks together.
        parts = [part.unbind(2) for part in (queries, keys, v - k, eta, rates)]
        outputs = []
        for i, (query, key, target, step, rate) in enumerate(zip(*parts, strict=True)):
            weight = begin + trained
            z, deviation = _norm_channels(key @ weight)
            # G, the gradient of the loss at the input of LN.
            error = (z * scale + shift - target) * scale
            mean = error.mean(-1, keepdim=True) + z * (error * z).mean(-1, keepdim=True)
            gradient = (error - mean) / deviation
            z = query @ weight - step @ gradient
            if i == 0:  # only the first block may have earlier tokens, which are in `sums`
                z = z - tau * (query @ sums)
            outputs.append(_norm_channels(z)[0] * scale + shift)
            sums = sums + (key * rate).mT @ gradient
            full = blocks.full[:, i, None, None, None]
            trained, sums = trained - full * tau[-1] * sums, sums * ~full
        return q + torch.stack(outputs, 2), trained, sums

    def merged(
        self, o: Float[Tensor, "b l e"], x: Float[Tensor, "b l d"]
    ) -> Float[Tensor, "b l d"]:
        """Norm the concatenated heads, gate and project them."""
        y = self.post_norm(o)
        if self.gate_proj is not None:
            y = y * F.gelu(self.gate_proj(x), approximate="tanh")
        return cast(Tensor, self.out_proj(y))

    def empty(self, batch_size: int) -> Parts:
        """Return zeros for all parts of the state: see `read`."""
        trained, *tails = super().empty(batch_size)
        return trained, trained, trained.new_zeros(batch_size, 1), *tails


def _norm_channels(
    x: Float[Tensor, "*r k"],
) -> tuple[Float[Tensor, "*r k"], Float[Tensor, "*r 1"]]:
    """Return `x` normed to mean 0 and variance 1 over its channels, and the standard deviation."""
    centred = x - x.mean(-1, keepdim=True)
    deviation = (centred.square().mean(-1, keepdim=True) + EPSILON).sqrt()
    return centred / deviation, deviation


class _Blocks:
    """The places of each row's tokens in n blocks of c; earlier tokens may fill the first in part.

    Args:
        x: Tokens, with padding after the real ones.
        taken: Number of places that earlier tokens fill in the first block, for each row.
        keep: False for padding; None: there is none.
        size: Number of places of a block, c.
    """

    def __init__(
        self,
        x: Float[Tensor, "b l d"],
        taken: Float[Tensor, " b"],
        keep: Bool[Tensor, "b l"] | None,
        size: int,
    ) -> None:
        """Find the token at each place (`token`) and the place of each token (`slot`).

        `real` tells which places hold a real token of `x`, `full` whether a block's last place
        does, and `place` counts the filled places of the last block.
        """
        batch, length = x.shape[:2]
        real = taken.new_full((batch,), length) if keep is None else keep.sum(1).to(taken.dtype)
        # Enough blocks even if all places but one of the first are taken.
        number = -(-(length + size - 1) // size)
        first = taken.long()[:, None]
        place = torch.arange(number * size, device=x.device) - first
        self.shape = number, size
        self.token: Int[Tensor, "b s"] = place.clamp(0, length - 1)
        self.slot: Int[Tensor, "b l"] = torch.arange(length, device=x.device) + first
        inside = (place >= 0) & (place < real[:, None])
        self.real: Bool[Tensor, "b 1 n c 1"] = inside.view(batch, 1, *self.shape, 1)
        self.full: Bool[Tensor, "b n"] = self.real[:, 0, :, -1, 0]
        self.place: Float[Tensor, " b"] = (taken + real) % size

    def to_blocks(self, x: Float[Tensor, "b h l k"]) -> Float[Tensor, "b h n c k"]:
        """Return each row's tokens in blocks; empty places get some token of the row."""
        index = self.token[:, None, :, None].expand(-1, x.shape[1], -1, x.shape[3])
        return x.gather(2, index).view(*x.shape[:2], *self.shape, -1)

    def back(self, o: Float[Tensor, "b h n c k"]) -> Float[Tensor, "b h l k"]:
        """Return the entries of `o` at the places of the tokens, in the order of the tokens."""
        index = self.slot[:, None, :, None].expand(-1, o.shape[1], -1, o.shape[4])
        return o.flatten(2, 3).gather(2, index)
