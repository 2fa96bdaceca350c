"""What decides the draws of a model, and what is built without weights."""

import pytest
import torch
from torch import nn

from lra.models.backbone.choices import InitialMaps
from lra.models.backbone.heads import LanguageHead
from lra.models.backbone.model import (
    Backbone,
    Head,
)
from lra.models.backbone.placing import PLAIN
from lra.models.families.linformer import Linformer
from lra.models.families.mamba import Mamba
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Flow, Site
from tests.models.backbone.small_backbones import CONFIG, build, facts


def test_the_seed_alone_decides(averaging):
    torch.manual_seed(1)
    first = build(averaging, seed=3).state_dict()
    torch.manual_seed(2)
    before = torch.get_rng_state()
    second = build(averaging, seed=3).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(first[name], second[name]) for name in first)
    other = build(averaging, seed=4).state_dict()
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])


def test_layers_draw_differently_and_generators_follow_the_seed(averaging):
    drawn: list[float] = []

    def drawing(site: Site) -> nn.Module:
        drawn.append(torch.rand(1, generator=site.generator).item())
        return averaging(site)

    model = Backbone(CONFIG, facts(), [drawing], seed=0)
    Backbone(CONFIG, facts(), [drawing], seed=0)
    Backbone(CONFIG, facts(), [drawing], seed=1)
    assert drawn[:2] == drawn[2:4]
    assert len(set(drawn)) == 4
    first, second = (block.mixer.value.weight for block in model.stack.blocks)
    assert not torch.equal(first, second)


def test_what_families_share_is_drawn_alike(averaging):
    class Greedy(averaging):
        def __init__(self, site: Site) -> None:
            super().__init__(site)
            self.more = nn.Linear(50, 50)

    modest, greedy = build(averaging).state_dict(), build(Greedy).state_dict()
    assert all(torch.equal(modest[name], greedy[name]) for name in modest)


def test_builds_on_meta_without_weights(averaging):
    with torch.device("meta"):
        model = Backbone(CONFIG, facts(Head.language_modelling), [averaging], seed=0)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}
    real = build(averaging, Head.language_modelling)
    assert {name: p.shape for name, p in model.named_parameters()} == {
        name: p.shape for name, p in real.named_parameters()
    }


def test_initial_sizes(averaging):
    wide = {"width": 64, "feed_forward_width": 128}
    plain = build(averaging, **wide)
    assert plain.embedding.weight.std().item() == pytest.approx(1.0, rel=0.1)
    tied = build(averaging, Head.language_modelling, **wide)
    assert tied.embedding.weight.std().item() == pytest.approx(1 / 8, rel=0.1)
    torch.testing.assert_close(
        tied.embedding.weight * tied.input_scale,
        build(averaging, Head.language_modelling, tied_embeddings=False, **wide).embedding.weight,
    )


def test_a_deviation_redraws_matrices_and_leaves_vectors(averaging):
    model, plain = (build(averaging, initial_deviation=each) for each in (0.02, None))
    drawn = torch.cat([each.flatten() for each in model.parameters() if each.dim() > 1])
    assert abs(drawn.std() - 0.02) < 0.002
    vectors = ([each for each in one.parameters() if each.dim() < 2] for one in (model, plain))
    assert all(torch.equal(one, other) for one, other in zip(*vectors, strict=True))


def test_the_table_of_ids_has_its_deviation_and_stays_unscaled(averaging):
    model = build(averaging, Head.language_modelling, width=64, embedding_deviation=0.02)
    assert model.embedding.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert model.head.weight is model.embedding.weight
    assert model.input_scale == model.outer_scale == 1
    for name, value in (("embedding_width", 8), ("embedding", "adaptive")):
        with pytest.raises(ValueError, match="embedding_deviation"):
            build(averaging, Head.language_modelling, embedding_deviation=0.02, **{name: value})


def test_identity_adds_the_norm_of_the_sum(averaging):
    model = build(averaging, feed_forward="identity").double().eval()
    (block, *_), x = model.stack.blocks, torch.randn(2, 5, model.config.width).double()
    with torch.no_grad():
        block.network_norm.bias.normal_()
        summed = x + block.mixer(block.mixer_norm(x), PLAIN)
        assert torch.equal(block(Flow(x), PLAIN).x, summed + block.network_norm(summed))
    assert not [*block.network.parameters()]


def test_a_deviation_leaves_what_never_decays():
    model, plain = (build(Mamba, width=64, initial_deviation=each) for each in (0.02, None))
    rates = ([block.mixer.log_rate for block in one.stack.blocks] for one in (model, plain))
    assert all(torch.equal(one, other) for one, other in zip(*rates, strict=True))
    assert abs(model.stack.blocks[0].mixer.gate_proj.weight.std() - 0.02) < 0.002


@pytest.mark.parametrize("head", [Head.classification, Head.language_modelling])
def test_maps_are_drawn_as_pytorch_draws_them(head):
    """A head without a bias has the reach of a linear map; tables keep their deviation."""
    options = {"width": 64, "feed_forward_width": 256, "tied_embeddings": False, "depth": 1}
    family = Linformer if head == Head.classification else SoftmaxAttention
    zeros, model, plain = (
        build(family, head, **options, initial_maps=kind)
        for kind in (InitialMaps.pytorch_zero_biases, InitialMaps.pytorch, None)
    )
    maps = {
        name: part
        for name, part in model.named_modules()
        if hasattr(part, "weight") and isinstance(part, nn.Linear | LanguageHead)
    }
    assert {name.split(".")[-1] for name in maps} >= {"q_proj", "k_proj", "v_proj", "out_proj"}
    for name, part in maps.items():
        reach = part.weight.shape[1] ** -0.5
        largest = part.weight.abs().max()
        assert 0.95 * reach < largest <= reach, name
        assert not torch.equal(part.weight, plain.get_submodule(name).weight)
        assert torch.equal(part.weight, zeros.get_submodule(name).weight)
        if getattr(part, "bias", None) is not None:
            assert part.bias.unique().numel() == part.bias.numel()
            assert part.bias.abs().max() <= reach
            assert not zeros.get_submodule(name).bias.any()
    changed = {f"{name}.{of}" for name in maps for of in ("weight", "bias")}
    for name, parameter in model.named_parameters():
        assert name in changed or torch.equal(parameter, plain.get_parameter(name)), name


def test_maps_with_a_rule_of_their_own_keep_it():
    model, plain = (
        build(Mamba, width=64, initial_maps=kind) for kind in (InitialMaps.pytorch, None)
    )
    first, second = (one.stack.blocks[0].mixer for one in (model, plain))
    assert torch.equal(first.step_map.weight, second.step_map.weight)
    assert not torch.equal(first.gate_proj.weight, second.gate_proj.weight)
    tied = build(Mamba, Head.language_modelling, initial_maps=InitialMaps.pytorch)
    usual = build(Mamba, Head.language_modelling)
    assert torch.equal(tied.head.weight, usual.head.weight)


def test_one_rule_alone_draws_maps():
    with pytest.raises(ValueError, match="initial_maps"):
        build(Mamba, initial_maps=InitialMaps.pytorch, initial_deviation=0.02)
