"""MultiresConv against the released layer, its dropout, and how it learns."""

import numpy as np
import pytest
import torch

from lra.models.families.multires_conv import MultiresConv
from lra.models.mixer import Layout
from lra.runners.training.optimisers.groups import tunings
from tests.attention import builder, drawn
from tests.models.families.released import long_convolutions as released

WIDTH, LONGEST, LENGTH = 6, 20, 13
SITE = {"width": WIDTH, "heads": 2, "max_length": LONGEST}
STORED = np.load(released.OUTPUTS)
built = builder(MultiresConv, **SITE)


@pytest.mark.parametrize("case", released.MULTIRES)
@pytest.mark.parametrize("length", released.LENGTHS)
def test_it_is_the_released_layer(case, length):
    given = released.MULTIRES[case]
    mixer = built(taps=given["kernel_size"], levels=given.get("depth"), mixing="linear")
    depth = mixer.weights.shape[1] - 2
    order = [*range(depth, -1, -1), depth + 1]  # theirs begins with the rest
    shape = (WIDTH, 1, given["kernel_size"])
    with torch.no_grad():
        mixer.low.copy_(released.weight("h0", shape)[:, 0])
        mixer.high.copy_(released.weight("h1", shape)[:, 0])
        mixer.weights[:, order] = released.weight("w", (WIDTH, depth + 2))
        mixer.out_proj.weight.copy_(torch.eye(WIDTH))
    x = released.tokens(length).requires_grad_()
    y = mixer(x, Layout())
    leaves = [x, mixer.low, mixer.high, mixer.weights]
    by_x, by_low, by_high, by_weights = torch.autograd.grad(y, leaves, released.direction(length))
    found = {"y": y.detach(), "x": by_x, "h0": by_low[:, None], "h1": by_high[:, None]}
    found["w"] = by_weights[:, order]
    stored = f"multires_conv {case}, {length}: "
    assert {name for name in STORED if stored in name} == {stored + name for name in found}
    for name, value in found.items():
        wanted = torch.from_numpy(STORED[stored + name])
        torch.testing.assert_close(value, wanted, atol=1e-12, rtol=1e-10)


def test_a_training_pass_drops_whole_channels():
    mixer, x = built(dropout=0.5).train(), drawn(2, LENGTH, WIDTH)
    seen = []
    mixer.out_proj.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    mixer(x, Layout())
    mixer.eval()(x, Layout())
    dropped, whole = seen
    gone = (dropped == 0).all(1)
    assert torch.equal(gone, (dropped == 0).any(1))
    assert 0 < gone.sum() < gone.numel()
    torch.testing.assert_close(dropped, torch.where(gone[:, None], 0.0, 2 * whole))


def test_taps_are_no_matrices():
    mixer = built()
    names = {parameter: name for name, parameter in mixer.named_parameters()}
    matrices = {names[parameter] for parameter, tuning in tunings(mixer) if tuning.matrix}
    assert matrices == {"out_proj.weight", "out_proj.bias"}
