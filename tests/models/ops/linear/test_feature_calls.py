"""What attention by features asks of PyTorch: calls are counted, and what is kept."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from lra.models.contract.counting import saved_bytes
from lra.models.families.linear import FeatureChoice, LinearAttention, linear_maps
from lra.models.mixer import Layout, Site
from lra.models.ops.linear import causal_product as causal
from lra.models.ops.linear.causal_product import causal_product
from lra.models.ops.linear.feature_product import feature_product


class Calls(TorchDispatchMode):
    """Counts operators by name."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.of: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        self.of[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def queries_keys_values(length: int, batch: int = 2) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    shape = (batch, length, 4, 32)
    drawn = (torch.randn(shape, generator=generator) for _ in range(3))
    return [each.transpose(1, 2).requires_grad_() for each in drawn]


def causal_step(length: int) -> tuple[list[Tensor], int]:
    """Outputs, gradients, and how many operators made them."""
    inputs = queries_keys_values(length)
    maps = linear_maps(FeatureChoice.elu1, 32)
    with Calls() as calls:
        o, _ = causal_product(*inputs, maps, chunk=64)
        torch.autograd.backward(o.square().sum())
    return [o, *(each.grad for each in inputs if each.grad is not None)], calls.of.total()


@pytest.mark.parametrize("length", [64, 200, 256])
def test_a_short_sequence_is_one_block_with_the_same_bits(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    few, calls = causal_step(length)
    monkeypatch.setattr(causal, "SMALL", 0)
    cut, calls_when_cut = causal_step(length)
    assert all(torch.equal(*pair) for pair in zip(few, cut, strict=True))
    if length == 256:
        assert calls <= 164
        assert calls_when_cut > 3 * calls


def test_a_long_sequence_is_cut_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    assert causal.SMALL < 2 * 4 * 2048 * 32
    counted = causal_step(2048)[1]
    monkeypatch.setattr(causal, "SMALL", 0)
    assert causal_step(2048)[1] == counted


@pytest.mark.parametrize("direction", ["causal", "bidirectional"])
@pytest.mark.parametrize("choice", FeatureChoice)
def test_padding_of_zeros_needs_no_fill(choice: FeatureChoice, direction: str) -> None:
    q, k, v = queries_keys_values(54)
    keep = torch.ones(2, 54, dtype=torch.bool)
    keep[1, 30:] = False
    maps = linear_maps(choice, 32)
    found = []
    for blank in (False, True):
        if direction == "causal":
            o, _ = causal_product(q, k, v, maps, chunk=16, keep=keep, blank=blank)
        else:
            o = feature_product(q, k, v, maps, keep, blank=blank)
        torch.autograd.backward(o.square().sum())
        found.append([o, *(each.grad for each in (q, k, v) if each.grad is not None)])
        q.grad = k.grad = v.grad = None
    for filled, blank_one in zip(*found, strict=True):
        assert torch.equal(filled, blank_one)


def padded_layer(*, causal: bool, padded: bool) -> tuple[Counter[str], int]:
    """Operators of a layer's forward pass, and the bytes that it keeps."""
    torch.manual_seed(0)
    layer = LinearAttention(Site(width=64, heads=2, max_length=64, causal=causal))
    x = torch.randn(8, 54, 64)
    keep = torch.arange(54) < torch.arange(47, 55)[:, None]
    layout = Layout(keep=keep if padded else None)
    with Calls() as calls, torch.no_grad():
        layer(x, layout)
    return calls.of, saved_bytes(lambda: layer(x, layout).sum(), [*layer.parameters(), x, keep])


@pytest.mark.parametrize("causal", [False, True])
def test_a_layer_fills_padding_once_and_keeps_nothing_more_for_it(causal: bool) -> None:
    calls, kept = padded_layer(causal=causal, padded=True)
    plain, kept_without = padded_layer(causal=causal, padded=False)
    assert calls["index_fill"] == calls["bitwise_not"] == 1
    assert plain["index_fill"] == calls["masked_fill"] == calls["any"] == 0
    filled = 8 * 54 * 64 * 4  # what the projections read
    assert kept - kept_without == filled
