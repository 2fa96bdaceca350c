"""Local heads, mixtures, noise, the LRA variant and refusals of Sinkhorn."""

import pytest
import torch

from lra.models.families.sinkhorn import Sinkhorn, balanced_block
from lra.models.mixer import Layout, Site
from lra.models.ops import sorting
from lra.models.ops.exact import softmax_attention
from tests.attention import DIRECTIONS, drawn, heads
from tests.models.families.sinkhorn_forms import BLOCK, built


@DIRECTIONS
def test_local_heads_attend_to_their_neighbours(causal):
    mixer = built(causal=causal, local_heads=2)
    q, k, v = heads(30)
    o = mixer.core(q, k, v, Layout())
    distance = torch.arange(30)[:, None] - torch.arange(30)
    near = (distance.abs() <= BLOCK) & (distance >= 0 if causal else True)
    wanted = softmax_attention(q[:, :2], k[:, :2], v[:, :2], visible=near[None, None])
    torch.testing.assert_close(o[:, :2], wanted, rtol=1e-11, atol=1e-12)
    assert mixer.sort_out.shape[0] == 1


def test_noise_and_dropout_belong_to_training():
    mixer, x = built(), drawn(2, 30, 12)
    still = mixer(x, Layout())
    assert torch.equal(mixer(x, Layout()), still)
    mixer.train()
    torch.manual_seed(3)
    first, second = mixer(x, Layout()), mixer(x, Layout())
    torch.manual_seed(3)
    assert torch.equal(mixer(x, Layout()), first)
    assert not torch.allclose(first, second)
    quiet = built(gumbel=False).train()
    torch.testing.assert_close(quiet(x, Layout()), built(gumbel=False)(x, Layout()))
    dropped = built(gumbel=False, attention_dropout=0.3).train()
    assert not torch.allclose(dropped(x, Layout()), quiet(x, Layout()))


def test_gumbel_noise_has_its_mean_and_variance():
    torch.manual_seed(0)
    noise = sorting.gumbel_like(torch.empty(200_000))
    assert noise.mean().item() == pytest.approx(0.5772, abs=0.01)
    assert noise.var().item() == pytest.approx(torch.pi**2 / 6, abs=0.03)


def test_balanced_blocks_grow_with_the_square_root():
    assert [balanced_block(length) for length in (2, 256, 4096, 8192, 16384)] == [
        16,
        16,
        48,
        64,
        96,
    ]
    assert Sinkhorn(Site(width=16, heads=2, max_length=2**14)).core.block == 96


@DIRECTIONS
def test_half_precision_keeps_its_dtype_and_sorts_in_float32(causal):
    mixer = built(causal=causal).float()
    x = drawn(2, 30, 12).float().requires_grad_()
    plain = mixer(x, Layout())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = mixer(x, Layout())
        assert mixer.block_scores(x).dtype == torch.float32
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), plain, rtol=0.05, atol=0.05)
    whole = built(causal=causal).bfloat16()(x.bfloat16(), Layout())
    assert whole.dtype == torch.bfloat16
    assert whole.isfinite().all()
