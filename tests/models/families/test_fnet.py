"""FNet's long waves, its two ablations, and what a pass calls and writes."""

import math

import pytest
import torch
from torch import Tensor

from lra.models.contract.counting import (
    ElementCounter,
)
from lra.models.families import fnet
from lra.models.families.fnet import FNet, Method, MixingForm, Norm, fourier_mixing
from lra.models.mixer import Layout, Unsupported
from tests.attention import Calls, site

NORMS = pytest.mark.parametrize("norm", list(Norm))
SHAPES = [(1, 1), (1, 6), (2, 1), (2, 2), (7, 5), (16, 8), (63, 12), (64, 9), (101, 10)]


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def test_long_waves_keep_their_phase():
    x = torch.zeros(1, 4099, 1, dtype=torch.float64)
    x[0, -1] = 1.0  # its wave is cos(2 pi j (l - 1) / l) = cos(2 pi j / l)
    place = torch.arange(4099, dtype=torch.float64)
    wanted = torch.cos(2 * math.pi * place / 4099)[None, :, None]
    torch.testing.assert_close(fourier_mixing(x, Method.matmul), wanted, rtol=0, atol=1e-13)


def test_linear_learns_and_random_is_frozen():
    learned, frozen = FNet(site(), form=MixingForm.linear), FNet(site(), form=MixingForm.random)
    assert {name for name, _ in learned.named_parameters()} == {"sequence", "hidden"}
    assert not list(frozen.parameters())
    assert set(frozen.state_dict()) == {"sequence", "hidden"}
    large = FNet(site(max_length=400, width=300), form=MixingForm.random)
    for name, size in (("sequence", 400), ("hidden", 300)):
        matrix = getattr(large, name)
        assert matrix.std().item() == pytest.approx(size**-0.5, rel=0.02)
        assert matrix.abs().max() < 2.3 * size**-0.5


def test_padding_that_cannot_be_left_out_is_refused():
    with pytest.raises(
        Unsupported, match=r"got a mask of padding; choose model\.backbone\.padding"
    ):
        FNet(site())(drawn(2, 8, 12), Layout(keep=torch.ones(2, 8, dtype=torch.bool)))


@NORMS
@pytest.mark.parametrize(("length", "width"), SHAPES)
def test_short_sequences_are_one_call_and_equal_to_the_last_bit(length, width, norm, monkeypatch):
    x = drawn(2, length, width).requires_grad_()
    with Calls() as forward:
        y = fourier_mixing(x, norm=norm)
    with Calls() as backward:
        (pulled,) = torch.autograd.grad(y, x, y.detach())
    assert forward.names == backward.names == ["_fft_r2c"]
    monkeypatch.setattr(fnet, "AT_ONCE", 0)
    for seen, given in ((y, x), (pulled, y)):
        assert torch.equal(seen, fourier_mixing(given, norm=norm))


@pytest.mark.parametrize(("rows", "length"), [(2, 1500), (64, 128)])
def test_what_is_known_is_written_once_and_mirrored_once(rows, length):
    x = drawn(rows, length, 128, dtype=torch.float32)
    with Calls() as calls, ElementCounter() as elements:
        fourier_mixing(x)
    assert len(calls.names) == 6
    # The result, half a transform, its copy, and the other half flipped and copied.
    assert elements.written <= 3.02 * x.numel()
