"""The Nystromformer against its literal form, and its limits."""

from functools import partial

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lra.models.families.nystromformer import Nystromformer, nystrom_attention, segment_means
from lra.models.mixer import Layout, PaddingRule, Site, Unsupported
from lra.models.ops.convolution.values import ValueConvolution
from lra.models.ops.exact import softmax_attention
from lra.models.ops.low_rank.iterative_inverse import (
    Initialisation,
    Inverse,
    InverseRule,
    iterative_inverse,
)
from tests import attention
from tests.attention import builder, drawn, heads
from tests.literal import low_rank as reference
from tests.literal.low_rank import ridge_inverse, six_step_inverse

compare = partial(attention.compare, atol=1e-11, rtol=1e-10, looser=100)

EXACT = InverseRule(inverse=Inverse.exact)
RULES = {
    "six": InverseRule(),
    "exact": EXACT,
    "ridge": InverseRule(inverse=Inverse.ridge, ridge=0.1),
    "together": InverseRule(initialisation=Initialisation.original),
}


INVERSES = {
    "six": six_step_inverse,
    "exact": torch.linalg.pinv,
    "ridge": partial(ridge_inverse, ridge=0.1),
}


def literal(qkv: list[Tensor], m: int, inverse, keep: Tensor | None = None) -> Tensor:
    return reference.nystrom_attention(*qkv, m, inverse=inverse, keep=keep)


@pytest.mark.parametrize("rule", ["six", "exact", "ridge"])
@pytest.mark.parametrize(("length", "landmarks"), [(24, 4), (29, 4), (5, 8), (1, 3), (12, 1)])
def test_values_and_gradients_equal_the_literal_form(rule, length, landmarks):
    q, k, v = heads(length)
    found = nystrom_attention(q, k, v, landmarks=landmarks, inverse=RULES[rule])
    # An inverse of a matrix that has next to none loses digits, by other code on other processors.
    rtol = 1e-9 if rule == "exact" else 1e-10
    compare(found, literal([q, k, v], landmarks, INVERSES[rule]), [q, k, v], rtol=rtol)


@pytest.mark.parametrize("rule", ["six", "ridge"])
@pytest.mark.parametrize(("length", "landmarks"), [(29, 4), (29, 40), (12, 8)])
def test_padding_anywhere_leaves_what_the_real_tokens_give_alone(rule, length, landmarks):
    q, k, v = heads(length)
    keep = torch.rand(2, length, generator=torch.Generator().manual_seed(2)) > 0.4
    found = nystrom_attention(q, k, v, landmarks=landmarks, inverse=RULES[rule], keep=keep)
    compare(found, literal([q, k, v], landmarks, INVERSES[rule], keep), [q, k, v], keep)


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


def test_one_landmark_per_token_and_the_exact_inverse_is_softmax_attention():
    q, k, v = heads(40, width=16)
    wanted = softmax_attention(q, k, v)
    found = nystrom_attention(q, k, v, landmarks=40, inverse=EXACT)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)
    # A is nearly singular, which costs the gradient digits.
    by_landmarks, wanted_gradient = (
        torch.autograd.grad(x.square().sum(), q, retain_graph=True)[0] for x in (found, wanted)
    )
    torch.testing.assert_close(by_landmarks, wanted_gradient, rtol=0, atol=1e-5)
    many = InverseRule(iterations=24)
    found = nystrom_attention(q, k, v, landmarks=40, inverse=many)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def test_six_steps_stop_short_of_softmax_attention_and_protect_from_noise():
    q, k, v = (drawn(2, 2, 128, 16, seed=seed) for seed in range(3))
    wanted = softmax_attention(q, k, v)

    def error(landmarks, rule):
        found = nystrom_attention(q, k, v, landmarks=landmarks, inverse=rule)
        return ((found - wanted).norm() / wanted.norm()).item()

    assert 0.03 < error(128, InverseRule()) < 0.12
    assert error(32, EXACT) > 4 * error(32, InverseRule())
    assert error(32, InverseRule()) < 1


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


@pytest.mark.parametrize("taps", [1, 3, 65])
@pytest.mark.parametrize("length", [1, 32, 70])
def test_the_convolution_equals_the_framework_s(taps, length):
    convolution = ValueConvolution(3, taps).double()
    v = heads(length)[2]
    keep = torch.rand(2, length, generator=torch.Generator().manual_seed(2)) > 0.3
    inputs = [v, convolution.weight]
    for kept in (None, keep):
        values = v if kept is None else v * kept[:, None, :, None]
        weight = convolution.weight[:, None, :, None]
        wanted = F.conv2d(values, weight, padding=(taps // 2, 0), groups=3)
        compare(convolution(v, kept), wanted, inputs)


built = builder(Nystromformer, landmarks=4)


def test_the_convolution_adds_itself_to_the_mixer():
    mixer = built(conv_kernel=5)
    plain = built(conv_kernel=0)
    plain.load_state_dict(mixer.state_dict(), strict=False)
    x, keep = drawn(2, 20, 12), torch.arange(20) < torch.tensor([[20], [13]])
    for layout in (Layout(), Layout(keep=keep)):
        v = mixer.project(x, layout)[2]
        wanted = plain(x, layout) + mixer.merge(mixer.core.conv(v, layout.keep))
        wanted = wanted - mixer.out_proj.bias
        torch.testing.assert_close(mixer(x, layout), wanted, rtol=1e-12, atol=1e-13)


def test_what_averages_the_future_is_not_causal():
    with pytest.raises(Unsupported, match="cannot be causal"):
        Nystromformer(Site(width=12, heads=3, max_length=64, causal=True))
