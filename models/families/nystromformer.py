"""Nystromformer: the Nystrom approximation of softmax attention, with segment means as landmarks.

Equation   o = F1 Z (F3 v) + conv(v), where F1 = S(q k~^T), F3 = S(q~ k^T), Z is an inverse of
           A = S(q~ k~^T), and S(x) = softmax(x / sqrt(d)) row by row; the m rows of q~ and k~ are
           means of queries and keys over segments, and conv convolves along the sequence
Inverse    iterative  six steps towards the Moore-Penrose inverse, the paper's
           exact      the Moore-Penrose inverse; often far worse, see below
           ridge      (A^T A + ridge I)^-1 A^T
Cost       Each head takes 8 n m d + 48 m^3 operations, and 2 n K d for a convolution of K taps.
Source     Xiong et al., "Nyströmformer", arXiv:2102.03902.
Notation   the paper's n, m, d are l, landmarks, k; its Q~, K~ are `queries`, `keys` below.
Padding    The real tokens of each sequence are cut into m segments, whose lengths differ by at most
           one, longer ones first. A sequence of fewer than m real tokens has as many landmarks as
           tokens. With `padding: original`, as in the authors' code, segments contain all
           positions, padding counts as zeros, and all landmarks stay in F1 and A.
Differs    The first value of the iteration is divided by norms of each matrix. `initialisation:
           original` takes the largest norm of the batch, as the authors do, so that outputs depend
           on the batch.
Mind       The six steps are part of the method: A of random tokens is nearly singular, and with its
           exact inverse the error is at least ten times larger. With one landmark per token, six
           steps differ from softmax attention by about a tenth. Rows of F1 Z F3 do not sum to one.
           A causal form is impossible, because landmarks average later tokens, too.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.mixer import Count, Layout, Need, PaddingRule, Site, Traits, Unsupported
from lra.models.multi_head import MultiHead
from lra.models.ops.convolution.values import ValueConvolution
from lra.models.ops.low_rank.iterative_inverse import Initialisation, Inverse, InverseRule
from lra.models.ops.numerics import full_precision, sum_dtype


def segment_means(
    x: Float[Tensor, "b h l k"], landmarks: int, membership: Float[Tensor, "b m l"] | None
) -> Float[Tensor, "b h m k"]:
    """Return the mean of each of m segments of the sequence.

    The segments are those of `membership`; if it is None, there are `landmarks` segments of equal
    length, except that the first ones may be longer by one token.
    """
    if membership is not None:
        batch, heads, _, width = x.shape
        means = membership @ x.transpose(1, 2).flatten(2)
        return means.view(batch, landmarks, heads, width).transpose(1, 2)
    size, longer = divmod(x.shape[2], landmarks)
    border = longer * (size + 1)
    parts = (
        part.reshape(*part.shape[:2], count, -1, part.shape[-1]).mean(3)
        for part, count in ((x[:, :, :border], longer), (x[:, :, border:], landmarks - longer))
        if count
    )
    return torch.cat([*parts], dim=2)


def memberships(
    keep: Bool[Tensor, "b l"], landmarks: int, dtype: torch.dtype
) -> tuple[Float[Tensor, "b m l"], Bool[Tensor, "b m"]]:
    """Return weights with which each token enters each landmark's mean, in the type `dtype`.

    Also return which landmarks have a real token. The tokens with `keep` form their segments.
    """
    total = keep.sum(1, keepdim=True)
    size, longer = total // landmarks, total % landmarks
    border = longer * (size + 1)
    rank = keep.cumsum(1) - 1
    landmark = torch.where(
        rank < border, rank // (size + 1), longer + (rank - border) // size.clamp(min=1)
    )
    index = torch.arange(landmarks, device=keep.device)
    count = size + (index < longer)
    member = (landmark[:, None] == index[:, None]) & keep[:, None]
    return member.to(dtype) / count.clamp(min=1)[..., None], count > 0


def nystrom_attention(
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h l k"],
    v: Float[Tensor, "b h l v"],
    *,
    landmarks: int,
    inverse: InverseRule,
    keep: Bool[Tensor, "b l"] | None = None,
    padding: PaddingRule = PaddingRule.exact,
) -> Float[Tensor, "b h l v"]:
    """Return F1 Z (F3 v) of the module's docstring, in float32, or float64 if the values are.

    With `padding=exact`, the outputs of a row without real tokens are 0.
    """
    dtype, landmarks = sum_dtype(v), min(landmarks, q.shape[2])
    membership = visible = filled = None
    with full_precision(q):
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        if keep is not None:
            # A row of padding only may attend to all keys, because a softmax over none is NaN; its
            # Z is 0.
            visible = (keep | ~keep.any(1, keepdim=True))[:, None, None]
        if keep is not None and padding == PaddingRule.original:
            q, k = (x.masked_fill(~keep[:, None, :, None], 0.0) for x in (q, k))
        elif keep is not None:
            membership, filled = memberships(keep, landmarks, dtype)
            filled = filled[:, None, None]
        queries, keys = (segment_means(x, landmarks, membership) for x in (q, k))
        scores = queries @ keys.mT * q.shape[-1] ** -0.5
        if filled is None:
            small = scores.softmax(-1)
        else:
            small = scores.masked_fill(~filled, torch.finfo(dtype).min).softmax(-1)
            small = small * (filled & filled.mT)
            # A row of padding only sees all landmarks, because a softmax over none is NaN.
            filled = filled | ~filled.any(-1, keepdim=True)
        gathered = F.scaled_dot_product_attention(queries, k, v, attn_mask=visible)
        spread = inverse(small) @ gathered
        return F.scaled_dot_product_attention(q, keys, spread, attn_mask=filled)


class NystromCore(nn.Module):
    """`nystrom_attention` with its options, plus the convolution of values."""

    conv: ValueConvolution | None

    def __init__(
        self,
        site: Site,
        landmarks: int,
        inverse: InverseRule,
        conv_kernel: int,
        padding: PaddingRule = PaddingRule.exact,
    ) -> None:
        """Make the convolution of values, and set the traits; `Unsupported` for a causal model."""
        super().__init__()
        if site.causal:
            raise Unsupported(
                "Nyströmformer averages parts of the whole sequence as landmarks, so it cannot be "
                "causal: choose a causal family"
            )
        self.landmarks, self.inverse, self.padding = landmarks, inverse, padding
        self.conv = ValueConvolution(site.heads, conv_kernel) if conv_kernel else None
        # One landmark for all tokens, or one for each, does not depend on their order.
        order_free = landmarks == 1 or landmarks >= site.max_length
        self.traits = Traits(
            sees_order=self.conv is not None or not order_free,
            by_batch=inverse.by_batch,
            **padding.traits,
        )

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h l k"],
        v: Float[Tensor, "b h l v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Attend through landmarks, and add the convolution of values."""
        o = nystrom_attention(
            q, k, v,
            landmarks=self.landmarks, inverse=self.inverse,
            keep=layout.keep, padding=self.padding,
        )  # fmt: skip
        if self.conv is not None:
            o = o + self.conv(v, layout.keep)
        return o.to(v.dtype)


class Nystromformer(MultiHead):
    """Attention through landmarks between the four projections.

    `conv_kernel` is the odd number of taps of the convolution of values; 0: no convolution.
    """

    needs = (
        Need("iterations", "initialisation", inverse=Inverse.iterative),
        Need("ridge", inverse=Inverse.ridge),
    )

    def __init__(
        self,
        site: Site,
        *,
        landmarks: Count = 64,
        inverse: Inverse = Inverse.iterative,
        iterations: int = 6,
        initialisation: Initialisation = Initialisation.exact,
        ridge: float = 0.01,
        conv_kernel: int = 33,
        padding: PaddingRule = PaddingRule.exact,
    ) -> None:
        rule = InverseRule(
            inverse=inverse, iterations=iterations, initialisation=initialisation, ridge=ridge
        )
        super().__init__(site, NystromCore(site, landmarks, rule, conv_kernel, padding))
