"""SDPA against literal softmax attention, its fast paths and its cost."""

import math

import pytest
import torch

from models.contract.counting import count_operations, pretending, saved_bytes
from models.families.sdpa import SDPA
from models.families.softmax import SoftmaxAttention
from models.mixer import Flow, Layout, Site
from models.ops.exact import sdpa, softmax_attention
from tests.attention import drawn


def pair(**facts) -> tuple[SDPA, SoftmaxAttention]:
    """Both mixers with the same weights."""
    site = Site(**({"width": 12, "heads": 3, "max_length": 101} | facts))
    fast, slow = SDPA(site).double().eval(), SoftmaxAttention(site).double().eval()
    slow.load_state_dict(fast.state_dict())
    return fast, slow


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 2, 63, 101])
@pytest.mark.parametrize("facts", [(), ("keep",), ("document",), ("prefix",), ("keep", "prefix")])
def test_equals_softmax_in_output_and_gradients(
    facts: tuple[str, ...], length: int, causal: bool
) -> None:
    everything = {
        "keep": torch.rand(2, length, generator=torch.Generator().manual_seed(3)) < 0.4,
        "document": torch.arange(length).expand(2, -1) // 7,
        "prefix": torch.tensor([5, 0]),
    }
    layout = Layout(**{name: everything[name] for name in facts})
    fast, slow = pair(causal=causal)
    results = []
    for mixer in (fast, slow):
        x = drawn(2, length, 12).requires_grad_()
        y = mixer(x, layout)
        leaves = [x, *mixer.parameters()]
        results.append([y, *torch.autograd.grad(y, leaves, drawn(2, length, 12, seed=1))])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, atol=1e-11, rtol=0)


def test_rows_without_keys_are_zero_and_send_no_gradient() -> None:
    q, k, v = (drawn(2, 3, 9, 4, seed=s).requires_grad_() for s in range(3))
    visible = torch.ones(2, 1, 1, 9, dtype=torch.bool)
    visible[1] = False
    o = sdpa(q, k, v, visible=visible)
    assert (o[1] == 0).all()
    for gradient in torch.autograd.grad(o.square().sum(), (q, k, v)):
        assert gradient.isfinite().all()
        assert (gradient[1] == 0).all()


def test_masked_outliers_move_nothing() -> None:
    mixer, _ = pair(causal=True)
    x = drawn(2, 20, 12)
    keep = torch.ones(2, 20, dtype=torch.bool)
    keep[:, [2, 11]] = False
    loud = x.clone()
    loud[:, [2, 11]] *= 1e3
    loud[:, 15:] *= 1e3
    real = keep.clone()
    real[:, 15:] = False
    seen, wanted = (mixer(y, Layout(keep=keep))[real] for y in (loud, x))
    torch.testing.assert_close(seen, wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("cuts", [[24], [10, 7, 7], [1] * 24])
def test_every_partition_equals_one_pass_of_softmax(cuts: list[int]) -> None:
    fast, slow = pair(causal=True)
    x = drawn(2, 24, 12)
    state, seen = fast.initial_state(2, 30), []
    for piece in x.split(cuts, dim=1):
        flow = fast.extend(Flow(piece, state), Layout())
        state, seen = flow.state, [*seen, flow.x]
    torch.testing.assert_close(torch.cat(seen, 1), slow(x, Layout()), atol=1e-12, rtol=0)


def test_dropout_acts_in_training_alone_and_keeps_the_mean() -> None:
    core = SDPA(Site(width=4, heads=1, max_length=64, attention_dropout=0.25)).core
    q, k = drawn(1, 1, 64, 4), drawn(1, 1, 64, 4, seed=1)
    identity = torch.eye(64, dtype=torch.float64)[None, None]
    weights = softmax_attention(q, k, identity)
    torch.testing.assert_close(core.eval()(q, k, identity, Layout()), weights)
    torch.manual_seed(0)
    dropped = core.train()(q, k, identity, Layout())
    alive = dropped != 0
    assert 0.72 < alive.double().mean() < 0.78
    torch.testing.assert_close(dropped[alive], (weights / 0.75)[alive])


@pytest.mark.parametrize("causal", [False, True])
def test_half_precision_under_autocast(causal: bool) -> None:
    fast, slow = pair(causal=causal)
    x = drawn(2, 33, 12)
    wanted = slow(x, Layout())
    fast = fast.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = fast(x.float(), Layout())
    assert y.dtype == torch.bfloat16
    torch.testing.assert_close(y.double(), wanted, atol=0.05, rtol=0.05)


def cost(length: int, masked: bool) -> tuple[int, int]:
    """Operations forward, and bytes kept for backward."""
    with pretending():
        qkv = [torch.randn(1, 4, length, 64, requires_grad=True) for _ in range(3)]
        visible = torch.ones(1, 1, 1, length, dtype=torch.bool) if masked else None
        operations = count_operations(lambda: sdpa(*qkv, visible=visible))
        return operations, saved_bytes(lambda: sdpa(*qkv, visible=visible), qkv)


@pytest.mark.parametrize("masked", [False, True])
def test_operations_are_square_and_saved_bytes_linear(masked: bool) -> None:
    (operations, kept), (more_operations, more_kept) = cost(4096, masked), cost(8192, masked)
    assert operations == 4 * 4 * 4096**2 * 64
    assert abs(math.log2(more_operations / operations) - 2) < 0.02
    assert abs(math.log2(more_kept / kept) - 1) < 0.02
