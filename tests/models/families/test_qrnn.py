"""QRNN against its equations, token by token: values, gradients, zoneout."""

import pytest
import torch

from lra.models.contract.counting import count_operations
from lra.models.families.qrnn import QRNN, PoolingGates
from lra.models.mixer import Layout, Site
from tests.attention import builder, compare, drawn
from tests.literal.recurrent import qrnn as literal

POOLING = pytest.mark.parametrize("pooling", [*PoolingGates])
KERNELS = pytest.mark.parametrize("kernel", [1, 2, 3])
SITE = {"width": 6, "heads": 2, "max_length": 32}
LENGTH = 13


def built(*, kernel=2, **options) -> QRNN:
    return builder(QRNN, **SITE, kernel=[kernel])(**options)


def equations(mixer, x, cell=0, **options):
    """Compute one direction token by token, from the weights of one map each."""
    cells = mixer.cells[cell]
    weight = cells.gates.weight.view(cells.maps, cells.hidden, cells.kernel, cells.width)
    return literal(x, weight, cells.gates.bias.view(cells.maps, cells.hidden), **options)


@POOLING
@KERNELS
def test_it_is_the_equations_when_causal(pooling, kernel):
    mixer, x = built(causal=True, pooling=pooling, kernel=kernel), drawn(2, LENGTH, 6)
    x.requires_grad_()
    compare(mixer(x, Layout()), equations(mixer, x), [x, *mixer.parameters()])


@POOLING
def test_it_is_the_equations_from_both_ends(pooling):
    mixer, x = built(pooling=pooling), drawn(2, LENGTH, 6).requires_grad_()
    wanted = torch.cat((equations(mixer, x), equations(mixer, x.flip(1), 1).flip(1)), dim=-1)
    compare(mixer(x, Layout()), wanted, [x, *mixer.parameters()])


@pytest.mark.parametrize("pooling", [PoolingGates.f, PoolingGates.fo])
def test_zoned_out_cells_stay_as_they_were(pooling):
    mixer, x = built(causal=True, pooling=pooling, zoneout=0.4), drawn(2, LENGTH, 6)
    torch.manual_seed(5)
    stays = torch.rand(2, LENGTH, 6, dtype=torch.float64) < 0.4
    torch.manual_seed(5)
    found = mixer.train()(x, Layout())
    wanted = equations(mixer, x, zoned_out=stays)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
    assert mixer.traits.training_noise
    found = mixer.eval()(x, Layout())
    torch.testing.assert_close(found, equations(mixer, x, taken=0.6), atol=1e-12, rtol=0)


@POOLING
def test_operations_are_those_of_its_maps(pooling):
    mixer, x = built(causal=True, pooling=pooling, hidden_width=5), drawn(2, LENGTH, 6)
    maps = {"f": 2, "fo": 3, "ifo": 4}[pooling]
    wanted = 2 * 2 * LENGTH * (maps * 2 * 6 * 5 + 5 * 6)
    assert count_operations(lambda: mixer(x, Layout())) == wanted


def test_layers_have_kernels_of_their_own():
    kernels = [
        QRNN(Site(**SITE, layer=layer, depth=3), kernel=[2, 1, 1]).cells[0].kernel
        for layer in range(3)
    ]
    assert kernels == [2, 1, 1]
