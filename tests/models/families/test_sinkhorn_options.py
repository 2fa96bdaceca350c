"""Noise and blocks of Sinkhorn."""

import pytest
import torch

from lra.models.families.sinkhorn import Sinkhorn, balanced_block
from lra.models.mixer import Layout, Site
from lra.models.ops import sorting


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


@pytest.mark.parametrize("sort", ["sinkhorn", "softmax", "topk"])
def test_sortcut_passes_over_blocks_of_padding_in_front(sort):
    """Rows with two whole blocks of padding in front give what they give alone."""
    torch.manual_seed(0)
    mixer = Sinkhorn(
        Site(width=8, heads=2, max_length=12), block=2, sort=sort, sortcut=2, sort_net="attention"
    )
    mixer.eval()  # without noise
    x, keep = torch.randn(2, 12, 8), torch.ones(2, 12, dtype=torch.bool)
    keep[:, :4] = False
    alone = mixer(x[:, 4:], Layout())
    torch.testing.assert_close(mixer(x, Layout(keep=keep))[:, 4:], alone)
    assert alone.std() > 0.01
