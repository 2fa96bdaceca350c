"""A decaying state that keys enter by the trapezoidal rule, while queries and keys rotate.

    S_t = a_t S_(t-1) + (1 - s_t) d_t a_t k_(t-1) v_(t-1)^T + s_t d_t k_t v_t^T,   a_t = exp(g_t)
    o_t = S_t^T q_t + skip v_t

d_t is the length of step t, of which the share s_t counts at its end. In queries and keys, the
channels c and c + p, of the first 2 p channels, are turned by pi (r_1 d_1 + ... + r_t d_t), where
r_t is the rate of this pair. Scores depend on differences of these angles, as if the decays were
complex.

What a key adds in step t + 1 decays as what it adds in step t. So keys have one weight,
c_t = s_t d_t + (1 - s_(t+1)) d_(t+1), and only a token itself must not yet read the second part:

    o_t = decayed_product(q, k, c v, g)_t + (skip - (1 - s_(t+1)) d_(t+1) (q_t . k_t)) v_t

A token may have R queries, keys and values. They are R rows of the product, one after another, and
each query of a token reads all of its keys, for which the last term becomes a matrix of R rows.

Cost       per head and token, R times the operations of `decayed_product`, and 2 R^2 (k + v).
           State: k v numbers, the last R keys, the last value, and p angles.
"""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from lra.models.ops.gated.decayed_product import decayed_product
from lra.models.ops.gated.layer import Borders

TOKENS = 64
"""Number of terms that are added before whole turns are removed from a sum of angles."""


class TrapezoidSteps(NamedTuple):
    """How the tokens of each head write and rotate, in float32 or float64."""

    g: Float[Tensor, "b h l"]
    """Log decays, at most 0."""
    length: Float[Tensor, "b h l"]
    share: Float[Tensor, "b h l"]
    """Share of a step that counts at its end, in the interval (0, 1)."""
    rates: Float[Tensor, "b l p"]
    """Half turns in a step of length 1, for each pair of channels."""


class TrapezoidState(NamedTuple):
    """What is left of earlier tokens; zeros mean that there are none."""

    state: Float[Tensor, "b h k v"]
    key: Float[Tensor, "b h r k"]
    """The keys of the last token, rotated."""
    value: Float[Tensor, "b h r v"]
    """The values of the last token."""
    turns: Float[Tensor, "b h p"]
    """The angles of the last token, in half turns from 0 to 2."""


def sums_of_turns(
    x: Float[Tensor, "b h l p"], first: Float[Tensor, "b h p"]
) -> Float[Tensor, "b h l p"]:
    """Return `first` + x_1 + ... + x_t without some whole turns (2), so that it stays precise."""
    length = x.shape[2]
    if length <= TOKENS:
        return x.cumsum(2) + first[:, :, None]
    padded, blocks = F.pad(x, (0, 0, 0, -length % TOKENS)), -(-length // TOKENS)
    sums = padded.reshape(*x.shape[:2], blocks, TOKENS, x.shape[3]).cumsum(3)
    ends = sums_of_turns(sums[:, :, :-1, -1].remainder(2), first)
    starts = torch.cat((first[:, :, None], ends), 2).remainder(2)
    return (sums + starts[:, :, :, None]).flatten(2, 3)[:, :, :length]


class _Rotation(torch.autograd.Function):
    """`apply(x, angle, cos, sin)`, where the last two are of `angle`, which gets the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, angle: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """Return x with its first channels turned."""
        del angle
        y = _turned(x, cos, sin)
        ctx.save_for_backward(y, cos, sin)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of `x` and `angle`: it turns y at a right angle to y."""
        y, cos, sin = ctx.saved_tensors
        pairs = cos.shape[-1]
        (left, right), (dleft, dright) = (
            (part[..., :pairs], part[..., pairs : 2 * pairs]) for part in (y, dy)
        )
        dangle = (left * dright).addcmul_(right, dleft, value=-1).sum(3)
        return _turned(dy, cos, -sin), dangle, None, None


def _turned(
    x: Float[Tensor, "b h l r k"], cos: Float[Tensor, "b h l p"], sin: Float[Tensor, "b h l p"]
) -> Float[Tensor, "b h l r k"]:
    """Return x with its channels c and c + p, of the first 2 p, turned by an angle."""
    pairs, cos, sin = cos.shape[-1], cos[:, :, :, None], sin[:, :, :, None]
    left, right = x[..., :pairs], x[..., pairs : 2 * pairs]
    turned_left = (left * cos).addcmul_(right, sin, value=-1)
    turned_right = (left * sin).addcmul_(right, cos)
    return torch.cat((turned_left, turned_right, x[..., 2 * pairs :]), -1)


def trapezoid_product(
    q: Float[Tensor, "b h l r k"],
    k: Float[Tensor, "b h l r k"],
    v: Float[Tensor, "b h l r v"],
    steps: TrapezoidSteps,
    past: TrapezoidState,
    *,
    skip: Float[Tensor, " h"],
    borders: Borders,
    chunk: int,
) -> tuple[Float[Tensor, "b h l r v"], TrapezoidState]:
    """Return what each token reads, and what is left of the tokens after the last one.

    q, k, v and `skip` are in the dtype of `steps`. You can cut a sequence into several calls, each
    with the past that the call before returned. Then `borders` must not have padding.

    Args:
        q: Queries before their rotation.
        k: Keys before their rotation.
        v: Values.
        steps: Decays, lengths, shares and rates.
        past: What is left of the tokens before the first one.
        skip: Weight of the token's values in what it reads.
        borders: Padding, and the documents at whose borders the state is cleared.
        chunk: Rows in a chunk of the product, R for each token.
    """
    turns = sums_of_turns(steps.rates[:, None] * steps.length[..., None], past.turns)
    angle = torch.pi * turns
    cos, sin = angle.detach().cos(), angle.detach().sin()
    at_end = steps.share * steps.length
    at_start = steps.length - at_end
    begins = borders.begins()
    if begins is not None:
        at_start = at_start.masked_fill(begins[:, None], 0)
    if borders.keep is not None:
        at_start = at_start.masked_fill(~borders.keep[:, None], 0)
    later = F.pad(at_start[:, :, 1:], (0, 1))
    ranks = q.shape[3]
    scores = (q * k).sum(-1)[..., None] if ranks == 1 else q @ k.mT  # as after the rotation
    own = _correction(scores, at_end, later) + skip[:, None, None, None] * torch.eye(
        ranks, dtype=q.dtype, device=q.device
    )
    q, k = (_Rotation.apply(part, angle, cos, sin) for part in (q, k))  # type: ignore[no-untyped-call]
    state = past.state
    if not borders.whole:
        state = state + past.key.mT @ past.value * at_start[:, :, :1, None]
    g = borders.after_borders(steps.g)
    if ranks > 1:  # the state decays once for each token, before its first row
        g = F.pad(g[..., None], (0, ranks - 1)).flatten(2)
    keep = None if borders.keep is None else borders.keep.repeat_interleave(ranks, 1)
    written = v * (at_end + later)[..., None, None]
    rows, keys, values = (part.flatten(2, 3) for part in (q, k, written))
    o, state = decayed_product(rows, keys, values, g, state=state, chunk=chunk, keep=keep)
    o = o.view_as(v) + (own * v if ranks == 1 else own @ v)
    return o, TrapezoidState(state, k[:, :, -1], v[:, :, -1], turns[:, :, -1].remainder(2))


def _correction(
    scores: Float[Tensor, "b h l r s"],
    at_end: Float[Tensor, "b h l"],
    later: Float[Tensor, "b h l"],
) -> Float[Tensor, "b h l r s"]:
    """Return the weights that a token's queries add to those of its own keys in the product.

    There, query r reads keys s <= r, with the weight that later tokens give them.
    """
    later, at_end = later[..., None, None], at_end[..., None, None]
    if scores.shape[-1] == 1:
        return -later * scores
    return scores * at_end - (scores * (at_end + later)).tril()
