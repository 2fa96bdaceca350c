"""A kernel of flash-linear-attention for attention by features, causally: `causal_product`.

    total_i = phi(q_i)^T S_i,   S_i = e^(g_i) S_(i-1) + e^(a_i - r_i) phi(k_i) [v_i 1]^T

`chunk_simple_gla` computes it from features that are made outside, and the column of ones gives the
denominator; without g it is their `chunk_linear_attn`. Keys whose features carry a logarithm a_j
are weighted relative to its running maximum r_i, and g_i = r_(i-1) - r_i moves the sums to the next
maximum. As in our own form, rows with almost no weight are computed again without loss.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lra.models.kernels.fla_layout import (
    by_token,
    common_limits,
    finite_decays,
    fla_kernel,
    too_wide,
)
from lra.models.ops.linear.causal_product import Memory, empty_memory
from lra.models.ops.linear.exponent_sums import faint, mean_of_past
from lra.models.ops.linear.features import FeatureMap, FeatureMaps
from lra.models.ops.numerics import finite, full_precision, sum_dtype, without_padding


class _Features(torch.autograd.Function):
    """`apply(x, feature_map)`: backward makes the features again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, feature_map: FeatureMap) -> tuple[Tensor, Tensor | None]:
        """Return the features, and the logarithm of their factor, which is a constant."""
        ctx.feature_map = feature_map
        ctx.save_for_backward(x)
        phi, log = feature_map(x.to(sum_dtype(x), memory_format=torch.contiguous_format))
        if log is not None:
            ctx.mark_non_differentiable(log)
        return phi, log

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dphi: Tensor, _: Tensor | None) -> tuple[Tensor, None]:
        """Return the gradient of x."""
        (x,) = ctx.saved_tensors
        with full_precision(x):
            wide = x.to(dphi.dtype, memory_format=torch.contiguous_format)
            phi, _ = ctx.feature_map(wide)
            gradient = dphi.clone(memory_format=torch.contiguous_format)  # may be overwritten
            return ctx.feature_map.pull(gradient, phi, wide).to(x.dtype), None


def _takes(q: Tensor, v: Tensor, maps: FeatureMaps, memory: Memory | None, **_: Any) -> str:
    if memory is not None and maps.exponentials:
        return "sums of earlier exponentials have a level for each feature"
    return common_limits(q, v) or too_wide("features", maps.width)


def _relative(
    log: Tensor, keep: Tensor | None, memory: Memory | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights of keys relative to running maxima, log decays, and the last maximum."""
    before = log.new_full(log.shape[:2], -torch.inf)
    if memory is not None:  # with keys, its sums are above 0
        has_keys = memory.sums[..., -1].abs().amax(-1) > 0
        before = memory.level.masked_fill(~has_keys, -torch.inf)
    if keep is not None:
        log = log.masked_fill(~keep[:, None], -torch.inf)
    running = torch.maximum(log.cummax(-1).values, before[..., None])
    start = torch.cat((before[..., None], running[..., :-1]), -1)
    level = finite(running)
    g = (start - level).masked_fill(start == -torch.inf, 0)  # the sums are still 0
    return (log - level).exp()[..., None], finite_decays(g, None), level[..., -1]


def _call(
    function: Callable[..., tuple[Tensor, Tensor | None]],
    *,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    maps: FeatureMaps,
    keep: Tensor | None,
    memory: Memory | None,
    **_: Any,
) -> tuple[Tensor, Memory | None]:
    maps, width = maps.at_rows(slice(0, q.shape[2])), v.shape[-1]
    odd, columns = maps.width % 2, 1 if width % 2 else 2  # in half precision all must be even
    with full_precision(q):
        k, v = without_padding(k, keep), without_padding(v, keep)
        phi_q, _ = _Features.apply(q, maps.query)  # type: ignore[no-untyped-call]
        phi_k, log = _Features.apply(k, maps.key)  # type: ignore[no-untyped-call]
        values = without_padding(F.pad(v, (0, columns), value=1.0), keep)
        g, level = None, None if memory is None else memory.level
        if log is not None:
            weight, g, level = _relative(log, keep, memory)
            phi_k = phi_k * weight
        rows = [F.pad(phi_q, (0, odd)), F.pad(phi_k, (0, odd)), values]
        o, sums = function(
            *(by_token(x).to(v.dtype) for x in rows),
            g=g,
            scale=1.0,
            initial_state=None if memory is None else F.pad(memory.sums, (0, columns - 1, 0, odd)),
            output_final_state=memory is not None,
        )
        total = by_token(o).to(sum_dtype(o))
        out = total[..., :width]
        if maps.normalise:
            inverse = maps.reciprocal(total[..., width])
            out = out * inverse[..., None]
            sides = maps.exponentials
            has_key = None if keep is None else keep.cummax(1).values
            if sides and faint(inverse.detach(), has_key):
                start = empty_memory((*v.shape[:2], 0, q.shape[-1], width), maps, v)
                out = mean_of_past(q, k, v, keep, sides, **start._asdict())[0]
    if memory is None or sums is None or level is None:
        return out.to(v.dtype), None
    return out.to(v.dtype), Memory(sums[:, :, : maps.width, : width + 1], level)


KERNELS = (fla_kernel("causal_product", "simple_gla:chunk_simple_gla", _takes, _call),)
