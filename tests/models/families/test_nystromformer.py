"""The Nystromformer against its literal form, and its limits."""

from functools import partial

import torch

from lra.models.families.nystromformer import nystrom_attention, segment_means
from lra.models.mixer import PaddingRule
from lra.models.ops.low_rank.iterative_inverse import (
    Initialisation,
    Inverse,
    InverseRule,
    iterative_inverse,
)
from tests import attention
from tests.attention import drawn, heads
from tests.literal.nystromformer import six_step_inverse

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


def test_an_inverse_of_many_steps_is_the_pseudo_inverse():
    a = drawn(2, 3, 5, 5).softmax(-1)
    a[0, 0, :, 2] = a[0, 0, :, 1]  # a singular one
    z = iterative_inverse(a, 40)
    torch.testing.assert_close(a @ z @ a, a, rtol=0, atol=1e-11)
    torch.testing.assert_close(z, torch.linalg.pinv(a), rtol=1e-7, atol=1e-7)
    assert (iterative_inverse(a) - z).abs().max() > 1e-2


def test_the_original_start_is_scaled_by_the_largest_sum_of_a_column():
    """As the authors write it, also where rows do not sum to 1, which the Skyformer's do not."""
    a = drawn(2, 3, 5, 5).abs()
    z, one = a.mT / a.sum(-2).max(), torch.eye(5, dtype=a.dtype)
    for _ in range(2):
        x = a @ z
        z = 0.25 * z @ (13 * one - x @ (15 * one - x @ (7 * one - x)))
    torch.testing.assert_close(iterative_inverse(a, 2, together=True), z, rtol=1e-10, atol=1e-12)


def test_empty_rows_and_columns_stay_empty():
    a = torch.zeros(1, 2, 5, 5, dtype=torch.float64)
    a[0, 0, :3, :3] = drawn(3, 3).softmax(-1)
    z = iterative_inverse(a.requires_grad_())
    torch.testing.assert_close(
        z[0, 0, :3, :3], six_step_inverse(a[0, 0, :3, :3]), rtol=1e-12, atol=1e-13
    )
    assert not z[0, 0, 3:].any()
    assert not z[0, 0, :, 3:].any()
    assert not z[0, 1].any()
    assert torch.autograd.grad(z.sum(), a)[0].isfinite().all()


def test_the_original_start_depends_on_the_batch_and_the_exact_one_does_not():
    q, k, v = (x.detach() for x in heads(24))
    loud = [torch.cat((x[:1], 3 * x[1:])) for x in (q, k, v)]

    def first(tensors, initialisation):
        rule = InverseRule(initialisation=initialisation)
        return nystrom_attention(*tensors, landmarks=8, inverse=rule)[0]

    exact, original = (
        (first(loud, start) - first((q, k, v), start)).abs().max().item()
        for start in (Initialisation.exact, Initialisation.original)
    )
    assert exact < 1e-14
    assert original > 1e-6
