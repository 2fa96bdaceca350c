"""Mamba-3 against its released code, and what it is at special options."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lra.models.families.mamba2 import Mamba2
from lra.models.families.mamba3 import Mamba3, tail
from lra.models.mixer import Flow, Layout
from lra.models.ops.gated.decayed_product import decayed_product
from lra.models.ops.gated.layer import Borders
from lra.models.ops.gated.trapezoid import (
    TrapezoidState,
    TrapezoidSteps,
    sums_of_turns,
    trapezoid_product,
)
from tests.attention import builder, compare, drawn
from tests.models.families.released import mamba3 as released

STORED = np.load(released.OUTPUTS)
ALONE = Borders(None, None, whole=True)


def at_released_size(case) -> Mamba3:
    return builder(Mamba3, width=released.WIDTH, heads=released.HEADS, causal=True)(
        states=released.STATES, chunk=4, decay=case["decay"], rank=case["rank"],
        groups=case["groups"], rotating_share=case["share"], output_norm=case["norm"],
    )  # fmt: skip


def places(mixer) -> torch.Tensor:
    """Return the place there of each of our channels: their first half of pairs stands first."""
    channels, pairs = torch.arange(released.STATES), mixer.pairs
    if mixer.rank == 1:
        first, second = channels[: 2 * pairs : 2], channels[1 : 2 * pairs : 2]
    else:
        half = released.STATES // 2
        first, second = channels[:pairs], channels[half : half + pairs]
    turned = torch.cat((first, second))
    return torch.cat((turned, channels[~torch.isin(channels, turned)]))


def laid_out(mixer, theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return their parameters, or the gradients of them, under our names and in our layout."""
    place, e, shared = places(mixer), 2 * released.WIDTH, mixer.write_proj.out_features
    gate, value, write, read, step = theirs["in_proj.weight"].split(
        [e, e, shared, shared, mixer.step_map.out_features]
    )
    write, read = (
        each.unflatten(0, (-1, released.STATES))[:, place].flatten(0, 1) for each in (write, read)
    )
    named = {
        "gate_proj.weight": gate, "input_proj.weight": value, "write_proj.weight": write,
        "read_proj.weight": read, "step_map.weight": step, "step_bias": theirs["dt_bias"],
        "writes.bias": theirs["B_bias"][..., place], "reads.bias": theirs["C_bias"][..., place],
        "writes.norm.weight": theirs["B_norm.weight"][place],
        "reads.norm.weight": theirs["C_norm.weight"][place],
        "skip": theirs["D"], "out_proj.weight": theirs["out_proj.weight"],
    }  # fmt: skip
    letters = {"input": "x", "gate": "z", "output": "o"} if mixer.rank > 1 else {}
    named |= {f"outputs.{n}_weight": theirs[f"mimo_{letter}"] for n, letter in letters.items()}
    if "norm.weight" in theirs:
        named["outputs.norm_weight"] = theirs["norm.weight"].view(released.HEADS, -1)
    return named


@pytest.mark.parametrize("name", released.CASES)
def test_it_answers_as_the_released_code(name):
    mixer, x = at_released_size(released.CASES[name]), released.tokens().requires_grad_()
    stored = {
        key.removeprefix(f"{name}: "): torch.from_numpy(STORED[key])
        for key in STORED.files if key.startswith(f"{name}: ") and not key.endswith("order")
    }  # fmt: skip
    order = STORED[f"{name}: order"]
    weights = {n: released.weight(i, stored[f"d {n}"].shape) for i, n in enumerate(order)}
    ours = dict(mixer.named_parameters())
    assert sum(each.numel() for each in weights.values()) == sum(p.numel() for p in ours.values())
    with torch.no_grad():
        for own, values in laid_out(mixer, weights).items():
            ours[own].copy_(values)
    flow = mixer.extend(Flow(x, mixer.initial_state(len(x), 0)), Layout())
    torch.testing.assert_close(flow.x, stored["y"], atol=1e-12, rtol=1e-12)
    torch.testing.assert_close(mixer(x, Layout()), stored["y"], atol=1e-12, rtol=1e-12)
    flow.x.backward(released.direction())
    torch.testing.assert_close(x.grad, stored["d x"], atol=1e-11, rtol=1e-11)
    gradients = laid_out(mixer, {n: stored[f"d {n}"] for n in order})
    assert gradients.keys() == ours.keys()
    for own, wanted in gradients.items():
        torch.testing.assert_close(ours[own].grad, wanted, atol=1e-11, rtol=1e-11)
    if mixer.rank == 1:
        state, key, value, turns = flow.state
        place = places(mixer)
        torch.testing.assert_close(state, stored["state"].mT[:, :, place], atol=1e-12, rtol=0)
        torch.testing.assert_close(key[:, :, 0], stored["key"][..., place], atol=1e-12, rtol=0)
        torch.testing.assert_close(value, stored["value"], atol=1e-12, rtol=0)
        torch.testing.assert_close(torch.pi * turns, stored["angles"], atol=1e-12, rtol=0)


@pytest.mark.parametrize(
    ("rank", "norm", "groups"), [*itertools.product((1, 2, 4), (False, True), (1, 2))]
)
def test_its_parameters_are_those_of_the_formula(rank, norm, groups):
    d, heads, states, angles = 24, 4, 16, 4
    e = 2 * d
    wanted = d * (2 * e + 2 * states * groups * rank + 3 * heads + angles) + heads + e * d
    wanted += 2 * heads * rank * states + 2 * states + heads + norm * e
    wanted += 3 * rank * e * (rank > 1)
    mixer = builder(Mamba3, width=d, heads=heads)(
        states=states, rank=rank, output_norm=norm, groups=groups
    )
    assert sum(each.numel() for each in mixer.parameters()) == wanted


@pytest.mark.parametrize("causal", [True, False])
def test_without_trapezoid_rotation_and_biases_it_reads_as_mamba2(causal):
    """Their norms aside, with A = 1 and steps that end where they begin to count."""
    options = {"width": 12, "heads": 4, "causal": causal, "moved": 0.3}
    old = builder(Mamba2, **options)(states=6, groups=2, convolution=None, chunk=8)
    new = builder(Mamba3, **options)(states=6, groups=2, rotating_share=0.0, chunk=8)
    new.writes.norm = new.reads.norm = nn.Identity()
    with torch.no_grad():
        for name in ("input_proj.weight", "write_proj.weight", "read_proj.weight", "step_bias",
                     "skip"):  # fmt: skip
            new.get_parameter(name).copy_(old.get_parameter(name))
        for bias in (new.writes.bias, new.reads.bias, old.log_rate):
            bias.zero_()
        new.step_map.weight.zero_()[:4] = old.step_map.weight
    new.step_map.register_forward_hook(lambda _, inputs, y: y + 99 * (torch.arange(12) >= 8))
    x = drawn(2, 21, 12)
    for backwards in (False, True):
        borders = ALONE._replace(backwards=backwards)
        wanted = old.read(x, old.empty(2), borders)[0]
        torch.testing.assert_close(new.read(x, new.empty(2), borders)[0], wanted)


def inputs(ranks: int, pairs: int = 2, length: int = 19, width: int = 5):
    """Return queries, keys, values, steps and what is left of earlier tokens, of two heads."""
    q, k = (drawn(2, 2, length, ranks, width, seed=seed) for seed in (1, 2))
    v = drawn(2, 2, length, ranks, 3, seed=3)
    rate, step, share = (drawn(2, 2, length, seed=seed).sigmoid() for seed in (4, 5, 6))
    rates = drawn(2, length, pairs, seed=7).tanh()
    past = TrapezoidState(
        drawn(2, 2, width, 3, seed=8), drawn(2, 2, ranks, width, seed=9),
        drawn(2, 2, ranks, 3, seed=10), drawn(2, 2, pairs, seed=11).sigmoid(),
    )  # fmt: skip
    leaves = [each.requires_grad_() for each in (q, k, v, rate, step, share, rates, *past)]
    return q, k, v, TrapezoidSteps(-rate * step, step, share, rates), past, leaves


def product(q, k, v, steps, past, *, skip=0.0):
    return trapezoid_product(
        q, k, v, steps, past, skip=torch.full((2,), skip, dtype=q.dtype),
        borders=Borders(None, None), chunk=6,
    )  # fmt: skip


def test_with_all_of_a_step_at_its_end_it_is_a_decayed_product():
    q, k, v, steps, past, _ = inputs(1, pairs=0)
    steps = steps._replace(share=torch.ones_like(steps.share))
    o, after = product(q, k, v, steps, past, skip=0.5)
    q, k, v = q[..., 0, :], k[..., 0, :], v[..., 0, :]
    wanted, state = decayed_product(q, steps.length[..., None] * k, v, steps.g, state=past.state)
    torch.testing.assert_close(o[..., 0, :], wanted + 0.5 * v)
    torch.testing.assert_close(after.state, state)


def test_several_inputs_and_outputs_are_a_sum_of_products_with_one():
    q, k, v, steps, past, leaves = inputs(3)
    seen, after = product(q, k, v, steps, past, skip=0.5)
    wanted, states = 0.5 * v, past.state * 0
    for key in range(3):
        one = slice(key, key + 1)
        left = past._replace(
            state=past.state * (key == 0), key=past.key[:, :, one], value=past.value[:, :, one]
        )
        rows = []
        for query in range(3):
            reader = q[:, :, :, query : query + 1]
            row, last = product(reader, k[:, :, :, one], v[:, :, :, one], steps, left)
            rows.append(row)
        wanted, states = wanted + torch.cat(rows, 3), states + last.state
    torch.testing.assert_close(after.state, states)
    compare(seen, wanted, leaves, atol=1e-12)


def test_rotations_are_complex_decays():
    """Channels c and c + p are the parts of a complex one; q reads its conjugate product."""
    q, k, v, steps, past, leaves = inputs(1, pairs=2, width=4)
    seen, _ = product(q, k, v, steps, past)
    q, k = (torch.complex(*each[..., 0, :].chunk(2, -1)) for each in (q, k))
    turn = torch.pi * steps.rates[:, None] * steps.length[..., None]
    place = torch.exp(-1j * torch.pi * past.turns)[..., None]  # theirs is measured from 0
    state = torch.complex(*past.state.chunk(2, 2)) * place
    before = torch.complex(*past.key.mT.chunk(2, 2)) * place * past.value
    rows = []
    for t in range(q.shape[2]):
        step, share, g = (
            each[:, :, t, None, None] for each in (steps.length, steps.share, steps.g)
        )
        decay = torch.exp(g - 1j * turn[:, :, t, :, None])
        written = k[:, :, t, :, None] * v[:, :, t]
        state = decay * (state + (1 - share) * step * before) + share * step * written
        rows.append((q[:, :, t, :, None].conj() * state).real.sum(2))
        before = written
    compare(seen[..., 0, :], torch.stack(rows, 2), leaves, atol=1e-12)


@pytest.mark.parametrize("length", [1, 64, 65, 20_000])
def test_angles_of_long_sequences_are_precise_in_float32(length):
    x, first = drawn(1, 2, length, 3, seed=1).abs(), drawn(1, 2, 3, seed=2).sigmoid()
    wanted = torch.pi * (x.cumsum(2) + first[:, :, None])
    seen = torch.pi * sums_of_turns(x.float(), first.float()).double()
    assert seen.max() < 500
    assert (
        max((seen.cos() - wanted.cos()).abs().max(), (seen.sin() - wanted.sin()).abs().max()) < 2e-4
    )


def test_the_tail_is_smooth_and_positive():
    x = torch.tensor([-3.0, -1.0, 0.0, 2.0], requires_grad=True)
    torch.testing.assert_close(tail(x), torch.tensor([0.25, 0.5, 1.0, 3.0]))
    tail(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.tensor([1 / 16, 0.25, 1.0, 1.0]))


def test_decays_are_never_slower_than_the_floor():
    mixer = builder(Mamba3, heads=3, causal=True)(states=4, decay="softplus")
    mixer.step_map.register_forward_hook(
        lambda _, inputs, y: y - 99 * (torch.arange(y.shape[-1]) // 3 == 1)
    )
    empty = mixer.empty(1)
    state = torch.ones_like(empty[0])
    after = mixer.read(drawn(1, 1, 12) * 0, (state, *empty[1:]), Borders(None, None))[1][0]
    step = F.softplus(mixer.step_bias)
    torch.testing.assert_close(after.amax((0, 2, 3)), (-1e-4 * step).exp(), atol=1e-12, rtol=0)


def test_only_step_biases_and_skips_are_excluded_from_every_weight_decay():
    tuning = builder(Mamba3)(rank=2, states=4).tuning()
    assert {n for n, each in tuning.items() if each.weight_decay == 0} == {"step_bias", "skip"}


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo does
@pytest.mark.parametrize("rank", [1, 2])
def test_it_compiles(rank):
    mixer, x = builder(Mamba3, causal=True)(states=4, rank=rank), drawn(2, 70, 12)
    compiled = torch.compile(lambda x: mixer(x, Layout()), backend="aot_eager")
    parameters = [*mixer.parameters()]
    found, wanted = (
        torch.autograd.grad(layer(x).square().sum(), parameters)
        for layer in (compiled, lambda x: mixer(x, Layout()))
    )
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
