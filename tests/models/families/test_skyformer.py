"""The Skyformer's landmarks, dropout and original padding."""

import math
from functools import partial

import pytest
import torch
from torch.nn import functional as F

from lra.models.families.skyformer import (
    DRAW_BITS,
    LandmarkSampling,
    choose,
    draw,
    skyformer_attention,
)
from lra.models.mixer import PaddingRule
from lra.models.ops.linear.gaussian_product import dropped_product, gaussian_product
from lra.models.ops.low_rank.iterative_inverse import Inverse, InverseRule
from tests import attention
from tests.attention import heads
from tests.literal.skyformer import gaussian_weights as kernel

compare = partial(attention.compare, atol=1e-12, rtol=1e-11, looser=100)

EXACT = InverseRule(inverse=Inverse.exact)


@pytest.mark.parametrize("sampling", list(LandmarkSampling))
def test_choices_are_uniform_and_within_the_row(sampling):
    totals = torch.tensor([[10], [3], [1], [0]])
    generator = torch.Generator().manual_seed(0)
    chosen = [choose(draw(8, generator), totals, sampling) for _ in range(1000)]
    for row, total in enumerate([10, 3, 1]):
        places = torch.stack([place[:, row, filled[row]] for place, filled in chosen])
        counts = torch.bincount(places.flatten(), minlength=total)
        assert len(counts) == total
        # Five standard deviations of a binomial count, and stretches of unequal length.
        expected = places.numel() / total
        room = (
            0.3 * expected if sampling is LandmarkSampling.stratified else 5 * math.sqrt(expected)
        )
        assert (counts - expected).abs().max() <= room
    wanted = [4, 4, 4, 0] if sampling is LandmarkSampling.independent else [4, 3, 1, 0]
    assert chosen[0][1].sum(1).tolist() == wanted


def test_stratified_choices_do_not_repeat():
    draws = draw(32, torch.Generator().manual_seed(0))
    for total in (16, 17, 40, 1000):
        chosen, filled = choose(draws, torch.tensor([[total]]), LandmarkSampling.stratified)
        assert filled.all()
        for side in chosen[:, 0]:
            assert len(side.unique()) == 16
            assert side.max() < total


def test_dropout_falls_on_the_weights_of_kernelised_attention():
    q, k, v = heads(21)
    keep = torch.arange(21) < torch.tensor([[21], [13]])
    torch.manual_seed(3)
    found = dropped_product(q, k, v, keep, 0.4)
    torch.manual_seed(3)
    weights = [[kernel(x, y) for x, y in zip(*row, strict=True)] for row in zip(q, k, strict=True)]
    weights = torch.stack([torch.stack(row) for row in weights]) * keep[:, None, None]
    compare(found, F.dropout(weights, 0.4) @ v, [q, k, v])
    compare(dropped_product(q, k, v, keep, 0.0), gaussian_product(q, k, v, keep), [q, k, v])


def test_original_padding_chooses_among_the_first_positions_with_zeros_at_padding():
    q, k, v = heads(30)
    keep = torch.rand(2, 30, generator=torch.Generator().manual_seed(2)) > 0.4
    draws = draw(8, torch.Generator().manual_seed(4))
    options = {"inverse": EXACT, "padding": PaddingRule.original}
    found = skyformer_attention(q, k, v, draws, keep=keep, **options)
    expected = torch.zeros_like(found)
    for row, real in enumerate(keep):
        chosen = [draw_of * int(real.sum()) >> DRAW_BITS for draw_of in draws]
        for head in range(3):
            x, y = (part[row, head].where(real[:, None], 0.0) for part in (q, k))
            marks = torch.cat((x[chosen[0]], y[chosen[1]]))
            small = kernel(marks, marks) + 0.1 * torch.eye(8, dtype=x.dtype)
            gathered = (kernel(marks, y) * real) @ v[row, head]
            expected[row, head] = kernel(x, marks) @ torch.linalg.solve(small, gathered)
    real = keep[:, None, :, None]
    compare(found * real, expected * real, [q, k, v])
    full = torch.ones_like(keep)
    for whole in (full, None):
        ours, plain = (
            skyformer_attention(q, k, v, draws, keep=whole, inverse=EXACT, padding=rule)
            for rule in PaddingRule
        )
        torch.testing.assert_close(ours, plain, rtol=0, atol=0)
