"""Longformer: sliding-window attention (dilated in some heads, if wanted) with global tokens.

    o_i = sum_j p_ij v_j over the window W(i) and the global tokens G, each key once, p = softmax of
          s_ij = q_i k_j / sqrt(d);  W(i): j = i + D t, |t| <= w (causal: 0 <= -t <= w, j <= i in G)
    o_g = the same over all tokens (causal: up to g) for g in G, with separate projections:
          q', k', v' instead of q, k, v
    With ALiBi positions, slope_h |i - j| is subtracted from every score.

Cost: the window takes 4 n D (2w + C) operations in blocks of C queries (causal: w + C in place of
2w + C). Each global token adds 4 n D as a key, and 4 n D H as a query (H heads); all global queries
together take 4 n D^2 where that is less. Memory is n H (2w + C + g). A causal layer without global
tokens has a state along time: the last w keys and values, or in dilated heads the last w times the
dilation.

Global tokens are those of the task (with `global_mask`) and the CLS vector (unless `global_cls` is
false). q', k', v' start as copies of q, k, v, also when you load weights that lack them.

Source: Beltagy et al. 2020, arXiv:2004.05150, section 3; allenai/longformer. Notation: `window` is
the one-sided w; the paper and the transformers package count both sides, so that their 512 is 256
here. `dilation` is the distance D between two keys; the paper's table of its language model gives
the number of tokens between them, D - 1. The paper's small language model has dilation [1, 1, 1, 1,
1, 1, 2, 2, 3, 3, 4, 4], dilated_heads 2, and windows that grow with depth; the paper's table and
its text give different windows.

Differences from the paper: masks are exact; the authors add -10,000 to masked scores.

`variant: lra` is what the official LRA code computes: a window of w - 1 tokens behind and w ahead,
no global tokens, and q', k', v' that exist but are unused (weight decay changes them there; they
are frozen here). A padded token gives the mean of the values at all positions, unless causal: a
bias of -1e10 on all of its scores makes them equal in float32. Attention dropout is not applied to
that mean. That code builds two dense matrices for it; this one does not.

The encoder of LED is this mixer; the decoder of LED uses full attention.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from lra.models.mixer import Layout, Need, Positions, Site, State, Unsupported, Variant, blanked
from lra.models.multi_head import MultiHead
from lra.models.ops.banded.scores import GlobalKeys
from lra.models.ops.banded.sliding_window import SlidingWindowCore
from lra.models.ops.sparse.global_tokens import global_weights, see_projected, see_tokens
from lra.models.positions import alibi_slopes, rotate

STARTS: Mapping[str, str] = {
    "query_global": "q_proj",
    "key_global": "k_proj",
    "value_global": "v_proj",
}
"""Projections of global tokens, each with the projection from which its weights are copied."""


class LongformerCore(nn.Module):
    """One window core for undilated heads, and one for dilated heads."""

    def __init__(
        self,
        site: Site,
        *,
        window: int,
        dilation: int,
        dilated_heads: int | None,
        block: int | None,
        uneven: bool,
        sees_cls: bool,
    ) -> None:
        """Make a window core for undilated heads and one for dilated heads, if there are any."""
        super().__init__()
        dilated = site.heads if dilated_heads is None else dilated_heads
        if not 0 <= dilated <= site.heads:
            raise ValueError(
                f"dilated_heads must be 0 to {site.heads} (the number of heads), or null for all "
                f"heads: got {dilated}"
            )
        # The first `plain` heads are undilated; with both kinds there are two cores, else one.
        plain = site.heads if dilation == 1 else site.heads - dilated
        self.counts = [plain, site.heads - plain] if 0 < plain < site.heads else [site.heads]
        first, last = slice(0, self.counts[0]), slice(plain, site.heads)
        self.slices = [first, last] if len(self.counts) == 2 else [first]
        self.sees_cls = sees_cls
        self.parts = nn.ModuleList(
            SlidingWindowCore(
                site,
                window=window,
                block=block,
                dilation=1 if heads.start < plain else dilation,
                behind=window - 1 if uneven else None,
                heads=heads,
            )
            for heads in self.slices
        )
        traits = [self.part(index).traits for index in range(len(self.parts))]
        self.traits = replace(
            traits[0],
            reach=max(part.reach or 0 for part in traits),
            sees_order=any(part.sees_order for part in traits),
        )

    def part(self, index: int) -> SlidingWindowCore:
        """Return the core of number `index`: 0 for the first heads, 1 for the dilated ones."""
        return cast(SlidingWindowCore, self.parts[index])

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
        beyond: GlobalKeys | None = None,
    ) -> Float[Tensor, "b h l v"]:
        """Attend within the windows, and to the keys `beyond` that all queries read."""
        if len(self.parts) == 1:
            return cast(Tensor, self.parts[0](q, k, v, layout, beyond))
        outputs: list[Tensor] = []
        for index, pieces in enumerate(self._split(q, k, v)):
            global_keys = None if beyond is None else beyond.select_heads(self.slices[index])
            outputs.append(self.parts[index](*pieces, layout, global_keys))
        return _join_heads(outputs)

    def _split(self, *tensors: Float[Tensor, "b h l _"]) -> Iterator[tuple[Tensor, ...]]:
        """Yield the heads of `tensors` for each core."""
        return zip(*(torch.split(x, self.counts, 1) for x in tensors), strict=True)

    def initial_state(self, shape: tuple[int, int, int, int, int], like: Tensor) -> State:
        """Return the empty states of both cores."""
        if self.sees_cls:
            raise Unsupported(
                "the state of Longformer cannot store a global CLS vector, to which every later "
                "token would attend: set global_cls=false"
            )
        batch, _, memory, key, value = shape
        sizes = [(batch, count, memory, key, value) for count in self.counts]
        return tuple(self.part(i).initial_state(size, like) for i, size in enumerate(sizes))

    def extend(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
        state: State,
    ) -> tuple[Float[Tensor, "b h l v"], State]:
        """Let each new query attend to remembered and new tokens up to itself; update the state."""
        if layout.is_global is not None:
            raise Unsupported(
                "Longformer cannot continue from a state with global tokens: pass is_global=None"
            )
        states = cast(tuple[State, ...], state)
        results = [
            self.part(index).extend(q, k, v, layout, states[index])
            for index, (q, k, v) in enumerate(self._split(q, k, v))
        ]
        return _join_heads([o for o, _ in results]), tuple(after for _, after in results)


def _join_heads(parts: list[Float[Tensor, "b _ l v"]]) -> Float[Tensor, "b h l v"]:
    """Concatenate heads along axis 1, stored so that merging heads later needs no copy."""
    return torch.cat([part.transpose(1, 2) for part in parts], dim=2).transpose(1, 2)


class Longformer(MultiHead):
    """Multi-head attention within windows and through global tokens."""

    slopes: Tensor | None
    query_global: nn.Linear
    key_global: nn.Linear
    value_global: nn.Linear
    infusible = False
    lra_version = 1
    needs = (
        Need(
            "dilated_heads",
            words="dilation=2 or more",
            holds=lambda _, chosen: max(chosen.dilation, default=1) > 1,
        ),
        Need("global_cls", cls=True),
    )

    @classmethod
    def fixed(cls, options: Any) -> Mapping[str, object]:
        """Return the options that `variant=lra` fixes, with their values."""
        lra = options.variant == Variant.lra
        return {"global_cls": False, "global_mask": False} if lra else {}

    def __init__(
        self,
        site: Site,
        *,
        window: list[int] = [256],  # noqa: B006  read, never written; the schema is this signature
        dilation: list[int] = [1],  # noqa: B006
        dilated_heads: int | None = None,
        global_cls: bool = True,
        global_mask: bool = False,
        block: int | None = None,
        bias: bool = True,
        variant: Variant = Variant.faithful,
    ) -> None:
        """Make the projections, the core and, if needed, separate projections of global tokens."""
        lra = variant == Variant.lra
        sees_cls = global_cls and site.cls and not lra
        core = LongformerCore(
            site, window=site.at(window), dilation=site.at(dilation),
            dilated_heads=dilated_heads, block=block, uneven=lra, sees_cls=sees_cls,
        )  # fmt: skip
        super().__init__(site, core, bias=bias, mean_at_padding=lra and not site.causal)
        self.sees_cls, self.sees_mask = sees_cls, global_mask
        self.dropout = site.attention_dropout
        sloped = site.positions == Positions.alibi
        slopes = alibi_slopes(site.heads) if sloped else None
        self.register_buffer("slopes", slopes, persistent=False)
        if sees_cls or global_mask or lra:
            for name, start in STARTS.items():
                ordinary = getattr(self, start)
                layer = nn.Linear(site.width, site.inner_width, bias=ordinary.bias is not None)
                layer.load_state_dict(ordinary.state_dict())
                self.add_module(name, layer.requires_grad_(not lra))
            self.register_load_state_dict_pre_hook(  # type: ignore[no-untyped-call]
                _start_from_ordinary
            )
        if sees_cls or global_mask:
            self.traits = replace(self.traits, reach=None)
        if global_mask:
            self.traits = replace(self.traits, supports=self.traits.supports | {"is_global"})

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Attend within windows and, if there are global tokens, through them."""
        if layout.is_global is not None:
            if not self.sees_mask:
                raise Unsupported(
                    "this batch marks global tokens, but this Longformer has no projections for "
                    "them: set global_mask=true"
                )
            is_global = layout.is_global
            if self.sees_cls:
                is_global = is_global | (torch.arange(x.shape[1], device=x.device) == 0)
            return self.merge(
                self._attend_with_mask(blanked(x, layout, self.traits), is_global, layout)
            )
        if self.sees_cls:
            return self.merge(self._attend_with_cls(blanked(x, layout, self.traits), layout))
        return super().forward(x, layout)

    def _attend_with_cls(
        self, x: Float[Tensor, "b l d"], layout: Layout
    ) -> Float[Tensor, "b h l k"]:
        """Let the first token, CLS, attend to all tokens, and all tokens to it.

        The other tokens attend within windows that exclude it, and to its key separately.
        """
        first = x.new_zeros(x.shape[0], 1, dtype=torch.int64)
        reach = 1 if self.traits.causal else x.shape[1]  # if causal, CLS attends to itself alone
        keep = None if layout.keep is None else layout.keep[:, :reach]
        cls_output = self.see_all(x[:, :1], first, x[:, :reach], layout._replace(keep=keep))
        if x.shape[1] == 1:
            return cls_output
        q, k, v = (torch.split(part, [1, x.shape[1] - 1], 2) for part in self.project(x, layout))
        keep = layout.keep
        # The core counts positions from the token after CLS, so that of CLS is -1.
        cls_key = GlobalKeys(k[0], v[0], first - 1, None if keep is None else keep[:, :1])
        rest = layout._replace(keep=None if keep is None else keep[:, 1:])
        o: Tensor = self.core(q[1], k[1], v[1], rest, cls_key)
        cls_output = cls_output.to(o.dtype)
        return torch.cat((cls_output.transpose(1, 2), o.transpose(1, 2)), 1).transpose(1, 2)

    def _attend_with_mask(
        self, x: Float[Tensor, "b l d"], is_global: Bool[Tensor, "b l"], layout: Layout
    ) -> Float[Tensor, "b h l k"]:
        """Let the tokens marked in `is_global` attend to all tokens, and all tokens to them.

        Other tokens fill up rows with fewer global tokens than others; `real` is False for them,
        and they keep the outputs of their windows.
        """
        q, k, v = self.project(x, layout)
        keep = torch.ones_like(is_global) if layout.keep is None else layout.keep
        largest = int(is_global.sum(1).max())
        order = is_global.to(torch.int8).argsort(dim=1, descending=True, stable=True)
        positions = order[:, :largest]
        real = is_global.gather(1, positions)
        visible = real & keep.gather(1, positions)
        index = positions[:, None, :, None].expand(-1, self.heads, -1, self.head_width)
        global_keys = GlobalKeys(k.gather(2, index), v.gather(2, index), positions, visible)
        others = layout._replace(keep=keep & ~is_global)
        o: Tensor = self.core(q, k, v, others, global_keys if largest else None)
        tokens = x.gather(1, positions[..., None].expand(-1, -1, x.shape[2]))
        rows = self.see_all(tokens, positions, x, layout).to(o.dtype)
        rows = torch.where(real[:, None, :, None], rows, o.gather(2, index))
        return o.scatter(2, index, rows)

    def see_all(
        self,
        tokens: Float[Tensor, "b g d"],
        positions: Int[Tensor, "b g"],
        x: Float[Tensor, "b l d"],
        layout: Layout,
    ) -> Float[Tensor, "b h g k"]:
        """Return the outputs of g global `tokens` at `positions`, which attend to all of `x`."""
        q = self.split(self.query_global(tokens))
        weigh = partial(
            global_weights,
            positions=positions,
            causal=self.traits.causal,
            keep=layout.keep,
            slopes=self.slopes,
            dropout=self.dropout if self.training else 0.0,
        )
        # Few queries: it costs less to map them to the tokens' space than to project all tokens.
        if not self.rotary and positions.shape[1] * (self.heads - 1) < x.shape[2]:
            return see_tokens(q, x, self.key_global, self.value_global, weigh)
        k, v = self.split(self.key_global(x)), self.split(self.value_global(x))
        if self.rotary:
            start = positions if layout.start is None else positions + layout.start[:, None]
            # Each query becomes a row of its own, because `rotate` takes one start per row.
            rotated = rotate(q.transpose(1, 2).flatten(0, 1)[:, :, None], start.flatten())
            q = rotated.view(*positions.shape, self.heads, self.head_width).transpose(1, 2)
            k = rotate(k, layout.start)
        return see_projected(q, k, v, weigh)


def _start_from_ordinary(
    module: nn.Module, state: dict[str, Tensor], prefix: str, *_: object
) -> None:
    """Before loading `state`, copy missing global projections from the ordinary ones."""
    del module
    for name, start in STARTS.items():
        for kind in ("weight", "bias"):
            if f"{prefix}{start}.{kind}" in state:
                state.setdefault(f"{prefix}{name}.{kind}", state[f"{prefix}{start}.{kind}"])
