"""Linformer: low-rank attention; learned maps project keys and values to k slots along the length.

Equation   K' = E K,  V' = F V,  o_i = sum_j softmax_j(q_i K'_j / sqrt(d)) V'_j over the k slots
Maps       learned    E is a parameter of k x max_length, Xavier-uniform
           frozen_jl  E is drawn from N(0, 1 / k) and stays fixed, or is drawn again every
                      `redraw_every` steps
                      (`deviation` sets the standard deviation of both: N(0, deviation^2))
           mean_pool  slot j is the mean of tokens jw ... jw + w - 1, w = max_length / k rounded up
           max_pool   the same with the largest entry of every channel
           conv       a learned convolution over the channels of a head, kernel and stride w
Sharing    none       an E and an F for every head: 2 h matrices in a layer
           headwise   one E and one F in a layer        kv   one E = F in a layer
           layerwise  one E = F in the model
           kv_by_head, layerwise_by_head    the same with one matrix for each head: h matrices
Cost       The layer takes 8 n k D operations. Half of them are for E K and F V (none with pooling).
           Each matrix has k n parameters.
Source     Wang et al. 2020, arXiv:2006.04768, sections 4 and 5.
Notation   the paper's n, k, d are the axis l, `projected_length`, the width of a head.
Length     E has one column for each position up to max_length, the longest input for which the
           model was built. A shorter sequence uses the first columns. A pooling window has w tokens
           at every length, so that a sequence has the same slots with and without padding behind
           it; slots that contain only padding are masked.
Padding    rows of K and V that are padding become 0 before E is applied.
Differs    `row_normalise` is an addition of this project. It divides each row of E by its Euclidean
           norm over the real tokens. Without it, a row of frozen_jl has norm sqrt(n / k), so slots
           are longer vectors than tokens.
Variant    lra: k = 16 and sharing kv unless set, without a padding mask, as in the Long Range Arena
           code. Padded tasks need model.backbone.padding=attended, as there, or zeroed.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lra.models.mixer import Layout, Need, Site, Traits, Unsupported, Variant, Whole, blanked
from lra.models.multi_head import MultiHead
from lra.models.ops.exact import sdpa
from lra.models.ops.low_rank.length_map import MATRIX, POOL, LengthMap, Projection, Sharing


class LinformerCore(nn.Module):
    """Softmax attention of the queries to slots, which are projections of keys and values."""

    def __init__(self, site: Site, length_map: LengthMap, *, masked: bool) -> None:
        """Set the traits. Order has no effect if pooling gives one slot, or one for each token."""
        super().__init__()
        self.length_map, self.dropout = length_map, site.attention_dropout
        matrix, pools = length_map.projection in MATRIX, length_map.projection in POOL
        single_tokens = length_map.window == 1  # each slot holds one token
        one_slot = length_map.window >= site.max_length
        self.traits = Traits(
            supports=frozenset({"keep"} if masked else ()),
            max_length=site.max_length,
            row_stochastic=length_map.projection == Projection.mean_pool,
            weight_dropout=True,
            cross=masked,  # the source of cross attention may be padded
            random_draws=length_map.projection == Projection.frozen_jl,
            sees_order=matrix or not (single_tokens or (pools and one_slot)),
        )

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Map keys and values to s slots, and let the queries attend to these."""
        keep = self.checked_keep(layout, k.shape[2])
        return self.attend(q, self.reduced(k, 0, keep), self.reduced(v, 1, keep), keep)

    def checked_keep(self, layout: Layout, length: int) -> Bool[Tensor, "b n"] | None:
        """Return the mask of padding, or None; ValueError for more tokens than the maps accept."""
        if length > self.length_map.max_length:
            raise ValueError(
                f"this Linformer accepts at most max_length={self.length_map.max_length} tokens: "
                f"got {length} tokens; truncate, or build it with a larger max_length"
            )
        return layout.keep if "keep" in self.traits.supports else None

    def reduced(
        self, x: Float[Tensor, "b h n c"], number: int, keep: Bool[Tensor, "b n"] | None
    ) -> Float[Tensor, "b h s c"]:
        """Map n tokens of every head to s slots, with map `number` (0: keys, 1: values)."""
        if not self.length_map.joined:
            return cast(Tensor, self.length_map(x, number, keep))
        merged_heads = x.transpose(1, 2).flatten(-2)[:, None]
        slots: Tensor = self.length_map(merged_heads, number, keep)
        return slots.reshape(len(x), -1, x.shape[1], x.shape[3]).transpose(1, 2)

    def attend(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        keep: Bool[Tensor, "b n"] | None,
    ) -> Float[Tensor, "b h l v"]:
        """Let queries attend to slots; slots that contain only padding are hidden."""
        visible = None
        if keep is not None and self.length_map.projection not in MATRIX:
            visible = self.length_map.tokens_held(keep.float())[:, None, None] > 0
        return sdpa(q, k, v, visible=visible, dropout=self.dropout if self.training else 0.0)


class Linformer(MultiHead):
    """Attention to `projected_length` slots; one value, or one per layer.

    `projected_length=None` means 128 and `sharing=None` headwise; with variant=lra, 16 and kv.
    `redraw_every` is a number of optimiser steps for projection=frozen_jl; 0: never.
    """

    core: LinformerCore
    needs = (
        Need("redraw_every", projection=Projection.frozen_jl),
        Need("row_normalise", "deviation", projection=(Projection.learned, Projection.frozen_jl)),
        Need(
            "sharing",
            words="a map with weights: projection=learned, frozen_jl or conv",
            # Pooling always uses one map for keys and values, so sharing=kv is allowed.
            holds=lambda _, given: given.projection not in POOL or given.sharing == Sharing.kv,
        ),
    )

    @classmethod
    def fixed(cls, options: Any) -> Mapping[str, object]:
        """Return the values of options that `variant=lra` uses if they are None."""
        values = {"projected_length": [16], "sharing": Sharing.kv}
        lra = options.variant == Variant.lra
        return {k: v for k, v in values.items() if lra and getattr(options, k) is None}

    def __init__(
        self,
        site: Site,
        *,
        projected_length: list[int] | None = None,
        sharing: Sharing | None = None,
        projection: Projection = Projection.learned,
        row_normalise: bool = False,
        redraw_every: Whole = 0,
        deviation: float | None = None,
        variant: Variant = Variant.faithful,
        bias: bool = True,
    ) -> None:
        """Make the projections, and the map from tokens to slots, which layers may share."""
        if site.causal:
            raise Unsupported(
                "every slot of Linformer mixes all positions, so no mask can hide later tokens: "
                "got a task that needs a causal model; choose a causal family"
            )
        lra = variant == Variant.lra
        projected_length = projected_length or [16 if lra else 128]
        sharing = sharing or (Sharing.kv if lra else Sharing.headwise)
        slots, shared = site.at(projected_length), sharing.by_model
        if slots < 1:
            raise ValueError(
                f"projected_length, the number of slots, must be at least 1: got {slots}"
            )
        if deviation is not None and deviation <= 0:
            raise ValueError(
                f"deviation, a standard deviation, must be positive, or null: got {deviation}"
            )
        if shared and len(set(projected_length)) > 1:
            raise ValueError(
                f"sharing={sharing} uses one map for all layers, so they have the same number of "
                f"slots: got projected_length={projected_length}; set one value, or sharing=kv"
            )

        def make() -> LengthMap:
            return LengthMap(
                site, projection, slots, sharing,
                row_normalise=row_normalise, redraw_every=redraw_every, deviation=deviation,
            )  # fmt: skip

        length_map = (
            site.share(f"linformer.{projection}.{sharing}.{slots}", make) if shared else make()
        )
        super().__init__(site, LinformerCore(site, length_map, masked=not lra), bias=bias)
        linear = length_map.joined and projection != Projection.max_pool
        # A linear map of all heads can be applied to tokens first, before k_proj and v_proj. This
        # saves time only if the model is wide enough.
        self.early = linear and not self.positions_inside and 2 * site.width >= slots

    def forward(self, x: Float[Tensor, "b l d"], layout: Layout) -> Float[Tensor, "b l d"]:
        """Attend to slots, which are computed in the cheaper of two equivalent ways.

        With `early`, the tokens are mapped to slots first, and keys and values are projections of
        the slots. If there are more slots than tokens, keys and values are projected first.
        """
        if not self.early or x.shape[1] < self.core.length_map.slots:
            return super().forward(x, layout)
        x = blanked(x, layout, self.traits)
        keep, length_map = self.core.checked_keep(layout, x.shape[1]), self.core.length_map
        layers = (self.k_proj, self.v_proj)
        slots = [length_map(x[:, None], number, keep)[:, 0] for number in range(length_map.maps)]
        k, v = (layer(slots[min(i, length_map.maps - 1)]) for i, layer in enumerate(layers))
        if self.k_proj.bias is not None:
            # A slot must contain the bias as often as E maps ones to, not once.
            ones = torch.ones_like((x[:1] if keep is None else x)[:, None, :, :1])
            missing = [length_map(ones, i, keep)[:, 0] - 1 for i in range(2)]
            k, v = k + missing[0] * self.k_proj.bias, v + missing[1] * self.v_proj.bias
        q, k, v = self.split(self.q_proj(x)), self.split(k), self.split(v)
        return self.merge(self.core.attend(q, k, v, keep))
