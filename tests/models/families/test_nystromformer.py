"""The Nystromformer's landmarks."""

from functools import partial

import torch

from lra.models.families.nystromformer import nystrom_attention, segment_means
from lra.models.mixer import PaddingRule
from lra.models.ops.low_rank.iterative_inverse import (
    Inverse,
    InverseRule,
)
from tests import attention
from tests.attention import heads

compare = partial(attention.compare, atol=1e-11, rtol=1e-10, looser=100)

EXACT = InverseRule(inverse=Inverse.exact)


def test_original_padding_is_averaged_into_landmarks_as_zeros():
    q, k, v = heads(30)
    keep = torch.rand(2, 30, generator=torch.Generator().manual_seed(2)) > 0.4
    found = nystrom_attention(
        q, k, v, landmarks=5, inverse=EXACT, keep=keep, padding=PaddingRule.original
    )
    x, y = (part.where(keep[:, None, :, None], 0.0) for part in (q, k))
    queries, keys = (part.unflatten(2, (5, 6)).mean(3) for part in (x, y))
    scale, hidden = q.shape[-1] ** -0.5, ~keep[:, None, None]
    small = (scale * queries @ keys.mT).softmax(-1)
    last = (scale * queries @ y.mT).masked_fill(hidden, -torch.inf).softmax(-1)
    expected = (scale * x @ keys.mT).softmax(-1) @ torch.linalg.pinv(small) @ last @ v
    real = keep[:, None, :, None]
    compare(found * real, expected * real, [q, k, v])


def test_stretches_differ_by_one_token_at_most():
    x = torch.arange(11, dtype=torch.float64)[None, None, :, None]
    means = segment_means(x, 4, None)[0, 0, :, 0]
    assert means.tolist() == [1.0, 4.0, 7.0, 9.5]  # 3, 3, 3 and 2 tokens
