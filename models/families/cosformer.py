"""cosFormer: linear attention with ReLU features and weights that fall as a cosine of distance.

Equation   o_i = sum_j w_ij v_j / sum_j w_ij, w_ij = relu(q_i) · relu(k_j) cos(pi (i - j) / 2 M)
           over all j, or over j <= i when causal. The cosine of a difference is a sum of two
           products, so w_ij = phi(q_i) · phi(k_j) with phi(x_i) = [relu(x_i) cos t_i, relu(x_i) sin
           t_i] and t_i = pi i / 2 M: linear attention with 2 d features, all of them at least 0.
Cost       Each head takes 8 d^2 operations per token, and 2 C (3 d + 1) more in the causal form
           with chunks of C tokens. State: 2 d (d + 1) numbers per head, an offset (here 0), and the
           position.
Source     Qin et al., "cosFormer: Rethinking Softmax in Attention", arXiv:2202.08791.
Notation   the paper's N, d are l, k; its M is `horizon`, the distance at which weights reach 0.
Differs    M is the longest input for which the model was built. The authors' M is the current
           length (`horizon=current`). With it, outputs change with the total length, padding
           included, and a state along time is impossible. Positions from M on raise an error, since
           their weights would be negative. A row whose weights are all 0 gives 0; the authors
           divide it by 1e-6.
"""

import math
from enum import StrEnum, auto
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lra.models.mixer import Layout, Need, Site, State, Traits
from lra.models.multi_head import MultiHead
from lra.models.ops.linear.causal_product import Memory
from lra.models.ops.linear.feature_core import FeatureCore
from lra.models.ops.linear.features import FeatureMaps
from lra.models.ops.numerics import sum_dtype
from lra.models.positions import position_ids


class Horizon(StrEnum):
    """Distance at which weights reach 0, M."""

    max_length = auto()
    """The model's longest input."""
    current = auto()
    """The length of this call, as in the authors' code: padding counts, and is attended to."""


class CosineFeatures:
    """phi(x_i) = [max(x_i, 0) cos t_i, max(x_i, 0) sin t_i]."""

    def __init__(self, cos: Float[Tensor, "#b l"], sin: Float[Tensor, "#b l"]) -> None:
        self.cos, self.sin = cos, sin

    def at_rows(self, rows: slice) -> "CosineFeatures":
        """Return the feature map at the positions `rows`."""
        return CosineFeatures(self.cos[:, rows], self.sin[:, rows])

    def shaped(self, x: Float[Tensor, "b h *r k"]) -> tuple[Tensor, Tensor]:
        """Return the tables of cosines and sines in the shape of `x`, which may be in chunks."""
        shape = (-1, 1, *x.shape[2:-1], 1)
        return self.cos.reshape(shape), self.sin.reshape(shape)

    def __call__(self, x: Float[Tensor, "b h *r k"]) -> tuple[Float[Tensor, "b h *r m"], None]:
        """Return the m = 2 k features of `x`, and None, because they have no offset."""
        cos, sin = self.shaped(x)
        x = x.relu()
        return torch.cat((x * cos, x * sin), dim=-1), None

    def pull(
        self,
        gradient: Float[Tensor, "b h *r m"],
        phi: Float[Tensor, "b h *r m"],
        x: Float[Tensor, "b h *r k"],
    ) -> Float[Tensor, "b h *r k"]:
        """Return the gradient of `x`, given the `gradient` of its features `phi`."""
        del phi
        cos, sin = self.shaped(x)
        g_cos, g_sin = gradient.chunk(2, dim=-1)
        return (g_cos * cos).addcmul_(g_sin, sin).mul_(x > 0)


class PlacedMaps(FeatureMaps):
    """Feature maps that depend on the position."""

    def at_rows(self, rows: slice) -> FeatureMaps:
        """Return the feature maps of queries and keys at the positions `rows`."""
        return self._replace(query=self.query.at_rows(rows), key=self.key.at_rows(rows))  # type: ignore[attr-defined]


def cosine_maps(
    queries: Int[Tensor, "#b l"],
    keys: Int[Tensor, "#b s"],
    *,
    width: int,
    horizon: int,
    dtype: torch.dtype,
) -> FeatureMaps:
    """Return the feature maps for heads of `width`.

    `queries` and `keys` are positions, `horizon` is M, and `dtype` is the type of the angles.
    """
    angles = [ids.to(dtype) * (math.pi / (2 * horizon)) for ids in (queries, keys)]
    query, key = (CosineFeatures(angle.cos(), angle.sin()) for angle in angles)
    return PlacedMaps(query, key, 2 * width)


class CosformerCore(FeatureCore):
    """Linear attention by cosine features; when causal, with running sums as its state."""

    def __init__(self, site: Site, *, horizon: Horizon, chunk: int) -> None:
        """Set the traits; with horizon=current, padding and later tokens change all angles."""
        self.horizon = site.max_length if horizon == Horizon.max_length else None
        fixed = self.horizon is not None
        supported = Traits().supports
        traits = Traits(
            supports=supported if fixed else supported - {"keep"},
            causal=site.causal,
            max_length=self.horizon,
            selection_leak=site.causal and not fixed,
            cross=not site.causal,
        )
        super().__init__(traits, chunk)

    def maps(
        self, q: Float[Tensor, "b h l k"], k: Float[Tensor, "b h s k"], layout: Layout
    ) -> FeatureMaps:
        """Return the feature maps at the positions of these queries and keys."""
        longest = max(q.shape[2], k.shape[2])
        if self.horizon is not None:
            check_positions(longest, layout.start, self.horizon)
        return cosine_maps(
            position_ids(q.shape[2], layout.start, q),
            position_ids(k.shape[2], layout.start, k),
            width=q.shape[3],
            horizon=self.horizon or longest,
            dtype=sum_dtype(q),
        )

    def initial_state(self, shape: tuple[int, ...], like: Tensor) -> State:
        """Return sums of zeros, and 0 as the position of the next token."""
        memory = cast(Memory, super().initial_state(shape, like))
        return (*memory, like.new_zeros(shape[0], dtype=torch.int64))

    def extend(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
        state: tuple[Tensor, ...],
    ) -> tuple[Float[Tensor, "b h l v"], tuple[Tensor, ...]]:
        """Continue from `state`, at `layout.start` or, if that is None, at the state's position."""
        *memory, position = state
        start = position if layout.start is None else layout.start
        o, after = super().extend(q, k, v, layout._replace(start=start), tuple(memory))
        return o, (*after, start + q.shape[2])


def check_positions(length: int, start: Int[Tensor, " b"] | None, horizon: int) -> None:
    """Raise ValueError if a sequence of `length` tokens from `start` ends beyond the horizon.

    Where `start` has no values to read, it counts as 0.
    """
    end = length
    if start is not None and not (start.is_meta or torch.compiler.is_compiling()):
        end += int(start.amax())
    if end > horizon:
        raise ValueError(
            f"at distances beyond max_length={horizon}, the weights of cosFormer would be "
            f"negative: got a sequence that ends at position {end}; build the model with "
            f"max_length >= {end}"
        )


class Cosformer(MultiHead):
    """cosFormer between the four projections.

    `chunk` is the number of tokens per chunk of the causal form; it affects only speed and memory.
    """

    needs = (Need("chunk", causal=True),)

    def __init__(
        self, site: Site, *, horizon: Horizon = Horizon.max_length, chunk: int = 64
    ) -> None:
        super().__init__(site, CosformerCore(site, horizon=horizon, chunk=chunk))
