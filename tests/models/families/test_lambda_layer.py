"""Lambda layers against their double loop: a map for each token, and its limits."""

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lra.models.contract.counting import count_operations
from lra.models.families.lambda_layer import LambdaLayer, local_lambda
from lra.models.mixer import Layout, Site, Unsupported
from tests.attention import builder, compare, drawn, holes
from tests.models.families.released import lambda_layer as released

SITE = {"width": 12, "heads": 2, "max_length": 48}
LENGTH = 19
STORED = np.load(released.OUTPUTS)
built = builder(LambdaLayer, **SITE, key_width=3, window=5, moved=0.3)


def literal(mixer: LambdaLayer, x: Tensor, keep: Tensor | None = None) -> Tensor:
    """Make lambda_n of every token and apply it to the queries of every head."""
    (rows, length, _), depth, heads = x.shape, mixer.depth, mixer.heads
    real = torch.ones(rows, length, dtype=torch.bool) if keep is None else keep
    x = x * real[..., None]
    q = mixer.q_norm(mixer.q_proj(x)).view(rows, length, heads, -1)
    k = mixer.k_proj(x).view(rows, length, depth, -1)
    v = mixer.v_norm(mixer.v_proj(x)).view(rows, length, depth, -1)
    last = mixer.offsets.shape[1] - 1
    middle = last if mixer.causal else last // 2
    y = []
    for row in range(rows):
        for n in range(length):
            seen = [m for m in range(length) if real[row, m] and (m <= n or not mixer.causal)]
            total = sum(k[row, m].exp() for m in seen)
            map_ = torch.zeros(q.shape[-1], v.shape[-1], dtype=x.dtype)
            for m in seen:
                for u in range(depth):
                    content = k[row, m, u].exp() / total[u]
                    map_ = map_ + content[:, None] * v[row, m, u]
                    if 0 <= (at := m - n + middle) <= last:
                        map_ = map_ + mixer.offsets[u, at][:, None] * v[row, m, u]
            y.append(torch.cat([map_.T @ q[row, n, head] for head in range(heads)]))
    return torch.stack(y).view(rows, length, -1)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "options",
    [{"intra_depth": 2}, {"window": None}, {"window": 1, "norm": "none"}],
    ids=str,
)  # fmt: skip
def test_outputs_and_gradients(causal, options):
    mixer, x = built(causal=causal, **options), drawn(2, LENGTH, 12).requires_grad_()
    opening = holes(LENGTH)
    opening[0, :3] = False
    for keep in (None, opening):
        real = torch.ones(2, LENGTH, 1) if keep is None else keep[..., None]
        wanted, found = literal(mixer, x, keep), mixer(x, Layout(keep=keep))
        compare(found * real, wanted * real, [x, *mixer.parameters()], looser=10)


@pytest.mark.parametrize("case", released.CASES)
def test_equals_the_released_package(case):
    depth = released.CASES[case]
    site = Site(width=released.WIDTH, heads=released.HEADS, max_length=released.LENGTH)
    mixer = LambdaLayer(
        site, key_width=released.KEY_WIDTH, intra_depth=depth, window=released.WINDOW, norm="none"
    ).double()
    names = ("to_q", "to_k", "to_v", "offsets")
    leaves = [mixer.q_proj.weight, mixer.k_proj.weight, mixer.v_proj.weight, mixer.offsets]
    with torch.no_grad():
        for leaf, name in zip(leaves, names, strict=True):
            leaf.copy_(released.weights(depth)[name])
    x = released.tokens().requires_grad_()
    y = mixer(x, Layout())
    gradients = torch.autograd.grad(y, [x, *leaves], released.direction())
    for name, value in zip(("y", "x", *names), (y.detach(), *gradients), strict=True):
        np.testing.assert_allclose(value, STORED[f"{case}: {name}"], atol=1e-12, err_msg=name)


@pytest.mark.parametrize("causal", [False, True])
def test_a_window_over_all_tokens_is_no_window(causal):
    reach = 48 if causal else 95
    wide, whole = (built(causal=causal, window=window) for window in (reach, None))
    whole.load_state_dict(wide.state_dict())
    for x in (drawn(2, LENGTH, 12), drawn(1, 1, 12), drawn(1, 48, 12)):
        wanted = wide(x, Layout())
        torch.testing.assert_close(whole(x, Layout()), wanted, atol=1e-12, rtol=0)


def test_without_positions_the_context_is_a_set():
    mixer, x = built(), drawn(2, LENGTH, 12)
    torch.nn.init.zeros_(mixer.offsets)
    order = torch.tensor([0, *range(LENGTH - 1, 0, -1)])
    here, there = mixer(x, Layout()), mixer(x[:, order], Layout())
    torch.testing.assert_close(here[:, 0], there[:, 0], atol=1e-13, rtol=0)
    q, v = mixer.q_norm(mixer.q_proj(x)), mixer.v_norm(mixer.v_proj(x))
    content = mixer.k_proj(x).softmax(1).mT @ v  # efficient attention: all heads share it
    wanted = torch.cat([part @ content for part in q.chunk(2, dim=-1)], dim=-1)
    torch.testing.assert_close(here, wanted, atol=1e-13, rtol=0)


@pytest.mark.parametrize("causal", [False, True])
def test_large_keys_are_sums_of_one_term(causal):
    """In float32 as in float64: no later key, however large, takes anything of an earlier sum."""
    mixer, x = built(causal=causal), drawn(2, 40, 12)
    with torch.no_grad():
        mixer.k_proj.weight.mul_(500)
    wanted = mixer(x, Layout())
    found = mixer.float()(x.float(), Layout())
    torch.testing.assert_close(found.double(), wanted, atol=2e-3, rtol=1e-3)


def test_the_map_of_no_token_is_formed():
    """The lambda convolution, by one over values of one channel, is the same and costs more."""
    q, v, offsets = drawn(1, 2, 128, 16), drawn(1, 2, 128, 32, seed=1), drawn(2, 31, 16)

    def as_convolution() -> Tensor:
        flat = F.pad(v.permute(0, 3, 1, 2).flatten(0, 1), (15, 15))
        maps = F.conv1d(flat, offsets.permute(2, 0, 1)).view(1, 32, 16, 128)
        return torch.einsum("bhnk,bvkn->bhnv", q, maps)

    found = local_lambda(q, v, offsets, 15)
    torch.testing.assert_close(found, as_convolution(), atol=1e-11, rtol=0)
    less = count_operations(lambda: local_lambda(q, v, offsets, 15))
    assert 1.5 * less < count_operations(as_convolution)


def test_what_has_no_state_says_so():
    with pytest.raises(ValueError, match="heads must divide width: got heads=2, width=13"):
        LambdaLayer(Site(width=13, heads=2, max_length=8))
    assert built(causal=True, window=4).window == 4
    with pytest.raises(Unsupported, match=r"set model\.mixer\.window to a number"):
        built(causal=True, window=None).initial_state(1, 8)
