"""RWKV-6 against its paper token by token and against its released code, and where it begins."""

import numpy as np
import pytest
import torch

from lra.models.families.rwkv6 import RWKV6
from lra.models.mixer import Layout, Site
from tests.models.families.released import rwkv6 as released

STORED = np.load(released.OUTPUTS)


def at_released_size() -> RWKV6:
    heads = released.WIDTH // released.HEAD
    site = Site(
        width=released.WIDTH, heads=heads, max_length=64, causal=True, layer=released.LAYER,
        depth=released.DEPTH,
    )  # fmt: skip
    return RWKV6(site, chunk=4).double()


def under_their_names(mixer, of=lambda parameter: parameter) -> dict[str, torch.Tensor]:
    """Return every parameter, or what is `of` it, under its name in the released code."""
    named = {name: of(mixer.get_parameter(own)) for name, own in released.NAMES.items()}
    for name in ("time_maa_w1", "time_decay_w1", "time_decay_w2"):
        named[name] = named[name].mT
    return named | dict(zip(released.MIXES, of(mixer.mixes), strict=True))


def test_it_answers_as_the_released_code():
    mixer, x = at_released_size(), released.tokens().requires_grad_()
    with torch.no_grad():
        ours = under_their_names(mixer)
        for number, name in enumerate(STORED["order"]):
            own, theirs = ours[name], torch.from_numpy(STORED[f"d {name}"])
            own.copy_(released.weight(number, theirs.shape).view_as(own))
    y = mixer(x, Layout())
    torch.testing.assert_close(y, torch.from_numpy(STORED["y"]), atol=1e-12, rtol=0)
    y.backward(released.direction())
    torch.testing.assert_close(x.grad, torch.from_numpy(STORED["d x"]), atol=1e-11, rtol=0)
    seen_by_name = under_their_names(mixer, lambda parameter: parameter.grad)
    for name in STORED["order"]:
        wanted, seen = torch.from_numpy(STORED[f"d {name}"]), seen_by_name[name]
        torch.testing.assert_close(seen.reshape(wanted.shape), wanted, atol=1e-11, rtol=1e-10)


def test_it_begins_where_the_released_code_begins():
    mixer = at_released_size()
    ours = under_their_names(mixer)
    for name in (*released.MIXES, "time_maa_x", "time_decay", "time_faaaa"):
        wanted = torch.from_numpy(STORED[f"begun {name}"])
        torch.testing.assert_close(ours[name], wanted, atol=1e-6, rtol=0)
    assert mixer.norm_weight.unique().item() == pytest.approx((2 / 3) ** 0.7)
    assert mixer.mix_up.abs().max() <= 0.01
    for layer, gain in (("r_proj", 1), ("k_proj", 0.1), ("v_proj", 1), ("gate_proj", 0.1)):
        weight = mixer.get_submodule(layer).weight
        wanted = torch.eye(released.WIDTH, dtype=weight.dtype) * gain**2
        torch.testing.assert_close(weight @ weight.mT, wanted, atol=1e-6, rtol=0)
    assert mixer.tuning()["decay.base"].learning_rate_scale == 2
    assert "r_proj.weight" not in mixer.tuning()
    assert mixer.tuning()["mix_up"].weight_decay == 0
