"""QRNN's zoneout."""

import pytest
import torch

from lra.models.families.qrnn import QRNN, PoolingGates
from lra.models.mixer import Layout
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
