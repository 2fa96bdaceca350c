"""Grouped-query attention is softmax attention whose heads have equal keys and values."""

import pytest
import torch
from torch.nn import functional as F

from lra.models.contract.counting import count_operations
from lra.models.families.grouped_query import GroupedQueryAttention, grouped_sdpa
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Layout, Positions, Site
from tests.attention import compare, drawn, holes

SITE = {"width": 24, "heads": 6, "max_length": 32}
LENGTH = 11
GROUPS = pytest.mark.parametrize("groups", [1, 2, 3, 6])


def pair(groups: int, **facts) -> tuple[GroupedQueryAttention, SoftmaxAttention]:
    """Return a mixer, and softmax attention with each of its heads repeated."""
    site = Site(**SITE, **facts)
    mixer = GroupedQueryAttention(site, key_value_heads=groups).double().eval()
    full = SoftmaxAttention(site).double().eval()
    state = mixer.state_dict()
    for name in ("k_proj", "v_proj"):
        for part in ("weight", "bias"):
            heads = state[f"{name}.{part}"].unflatten(0, (groups, -1))
            state[f"{name}.{part}"] = heads.repeat_interleave(6 // groups, 0).flatten(0, 1)
    full.load_state_dict(state, strict=False)
    return mixer, full


@GROUPS
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_repeated_heads_give_the_same(groups, causal, padded):
    mixer, full = pair(groups, causal=causal)
    x, layout = drawn(2, LENGTH, 24), Layout(keep=holes(LENGTH) if padded else None)
    ones, others = x.clone().requires_grad_(), x.clone().requires_grad_()
    found, wanted = mixer(ones, layout), full(others, layout)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
    direction = drawn(*found.shape, seed=4)
    found.backward(direction)
    wanted.backward(direction)
    torch.testing.assert_close(ones.grad, others.grad, atol=1e-12, rtol=0)
    for name in ("k_proj", "v_proj"):
        whole = getattr(full, name).weight.grad.unflatten(0, (groups, 6 // groups, -1)).sum(1)
        part = getattr(mixer, name).weight.grad
        torch.testing.assert_close(part, whole.flatten(0, 1), atol=1e-12, rtol=0)


@pytest.mark.parametrize("positions", [Positions.alibi, Positions.shaw, Positions.rotary])
def test_positions_are_those_of_every_query_head(positions):
    mixer, full = pair(2, causal=True, positions=positions)
    if positions == Positions.shaw:
        full.core.relative.load_state_dict(mixer.core.relative.state_dict())
    x = drawn(2, LENGTH, 24)
    torch.testing.assert_close(mixer(x, Layout()), full(x, Layout()), atol=1e-12, rtol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_it_is_the_kernel_of_pytorch(causal):
    q, k, v = drawn(2, 6, LENGTH, 4), drawn(2, 3, LENGTH, 4, seed=1), drawn(2, 3, LENGTH, 5, seed=2)
    for x in (q, k, v):
        x.requires_grad_()
    found = grouped_sdpa(q, k, v, causal=causal)
    wanted = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
    compare(found, wanted, [q, k, v])


def test_a_source_of_another_length():
    mixer, full = pair(2)
    x, source = drawn(2, LENGTH, 24), drawn(2, 5, 24, seed=3)
    keep = Layout(keep=torch.tensor([[True] * 5, [True] * 3 + [False] * 2]))
    found = mixer.attend(x, Layout(), source, keep)
    wanted = full.attend(x, Layout(), source, keep)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


def test_projections_cost_what_they_project():
    x = drawn(1, LENGTH, 24)
    work = {
        groups: count_operations(lambda groups=groups: pair(groups)[0](x, Layout()))
        for groups in (1, 6)
    }
    assert work[6] - work[1] == 2 * 2 * LENGTH * 24 * (24 - 4)


@pytest.mark.parametrize("groups", [0, 4, 12])
def test_heads_that_do_not_divide_are_refused(groups):
    with pytest.raises(ValueError, match=f"key_value_heads must divide .*: got {groups} of 6"):
        GroupedQueryAttention(Site(**SITE), key_value_heads=groups)
