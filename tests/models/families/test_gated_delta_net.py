"""Comba, an option of Gated DeltaNet: the cases in which it is that, and where it is not."""

import pytest
import torch
from torch import Tensor

from lra.models.families.gated_delta_net import GatedDeltaNet
from lra.models.mixer import Layout
from tests.attention import DIRECTIONS, builder, compare, drawn

WIDTH = 12


def twins(causal: bool, decays: bool) -> tuple[GatedDeltaNet, GatedDeltaNet]:
    """Return Comba with p = k and D = 0, and Gated DeltaNet, with equal weights.

    Unless `decays`, states do not decay: A is 0.
    """
    usual = builder(GatedDeltaNet, causal=causal, chunk=8, moved=0.3)
    plain, comba = usual(), usual(comba=True)
    if not decays:
        plain.log_rate.data.fill_(-torch.inf)
    comba.load_state_dict(plain.state_dict(), strict=False)
    comba.inner_decay.data.fill_(50.0)  # its sigma is 1
    comba.query_correction.data.zero_()
    return comba, plain


def difference(comba: GatedDeltaNet, plain: GatedDeltaNet, x: Tensor) -> float:
    """Return the largest difference of two layers, relative to the largest output."""
    found, wanted = (mixer(x, Layout()).detach() for mixer in (comba, plain))
    return float((found - wanted).abs().max() / wanted.abs().max())


@DIRECTIONS
def test_comba_without_decays_inner_decay_and_correction_is_a_delta_rule(causal):
    comba, plain = twins(causal, decays=False)
    x = drawn(2, 21, WIDTH).requires_grad_()
    compare(comba(x, Layout()), plain(x, Layout()), [x])


def test_each_part_of_comba_changes_what_it_computes():
    x = drawn(2, 21, WIDTH)
    assert difference(*twins(causal=True, decays=True), x) > 1e-2  # the error is undecayed
    for name, value in (("inner_decay", 1.0), ("query_correction", 1.0)):
        comba, plain = twins(causal=True, decays=False)
        getattr(comba, name).data.fill_(value)
        assert difference(comba, plain, x) > 1e-2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_comba_is_finite_where_gates_forget_all(dtype):
    """Keys divided by such decays would overflow."""
    mixer = builder(GatedDeltaNet, causal=True, chunk=8, comba=True, moved=0.3)().to(dtype)
    x = drawn(2, 40, WIDTH).to(dtype)
    mixer.log_rate.data.fill_(8.0)  # decays down to exp(-3000)
    y = mixer(x, Layout())
    assert mixer.log_decays(x).min() < -1000
    assert all(each.isfinite().all() for each in torch.autograd.grad(y.sum(), mixer.v_proj.weight))
    double = mixer.double()(x.double(), Layout())
    torch.testing.assert_close(y.double(), double, atol=1e-4, rtol=1e-4)
