"""Performer: the maximum over keys, what is a mean, the lra variant."""

import pytest
import torch

from lra.models.families.performer import Kernel, KeyMax, Stabiliser
from lra.models.mixer import Layout, Unsupported, Variant
from tests.models.ops.linear.performer_forms import make

WHOLE = KeyMax["global"]
REFERENCE = {"stabiliser": Stabiliser.reference, "key_max": WHOLE}


def inputs(mixer, length, *, seed=0, size=1.0):
    """Return q, k, v of the mixer's heads."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, mixer.heads, length, mixer.head_width)
    drawn = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    q, k, v = drawn
    return [x.requires_grad_() for x in (size * q, size * k, v)]


def moved(mixer):
    """Return by how much a large last key moves the outputs before it."""
    q, k, v = (x.detach() for x in inputs(mixer, 40))
    before = mixer.core(q, k, v, Layout())
    k[:, :, -1] *= 6
    return (mixer.core(q, k, v, Layout()) - before)[:, :, :-1].abs().max().item()


def test_a_global_maximum_leaks_and_says_so():
    leaky = make(True, **REFERENCE)
    assert moved(leaky) > 1e-3
    assert leaky.traits.selection_leak
    with pytest.raises(Unsupported, match="whole sequence"):
        leaky.initial_state(1, 8)


# kernels without projection


@pytest.mark.parametrize("kernel", list(Kernel))
def test_only_positive_weights_are_called_a_mean(kernel):
    signed = {Kernel.trigonometric, Kernel.gelu, Kernel.tanh, Kernel.cos, Kernel.identity}
    assert make(kernel=kernel).traits.row_stochastic == (kernel not in signed)
    if kernel.generalised:
        assert not make(kernel=kernel, renormalise=False).traits.row_stochastic
    if kernel in {Kernel.relu, Kernel.abs}:
        assert not make(kernel=kernel, feature_epsilon=0.0).traits.row_stochastic


# the code of the Long Range Arena


def test_the_lra_variant_of_softmax_leaks_when_causal():
    assert make(True, variant=Variant.lra).traits.selection_leak
    assert not make(True, variant=Variant.lra, kernel=Kernel.relu).traits.selection_leak


# across, and what is refused
