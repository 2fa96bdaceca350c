"""Attention weights read by unit vectors, of every family that has them."""

from pathlib import Path

import pytest
import torch

from lra.composition.compose import core_of, group_file
from lra.models.backbone.attention_weights import attention_of, readable, recorded_calls, weights
from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Unsupported

FAMILIES = sorted(path.stem for path in Path("conf/model").glob("*.yaml"))
LENGTH = 40


def model_of(name, *, causal):
    mixers, stack, _ = core_of(group_file("model", name), ())
    head = Head.language_modelling if causal else Head.classification
    facts = TaskFacts(head=head, vocabulary=9, classes=3, max_length=LENGTH, padded=not causal)
    config = BackboneConfig(width=16, heads=2, feed_forward_width=16)
    return Backbone(config, facts, mixers, stack=stack, seed=0).double().eval()


def read(model, keep=None, size=16):
    cores, reasons = readable(model.stack)
    tokens = torch.randint(1, 9, (2, 1, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), recorded_calls(cores) as calls:
        model.run(tokens, keep, None)
        found = {
            layer: torch.cat([p for _, p in weights(cores[layer], call, keys_at_once=size)], -1)
            for layer, call in calls.items()
        }
    return found, calls, reasons


@pytest.mark.share(3)
@pytest.mark.parametrize("causal", [True, False], ids=["causal", "bidirectional"])
@pytest.mark.parametrize("name", FAMILIES)
def test_weights_of_every_family_that_has_them(name, causal) -> None:
    try:
        model = model_of(name, causal=causal)
    except Unsupported:
        return
    if not hasattr(model.stack, "blocks"):
        with pytest.raises(Unsupported, match="replaces the ordinary stack"):
            readable(model.stack)
        return
    found, calls, reasons = read(model)
    assert not found.keys() & reasons.keys()
    for layer, own in found.items():
        places, heads = own.shape[2], calls[layer].q.shape[1]  # half of them where half attend
        assert own.shape == (2, heads, places, places)
        assert float(own.min()) > -1e-9
        torch.testing.assert_close(own.sum(-1), torch.ones_like(own[..., 0]), atol=1e-5, rtol=0)
        if causal:
            assert not own.triu(1).any()
    parts = [attention_of(block.mixer) for block in model.stack.blocks]
    stochastic = {n for n, part in enumerate(parts) if part.traits.row_stochastic}
    assert stochastic >= found.keys()


@pytest.mark.parametrize("name", ["softmax", "sdpa"])
def test_exact_attention_has_the_weights_of_its_equation(name) -> None:
    keep = torch.ones(2, 1, LENGTH, dtype=torch.bool)
    keep[1, :, 30:] = False
    found, calls, _ = read(model_of(name, causal=False), keep)
    for layer, (q, k, layout, _) in calls.items():
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / q.shape[-1] ** 0.5
        scores = scores.masked_fill(~layout.keep[:, None, None], -torch.inf)
        torch.testing.assert_close(found[layer], scores.softmax(-1))
    assert set(found) == {0, 1}


def test_pieces_are_parts_of_one_matrix() -> None:
    model = model_of("performer", causal=True)
    whole, parts = read(model, size=1000)[0], read(model, size=7)[0]
    torch.testing.assert_close(whole[1], parts[1])


def test_a_core_that_is_handed_more_is_not_recorded() -> None:
    class More(SoftmaxAttention):
        def forward(self, x, layout):
            q, k, v = self.project(x, layout)
            return self.merge(self.core(q, k, v, layout=layout))

    facts = TaskFacts(head=Head.language_modelling, vocabulary=9, classes=9, max_length=LENGTH)
    config = BackboneConfig(width=16, heads=2, feed_forward_width=16)
    found, _, reasons = read(Backbone(config, facts, [More], seed=0).double())
    assert (found, reasons) == ({}, {})


def test_hooks_are_gone_afterwards() -> None:
    model = model_of("softmax", causal=True)
    read(model)
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_layers_that_are_one_module_are_not_read() -> None:
    facts = TaskFacts(head=Head.language_modelling, vocabulary=9, classes=9, max_length=LENGTH)
    config = BackboneConfig(width=16, heads=2, feed_forward_width=16, layer_groups=1)
    _, reasons = readable(Backbone(config, facts, [SoftmaxAttention], seed=0).stack)
    assert len(reasons) == config.depth
    assert all("set model.backbone.layer_groups=null" in reason for reason in reasons.values())
