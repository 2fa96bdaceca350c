"""H-Transformer against the weights that its equation gives to every pair of tokens."""

import math

import pytest
import torch
from torch import Tensor

from models.contract.counting import count_operations, pretending, saved_bytes
from models.families.h_transformer import HTransformer
from models.mixer import Layout, Site
from models.ops.exact import softmax_attention
from models.ops.hierarchical.attention import hierarchical_attention
from models.ops.hierarchical.clusters import Plan
from models.ops.hierarchical.reference import hierarchical_attention as literal
from tests import attention
from tests.attention import Largest, drawn, holes

DIRECTIONS = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])


def heads(length: int, *, width: int = 5, values: int = 4) -> list[Tensor]:
    widths = (width, width, values)
    return [drawn(2, 3, length, w, seed=s).requires_grad_() for s, w in enumerate(widths)]


def compare(run, reference, inputs, rows=None) -> None:
    attention.compare(run(), reference(), inputs, keep=rows, looser=10)


@DIRECTIONS
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize(
    ("length", "block"), [(1, 4), (2, 2), (17, 2), (33, 4), (40, 8), (48, 4), (64, 2)]
)
def test_outputs_and_gradients_equal_the_literal_form(length, block, padded, causal):
    qkv = heads(length)
    keep = holes(length, end=length // 2) if padded else None
    options = {"block": block, "causal": causal, "keep": keep}
    compare(
        lambda: hierarchical_attention(*qkv, **options),
        lambda: literal(*qkv, **options),
        qkv,
        keep,
    )


@DIRECTIONS
def test_the_relative_bias_is_that_of_distances_in_clusters(causal):
    qkv = heads(40)
    mixer = built(causal=causal, width=15, heads=3, block=4, relative_bias=True)
    relative = mixer.core.relative
    options = {"block": 4, "causal": causal, "keep": holes(40, end=40 // 2)}
    compare(
        lambda: hierarchical_attention(*qkv, bias=mixer.core.bias(torch.float64), **options),
        lambda: literal(*qkv, bias=relative, **options),
        (*qkv, relative),
        options["keep"],
    )


@DIRECTIONS
@pytest.mark.parametrize("values", [3, 5])
def test_gradients_equal_finite_differences(values, causal):
    qkv = [drawn(1, 2, 11, w, seed=s).requires_grad_() for s, w in enumerate((3, 3, values))]
    bias = drawn(2, 2, 6, seed=5).requires_grad_()
    keep = torch.ones(1, 11, dtype=torch.bool)
    keep[0, [0, 6]] = False

    def run(*inputs: Tensor, dropout: float = 0.0) -> Tensor:
        torch.manual_seed(1)  # the same weights dropped every time
        q, k, v, bias = inputs
        options = {"block": 2, "causal": causal, "keep": keep, "bias": bias, "dropout": dropout}
        return hierarchical_attention(q, k, v, **options)

    for dropout in (0.0, 0.4):
        assert torch.autograd.gradcheck(
            lambda *inputs, rate=dropout: run(*inputs, dropout=rate), (*qkv, bias), fast_mode=True
        )


def test_backward_twice_is_refused_not_wrong():
    qkv = heads(20)
    out = hierarchical_attention(*qkv, block=4)
    cotangent = torch.ones_like(out, requires_grad=True)
    (gradient,) = torch.autograd.grad(out, qkv[0], cotangent, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_gradients_of_a_graph_that_is_kept_are_equal_twice():
    qkv = heads(40, values=5)  # equal widths: buffers are used twice
    out = hierarchical_attention(*qkv, block=4)
    cotangent = drawn(*out.shape, seed=4)
    first = torch.autograd.grad(out, qkv, cotangent, retain_graph=True)
    again = torch.autograd.grad(out, qkv, cotangent)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@DIRECTIONS
@pytest.mark.parametrize("length", [1, 13, 32])
def test_two_blocks_are_full_attention(length, causal):
    qkv = heads(length)
    for block in (16, 32, 64):
        compare(
            lambda block=block: hierarchical_attention(*qkv, block=block, causal=causal),
            lambda: softmax_attention(*qkv, causal=causal),
            qkv,
        )


def test_larger_blocks_come_nearer_to_full_attention():
    qkv = [x.detach() for x in heads(64, width=16, values=16)]
    full = softmax_attention(*qkv)
    errors = [
        ((hierarchical_attention(*qkv, block=block) - full).norm() / full.norm()).item()
        for block in (4, 8, 16, 32)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.4
    assert errors[-1] < 1e-12


@DIRECTIONS
@pytest.mark.parametrize("length", [5, 63, 64, 200])
def test_weights_sum_to_one_and_stay_where_they_belong(length, causal):
    q, k, _ = heads(length)
    keep = holes(length, end=length // 2)
    identity = torch.eye(length, dtype=torch.float64).expand(2, 3, length, length)
    weights = hierarchical_attention(q, k, identity, block=4, causal=causal, keep=keep)
    visible = keep[:, None, None] & torch.ones(length, length, dtype=torch.bool)
    if causal:
        visible = visible.tril()
    sums = torch.where(visible.any(-1), 1.0, 0.0).double().expand(2, 3, length)
    torch.testing.assert_close(weights.sum(-1), sums, rtol=0, atol=1e-13)
    assert torch.equal(weights > 0, visible.expand_as(weights))


@DIRECTIONS
@pytest.mark.parametrize("length", [1, 31, 64, 100])
@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
def test_without_queries_every_key_counts_once(length, padded, causal):
    _, k, v = heads(length)
    keep = holes(length, end=length // 2) if padded else torch.ones(2, length, dtype=torch.bool)
    seen = hierarchical_attention(
        torch.zeros_like(k), k, v, block=4, causal=causal, keep=keep if padded else None
    )
    real = (keep[:, None, :, None] * v).cumsum(2), keep.cumsum(1)[:, None, :, None].clamp(min=1)
    mean = real[0] / real[1]
    if not causal:
        mean = mean[:, :, -1:].expand_as(mean)
    torch.testing.assert_close(seen, mean, rtol=0, atol=1e-13)


@DIRECTIONS
@pytest.mark.parametrize("length", [1, 9, 33, 64, 90])
def test_padding_behind_is_as_if_it_were_not_there(length, causal):
    qkv = [x.detach() for x in heads(100)]
    keep = (torch.arange(100) < length).expand(2, 100)
    padded = hierarchical_attention(*qkv, block=4, causal=causal, keep=keep)[:, :, :length]
    short = hierarchical_attention(*(x[:, :, :length] for x in qkv), block=4, causal=causal)
    torch.testing.assert_close(padded, short, rtol=0, atol=1e-13)


@DIRECTIONS
def test_a_row_of_padding_alone_is_zero_and_has_no_gradient(causal):
    qkv, keep = heads(40), torch.ones(2, 40, dtype=torch.bool)
    keep[0] = False
    out = hierarchical_attention(*qkv, block=4, causal=causal, keep=keep)
    assert not out[0].any()
    for gradient in torch.autograd.grad(out.sum(), qkv):
        assert not gradient[0].any()
        assert gradient.isfinite().all()
        assert gradient[1].any()


def test_a_later_outlier_moves_nothing_before_it():
    qkv = [x.detach() for x in heads(70)]
    before = hierarchical_attention(*qkv, block=4, causal=True)
    for cut in (1, 30, 64):
        loud = [torch.cat((x[:, :, :cut], 6 * x[:, :, cut:]), 2) for x in qkv]
        after = hierarchical_attention(*loud, block=4, causal=True)
        assert torch.equal(after[:, :, :cut], before[:, :, :cut])
        assert not torch.equal(after[:, :, cut:], before[:, :, cut:])
        short = hierarchical_attention(*(x[:, :, :cut] for x in qkv), block=4, causal=True)
        torch.testing.assert_close(short, before[:, :, :cut], rtol=0, atol=1e-13)


def built(**facts) -> HTransformer:
    options = {name: facts.pop(name) for name in ("block", "relative_bias") if name in facts}
    site = Site(**({"width": 12, "heads": 3, "max_length": 64} | facts))
    return HTransformer(site, **options).double().eval()


def test_dropout_acts_in_training_alone_and_keeps_the_mean():
    core = built(heads=1, attention_dropout=0.25, block=8).core
    q, k = drawn(1, 1, 64, 4), drawn(1, 1, 64, 4, seed=1)
    identity = torch.eye(64, dtype=torch.float64)[None, None]
    weights = core.eval()(q, k, identity, Layout())
    torch.testing.assert_close(weights.sum(-1), torch.ones(1, 1, 64, dtype=torch.float64))
    torch.manual_seed(0)
    dropped = core.train()(q, k, identity, Layout())
    alive = dropped != 0
    assert 0.70 < alive.sum() / weights.numel() < 0.80
    torch.testing.assert_close(dropped[alive], (weights / 0.75)[alive])


@DIRECTIONS
def test_large_scores_neither_overflow_nor_vanish(causal):
    q, k, v = (x.detach().float() for x in heads(80))
    q, k = 30 * q, 30 * k
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = hierarchical_attention(*inputs, block=4, causal=causal)
    wanted = literal(*(x.double() for x in inputs), block=4, causal=causal)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-3, atol=1e-3)
    for gradient in torch.autograd.grad(out.sum(), inputs):
        assert gradient.isfinite().all()


@DIRECTIONS
def test_half_precision_is_summed_in_float32(causal):
    q, k, v = (x.detach().bfloat16() for x in heads(100))
    wanted = hierarchical_attention(*(x.double() for x in (q, k, v)), block=4, causal=causal)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = hierarchical_attention(*leaves, block=4, causal=causal)
    gradients = torch.autograd.grad(o.float().square().sum(), leaves)
    assert {x.dtype for x in (o, *gradients)} == {torch.bfloat16}
    # one rounding of the result is all that may be lost
    torch.testing.assert_close(o.double(), wanted, atol=1e-5, rtol=2**-8)


def cost(length: int, causal: bool) -> tuple[int, int, int]:
    """Operations forward, bytes kept, bytes of the largest tensor made."""

    with pretending():
        qkv = [torch.randn(1, 2, length, 64, requires_grad=True) for _ in range(3)]

        def run() -> Tensor:
            return hierarchical_attention(*qkv, block=16, causal=causal)

        kept = []
        with Largest() as largest:
            forward = count_operations(lambda: kept.append(saved_bytes(run, qkv)))
    return forward, kept[0], largest.nbytes


@DIRECTIONS
def test_operations_and_saved_bytes_grow_with_the_length(causal):
    small, large = cost(8192, causal), cost(16384, causal)
    for before, after in zip(small[:2], large[:2], strict=True):
        assert abs(math.log2(after / before) - 1) < 0.02
    # per token: C clusters at level 0 and once more above, each key side two products
    assert large[0] / (16384 * 16 * 2 * 64) == pytest.approx(12 if causal else 20, rel=0.01)
    # q, k, v, the output, and the weights of every level
    numbers = 4 * 64 + (3 if causal else 5) * 16
    assert large[1] / (4 * 2 * 16384) == pytest.approx(numbers, rel=0.05)
    assert large[2] <= 4 * 2 * 16384 * 70


@DIRECTIONS
def test_backward_costs_twice_as_much_as_forward(causal):
    with pretending():
        qkv = [torch.randn(1, 2, 200, 16, requires_grad=True) for _ in range(3)]
        forward = count_operations(lambda: hierarchical_attention(*qkv, block=4, causal=causal))
        out = hierarchical_attention(*qkv, block=4, causal=causal)
        assert count_operations(lambda: out.sum().backward()) == 2 * forward


def test_levels_end_when_all_blocks_are_neighbours():
    assert Plan.of(1, 1, 5, 4, causal=False).levels == (2,)
    assert Plan.of(1, 1, 9, 4, causal=False).levels == (3, 2)
    assert Plan.of(1, 1, 4096, 16, causal=True).levels == (256, 128, 64, 32, 16, 8, 4, 2)


def test_what_cannot_be_is_refused():
    for block in (0, 1, 7, -2):
        with pytest.raises(ValueError, match=f"even number from 2 on: got {block}; use"):
            built(block=block)


def test_builds_and_runs_on_the_meta_device():
    with torch.device("meta"):
        mixer = HTransformer(Site(width=12, heads=3, max_length=64), block=4, relative_bias=True)
        assert mixer(torch.empty(2, 50, 12), Layout()).shape == (2, 50, 12)
