"""Linear attention against the literal form, and what follows from being exact."""

import math

import pytest
import torch

from models.contract.counting import (
    ElementCounter,
    count_operations,
    pretending,
    saved_bytes,
)
from models.families.linear import FEATURES, FeatureChoice, LinearAttention, linear_attention
from models.mixer import Flow, Layout, Site, Unsupported
from models.ops.linear import features as blocked, reference
from models.ops.linear.features import FeatureMaps
from models.ops.linear.reference import FEATURE_MAPS
from tests.attention import Calls
from tests.models.ops.linear.feature_forms import (
    DIRECTIONS,
    PADDED,
    attend,
    compare,
    draw,
    holes,
    in_pieces,
    small_blocks,
)

__all__ = ["small_blocks"]
LITERAL = {FeatureChoice(name): phi for name, phi in FEATURE_MAPS.items()}
CHOICES = list(LITERAL)


def dense(q, k, v, feature_map, *, keep=None, causal=False):
    phi = LITERAL[feature_map]
    return reference.linear_attention(phi(q), phi(k), v, keep=keep, causal=causal)


def make(causal=False, **options) -> LinearAttention:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LinearAttention(Site(width=12, heads=3, max_length=24, causal=causal), **options)


@DIRECTIONS
@pytest.mark.parametrize("feature_map", CHOICES)
@pytest.mark.parametrize("length", [1, 2, 63, 101])
@PADDED
@pytest.mark.usefixtures("small_blocks")
def test_outputs_and_gradients_equal_the_literal_form(feature_map, length, padded, causal):
    q, k, v = draw(length)
    keep = holes(length) if padded else None  # with rows that find nothing when causal
    compare(
        lambda: linear_attention(q, k, v, feature_map, keep=keep, causal=causal, chunk=8),
        lambda: dense(q, k, v, feature_map, keep=keep, causal=causal),
        (q, k, v),
    )


@pytest.mark.parametrize("feature_map", [FeatureChoice.elu1, FeatureChoice.exp])
@pytest.mark.parametrize("chunk", [1, 3, 10, 16, 37, 64])
@pytest.mark.parametrize("rows", [1, 16, 1000])
def test_chunk_and_block_never_change_the_result(feature_map, chunk, rows, monkeypatch):
    monkeypatch.setattr(blocked, "CPU_BLOCK", 1)
    monkeypatch.setattr(blocked, "MINIMUM_ROWS", rows)
    q, k, v = draw(37)
    compare(
        lambda: linear_attention(q, k, v, feature_map, causal=True, chunk=chunk),
        lambda: dense(q, k, v, feature_map, causal=True),
        (q, k, v),
    )


@DIRECTIONS
@pytest.mark.parametrize("feature_map", CHOICES)
@pytest.mark.usefixtures("small_blocks")
def test_gradcheck(feature_map, causal):
    q, k, v = (x[:1, :1, :, :2].detach().requires_grad_() for x in draw(6, seed=4))
    keep = torch.tensor([[False, True, False, True, True, True]])

    def run(*inputs):
        return linear_attention(*inputs, feature_map, keep=keep, causal=causal, chunk=4)

    assert torch.autograd.gradcheck(run, (q, k, v))


def test_backward_twice_is_refused_not_wrong():
    q, k, v = draw(8)
    cotangent = torch.ones_like(v, requires_grad=True)
    (gradient,) = torch.autograd.grad(linear_attention(q, k, v), q, cotangent, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_keys_may_be_more_than_queries():
    q, (k, v) = draw(7)[0], draw(23, seed=1)[1:]
    compare(
        lambda: linear_attention(q, k, v),
        lambda: dense(q, k, v, FeatureChoice.elu1),
        (q, k, v),
    )


@DIRECTIONS
def test_order_of_axes_in_memory_does_not_matter(causal):
    x = torch.randn(2, 3, 29, 3, 5, dtype=torch.float64).requires_grad_()  # b 3 l h k
    q, k, v = (part.transpose(1, 2) for part in x.unbind(1))
    assert not q.is_contiguous()
    compare(
        lambda: linear_attention(q, k, v, causal=causal, chunk=8),
        lambda: dense(q, k, v, FeatureChoice.elu1, causal=causal),
        (x,),
    )


@DIRECTIONS
def test_result_joins_its_heads_without_a_copy(causal):
    q, k, v = (torch.randn(2, 29, 3, 5).transpose(1, 2) for _ in range(3))
    o = linear_attention(q, k, v, causal=causal)
    assert o.transpose(1, 2).flatten(-2)._base is not None


@DIRECTIONS
@pytest.mark.parametrize("feature_map", CHOICES)
def test_weights_are_a_mean(feature_map, causal):
    q, k, v = draw(63)
    out = linear_attention(q, k, torch.ones_like(v), feature_map, causal=causal)
    torch.testing.assert_close(out, torch.ones_like(out), rtol=0, atol=1e-13)


@DIRECTIONS
def test_a_row_without_keys_is_zero_and_has_no_gradient(causal):
    q, k, v = draw(12)
    keep = torch.ones(2, 12, dtype=torch.bool)
    keep[0] = False
    out = linear_attention(q, k, v, keep=keep, causal=causal)
    assert not out[0].any()
    for gradient in torch.autograd.grad(out.sum(), (q, k, v)):
        assert not gradient[0].any()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("feature_map", CHOICES)
def test_a_later_outlier_moves_nothing_before_it(feature_map):
    q, k, v = (x.detach() for x in draw(40))
    before = linear_attention(q, k, v, feature_map, causal=True, chunk=16)
    for x in (q, k, v):
        x[:, :, 25:] *= 6
    after = linear_attention(q, k, v, feature_map, causal=True, chunk=16)
    assert torch.equal(before[:, :, :25], after[:, :, :25])
    assert not torch.equal(before[:, :, 25:], after[:, :, 25:])


@pytest.mark.parametrize("feature_map", CHOICES)
def test_a_prefix_alone_gives_the_same(feature_map):
    q, k, v = (x.detach() for x in draw(40))
    whole = linear_attention(q, k, v, feature_map, causal=True, chunk=16)
    for length in (1, 15, 16, 17, 39):
        short = linear_attention(
            *(x[:, :, :length] for x in (q, k, v)), feature_map, causal=True, chunk=16
        )
        torch.testing.assert_close(short, whole[:, :, :length], rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("feature_map", CHOICES)
def test_chunks_equal_the_recurrence(feature_map):
    (q, k, v), phi = draw(21), LITERAL[feature_map]
    compare(
        lambda: linear_attention(q, k, v, feature_map, causal=True, chunk=8),
        lambda: reference.recurrent_linear_attention(phi(q), phi(k), v),
        (q, k, v),
    )


@pytest.mark.parametrize("feature_map", [FeatureChoice.elu1, FeatureChoice.exp])
@pytest.mark.parametrize("sizes", [[24], [1] * 24, [5, 1, 11, 7], [23, 1]])
def test_any_partition_equals_one_pass_with_gradients(feature_map, sizes):
    q, k, v = draw(24)
    maps = FeatureMaps(FEATURES[feature_map], FEATURES[feature_map], 5)

    compare(
        lambda: in_pieces(q, k, v, maps, sizes),
        lambda: dense(q, k, v, feature_map, causal=True),
        (q, k, v),
    )


def test_the_mixer_extends_its_own_state():
    mixer = make(causal=True, chunk=4).double()
    x = torch.randn(2, 24, 12, dtype=torch.float64)
    state, outputs = mixer.initial_state(2, 24), []
    for part in x.split([7, 1, 16], dim=1):
        flow = mixer.extend(Flow(part, state), Layout())
        state = flow.state
        outputs.append(flow.x)
    torch.testing.assert_close(torch.cat(outputs, 1), mixer(x, Layout()), rtol=1e-11, atol=1e-12)


def test_a_mixer_that_looks_ahead_has_no_state():
    with pytest.raises(Unsupported, match="causal"):
        make().initial_state(2, 24)


def test_a_chunk_holds_a_token():
    with pytest.raises(ValueError, match="got 0"):
        make(chunk=0)


@DIRECTIONS
@pytest.mark.parametrize("shift", [-100.0, 100.0])
def test_exponentials_neither_overflow_nor_vanish(causal, shift):
    q, k, v = (x.detach().float() for x in draw(50))
    q, k = 4 * q - shift, 4 * k + shift
    assert (k.exp() * q.exp()).isfinite().logical_not().any()
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = linear_attention(*inputs, FeatureChoice.exp, causal=causal, chunk=16)
    wanted = dense(*(x.double() for x in inputs), FeatureChoice.exp, causal=causal)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-5)
    for gradient in torch.autograd.grad(out.square().sum(), inputs):
        assert gradient.isfinite().all()


def test_elu1_stays_positive_far_below_zero():
    q, k, v = (x.detach().float() for x in draw(10))
    out = linear_attention(q, k - 25, v)
    wanted = dense(q.double(), (k - 25).double(), v.double(), FeatureChoice.elu1)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-4, atol=1e-5)


@DIRECTIONS
def test_half_precision_enters_and_leaves_but_sums_do_not_round(causal):
    q, k, v = (torch.randn(1, 2, 4096, 8, dtype=torch.bfloat16) for _ in range(3))
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = linear_attention(*inputs, causal=causal)
    assert out.dtype == torch.bfloat16
    wanted = linear_attention(*(x.double() for x in inputs), causal=causal)
    # One rounding of the result, 2^-9 relative, and none of the 4,096 terms.
    torch.testing.assert_close(out.double(), wanted, rtol=2**-8, atol=1e-4)
    for gradient in torch.autograd.grad(out.float().square().sum(), inputs):
        assert gradient.dtype == torch.bfloat16
        assert gradient.isfinite().all()


@DIRECTIONS
def test_autocast_does_not_reach_the_sums(causal):
    q, k, v = (x.detach().float().requires_grad_() for x in draw(50))
    plain = linear_attention(q, k, v, causal=causal)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = linear_attention(q, k, v, causal=causal)
        inside_gradient = torch.autograd.grad(inside.square().sum(), q)
    assert torch.equal(plain, inside)
    assert torch.equal(inside_gradient[0], torch.autograd.grad(plain.square().sum(), q)[0])


@DIRECTIONS
def test_operations_and_saved_bytes_grow_as_the_length(causal, monkeypatch):
    monkeypatch.setattr(blocked, "CPU_BLOCK", 2**21)
    lengths, operations, kept = (4096, 16384), [], []
    for length in lengths:
        with pretending():
            q, k, v = (torch.empty(1, 8, length, 64, requires_grad=True) for _ in range(3))

            def step(inputs=(q, k, v)):
                linear_attention(*inputs, causal=causal).sum().backward()

            def forward(inputs=(q, k, v)):
                linear_attention(*inputs, causal=causal)

            operations.append(count_operations(step))
            kept.append(saved_bytes(forward, exclude=(q, k, v)))
    ratio = math.log(lengths[1] / lengths[0])
    assert math.log(operations[1] / operations[0]) / ratio == pytest.approx(1, abs=0.02)
    assert math.log(kept[1] / kept[0]) / ratio == pytest.approx(1, abs=0.02)
    # The output, one number per row, and the sums: far below the literal form's l x l weights.
    assert kept[1] < 1.2 * 4 * 8 * lengths[1] * 64


def test_a_short_sequence_is_mixed_at_once_without_copies_or_zeros_to_add_to():
    called = []
    for length in (128, 700, 4096):
        q, k, v = (torch.randn(2, 4, length, 32) for _ in range(3))
        with Calls() as calls, ElementCounter() as elements:
            linear_attention(q, k, v)
        called.append(calls.names)
        # Four passes for each side, the numerator as product, view and mean, and its weights.
        assert elements.written < 12.7 * q.numel()
    assert called[0] == called[1] == called[2]
    assert not {"copy_", "clone", "cat", "new_zeros", "new_ones", "where"} & {*called[0]}
    assert len(called[0]) <= 20


def test_a_short_step_takes_as_many_calls_at_any_length_and_cuts_nothing():
    called = []
    for length in (128, 700):
        q, k, v = (torch.randn(2, 4, length, 32, requires_grad=True) for _ in range(3))
        with Calls() as calls:
            o = linear_attention(q, k, v)
            torch.autograd.grad(o, (q, k, v), torch.ones_like(o))
        called.append(calls.names)
    assert called[0] == called[1]
    # Two for the columns beside values and beside their gradients; no part is put together.
    assert called[0].count("copy_") <= 3
    assert "zeros_like" not in called[0]


def test_meta_tensors_pass():
    with torch.device("meta"):
        mixer = LinearAttention(Site(width=16, heads=2, max_length=64, causal=True))
        assert mixer(torch.empty(2, 63, 16), Layout()).shape == (2, 63, 16)


@DIRECTIONS
def test_unnormalised_product_is_the_plain_numerator(causal):
    q, k, v = draw(19)
    phi = LITERAL[FeatureChoice.elu1]
    features = FEATURES[FeatureChoice.elu1]
    maps = FeatureMaps(features, features, 5, normalise=False)
    weights = phi(q) @ phi(k).mT
    compare(
        lambda: attend(q, k, v, maps, causal=causal, chunk=4),
        lambda: (weights.tril() if causal else weights) @ v,
        (q, k, v),
    )


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo does
@DIRECTIONS
def test_it_compiles_as_one_graph(causal):
    mixer = LinearAttention(Site(width=16, heads=2, max_length=200, causal=causal))
    x = torch.randn(2, 150, 16)
    compiled = torch.compile(lambda x: mixer(x, Layout()), fullgraph=True, backend="aot_eager")
    compiled(x).square().sum().backward()
    found, mixer.q_proj.weight.grad = mixer.q_proj.weight.grad, None
    mixer(x, Layout()).square().sum().backward()
    torch.testing.assert_close(found, mixer.q_proj.weight.grad)
