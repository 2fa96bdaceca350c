"""LinOSS against released code; limits of its oscillators, sizes, first values and what decays."""

import math

import numpy as np
import pytest
import torch

from lra.models.families.linoss import LinOSS
from lra.models.mixer import Layout
from lra.models.ops.state_space.oscillators import Integrator, oscillate, transition
from lra.models.tuning import Tuning
from lra.runners.training.optimisers.groups import tunings
from tests.attention import builder, drawn
from tests.models.families.released import linoss as released

STORED = np.load(released.OUTPUTS)
FORMS = {
    "im": {"discretisation": "im"},
    "imex": {"discretisation": "imex"},
    "damped": {"discretisation": "imex", "damping": True},
}
built = builder(LinOSS, width=6, heads=2, max_length=32, causal=True, states=5)


def constants(number, *, seed=0):
    """Return A, G and dt of so many oscillators, in float64."""
    a, g, s = (drawn(number, seed=seed + each).abs() for each in range(3))
    return a, g, s.sigmoid()


@pytest.mark.parametrize("case", FORMS)
def test_it_answers_as_the_released_layer(case):
    mixer = built(width=released.WIDTH, heads=1, states=released.STATES, **FORMS[case])
    given = {name: torch.from_numpy(value) for name, value in released.weights(case).items()}
    parts, x = mixer.oscillators, torch.from_numpy(released.tokens()).requires_grad_()
    places = {
        "A_diag": parts.stiffness, "G_diag": parts.damping, "steps": parts.step,
        "B": parts.entry, "C": mixer.readout, "D": mixer.skip,
    }  # fmt: skip
    with torch.no_grad():
        for name, value in given.items():
            places[name].copy_(value.movedim(2, 0) if value.ndim == 3 else value)
    outputs, _ = mixer.read(x, None, None)
    y = sum(outputs, start=mixer.skip * x)
    torch.testing.assert_close(y, torch.from_numpy(STORED[f"{case}: y"]), atol=1e-11, rtol=1e-11)
    y.backward(torch.from_numpy(released.direction()))
    for name in ("x", *given):
        found = x.grad if name == "x" else places[name].grad
        found = found[0] if name == "C" else found
        found = found.movedim(0, 2) if name in "BC" else found
        wanted = torch.from_numpy(STORED[f"{case}: {name}"])
        torch.testing.assert_close(found, wanted, atol=1e-10, rtol=1e-10)


def test_without_damping_it_is_undamped_imex():
    a, g, dt = constants(64)
    undamped = transition(a, torch.zeros_like(g), dt, Integrator.imex)
    torch.testing.assert_close(
        undamped[0], torch.stack([torch.stack(row, -1) for row in
        ((torch.ones_like(a), -dt * a), (dt, 1 - dt * dt * a))], -2)
    )  # fmt: skip
    one, other = built(**FORMS["imex"]), built(**FORMS["damped"])
    with torch.no_grad():
        other.oscillators.damping.fill_(-0.1)
        for name, value in one.named_parameters():
            other.get_parameter(name).copy_(value)
    x = drawn(2, 32, 6)
    torch.testing.assert_close(one(x, Layout()), other(x, Layout()), atol=0, rtol=0)


@pytest.mark.parametrize("case", FORMS)
def test_a_step_has_the_modulus_and_angle_of_the_papers(case):
    a, g, dt = constants(200)
    if case == "im":
        square = 1 / (1 + dt * dt * a)
        cosine = square.sqrt()  # of the angle atan(dt sqrt(A))
    else:
        g = torch.zeros_like(g) if case == "imex" else g
        square = 1 / (1 + dt * g)
        cosine = (1 + square - dt * dt * a * square) / (2 * square.sqrt())
    matrix, entry = transition(a, g, dt, Integrator("im" if case == "im" else "imex"))
    turning = cosine.abs() < 0.999
    assert turning.sum() > 100
    values = torch.linalg.eigvals(matrix[turning])
    torch.testing.assert_close(values.abs().square(), square[turning, None].expand(-1, 2))
    found = values.real / values.abs()
    torch.testing.assert_close(found, cosine[turning, None].expand(-1, 2))
    # The kernel is gain r^j (cos jp + cot p sin jp): x_t follows one trace and one determinant.
    lag, angle = torch.arange(30.0, dtype=torch.float64), cosine[turning].acos()[:, None]
    impulse = torch.zeros(1, 1, int(turning.sum()), 30, dtype=torch.float64)
    impulse[..., 0] = 1
    kernel, _ = oscillate(impulse, matrix[turning], entry[turning])
    wave = (lag * angle).cos() + (lag * angle).sin() / angle.tan()
    gain = (dt * dt * square)[turning, None]
    closed = gain * square[turning, None].sqrt() ** lag * wave
    torch.testing.assert_close(kernel[0, 0], closed, atol=1e-12, rtol=0)


@pytest.mark.parametrize("rule", Integrator)
def test_without_stiffness_places_and_gradients_are_those_of_free_motion(rule):
    """M has one eigenvector: no diagonal form exists, and x_t adds up velocities."""
    dt = torch.tensor([0.7, 0.2], dtype=torch.float64)
    a = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    impulse = torch.zeros(1, 1, 2, 50, dtype=torch.float64)
    impulse[..., 0] = 1
    x, _ = oscillate(impulse, *transition(a, torch.zeros_like(a), dt, rule))
    lag = torch.arange(1.0, 51.0, dtype=torch.float64)
    torch.testing.assert_close(x[0, 0], dt[:, None].square() * lag)
    (found,) = torch.autograd.grad(x[..., 9].sum(), a)
    # To first order, A takes dt^2 A from the place at each earlier lag (with im, also this one).
    first = 10 if rule == Integrator.im else 9
    wanted = -(dt**4) * sum((first + 1 - j) * j for j in range(1, first + 1))
    torch.testing.assert_close(found, wanted)


def test_gradients_are_right_where_eigenvalues_meet():
    """A at 0, at a bound of damped oscillations, and at 4 / dt^2."""
    dt = torch.tensor([0.5, 0.5, 0.5], dtype=torch.float64)
    g = torch.tensor([0.0, 2.0, 0.0], dtype=torch.float64, requires_grad=True)
    low = ((1 + 0.5 * 2.0) ** 0.5 - 1) ** 2 / 0.25
    a = torch.tensor([0.0, low, 16.0], dtype=torch.float64, requires_grad=True)
    w, before = drawn(1, 2, 3, 7), drawn(1, 2, 3, 2, seed=1)

    def run(a, g, w, before):
        return oscillate(w, *transition(a, g, dt, Integrator.imex), before)

    leaves = a, g, w.requires_grad_(), before.requires_grad_()
    assert torch.autograd.gradcheck(run, leaves)


def test_undamped_imex_grows_beyond_its_bound_and_the_damped_form_cannot():
    dt = torch.tensor([0.5], dtype=torch.float64)
    for product, modulus in ((4.0, 1.0), (4.5, 2.0)):
        matrix, _ = transition(product / dt**2, torch.zeros(1).double(), dt, Integrator.imex)
        assert math.isclose(torch.linalg.eigvals(matrix).abs().max(), modulus, rel_tol=1e-7)
    mixer = built(**FORMS["damped"])
    mixer.oscillators.stiffness.data.fill_(1e6)
    matrix, _ = transition(*mixer.oscillators.constants(), Integrator.imex)
    assert (torch.linalg.eigvals(matrix).abs() < 1).all()
    undamped = built(**FORMS["imex"])
    undamped.oscillators.stiffness.data.fill_(1e6)
    assert not undamped(drawn(1, 300, 6).requires_grad_(), Layout()).isfinite().all()


def test_first_values_keep_to_their_ranges():
    for case in ("im", "imex"):
        a, g, dt = built(states=2000, stiffness_max=7.0, **FORMS[case]).oscillators.constants()
        assert not g.any()
        assert dt.square().mul(a).max() < 4
        assert 6.9 < a.max() <= 7
        assert 0.5 <= dt.min() < dt.max() < 0.7311
    mixer = built(states=2000, radius_min=0.5, angle_max=1.0, **FORMS["damped"])
    values = torch.linalg.eigvals(transition(*mixer.oscillators.constants(), Integrator.imex)[0])
    square, angle = values.abs().square(), values.angle().abs()
    assert abs(square.mean() - 0.625) < 0.02
    assert 0.2499 < square.min() < 0.26
    assert square.max() < 1 + 1e-6
    assert abs(angle.mean() - 0.5) < 0.03
    assert angle.max() < 1.001


@pytest.mark.parametrize("case", FORMS)
def test_it_is_as_large_as_is_said(case):
    for causal in (False, True):
        mixer = built(width=24, states=10, causal=causal, **FORMS[case])
        wanted = 10 * (3 if case == "damped" else 2) + 4 * 10 * 24 + 24 + 2 * (24**2 + 24)
        wanted += 0 if causal else 2 * 10 * 24
        assert sum(each.numel() for each in mixer.parameters()) == wanted
    assert mixer.initial_state(3, 99).shape == (3, 10, 2, 2)


def test_what_decides_about_memory_has_no_weight_decay():
    mixer = built(**FORMS["damped"])
    names = {parameter: name for name, parameter in mixer.named_parameters()}
    found = {names[parameter]: tuning for parameter, tuning in tunings(mixer)}
    still = Tuning(weight_decay=0.0, matrix=False)
    for name in ("stiffness", "damping", "step"):
        assert found[f"oscillators.{name}"] == still
    assert found.get("oscillators.entry", Tuning()).weight_decay is None


DAMPED = FORMS["damped"]
BAD = [
    ({"states": 0}, "states must be at least 1: got 0"),
    ({"damping": True}, "damping has no effect under discretisation=im: .* or choose .*=imex"),
    ({"stiffness_max": 0.0}, "stiffness_max must be positive: got 0"),
    ({"stiffness_max": 7.5} | FORMS["imex"],
     r"unstable where dt\^2 A > 4.* set stiffness_max to at most 7.48: got 7.5; or choose"),
    ({"radius_min": 0.5}, "radius_min has no effect under damping=false: .* damping=true"),
    ({"angle_max": 1.0}, "angle_max has no effect under damping=false: .* damping=true"),
    ({"stiffness_max": 2.0} | DAMPED, "stiffness_max has no effect under damping=true: got 2.0"),
    ({"radius_min": 0.0} | DAMPED, "above 0 and below 1: got 0.0; 0.9 is usual"),
    ({"radius_min": 1.0} | DAMPED, "radius_min, .* above 0 and below 1: got 1.0"),
    ({"angle_max": 3.2} | DAMPED, "angle_max, .* above 0 and at most pi: got 3.2"),
    ({"bidirectional": False}, "bidirectional has no effect"),
]  # fmt: skip


@pytest.mark.parametrize(("options", "message"), BAD)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        built(**options)


def test_float32_holds_over_thousands_of_tokens():
    """A phase error of a factor would grow from token to token: here 4,096 of them."""
    mixer, x = built(**FORMS["imex"]), drawn(1, 4096, 6)
    exact = mixer.read(x, None, None)[0][0]
    rounded = mixer.float().read(x.float(), None, None)[0][0]
    error = (rounded - exact).norm() / exact.norm()
    assert error < 1e-4, error
