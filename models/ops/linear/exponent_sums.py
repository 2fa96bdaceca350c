"""Attention by features that are exponentials, for any size of the exponents.

    weight_ij = sum_m exp(a_im + b_jm),  a of the query, b of the key, m the feature

The fast forms (`feature_product`, `causal_product`) refer a key's features to the largest of them,
and a query's likewise. Long vectors have their largest features at different m: then every product
rounds to 0, and a row that is a weighted mean came out as 0. Here each feature m has a reference of
its own, s_m = max_j b_jm over the keys j that the row sees:

    sum_j weight_ij v_j = sum_m exp(a_im + s_m) S_m,   S_m = sum_j exp(b_jm - s_m) v_j

The largest exp(b_jm - s_m) is 1 for each m, so the sum of a row's weights is at least its largest
exp(a_im + s_m), to which the row refers: nothing that counts is lost. Causally the s_m of the past
are the state. Within a block, rows of the second half see keys of the first half, which all lie
before them, then so do the quarters, and so on down to each row's own key; parts join by their
references, as in any streamed softmax. No row's reference depends on a later key.

Exponents themselves are rounded: weights are as exact as exp of a number of the exponents' size can
be, to 1e-7 of that number in float32. This takes five to ten times as long as the fast forms, which
therefore come first, and give way where they found a row with (almost) no weight. That is seen
in the values alone: a compiled module takes the fast forms only.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from lra.models.ops.numerics import finite, full_precision, sum_dtype

ROWS = 1024
"""Rows worked on at once where all see all."""
BLOCK = 64
"""Rows of a causal block, a power of two."""
FAINT = 1e13
"""Times the smallest normal number: a sum of weights below it may have lost some to rounding."""


class Exponents(ABC):
    """A feature map whose features are exponentials."""

    @abstractmethod
    def exponents(self, x: Float[Tensor, "*r k"]) -> Float[Tensor, "*r m"]:
        """Return the logarithms of the features, with the factor that they are divided by."""


class Exponential(Exponents):
    """phi(x) = e^u + epsilon, u = W x or x, times `scale`; divided by its largest entry."""

    def __init__(
        self,
        projection: Float[Tensor, "m k"] | None = None,
        scale: float = 1.0,
        epsilon: float = 0.0,
    ) -> None:
        self.projection = None if projection is None else projection * scale
        self.scale, self.epsilon = scale, epsilon
        self.least = math.log(epsilon) if epsilon else -math.inf  # epsilon is added to each e^u

    def inner(self, x: Float[Tensor, "*r k"]) -> Float[Tensor, "*r m"]:
        """Return u of the class's docstring."""
        if self.projection is not None:
            return x @ self.projection.T
        return x if self.scale == 1 else x * self.scale

    def relative(
        self, x: Float[Tensor, "*r k"]
    ) -> tuple[Float[Tensor, "*r m"], Float[Tensor, "*r 1"]]:
        """Return e^(u - top) and top, the largest u (at least log epsilon) of each row."""
        u = self.inner(x)
        top = u.amax(-1, keepdim=True)
        if self.epsilon:
            top = top.clamp(min=self.least)
        return torch.sub(u, top).exp_(), top

    def __call__(
        self, x: Float[Tensor, "*r k"]
    ) -> tuple[Float[Tensor, "*r m"], Float[Tensor, "*r"]]:
        """Return the features, divided by exp(top), and top."""
        phi, top = self.relative(x)
        if self.epsilon:
            phi.add_(torch.exp(self.least - top))
        return phi, top[..., 0]

    def pull(
        self, gradient: Float[Tensor, "*r m"], phi: Float[Tensor, "*r m"], x: Float[Tensor, "*r k"]
    ) -> Float[Tensor, "*r k"]:
        """Return the gradient of `x` from that of its features `phi`; may overwrite `gradient`."""
        gradient = gradient.mul_(self.relative(x)[0] if self.epsilon else phi)
        if self.projection is not None:
            return gradient @ self.projection
        return gradient if self.scale == 1 else gradient.mul_(self.scale)

    def exponents(self, x: Float[Tensor, "*r k"]) -> Float[Tensor, "*r m"]:
        """Return the logarithms of the features."""
        u = self.inner(x)
        return torch.logaddexp(u, u.new_tensor(self.least)) if self.epsilon else u


class Part(NamedTuple):
    """A sum over some keys for each row: exp(weight's logarithm - top) times [v 1]."""

    total: Float[Tensor, "*r l w"]
    top: Float[Tensor, "*r l"]
    """-inf where there is no key."""


def add_parts(one: Part, other: Part) -> Part:
    """Return the sum of two parts, relative to the larger top."""
    top = torch.maximum(one.top, other.top)
    shares = ((part.top - finite(top)).exp()[..., None] * part.total for part in (one, other))
    return Part(next(shares) + next(shares), top)


def key_sums(
    b: Float[Tensor, "*r s m"], values: Float[Tensor, "*r s w"]
) -> tuple[Float[Tensor, "*r m w"], Float[Tensor, "*r m"]]:
    """Return the sums S_m over some keys, and their references s_m = max_j b_jm.

    The references get no gradient, because the result does not depend on them.
    """
    level = b.detach().amax(-2)
    return (b - finite(level)[..., None, :]).exp().mT @ values, level


def read_sums(
    a: Float[Tensor, "*r l m"], sums: Float[Tensor, "*r m w"], level: Float[Tensor, "*r m"]
) -> Part:
    """Return sum_m exp(a_im + s_m) S_m for each query i, from `sums` S and `level` s."""
    exponent = a + level[..., None, :]
    top = exponent.detach().amax(-1)
    return Part((exponent - finite(top)[..., None]).exp() @ sums, top)


def pair_sums(
    a: Float[Tensor, "*r l m"], b: Float[Tensor, "*r s m"], values: Float[Tensor, "*r s w"]
) -> Part:
    """Return sum_j weight_ij v_j for each query i over a few keys, all of which are visible."""
    level = b.detach().amax(-2, keepdim=True)
    exponent = a + level
    top = exponent.detach().amax(-1)
    weights = (exponent - finite(top)[..., None]).exp() @ (b - finite(level)).exp().mT
    return Part(weights @ values, top)


def causal_block_sums(
    a: Float[Tensor, "*r l m"], b: Float[Tensor, "*r l m"], values: Float[Tensor, "*r l w"]
) -> Part:
    """Return sum_{j <= i} weight_ij v_j for each query i of a block of l keys, a power of two.

    First, each query reads its own key. Then, in blocks of 2, 4, ... keys, queries of the second
    half read the keys of the first half.
    """
    exponents = a + b
    top = exponents.detach().amax(-1)
    weight = (exponents - finite(top)[..., None]).exp().sum(-1, keepdim=True)
    gathered, length, half = Part(weight * values, top), a.shape[-2], 1
    while half < length:
        cut = (length // (2 * half), 2, half)
        queries, keys, block_values, total = (
            torch.unflatten(x, -2, cut) for x in (a, b, values, gathered[0])
        )
        tops = torch.unflatten(gathered.top, -1, cut)
        first, second = (Part(total[..., i, :, :], tops[..., i, :]) for i in (0, 1))
        earlier = pair_sums(queries[..., 1, :, :], keys[..., 0, :, :], block_values[..., 0, :, :])
        second = add_parts(second, earlier)
        gathered = Part(
            torch.stack((first.total, second.total), -3).flatten(-4, -2),
            torch.stack((first.top, second.top), -2).flatten(-3, -1),
        )
        half *= 2
    return gathered


def weighted_means(total: Float[Tensor, "*r w"]) -> Float[Tensor, "*r v"]:
    """Return weighted sums of values divided by the last column, the sums of weights, or 0."""
    weights = total[..., -1:]
    return torch.where(weights > 0, total[..., :-1] / torch.where(weights > 0, weights, 1), 0)


def add_keys(
    past: tuple[Float[Tensor, "*r m w"], Float[Tensor, "*r m"]],
    b: Float[Tensor, "*r s m"],
    values: Float[Tensor, "*r s w"],
) -> tuple[Float[Tensor, "*r m w"], Float[Tensor, "*r m"]]:
    """Return the sums and references of `past` after adding some keys."""
    sums, level = past
    new_sums, new_level = key_sums(b, values)
    larger = torch.maximum(level, new_level)
    old_scale, new_scale = ((x - finite(larger)).exp()[..., None] for x in (level, new_level))
    return old_scale * sums + new_scale * new_sums, larger


def _make_exponents(
    k: Tensor, v: Tensor, keep: Tensor | None, key: Exponents
) -> tuple[Tensor, Tensor]:
    """Return exponents of keys, -inf for padding, and values with a column of ones."""
    b = key.exponents(k)
    if keep is not None:
        b = b.masked_fill(~keep[:, None, :, None], -torch.inf)
    return b, torch.cat((v, torch.ones_like(v[..., :1])), -1)


def mean_of_all(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    keep: Bool[Tensor, "b s"] | None,
    sides: tuple[Exponents, Exponents],
) -> Float[Tensor, "b h l v"]:
    """Return weighted means of real keys' values; `sides` are feature maps of queries and keys."""
    return answered_by(q, sums_of(k, v, keep, sides), sides).to(v.dtype)


def sums_of(
    k: Float[Tensor, "b h s k"],
    v: Float[Tensor, "b h s v"],
    keep: Bool[Tensor, "b s"] | None,
    sides: tuple[Exponents, Exponents],
) -> tuple[Float[Tensor, "b h m w"], Float[Tensor, "b h m"]]:
    """Return S_m = sum_j exp(b_jm - s_m) [v_j 1] over real keys, and s_m = max_j b_jm."""
    query, key = sides

    def add_rows(
        k: Tensor, v: Tensor, keep: Tensor | None, past: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, Tensor]:
        return add_keys(past, *_make_exponents(k, v, keep, key))

    with full_precision(k):
        dtype = sum_dtype(v)
        past = empty_sums(query.exponents(k[:, :, :1].to(dtype)), v)  # only its width is used
        for rows in (slice(i, i + ROWS) for i in range(0, k.shape[2], ROWS)):
            mask = None if keep is None else keep[:, rows]
            # Backward computes these rows again, instead of saving their exponentials.
            past = again(add_rows, k[:, :, rows].to(dtype), v[:, :, rows].to(dtype), mask, past)
    return past


def answered_by(
    q: Float[Tensor, "b h l k"],
    past: tuple[Float[Tensor, "b h m w"], Float[Tensor, "b h m"]],
    sides: tuple[Exponents, Exponents],
) -> Float[Tensor, "b h l v"]:
    """Return the outputs of queries that read the sums `past`, a few rows at a time."""

    def read_block(q: Tensor, *past: Tensor) -> Tensor:
        return weighted_means(read_sums(sides[0].exponents(q), *past).total)

    with full_precision(q):
        rows = (q[:, :, i : i + ROWS].to(past[0].dtype) for i in range(0, q.shape[2], ROWS))
        # Backward computes each block again.
        return torch.cat([again(read_block, block, *past) for block in rows], 2)


def empty_sums(
    a: Float[Tensor, "b h l m"], v: Float[Tensor, "b h s v"]
) -> tuple[Float[Tensor, "b h m w"], Float[Tensor, "b h m"]]:
    """Return the sums of no keys, and their references of -inf."""
    shape = (*v.shape[:2], a.shape[-1])
    return a.new_zeros(*shape, v.shape[-1] + 1), a.new_full(shape, -torch.inf)


def mean_of_past(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    keep: Bool[Tensor, "b l"] | None,
    sides: tuple[Exponents, Exponents],
    *,
    sums: Float[Tensor, "b h m w"],
    level: Float[Tensor, "b h m"],
) -> tuple[Float[Tensor, "b h l v"], Float[Tensor, "b h m w"], Float[Tensor, "b h m"]]:
    """Return the weighted mean of values of real keys up to each row and of the keys in `sums`.

    Also return the sums and their references `level` after the last row. If `sums` is 0 for a
    feature, its level is ignored. `sides` are the feature maps of queries and keys.
    """
    query, key = sides

    def attend_block(
        q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None, past: tuple[Tensor, Tensor]
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        a, keys = query.exponents(q), _make_exponents(k, v, keep, key)
        gathered = add_parts(read_sums(a, *past), causal_block_sums(a, *keys))
        return weighted_means(gathered.total), add_keys(past, *keys)

    past = sums, level.masked_fill(sums[..., -1] <= 0, -torch.inf)
    outputs = []
    with full_precision(q):
        for first in range(0, q.shape[2], BLOCK):
            count = min(BLOCK, q.shape[2] - first)
            part, missing = slice(first, first + count), (1 << (count - 1).bit_length()) - count
            mask = None if keep is None else keep[:, part]
            if missing:
                mask = torch.ones_like(q[:, 0, part, 0], dtype=torch.bool) if mask is None else mask
                mask = F.pad(mask, (0, missing))
            rows = (F.pad(x[:, :, part].to(sums.dtype), (0, 0, 0, missing)) for x in (q, k, v))
            o, past = again(attend_block, *rows, mask, past)  # computed again in backward
            outputs.append(o[:, :, :count])
        return torch.cat(outputs, 2).to(v.dtype), past[0], finite(past[1])


def again(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call `function` with checkpointing: backward computes everything in it again."""
    if not torch.is_grad_enabled():
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)


def faint(inverse: Float[Tensor, "b h l"], seen: Bool[Tensor, "#b #l"] | None) -> bool:
    """Return whether a row with a visible key has a sum of weights that rounding may have spoiled.

    `inverse` is 1 / that sum, and `seen` is False for rows without a visible key. On a GPU, this
    waits for the sums. In compiled or captured code, and for tensors without contents, it is False.
    """
    if torch.compiler.is_compiling() or isinstance(inverse, FakeTensor) or inverse.is_meta:
        return False
    if inverse.is_cuda and torch.cuda.is_current_stream_capturing():
        return False
    limit = 1 / (torch.finfo(inverse.dtype).tiny * FAINT)
    too_small = (inverse == 0) | (inverse.abs() > limit)
    if seen is not None:
        too_small &= seen[:, None]
    return bool(too_small.any())
