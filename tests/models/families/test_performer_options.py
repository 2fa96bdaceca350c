"""Performer: the authors' stabiliser, the maximum over keys, kernels without projection, lra."""

import pytest
import torch

from lra.models.families.performer import Kernel, KeyMax, Stabiliser
from lra.models.mixer import Layout, Unsupported, Variant
from tests.literal import features as reference
from tests.models.ops.linear.feature_forms import PADDED, compare, holes, small_blocks
from tests.models.ops.linear.performer_forms import dense, make

__all__ = ["small_blocks"]
WHOLE = KeyMax["global"]
REFERENCE = {"stabiliser": Stabiliser.reference, "key_max": WHOLE}


def inputs(mixer, length, *, seed=0, size=1.0):
    """Return q, k, v of the mixer's heads."""
    generator = torch.Generator().manual_seed(seed)
    shape = (2, mixer.heads, length, mixer.head_width)
    drawn = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3))
    q, k, v = drawn
    return [x.requires_grad_() for x in (size * q, size * k, v)]


def test_the_reference_lets_long_vectors_fade():
    """Where |x|^2 / 2 is large only epsilon is left, and the guard halves even that."""
    mixer, faithful = make(features=64, **REFERENCE), make(features=64)
    q, k, v = inputs(mixer, 20, size=6.0)
    found = mixer.core(q, k, v, Layout())
    torch.testing.assert_close(
        found, reference.released_performer_attention(q, k, v, mixer.core.projection, 1e-6)
    )
    assert found.abs().median() < 1e-5
    sound = faithful.core(q, k, v, Layout())
    torch.testing.assert_close(sound, dense(q, k, v, faithful.core.projection, Kernel.softmax))
    assert sound.abs().median() > 0.1


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
    running = make(True)
    assert moved(running) == 0
    assert not running.traits.selection_leak


def test_later_keys_get_no_gradient_through_a_global_maximum():
    mixer = make(True, features=11, **REFERENCE)
    q, k, v = inputs(mixer, 20)
    out = mixer.core(q, k, v, Layout())
    for gradient in torch.autograd.grad(out[:, :, :9].sum(), (q, k, v)):
        assert gradient[:, :, :9].any()
        assert not gradient[:, :, 9:].any()


@PADDED
@pytest.mark.parametrize("kernel", [Kernel.softmax, Kernel.hyperbolic, Kernel.trigonometric])
@pytest.mark.usefixtures("small_blocks")
def test_the_full_stabiliser_gives_one_function_for_both_maxima(kernel, padded):
    options = {"kernel": kernel, "features": 11}
    running, whole = make(True, **options), make(True, key_max=WHOLE, **options)
    q, k, v = inputs(running, 37)
    layout = Layout(keep=holes(37) if padded else None)
    compare(
        lambda: whole.core(q, k, v, layout),
        lambda: running.core(q, k, v, layout),
        (q, k, v),
        tolerance=1e-9,
    )


def test_a_global_maximum_loses_what_a_running_one_keeps():
    found = []
    for key_max in KeyMax:
        mixer = make(True, key_max=key_max).float()
        q, k, v = (x.detach().float() for x in inputs(mixer, 20))
        k[:, :, :-1] *= 30  # the longer a key, the smaller its features
        found.append(mixer.core(q, k, v, Layout())[:, :, :-1])
    running, whole = found
    assert running.all()
    assert not whole.any()


# kernels without projection


def test_an_unprojected_mixer_has_nothing_to_redraw():
    mixer = make(kernel=Kernel.relu, projected=False)
    before = {name: value.clone() for name, value in mixer.state_dict().items()}
    mixer.after_step(mixer.redraw_every, torch.Generator())
    assert all(torch.equal(value, before[name]) for name, value in mixer.state_dict().items())


@pytest.mark.parametrize("kernel", list(Kernel))
def test_every_kernel_states_its_size(kernel):
    mixer = make(True, kernel=kernel, features=11)
    sums, _ = mixer.initial_state(3, 8)
    doubled = kernel in {Kernel.hyperbolic, Kernel.trigonometric}
    assert sums.shape == (3, 2, 22 if doubled else 11, 9)


@pytest.mark.parametrize("kernel", list(Kernel))
def test_only_positive_weights_are_called_a_mean(kernel):
    signed = {Kernel.trigonometric, Kernel.gelu, Kernel.tanh, Kernel.cos, Kernel.identity}
    assert make(kernel=kernel).traits.row_stochastic == (kernel not in signed)
    if kernel.generalised:
        assert not make(kernel=kernel, renormalise=False).traits.row_stochastic
    if kernel in {Kernel.relu, Kernel.abs}:
        assert not make(kernel=kernel, feature_epsilon=0.0).traits.row_stochastic


def test_a_row_whose_signed_weights_sum_to_nothing_is_zero():
    mixer = make(kernel=Kernel.identity, projected=False, feature_epsilon=0.0)
    q, k, v = inputs(mixer, 6)
    with torch.no_grad():
        k.zero_()
    out = mixer.core(q, k, v, Layout())
    assert not out.any()
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), (q, k, v)))


# the code of the Long Range Arena


def test_the_lra_variant_of_softmax_leaks_when_causal():
    assert make(True, variant=Variant.lra).traits.selection_leak
    assert not make(True, variant=Variant.lra, kernel=Kernel.relu).traits.selection_leak


# across, and what is refused
