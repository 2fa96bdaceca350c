"""SDPA against literal softmax attention, and its fast paths."""

import pytest
import torch

from lra.models.families.sdpa import SDPA
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Layout, Site
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
