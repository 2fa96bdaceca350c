"""Reformer: LSH attention within buckets of a random hash; queries and keys are the same vectors.

Equation   u_i = W_u x_i is the query, u_i / |u_i| the key, v_i = W_v x_i the value. In each of r
           rounds bucket_i = argmax [u_i R, -u_i R] for a random R. Tokens are sorted by (bucket,
           position) and cut into chunks of C. A chunk attends to itself, to `before` chunks before
           it and to `after` chunks after it. o_i = sum_rj exp(s_ij) v_j / sum_rj exp(s_ij) over the
           keys j that i attends to in any round r, where s_ij = u_i u_j / |u_j|, and s_ii = -100
           000: a token attends to itself only if it has no other key.
Cost       Each head takes 4 r (1 + before + after) C d operations per token, r f d for hashing with
           factors that add up to f, and a sort.
Source     Kitaev et al. 2020, arXiv:2001.04451. Its reversible residuals, chunked networks and
           axial positions are options of the backbone.
Notation   the paper's n_rounds and m are `rounds` and `chunk`; it has 2 l / C buckets.
Causal     Later tokens are masked by position. But the bucket of a later token can shift the
           borders of chunks, which changes the keys that earlier tokens attend to. Perplexities of
           this model contain that leak, and the model has no state along time.
Differs    The number of buckets follows from the model's longest input, so that padding changes
           nothing. More than 64 buckets are hashed in factors (the paper's authors: more than 128).
           Chunks contain no padding. Rotations are drawn at optimiser steps instead of in each
           pass. With allow_duplicates=false, keys of the round before also count as duplicates.
           Rotary positions rotate u before hashing.

`variant=lra` is the Long Range Arena code: one round of 10 buckets, hashed by one fixed matrix for
all layers; 10 chunks at any length (hence quadratic cost); scores u_i u_j multiplied by sqrt(d).
Tokens attend to themselves, and padding is attended to (padded tasks need
model.backbone.padding=attended). There is no attention dropout and no output projection, and heads
are merged without a transpose: the output at position p contains positions p h, ..., p h + h - 1
modulo the length of head floor(p h / length), length including the zeros that fill it up to a
multiple of 10.
"""

import math
from collections.abc import Mapping
from enum import StrEnum, auto
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.linear_map import projection
from lra.models.mixer import (
    Count,
    Family,
    Flow,
    Growth,
    Layout,
    Need,
    Positions,
    Site,
    State,
    Traits,
    Unsupported,
    Variant,
    Whole,
    blanked,
)
from lra.models.multi_head import APPLIED, biases
from lra.models.ops.hashing.lsh import Rules, lsh_attention
from lra.models.ops.hashing.lsh_lists import hash_buckets
from lra.models.positions import alibi_slopes, rotate

LARGEST_FACTOR = 64
LRA_CHUNKS = 10


class LogitScale(StrEnum):
    """Factor of scores."""

    unit = auto()
    """1, since keys already have length 1."""
    rsqrt_d = auto()


class Wrap(StrEnum):
    """Which chunk counts as the one before the first chunk of a round of hashing."""

    joint = auto()
    """The last chunk of the previous round, as in the authors' code."""
    per_round = auto()
    """The last chunk of the same round."""


def bucket_factors(length: int, chunk: int) -> list[int]:
    """Return factors of the number of buckets, about 2 length / chunk.

    One factor up to 64 buckets; above, the fewest powers of 2, nearly equal and at most 64.
    """
    buckets = 2 * math.ceil(length / chunk)
    if buckets <= LARGEST_FACTOR:
        return [buckets]
    bits = (buckets - 1).bit_length()
    parts = math.ceil(bits / (LARGEST_FACTOR.bit_length() - 1))
    return [2 ** ((bits + part) // parts) for part in range(parts)]


def draw_rotations(
    rounds: int, heads: int, width: int, columns: int, generator: torch.Generator
) -> Float[Tensor, "r h k f"]:
    """Draw N(0, 1) on the CPU in float64, so that `generator` gives equal numbers everywhere."""
    shape = (rounds, heads, width, columns)
    return torch.randn(shape, generator=generator, dtype=torch.float64, device="cpu")


class ReformerCore(nn.Module):
    """Attention within buckets of a hash. Queries are also keys, so `k` is ignored."""

    def __init__(
        self, rules: Rules, factors: list[int], rotations: Float[Tensor, "r #h k f"], traits: Traits
    ) -> None:
        super().__init__()
        self.rules, self.factors, self.traits = rules, factors, traits
        self.rotations = rotations

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Hash the queries, and attend within the chunks of sorted buckets."""
        del k
        buckets = hash_buckets(q, self.rotations.expand(-1, q.shape[1], -1, -1), self.factors)
        return lsh_attention(q, v, buckets, self.rules, keep=layout.keep)


class Reformer(Family):
    """Multi-head attention with shared queries and keys, found by hashing.

    `buckets` lists even factors of the number of buckets; null derives it from the longest input.
    `allow_duplicates=False` divides the weight of a key by the number of rounds in which a query
    attends to it. The rotations are drawn again every `redraw_every` optimiser steps; 0: never. You
    can load weights of a model with more or fewer `rounds`: common rounds get its rotations.
    """

    qk_proj: nn.Linear
    v_proj: nn.Linear
    out_proj: nn.Linear
    rotations: Float[Tensor, "r #h k f"]
    slopes: Float[Tensor, " h"] | None
    lra_version = 1
    needs = (
        Need(
            "wrap", "allow_duplicates", words="rounds=2 or more",
            holds=lambda _, chosen: chosen.rounds > 1,
        ),
        Need(
            "wrap", words="neighbouring chunks (before=1 or more, or after=1 or more)",
            holds=lambda _, chosen: chosen.before + chosen.after > 0,
        ),
    )  # fmt: skip

    @classmethod
    def fixed(cls, options: Any) -> Mapping[str, object]:
        """Return the options that `variant=lra` fixes, with their values."""
        if options.variant != Variant.lra:
            return {}
        return {
            "rounds": 1, "chunk": f"length / {LRA_CHUNKS}", "before": 1, "after": 0,
            "buckets": [LRA_CHUNKS], "logit_scale": "sqrt_d", "wrap": Wrap.joint,
            "attend_across_buckets": True, "allow_duplicates": True, "redraw_every": 0,
        }  # fmt: skip

    def __init__(
        self,
        site: Site,
        *,
        variant: Variant = Variant.faithful,
        rounds: Count = 2,
        chunk: Count = 64,
        before: Whole = 1,
        after: Whole = 0,
        buckets: list[int] | None = None,
        logit_scale: LogitScale = LogitScale.unit,
        wrap: Wrap = Wrap.joint,
        attend_across_buckets: bool = True,
        allow_duplicates: bool = True,
        redraw_every: Whole = 1,
        bias: bool = False,
    ) -> None:
        """Check the options, make projections, and draw the rotations of the hash."""
        super().__init__()
        width = site.head_width
        if site.positions == Positions.rotary and width % 2:
            raise ValueError(
                f"rotary positions need an even head width: got {width}; change heads, head_width, "
                "or positions"
            )
        factors = bucket_factors(site.max_length, chunk) if buckets is None else list(buckets)
        if not factors or any(f < 2 or f % 2 for f in factors):
            raise ValueError(
                "buckets must be a list of even numbers, whose product is the number of hash "
                f"buckets: got buckets={factors}; write [64] for 64, or [16, 32] for 512"
            )
        self.heads, self.positions = site.heads, site.positions
        self.dropout = site.attention_dropout
        self.lra, self.redraw_every = variant == Variant.lra, redraw_every
        self.rules = Rules(
            chunk, before, after, causal=site.causal,
            scale=width**-0.5 if logit_scale == LogitScale.rsqrt_d else 1.0,
            joint=wrap == Wrap.joint, across_buckets=attend_across_buckets,
            duplicates=allow_duplicates,
        )  # fmt: skip
        self.traits = Traits(
            positions=frozenset({Positions.rotary.value, Positions.alibi.value}),
            options=APPLIED,
            causal=site.causal,
            selection_leak=site.causal,
            row_stochastic=True,
            weight_dropout=True,
            shared_query_key=True,
            random_draws=True,
            operations=Growth(1.0, log=buckets is None),  # the sum of the factors grows as log n
            sees_order=self._sees_order(site, rounds),
        )
        generator, hash_heads = site.generator, site.heads
        if self.lra:
            self._set_lra_rules(site)
            rounds, factors, hash_heads = 1, [LRA_CHUNKS], 1
            generator = torch.Generator("cpu").manual_seed(0)
        self.factors = factors
        # Each factor needs half as many columns, because u R and -u R both count.
        rotations = draw_rotations(rounds, hash_heads, width, sum(factors) // 2, generator)
        # Drawn on the CPU, then moved to the device and type of parameters, which may be meta.
        self.register_buffer("rotations", rotations.to(torch.empty(())))
        sloped = site.positions == Positions.alibi
        self.register_buffer(
            "slopes", alibi_slopes(site.heads) if sloped else None, persistent=False
        )
        with_biases = biases(site, bias, default=False)
        for name in ("qk_proj", "v_proj") if self.lra else ("qk_proj", "v_proj", "out_proj"):
            ends, has_bias = (site.width, site.inner_width), with_biases.qkv
            if name == "out_proj":
                ends, has_bias = (site.inner_width, site.width), with_biases.output
            self.add_module(name, projection(*ends, bias=has_bias))

    def _sees_order(self, site: Site, rounds: int) -> bool:
        """Return whether outputs depend on the order of tokens, for example through chunks.

        They do not if every token attends to all others, however the tokens are sorted.
        """
        chunks = -(-site.max_length // self.rules.chunk)
        all_chunks = chunks * (rounds if self.rules.joint else 1)
        up_to_own = self.rules.before + 1
        everything = chunks == 1 or up_to_own + self.rules.after >= all_chunks
        # Without duplicates, keys that wrap around from the previous round count once.
        everything |= not self.rules.duplicates and up_to_own >= chunks
        return site.causal or site.positions != Positions.none or not everything

    def _set_lra_rules(self, site: Site) -> None:
        """Set rules and traits of `variant=lra`; `Unsupported` for a causal model."""
        if site.causal:
            raise Unsupported(
                "variant=lra of Reformer has no causal mask, and this model must be causal: choose "
                "variant=faithful"
            )
        scale = math.sqrt(site.head_width)
        # The chunk size 1 stands in for a tenth of the length, which `forward` sets.
        self.rules = Rules(1, scale=scale, unit_keys=False, exclude_self=False)
        self.traits = Traits(
            supports=frozenset({"start"}), operations=Growth(2.0), row_stochastic=True
        )

    def attention_core(self) -> ReformerCore:
        """Return the attention between the projections; raise `Unsupported` for variant=lra."""
        if self.lra:
            raise Unsupported(
                "variant=lra of Reformer has no attention core that could be measured, because it "
                "computes another function at every length: choose variant=faithful"
            )
        return ReformerCore(self.rules, self.factors, self.rotations, self.traits)

    def split(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b h l k"]:
        """Fold the width into heads."""
        return x.reshape(*x.shape[:2], self.heads, -1).transpose(1, 2)

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Attend within buckets, and project the outputs (not with `variant=lra`)."""
        x = blanked(x, layout, self.traits)
        length, rules = x.shape[1], self.rules
        if self.lra:
            # From 1 to 10 zeros: a length that 10 divides is filled up, too.
            x = F.pad(x, (0, 0, 0, LRA_CHUNKS - length % LRA_CHUNKS))
            rules = rules._replace(chunk=x.shape[1] // LRA_CHUNKS)
        u, v = self.split(self.qk_proj(x)), self.split(self.v_proj(x))
        if self.positions == Positions.rotary:
            u = rotate(u, layout.start)
        buckets = hash_buckets(u, self.rotations.expand(-1, self.heads, -1, -1), self.factors)
        o = lsh_attention(
            u, v, buckets, rules, keep=layout.keep, slopes=self.slopes,
            dropout=self.dropout if self.training and not self.lra else 0.0,
        )  # fmt: skip
        if self.lra:  # merges heads without a transpose, see the module's docstring
            return o.reshape(o.shape[0], o.shape[2], -1)[:, :length]
        mixed: Tensor = self.out_proj(o.transpose(1, 2).flatten(-2))
        return mixed

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Return the same as `forward`; raise `Unsupported` for a state."""
        if flow.state is not None:
            self.initial_state(flow.x.shape[0], 0)  # raises the error
        return flow.with_x(self.forward(flow.x, layout))

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Raise `Unsupported`, because a hash cannot continue from token to token."""
        del batch_size, memory
        raise Unsupported(
            "Reformer has no state that continues from token to token, because a new token can "
            "move earlier ones to other chunks: run the whole sequence through forward"
        )

    def after_step(self, step: int, generator: torch.Generator) -> None:
        """Draw new rotations every `redraw_every` steps; `variant=lra` never does."""
        if self.lra or not self.redraw_every or step % self.redraw_every:
            return
        rounds, heads, width, columns = self.rotations.shape
        self.rotations.copy_(draw_rotations(rounds, heads, width, columns, generator))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load weights; allow another number of rounds than the stored model has."""
        stored = state_dict.get(f"{prefix}rotations")
        rotations = self.rotations
        if stored is not None and stored.shape[1:] == rotations.shape[1:]:
            # Common rounds get the stored rotations; additional rounds keep those drawn here.
            rotations = rotations.to(stored)
            joined = torch.cat((stored, rotations[len(stored) :]))[: len(rotations)]
            state_dict[f"{prefix}rotations"] = joined
        super()._load_from_state_dict(state_dict, prefix, *rest)
