"""Collaborative heads against loops, softmax attention, and the released code."""

import numpy as np
import pytest
import torch

from lra.models.families.collaborative import CollaborativeAttention
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Layout, Site
from lra.models.ops.shared_heads import shared_heads
from tests.attention import builder, drawn, holes
from tests.models.families.released import collaborative as released

STORED = np.load(released.OUTPUTS)
SITE = {"width": 12, "heads": 3, "max_length": 32}
LENGTH = 9
built = builder(CollaborativeAttention, **SITE, moved=0.3)


def collaborative_of(full: SoftmaxAttention, facts: dict) -> CollaborativeAttention:
    """Return the layer that trained heads are, written with shared projections."""
    shared = shared_heads(full.q_proj.weight, full.k_proj.weight, full.q_proj.bias, full.heads)
    mixer = CollaborativeAttention(Site(**SITE, **facts)).double().eval()
    state = {name: value for name, value in full.state_dict().items() if name[0] in "vo"}
    state |= {
        "q_proj.weight": shared.queries, "k_proj.weight": shared.keys, "mixing": shared.mixing,
        "content.weight": shared.content,
    }  # fmt: skip
    mixer.load_state_dict(state)
    return mixer


@pytest.mark.parametrize("facts", [{}, {"causal": True}, {"own_head_width": 6}])
def test_copied_heads_are_softmax_attention_with_biases(facts):
    full = SoftmaxAttention(Site(**SITE, **facts)).double().eval()
    with torch.no_grad():
        for seed, layer in enumerate((full.q_proj, full.k_proj, full.v_proj, full.out_proj)):
            layer.bias.copy_(drawn(*layer.bias.shape, seed=seed))
    mixer, keep = collaborative_of(full, facts), Layout(keep=holes(LENGTH))
    x = drawn(2, LENGTH, 12).requires_grad_()
    shared = [mixer.v_proj.weight, mixer.out_proj.weight]
    ours, theirs = mixer(x, keep), full(x, keep)
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=0)
    direction = drawn(*ours.shape, seed=4)
    here = torch.autograd.grad(ours, [x, *shared, mixer.q_proj.weight], direction)
    there = torch.autograd.grad(
        theirs, [x, full.v_proj.weight, full.out_proj.weight, full.q_proj.weight], direction
    )
    for one, other in zip(here, there, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)
    with torch.no_grad():
        full.k_proj.bias.add_(3)
    torch.testing.assert_close(full(x, keep), ours, atol=1e-12, rtol=0)


def test_factors_of_another_width_keep_the_scale_of_the_heads():
    """A factorisation with twice the columns, each term split in two, is the same layer."""
    full = SoftmaxAttention(Site(**SITE)).double().eval()
    shared = shared_heads(full.q_proj.weight, full.k_proj.weight, drawn(12), full.heads)
    with torch.no_grad():
        full.q_proj.bias.copy_(drawn(12))
    wide = shared._replace(
        queries=shared.queries.repeat(2, 1), keys=shared.keys.repeat(2, 1),
        mixing=shared.mixing.repeat(1, 2) / 2,
    ).scaled(full.head_width)  # fmt: skip
    mixer = CollaborativeAttention(Site(**SITE), key_width=24).double().eval()
    state = {name: value for name, value in full.state_dict().items() if name[0] in "vo"}
    mixer.load_state_dict(state | {
        "q_proj.weight": wide.queries, "k_proj.weight": wide.keys, "mixing": wide.mixing,
        "content.weight": wide.content,
    })  # fmt: skip
    x = drawn(2, LENGTH, 12)
    torch.testing.assert_close(mixer(x, Layout()), full(x, Layout()), atol=1e-12, rtol=0)


@pytest.mark.parametrize("case", released.CASES)
def test_it_equals_the_released_code(case):
    start, columns, other = released.CASES[case]
    mixing = {"CONCATENATE": "concatenation", "UNIFORM": "normal"}[start]
    mixer = built(mixing=mixing, key_width=columns, moved=0.0)
    if start == "CONCATENATE":
        assert np.array_equal(mixer.mixing.detach(), STORED[f"{case}: mixing"])
    theirs = {
        f"{released.NAMES[name.partition('.')[0]]}{''.join(name.partition('.')[1:])}": name
        for name in ("query.weight", "key.weight", "content_bias.weight", "value.weight",
                     "value.bias", "dense.weight", "dense.bias", "mixing")
    }  # fmt: skip
    mixer.load_state_dict({
        ours: torch.from_numpy(STORED[f"{case}: {name}"]) for ours, name in theirs.items()
    })  # fmt: skip
    x, source, direction = released.tokens()
    leaves = {"x": x.requires_grad_()} | ({"source": source.requires_grad_()} if other else {})
    y = mixer.attend(x, Layout(), source, Layout()) if other else mixer(x, Layout())
    np.testing.assert_allclose(y.detach(), STORED[f"{case}: y"], atol=1e-13, rtol=0)
    y.backward(direction)
    leaves |= {name: mixer.get_parameter(ours) for ours, name in theirs.items()}
    for name, leaf in leaves.items():
        wanted = STORED[f"{case}: gradient of {name}"]
        np.testing.assert_allclose(leaf.grad, wanted, atol=1e-12, rtol=0, err_msg=name)
