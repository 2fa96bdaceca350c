"""Forms for short sequences: chosen by operations alone, equal to the others; calls are counted."""

import pytest
import torch
from torch import Tensor

from lra.models.contract.counting import count_operations
from lra.models.families import forgetting, retnet
from lra.models.families.based import Based
from lra.models.families.forgetting import fading_attention
from lra.models.families.retnet import RetNet
from lra.models.mixer import Layout, Site
from lra.models.ops.convolution.short import short_convolution, sum_taps
from lra.models.ops.gated import blockwise
from lra.models.ops.gated.decayed_product import decayed_product
from lra.models.ops.gated.delta_product import delta_product
from lra.models.ops.linear import feature_core
from tests.models.ops.linear.test_feature_calls import Calls


def drawn(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def heads(length: int, number: int = 3) -> list[Tensor]:
    return [drawn(2, 4, length, 32, seed=n) for n in range(number)]


def pulled(o: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    return [o, *torch.autograd.grad((o * drawn(*o.shape, seed=9)).sum(), inputs)]


def core(length: int, *, causal: bool) -> feature_core.FeatureCore:
    site = Site(width=128, heads=4, max_length=length, causal=causal)
    made = Based(site, feature_width=32).core
    assert isinstance(made, feature_core.FeatureCore)
    return made


@pytest.mark.parametrize("causal", [False, True])
def test_pairs_stand_for_features_where_they_are_fewer_operations(causal, monkeypatch):
    """Up to 2,180 tokens of heads of 32 causally, up to 561 in both directions."""

    def operations(length: int) -> int:
        based, inputs = core(length, causal=causal), heads(length)
        with torch.no_grad():
            return int(count_operations(lambda: based(*inputs, Layout())))

    lengths = (128, 384, 512, 1024, 2304)
    chosen = [operations(length) for length in lengths]
    monkeypatch.setattr(feature_core, "is_cheaper", lambda *_: False)
    by_features = [operations(length) for length in lengths]
    fewer = [a < b for a, b in zip(chosen, by_features, strict=True)]
    assert fewer == [True, True, True, causal, False]
    assert chosen[-1] == by_features[-1]
    assert chosen[1] < by_features[1] / (3 if causal else 1.4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [2, 130, 500])
def test_forgetting_of_few_tokens_computes_no_scores_twice(length, causal, monkeypatch):
    q, k, v = heads(length)
    g = torch.nn.functional.logsigmoid(drawn(2, 4, length, seed=7))
    inputs = [q, k, v, g]
    with Calls() as calls:
        found = pulled(fading_attention(*inputs, causal=causal), inputs)
    assert calls.of["_softmax"] <= 1
    monkeypatch.setattr(forgetting, "FEW", 0)
    with Calls() as more:
        wanted = pulled(fading_attention(*inputs, causal=causal), inputs)
    assert more.of["_softmax"] >= 2
    assert calls.of.total() < more.of.total()
    torch.testing.assert_close(found, wanted, atol=1e-11, rtol=1e-11)


@pytest.mark.parametrize("product", [decayed_product, delta_product])
def test_few_tokens_are_one_block_of_chunks(product, monkeypatch):
    inputs = [0.1 * each for each in heads(384, 3 if product is decayed_product else 4)]
    g = -0.1 * drawn(2, 4, 384, seed=7).detach().abs()

    def step() -> tuple[list[Tensor], int]:
        with Calls() as calls:
            found = pulled(product(*inputs, g)[0], inputs)
        return found, calls.of.total()

    found, few = step()
    monkeypatch.setattr(blockwise, "FEW", 0)
    wanted, many = step()
    assert few < many / 2.5
    torch.testing.assert_close(found, wanted, atol=1e-13, rtol=1e-11)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("length", [1, 64, 128])
def test_retnet_weighs_few_tokens_in_pairs(length, causal, monkeypatch):
    mixer = RetNet(Site(width=128, heads=4, max_length=length, causal=causal)).double()
    x = drawn(2, length, 128)

    def step() -> tuple[list[Tensor], int]:
        with Calls() as calls:
            found = pulled(mixer(x, Layout()), [x, *mixer.parameters()])
        return found, calls.of.total()

    found, few = step()
    monkeypatch.setattr(retnet, "is_cheaper", lambda *_, **__: False)
    wanted, many = step()
    assert few < many / (1.3 if causal else 1.9)
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize(("causal", "last"), [(True, 149), (False, 298)])
def test_retnet_weighs_pairs_up_to_a_length_alone(causal, last):
    """With keys of 32, values of 64 and chunks of 64; and of so many rows in states."""
    mixer = RetNet(Site(width=128, heads=4, max_length=512, causal=causal))

    def has_states(rows: int, length: int) -> bool:
        with torch.no_grad(), Calls() as calls:
            mixer(torch.zeros(rows, length, 128), Layout())
        return "baddbmm" in calls.of

    assert not has_states(2, last)
    assert has_states(2, last + 1)
    assert has_states(2**19 // last**2 + 1, last)


def test_a_short_convolution_adds_each_tap_in_one_call():
    x, weight = drawn(2, 12, 6), drawn(6, 4, seed=1)
    with Calls() as calls:
        short_convolution(x, weight)
    assert calls.of["addcmul_"] == 3
    assert calls.of["add"] == 0
    with Calls() as seen:
        taps = sum_taps([x] * 4, weight)
    assert seen.of["clone"] == 1, "taps of a channel stand behind each other"
    torch.testing.assert_close(taps, x * weight.sum(1))


@pytest.mark.parametrize("length", [2, 130])
def test_forgetting_fills_no_masks(length):
    q, k, v = heads(length)
    inputs = [q, k, v, torch.nn.functional.logsigmoid(drawn(2, 4, length, seed=7))]
    with Calls() as calls:
        pulled(fading_attention(*inputs, causal=True), inputs)
    assert not calls.of.keys() & {"masked_fill", "masked_fill_", "any", "_local_scalar_dense"}


def test_pairs_of_one_block_are_copied_nowhere():
    based, inputs = core(128, causal=True), heads(128)
    with Calls() as calls:
        pulled(based(*inputs, Layout()), inputs)
    assert calls.of["bmm"] + calls.of["baddbmm"] == 7
    assert not calls.of.keys() & {"copy_", "zeros_like", "cat"}
