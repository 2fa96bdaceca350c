"""QRNN against its equations, token by token: values, gradients, zoneout."""

import pytest
import torch

from lra.models.families.qrnn import QRNN, PoolingGates
from lra.models.mixer import Layout, Site
from tests.attention import builder, drawn
from tests.literal.qrnn import equations

SITE = {"width": 6, "heads": 2, "max_length": 32}
LENGTH = 13


def built(*, kernel=2, **options) -> QRNN:
    return builder(QRNN, **SITE, kernel=[kernel])(**options)


@pytest.mark.parametrize("pooling", [PoolingGates.f, PoolingGates.fo])
def test_zoned_out_cells_stay_as_they_were(pooling):
    mixer, x = built(causal=True, pooling=pooling, zoneout=0.4), drawn(2, LENGTH, 6)
    torch.manual_seed(5)
    stays = torch.rand(2, LENGTH, 6, dtype=torch.float64) < 0.4
    torch.manual_seed(5)
    found = mixer.train()(x, Layout())
    wanted = equations(mixer.cells[0], x, zoned_out=stays)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
    assert mixer.traits.training_noise
    found = mixer.eval()(x, Layout())
    torch.testing.assert_close(found, equations(mixer.cells[0], x, taken=0.6), atol=1e-12, rtol=0)


def test_layers_have_kernels_of_their_own():
    kernels = [
        QRNN(Site(**SITE, layer=layer, depth=3), kernel=[2, 1, 1]).cells[0].kernel
        for layer in range(3)
    ]
    assert kernels == [2, 1, 1]
