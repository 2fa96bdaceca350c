"""Performer: the blocked product against dense FAVOR+ of the same draw."""

import math

import pytest
import torch

from models.contract.counting import count_operations, pretending, saved_bytes
from models.families.performer import Kernel, performer_maps
from models.ops.linear import features as blocked
from models.ops.linear.reference import (
    performer_features as features,
    recurrent_linear_attention,
)
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
from tests.models.ops.linear.performer_forms import KERNELS, dense, projection

__all__ = ["small_blocks"]
LOOSE = {Kernel.trigonometric: 1e-9, Kernel.tanh: 1e-9, Kernel.cos: 1e-9, Kernel.identity: 1e-9}
"""Sums of weights of both signs cancel, which costs digits."""


@DIRECTIONS
@PADDED
@pytest.mark.parametrize("kernel", list(Kernel))
@pytest.mark.parametrize("length", [2, 63])
@pytest.mark.usefixtures("small_blocks")
def test_outputs_and_gradients_equal_the_dense_estimate(kernel, length, padded, causal):
    q, k, v = draw(length)
    W, keep = projection(), holes(length) if padded else None
    compare(
        lambda: attend(q, k, v, performer_maps(W, kernel), causal=causal, keep=keep),
        lambda: dense(q, k, v, W, kernel, keep=keep, causal=causal),
        (q, k, v),
        tolerance=LOOSE.get(kernel, 1e-11),
    )


@KERNELS
@pytest.mark.parametrize("chunk", [1, 3, 16, 37, 64])
@pytest.mark.parametrize("rows", [1, 1000])
def test_chunk_and_block_never_change_the_result(kernel, chunk, rows, monkeypatch):
    monkeypatch.setattr(blocked, "CPU_BLOCK", 1)
    monkeypatch.setattr(blocked, "MINIMUM_ROWS", rows)
    (q, k, v), W = draw(37), projection()
    compare(
        lambda: attend(q, k, v, performer_maps(W, kernel), causal=True, chunk=chunk),
        lambda: dense(q, k, v, W, kernel, causal=True),
        (q, k, v),
        tolerance=LOOSE.get(kernel, 1e-11),
    )


@DIRECTIONS
@KERNELS
def test_gradcheck(kernel, causal):
    q, k, v = (x[:1, :1, :, :2].detach().requires_grad_() for x in draw(6, seed=4))
    keep = torch.tensor([[False, True, False, True, True, True]])
    maps = performer_maps(projection(3, 2), kernel)

    def run(*inputs):
        return attend(*inputs, maps, causal=causal, keep=keep, chunk=4)

    assert torch.autograd.gradcheck(run, (q, k, v))


@DIRECTIONS
@KERNELS
def test_weights_are_a_mean_and_an_empty_row_is_zero(kernel, causal):
    (q, k, v), maps = draw(63), performer_maps(projection(), kernel)
    keep = torch.ones(2, 63, dtype=torch.bool)
    keep[0] = False
    out = attend(q, k, torch.ones_like(v), maps, causal=causal, keep=keep)
    assert not out[0].any()
    # Trigonometric weights have both signs: sums of theirs are small beside their terms.
    atol = 1e-12 if kernel is Kernel.trigonometric else 1e-13
    torch.testing.assert_close(out[1], torch.ones_like(out[1]), rtol=0, atol=atol)
    for gradient in torch.autograd.grad(out.square().sum(), (q, k)):
        assert not gradient[0].any()
        assert gradient.isfinite().all()


@KERNELS
def test_a_later_outlier_moves_nothing_before_it(kernel):
    (q, k, v), maps = [x.detach() for x in draw(40)], performer_maps(projection(), kernel)
    before = attend(q, k, v, maps, causal=True, chunk=16)
    for x in (q, k, v):
        x[:, :, 25:] *= 6
    after = attend(q, k, v, maps, causal=True, chunk=16)
    assert torch.equal(before[:, :, :25], after[:, :, :25])
    assert not torch.equal(before[:, :, 25:], after[:, :, 25:])


@KERNELS
def test_a_prefix_alone_gives_the_same(kernel):
    (q, k, v), maps = [x.detach() for x in draw(40)], performer_maps(projection(), kernel)
    whole = attend(q, k, v, maps, causal=True, chunk=16)
    for length in (1, 15, 16, 17, 39):
        short = attend(*(x[:, :, :length] for x in (q, k, v)), maps, causal=True, chunk=16)
        torch.testing.assert_close(short, whole[:, :, :length], rtol=1e-12, atol=1e-13)


@KERNELS
@pytest.mark.parametrize("sizes", [[24], [1] * 24, [5, 1, 11, 7], [23, 1]])
def test_any_partition_equals_one_pass_with_gradients(kernel, sizes):
    (q, k, v), W = draw(24), projection()
    maps = performer_maps(W, kernel)

    compare(
        lambda: in_pieces(q, k, v, maps, sizes),
        lambda: dense(q, k, v, W, kernel, causal=True),
        (q, k, v),
        tolerance=LOOSE.get(kernel, 1e-11),
    )


@KERNELS
def test_chunks_equal_the_recurrence(kernel):
    (q, k, v), W = draw(21), projection()
    compare(
        lambda: attend(q, k, v, performer_maps(W, kernel), causal=True),
        lambda: recurrent_linear_attention(features(q, W, kernel), features(k, W, kernel), v),
        (q, k, v),
        tolerance=LOOSE.get(kernel, 1e-11),
    )


@DIRECTIONS
def test_long_vectors_are_stable_in_single_precision(causal):
    width, length = 64, 200
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(1, 2, length, width, generator=generator) for _ in range(3))
    # Length after the scale d^(-1/4): |x|^2 = 288, where exp(-|x|^2 / 2) alone is 1e-63.
    q, k = (torch.nn.functional.normalize(x, dim=-1) * math.sqrt(288) * width**0.25 for x in (q, k))
    W = projection(128, width)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    wide = [x.detach().double().requires_grad_() for x in inputs]
    out = attend(*inputs, performer_maps(W.float()), causal=causal, chunk=64)
    wanted = dense(*wide, W, Kernel.softmax, causal=causal)
    torch.testing.assert_close(out.double(), wanted, rtol=1e-3, atol=1e-3)
    for found, want in zip(
        torch.autograd.grad(out.sum(), inputs),
        torch.autograd.grad(wanted.sum(), wide),
        strict=True,
    ):
        error = (found.double() - want).norm() / want.norm()
        assert error < 1e-3, f"relative error of a gradient: {error:.1e}"


@DIRECTIONS
def test_half_precision_enters_and_leaves(causal):
    inputs = [x.detach().bfloat16().requires_grad_() for x in draw(300)]
    W = projection()
    out = attend(*inputs, performer_maps(W.float()), causal=causal)
    assert out.dtype == torch.bfloat16
    wanted = attend(*(x.double() for x in inputs), performer_maps(W), causal=causal)
    torch.testing.assert_close(out.double(), wanted, rtol=2**-8, atol=1e-5)
    for gradient in torch.autograd.grad(out.float().square().sum(), inputs):
        assert gradient.dtype == torch.bfloat16
        assert gradient.isfinite().all()


@DIRECTIONS
@pytest.mark.parametrize("kernel", [Kernel.softmax, Kernel.relu])
def test_operations_and_saved_bytes_grow_as_the_length(kernel, causal, monkeypatch):
    lengths, operations, kept = (8192, 32768), [], []
    monkeypatch.setattr(blocked, "CPU_ROWS", 2**11)  # blocks of equal length at both
    for length in lengths:
        with pretending():
            q, k, v = (torch.empty(1, 1, length, 64, requires_grad=True) for _ in range(3))
            maps = performer_maps(torch.empty(256, 64), kernel)

            def step(inputs=(q, k, v), maps=maps):
                attend(*inputs, maps, causal=causal, chunk=512).sum().backward()

            def forward(inputs=(q, k, v), maps=maps):
                attend(*inputs, maps, causal=causal, chunk=512)

            operations.append(count_operations(step))
            kept.append(saved_bytes(forward, exclude=(q, k, v)))
    ratio = math.log(lengths[1] / lengths[0])
    assert math.log(operations[1] / operations[0]) / ratio == pytest.approx(1, abs=0.02)
    assert math.log(kept[1] / kept[0]) / ratio == pytest.approx(1, abs=0.02)
    # Far below the features of queries and keys, which would be 8 times the output.
    assert kept[1] < 2 * 4 * lengths[1] * 64


@DIRECTIONS
@pytest.mark.parametrize("kernel", [kernel for kernel in Kernel if kernel.generalised])
def test_unnormalised_generalised_attention(kernel, causal):
    (q, k, v), W = draw(30), projection()
    maps = performer_maps(W, kernel, normalise=False)
    weights = features(q, W, kernel) @ features(k, W, kernel).mT
    compare(
        lambda: attend(q, k, v, maps, causal=causal),
        lambda: (weights.tril() if causal else weights) @ v,
        (q, k, v),
    )
