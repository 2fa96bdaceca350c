"""Mamba-3: a state space with the trapezoidal rule, rotating keys, and several inputs and outputs.

    S_t = a_t S_(t-1) + (1 - s_t) d_t a_t k_(t-1) v_(t-1)^T + s_t d_t k_t v_t^T,  o_t = S_t^T q_t
    y = W_O (silu(W_z u) * (o + D_h v)),   v = W_x u
    d = softplus(W_d u + b_h),   a = exp(-A d),   A = tail(W_A u),   s = sigma(W_s u)

q and k (C and B) are rms(W u) + c_h, where heads of a group share W u. Pairs of their first
channels are rotated by the sum of pi tanh(W_r u) d over all tokens so far, so that the state can
alternate. tail(x) is 1 + x for x >= 0 and 1 / (1 - x) below; A is at least 0.0001. b is drawn so
that softplus(b) is log-uniform between `step_min` and `step_max`; c and D start at 1.

With `rank` R, a head has R queries, keys, values and outputs per token (`ops.gated.ranks`). The
bidirectional form, the default, reads the sequence from both ends and adds the outputs.

Cost       The projections take 2 d (3 e + 2 G N R + 3 H + p) operations a token, with
           e = `expansion` d and p pairs, and each head takes those of `trapezoid_product`. State:
           N e numbers, the last R keys, the last value and p angles of each head.
Source     Lahoti et al. 2026, arXiv:2603.15569, and the layer of state-spaces/mamba.
Notation   the paper's N is `states`, P the width of a head, G `groups`, L the chunk; its Delta,
           lambda and theta are d, s and the angle.
Published  The paper's models are causal, with e = 2 d, heads of 64 channels (heads = 2 d / 64),
           N = 128 and one group. An earlier version of the code has `decay=softplus`.
Differs    Channels c and c + p rotate together. In the released code these are neighbours, or with
           several ranks c and c + N / 2: another order of the same channels.
"""

from enum import StrEnum, auto
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.linear_map import projection
from lra.models.mixer import Count, Site, options
from lra.models.ops.gated.layer import Borders, Parts, Recurrence, by_head
from lra.models.ops.gated.ranks import RankedHeads, RankedOutputs
from lra.models.ops.gated.steps import step_biases
from lra.models.ops.gated.trapezoid import TrapezoidState, TrapezoidSteps, trapezoid_product
from lra.models.ops.numerics import full_precision, sum_dtype

FLOOR = 1e-4
"""Smallest rate of decay A."""


class DecayForm(StrEnum):
    """Function that makes the rate A of a decay from an unbounded number."""

    tail = auto()
    """1 + x for x >= 0, and 1 / (1 - x) below."""
    softplus = auto()


def tail(x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """Return 1 + x where x >= 0, and 1 / (1 - x) elsewhere."""
    return torch.where(x >= 0, 1 + x, 1 / (1 - x.clamp(max=0)))


@options
class Mamba3(Recurrence):
    """A state space with the trapezoidal rule and rotating keys."""

    expansion: Count = 2
    """Width of all heads together, as a multiple of the model's width."""
    states: Count = 128
    """Width of the input and output vectors B and C of a token, N."""
    groups: Count = 1
    """Number of groups of heads; the heads of a group share B and C before biases and rotation."""
    rank: Count = 1
    """Number R of inputs and of outputs of a head per token; more than 1 gives the MIMO form."""
    decay: DecayForm = DecayForm.tail
    rotating_share: float = 0.5
    """Share of the channels of B and C that rotate; 0: none."""
    output_norm: bool = False
    """Whether the outputs of each head are normed before the gate."""
    step_min: float = 0.001
    """Smallest initial step size d."""
    step_max: float = 0.1
    """Largest initial step size d."""
    chunk: Count = 64
    """Number of rows in a chunk of the parallel form, `rank` for each token; it affects only speed
    and memory."""
    undecayed = ("step_bias", "skip")

    def build(self, site: Site) -> None:
        """Make projections, biases and the map to steps, decays, shares and rates of rotation.

        Raises:
            ValueError: `groups`, `rotating_share` or the steps do not fit.
        """
        heads, rank, share = site.heads, self.rank, self.rotating_share
        if heads % self.groups:
            raise ValueError(
                "groups, the number of groups of heads, must divide heads: got "
                f"groups={self.groups}, heads={heads}"
            )
        if not 0 <= share <= 1 or (share > 0 and self.states * share < 2):
            raise ValueError(
                "rotating_share must be 0, or lie between 2 / states and 1: got "
                f"rotating_share={share}, states={self.states}"
            )
        self.pairs = int(self.states * share) // 2
        width, shared = self.expansion * site.inner_width, rank * self.groups * self.states
        self.gate_proj, self.input_proj, self.write_proj, self.read_proj = self.projections(
            site, width, width, shared, shared
        )
        self.step_map = projection(site.width, 3 * heads + self.pairs, bias=False)
        self.step_bias = nn.Parameter(step_biases(heads, self.step_min, self.step_max))
        self.writes, self.reads = (
            RankedHeads(heads, self.groups, rank, self.states) for _ in range(2)
        )
        self.outputs = RankedOutputs(heads, rank, width // heads, norm=self.output_norm)
        self.skip = nn.Parameter(torch.ones(heads))
        self.out_proj = self.projection_back(site, width)
        state = heads, self.states, width // heads
        self.complete(site, state=state, bidirectional=self.bidirectional)

    def empty(self, batch_size: int) -> Parts:
        """Return zeros for the states, and for the keys, values and angles of the last token."""
        like = self.out_proj.weight
        heads, keys, values = self.state_shape
        shapes = (keys, values), (self.rank, keys), (values,), (self.pairs,)
        dtype = sum_dtype(like)
        return tuple(like.new_zeros((batch_size, heads, *each), dtype=dtype) for each in shapes)

    def read(
        self, x: Float[Tensor, "b l d"], before: Parts, borders: Borders
    ) -> tuple[Float[Tensor, "b l e"], Parts]:
        """Return the outputs of all ranks of each token of `x`, and the next state.

        A state has S of each head, and the keys, the values and the angles of the last token.
        """
        v = by_head(self.input_proj(x), self.heads)
        written, read, kind = self.write_proj(x), self.read_proj(x), v.dtype
        with full_precision(x):
            dtype = sum_dtype(x)
            maps = self.step_map(x).to(dtype).mT.split([self.heads] * 3 + [self.pairs], 1)
            length = F.softplus(maps[0] + self.step_bias.to(dtype)[:, None])
            rate = tail(maps[1]) if self.decay == DecayForm.tail else F.softplus(maps[1])
            g = -rate.clamp(min=FLOOR) * length
            steps = TrapezoidSteps(g, length, maps[2].sigmoid(), maps[3].mT.tanh())
            state, key, value, turns = before
            past = TrapezoidState(
                state, key, self.outputs.spread(value[:, :, None])[:, :, 0], turns
            )
            q, k, v = self.reads(read), self.writes(written), v.to(dtype)
            skip = self.skip.to(dtype) * (not borders.backwards)  # both directions are added
            o, after = trapezoid_product(
                q, k, self.outputs.spread(v), steps, past,
                skip=skip, borders=borders, chunk=self.chunk,
            )  # fmt: skip
        o = o.to(kind).permute(0, 2, 3, 1, 4).flatten(2)
        return o, (after.state, after.key, v[:, :, -1], after.turns)

    def merged(
        self, o: Float[Tensor, "b l f"], x: Float[Tensor, "b l d"]
    ) -> Float[Tensor, "b l d"]:
        """Norm and gate the outputs `o` of all ranks, add them and project their sum."""
        return cast(Tensor, self.out_proj(self.outputs(o, self.gate_proj(x))))
