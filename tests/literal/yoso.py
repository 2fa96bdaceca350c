"""YOSO: Zeng et al. 2021, arXiv:2111.09714; over all pairs. m hashes, p planes of all of them."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from tests.literal.heads import merged, projected
from tests.literal.nystromformer import convolved

USUAL = {"tau": [0, 1, 6, 11], "masks": ["", "keep"], "length": [1, 20, 41], "small": [False, True],
         "conv_kernel": [0, 5]}  # fmt: skip
GRIDS = [
    {**USUAL, "mode": ["expectation"], "gradient": ["surrogate", "true"]},
    {**USUAL, "mode": ["hashed"], "hashes": [5]},
    {"masks": ["source"], "mode": ["expectation"], "tau": [3]},
]
TOLERANCE = {"atol": 1e-9, "rtol": 1e-8}


def cosines(q: Float[Tensor, "b h l k"], k: Float[Tensor, "b h s k"]) -> Float[Tensor, "b h l s"]:
    """Return the cosine of the angle between every query and every key."""
    return F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT


def collision_chance(cosine: Float[Tensor, "..."], tau: int) -> Float[Tensor, "..."]:
    """Return (1 - acos(x) / pi)^tau: the chance that tau random planes part no two vectors."""
    return (1 - torch.acos(cosine.clamp(-1, 1)) / math.pi) ** tau


def collision_share(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    directions: Float[Tensor, "h k p"],
    tau: int,
) -> Float[Tensor, "b h l s"]:
    """Return the share of hashes in which all tau signs of query and key agree, in float64.

    `directions` are the normals of the planes, hash after hash: p = m tau.
    """
    signs = [
        (x @ directions.to(x)).gt(0).reshape(*x.shape[:3], -1, tau).transpose(2, 3) for x in (q, k)
    ]  # b h m l t
    equal: Tensor = (signs[0][..., :, None, :] == signs[1][..., None, :, :]).all(-1)
    return equal.double().mean(2)


def yoso_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    weights: Float[Tensor, "b h l s"],
    *,
    tau: int,
    keep: Bool[Tensor, "b s"] | None = None,
    surrogate: bool = True,
) -> Float[Tensor, "b h l v"]:
    """Return y_i / |y_i| with y_i = sum_j P_ij v_j, over all pairs; rows that find nothing are 0.

    Zeng et al. 2021. With `surrogate`, backward takes tau / 2 P as the derivative of P by the
    cosine of query and key.

    Args:
        q: queries.
        k: keys.
        v: values.
        weights: P, `collision_chance` or `collision_share`.
        tau: bits of a code.
        keep: which keys are no padding.
        surrogate: whether the gradient is the paper's.
    """
    if surrogate:
        cosine, weights = cosines(q, k), weights.detach()
        weights = weights * (1 + tau / 2 * (cosine - cosine.detach()))  # the value stays
    if keep is not None:
        weights = weights * keep[:, None, None]
    y = weights @ v
    length: Tensor = torch.where((y == 0).all(-1, keepdim=True), 1, y).norm(dim=-1, keepdim=True)
    return y / length


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Weigh pairs by how likely their codes agree, or by how often they do."""
    q, k, v = projected(mixer, x, case)
    if case.mode == "expectation":
        weights = collision_chance(cosines(q, k), case.tau)
    elif case.tau:
        weights = collision_share(q, k, mixer.core.planes, case.tau)
    else:
        weights = torch.ones_like(q @ k.mT)
    surrogate = case.gradient == "surrogate"
    o = yoso_attention(q, k, v, weights, tau=case.tau, keep=case.keep, surrogate=surrogate)
    if case.conv_kernel:
        o = o + convolved(mixer, v, case)
    return merged(mixer, o, x)
