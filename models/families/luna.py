"""Luna: linear attention through a second, short sequence of slots.

    Y = Attention(p; x)        pack: each of s slots p attends to all tokens
    o = Attention(x; Y)        unpack: each token attends to the packed slots
    p' = p + Y                 the next layer's slots; those of the first layer are a parameter

Both are softmax attention of several heads. One projection gives both keys and values unless
`tie_kv` is false; it reads x in the pack and Y in the unpack. In the causal form, every layer
starts from the parameter p. With f(X, Y, Z)_t = X_t / t sum_{i <= t} Y_i^T Z_i, it computes

    A = omega(x W (p W')^T / sqrt(d)),   B = softmax(f(Q, K, A) / sqrt(d)),   o = f(B, A, V)

where omega(a) is log2(1 + 2^a) (`softplus`) or elu(a) + 1 (`elu1`), and Q, K, V are projections of
x.

Cost       Each head takes 8 l s d operations with s slots, and the projections of all heads 6 l D^2
           (8 l D^2 with tie_kv=false). The causal form takes 4 C (s + d) l more per head in chunks
           of C tokens, and its projections 8 l D^2. State of the causal form: 2 s d numbers per
           head.
Source     Ma et al. 2021, arXiv:2106.01540, and the authors' code.
Notation   the paper's X, P, Y_P are x, p, Y; its n, l are l, s.
Differs    Models use pre-norm, with a separate norm of p within the mixer. Slots have no positions
           and no residual dropout. In the causal form t counts real tokens, so that padding has no
           effect.

With `dynamic_projection`, a sequence uses at most as many slots as it has real tokens, unless
causal. As in the authors' code, projections are drawn Xavier-uniform with gain 2^(-1/2), and the
output projection with gain 1. `norm_residual` passes LN(p) + Y to the next layer instead of p + Y,
as the code of Mega does (arXiv:2209.10655).
"""

import math
from enum import StrEnum, auto
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import (
    Count,
    Family,
    Flow,
    Layout,
    Need,
    Roles,
    Site,
    State,
    Traits,
    Unsupported,
    blanked,
)
from lra.models.multi_head import APPLIED, biases
from lra.models.ops.exact import sdpa
from lra.models.ops.linear.running_product import running_product
from lra.models.ops.numerics import full_precision, sum_dtype


class Activation(StrEnum):
    """Activation of scores in the causal form; it is positive and equals 1 at 0."""

    softplus = auto()
    elu1 = auto()


class LunaState(NamedTuple):
    """The state along time of the causal form; all zeros before the first token."""

    packed: Float[Tensor, "b h k s"]
    """Sum of k_i^T A_i."""
    values: Float[Tensor, "b h s v"]
    """Sum of A_i^T v_i."""
    seen: Int[Tensor, " b"]
    """Number of tokens."""


def causal_luna(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    packing: Float[Tensor, "b h l s"],
    *,
    chunk: int,
    keep: Bool[Tensor, "b l"] | None = None,
    dropout: float = 0.0,
    state: LunaState | None = None,
) -> tuple[Float[Tensor, "b h l v"], LunaState]:
    """Return the causal outputs o = f(B, A, V), and the state after the last token.

    `packing` is A of the module's docstring, with s slots; `q` is already divided by sqrt(d).
    """
    if state is None:
        zeros, slots = packing.new_zeros, packing.shape[-1]
        shape, tokens = q.shape[:2], torch.zeros(q.shape[0], dtype=torch.long, device=q.device)
        state = LunaState(
            zeros(*shape, k.shape[-1], slots), zeros(*shape, slots, v.shape[-1]), tokens
        )
    if keep is None:
        count = state.seen[:, None] + torch.arange(1, q.shape[2] + 1, device=q.device)
    else:
        packing = packing * keep[:, None, :, None]
        count = state.seen[:, None] + keep.cumsum(1)
    per_token = count.clamp(min=1).to(packing.dtype).reciprocal()[:, None, :, None]  # 1 / t
    scores, packed = running_product(q, k, packing, chunk, state.packed)
    weights = F.dropout((scores * per_token).softmax(-1), dropout)
    o, values = running_product(weights * per_token, packing, v, chunk, state.values)
    return o, LunaState(packed, values, count[:, -1].clone())


class Slots(Roles):
    """The slots that enter the first layer, drawn from N(0, 1 / width)."""

    no_matrices = ("weight",)

    def __init__(self, slots: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(slots, width).normal_(std=width**-0.5))


class Luna(Family):
    """Nested attention through slots.

    `pack_heads=None` means as many heads for packing as for unpacking. `activation` and `chunk` are
    options of the causal form; `chunk`, the number of tokens per chunk, affects only speed and
    memory.
    """

    out_proj: nn.Linear
    needs = (
        Need("activation", "chunk", causal=True),
        Need("dynamic_projection", "norm_residual", causal=False),
    )

    def __init__(
        self,
        site: Site,
        *,
        slots: Count = 16,
        tie_kv: bool = True,
        pack_heads: Count | None = None,
        dynamic_projection: bool = True,
        activation: Activation = Activation.softplus,
        chunk: Count = 32,
        bias: bool = True,
        norm_residual: bool = False,
    ) -> None:
        """Make the projections for packing and unpacking, and the slots that layers share."""
        super().__init__()
        self.heads, self.head_width = site.heads, site.head_width
        self.pack_heads = site.heads if pack_heads is None else pack_heads
        if site.width % self.pack_heads:
            raise ValueError(
                f"pack_heads must divide width: got pack_heads={pack_heads}, width={site.width}; "
                "set null for as many heads as model.backbone.heads"
            )
        if site.causal and self.pack_heads != site.heads:
            raise Unsupported(
                "the causal form of Luna packs and unpacks with the same number of heads: got "
                f"pack_heads={pack_heads}, heads={site.heads}; set pack_heads=null"
            )
        self.tied, self.dynamic, self.activation = tie_kv, dynamic_projection, activation
        self.chunk, self.dropout = chunk, site.attention_dropout
        self.norm_residual = norm_residual
        content = ["kv_proj"] if tie_kv else ["k_proj", "v_proj"]
        packed = ["pack_k_proj"] if site.causal else [f"pack_{name}" for name in content]
        with_biases = biases(site, bias)
        for name in ("q_proj", "pack_q_proj", *content, *packed, "out_proj"):
            has_bias = with_biases.output if name == "out_proj" else with_biases.qkv
            projection = nn.Linear(site.width, site.width, bias=has_bias)
            nn.init.xavier_uniform_(projection.weight, 1.0 if name == "out_proj" else 2**-0.5)
            if has_bias:
                nn.init.zeros_(projection.bias)
            self.add_module(name, projection)
        self.slots = site.share("luna.slots", lambda: Slots(slots, site.width))
        if len(self.slots.weight) != slots:
            raise ValueError(
                f"all layers of Luna share their slots: got slots={slots} in layer {site.layer}, "
                f"but slots={len(self.slots.weight)} in an earlier layer; set one number for all "
                "layers"
            )
        self.slot_norm = None if site.causal else nn.LayerNorm(site.width)
        self.traits = Traits(
            options=APPLIED - {"head_width"},  # heads of packed slots must fill the width
            causal=site.causal,
            weight_dropout=True,
            reversible=site.causal,
            sees_order=site.causal,
        )

    def project(self, name: str, x: Float[Tensor, "b l d"], heads: int) -> Float[Tensor, "b h l k"]:
        """Apply the projection `name` to `x`, and fold its width into heads."""
        return torch.unflatten(self.get_submodule(name)(x), -1, (heads, -1)).transpose(1, 2)

    def content(
        self, prefix: str, x: Float[Tensor, "b l d"], heads: int
    ) -> tuple[Float[Tensor, "b h l k"], Float[Tensor, "b h l k"]]:
        """Return keys and values of `x`; one projection serves as both if `tie_kv`."""
        if self.tied:
            both = self.project(f"{prefix}kv_proj", x, heads)
            return both, both
        return self.project(f"{prefix}k_proj", x, heads), self.project(f"{prefix}v_proj", x, heads)

    def rate(self) -> float:
        """Return the current dropout probability: 0 in evaluation."""
        return self.dropout if self.training else 0.0

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Pack into the slots of `flow.stream`, unpack, and pass the new slots to the next layer.

        The causal form passes no slots on, and continues from `flow.state`.
        """
        flow = flow.with_x(blanked(flow.x, layout, self.traits))
        if self.traits.causal:
            return self.continued(flow, layout)
        x = flow.x
        p = flow.stream
        if p is None:
            p = self.slots.weight.expand(x.shape[0], -1, -1)
        normed = cast(nn.Module, self.slot_norm)(p)
        packed = self.packed(normed, x, layout.keep)
        y = self.unpacked(x, packed, layout.keep)
        residual = normed if self.norm_residual else cast(Tensor, p)
        return flow._replace(x=y, stream=residual + packed)

    def packed(
        self,
        p: Float[Tensor, "b s d"],
        x: Float[Tensor, "b l d"],
        keep: Bool[Tensor, "b l"] | None,
    ) -> Float[Tensor, "b s d"]:
        """Return the packed slots: each slot of `p`, already normed, attends to real tokens."""
        q = self.project("pack_q_proj", p, self.pack_heads)
        k, v = self.content("pack_", x, self.pack_heads)
        visible = None if keep is None else keep[:, None, None]
        return sdpa(q, k, v, visible=visible, dropout=self.rate()).transpose(1, 2).flatten(2)

    def unpacked(
        self,
        x: Float[Tensor, "b l d"],
        packed: Float[Tensor, "b s d"],
        keep: Bool[Tensor, "b l"] | None,
    ) -> Float[Tensor, "b l d"]:
        """Return the output: each token of `x` attends to the `packed` slots.

        With `dynamic_projection`, a row uses at most as many slots as it has real tokens (`keep`).
        """
        visible = None
        if self.dynamic and keep is not None:
            slot = torch.arange(packed.shape[1], device=x.device)
            visible = (slot < keep.sum(1, keepdim=True))[:, None, None]
        elif self.dynamic:
            packed = packed[:, : x.shape[1]]
        k, v = self.content("", packed, self.heads)
        q = self.project("q_proj", x, self.heads)
        o = sdpa(q, k, v, visible=visible, dropout=self.rate())
        y: Tensor = self.out_proj(o.transpose(1, 2).flatten(2))
        return y

    def packing(self, x: Float[Tensor, "b l d"]) -> Float[Tensor, "b h l s"]:
        """Return A of the module's docstring: the weight of each token in each of s slots."""
        slot_queries = self.project("pack_q_proj", self.slots.weight[None], self.heads)
        keys = self.project("pack_k_proj", x, self.heads)
        dtype = sum_dtype(x)
        with full_precision(x):
            scores = keys.to(dtype) @ (slot_queries.to(dtype) * self.head_width**-0.5).mT
            positive = (
                F.softplus(scores, beta=math.log(2.0))  # log2(1 + 2^a)
                if self.activation == Activation.softplus
                else F.elu(scores) + 1
            )
            return F.dropout(positive, self.rate())

    def continued(self, flow: Flow, layout: Layout) -> Flow:
        """Return the output of the causal form, after the tokens in `flow.state`."""
        x = flow.x
        packing = self.packing(x)
        q = self.project("q_proj", x, self.heads)
        k, v = self.content("", x, self.heads)
        dtype = packing.dtype
        with full_precision(x):
            o, state = causal_luna(
                q.to(dtype) * self.head_width**-0.5, k.to(dtype), v.to(dtype), packing,
                chunk=self.chunk, keep=layout.keep, dropout=self.rate(),
                state=None if flow.state is None else LunaState(*flow.state),
            )  # fmt: skip
        y: Tensor = self.out_proj(o.transpose(1, 2).flatten(2).to(v.dtype))
        return flow._replace(x=y, state=None if flow.state is None else tuple(state))

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return sums of zeros, of one size for any `memory`."""
        del memory
        like, slots = self.slots.weight, len(self.slots.weight)
        dtype, shape = sum_dtype(like), (batch_size, self.heads)
        return (
            like.new_zeros(*shape, self.head_width, slots, dtype=dtype),
            like.new_zeros(*shape, slots, self.head_width, dtype=dtype),
            torch.zeros(batch_size, dtype=torch.long, device=like.device),
        )
