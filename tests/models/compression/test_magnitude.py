"""Magnitude pruning against sorting by hand, its schedule, and files without zeros."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from lra.models.backbone.config import BackboneConfig, Head, TaskFacts
from lra.models.backbone.model import Backbone
from lra.models.compression.linear_maps import linear_maps
from lra.models.compression.magnitude import (
    MagnitudePruning,
    Scope,
    cubic,
    kept_weights,
    prune_weights,
    share_of_zeros,
)
from lra.models.compression.storage import read_state, write_state
from lra.models.families.adaptive_span import AdaptiveSpan
from lra.models.families.softmax import SoftmaxAttention

FACTS = TaskFacts(head=Head.language_modelling, vocabulary=40, classes=40, max_length=8)


def model_of(mixer=SoftmaxAttention):
    config = BackboneConfig(width=16, heads=2, depth=2, feed_forward_width=24, positions="none")
    return Backbone(config, FACTS, [mixer], seed=1)


def test_the_smallest_go_overall_or_in_each_layer():
    weights = {"a": torch.tensor([[0.1, -3.0], [2.0, -0.2]]), "b": torch.tensor([[0.05, 0.3]])}
    overall = kept_weights(weights, 0.5, Scope.overall)
    assert overall["a"].tolist() == [[False, True], [True, False]]
    assert overall["b"].tolist() == [[False, True]]
    layer = kept_weights(weights, 0.5, Scope.layer)
    assert layer["a"].tolist() == [[False, True], [True, False]]
    assert layer["b"].tolist() == [[False, True]]
    assert (
        kept_weights({"a": torch.ones(5)}, 0.4, Scope.layer)["a"].tolist()
        == [False] * 2 + [True] * 3
    )
    for share in (1.0, -0.1):
        with pytest.raises(ValueError, match="at least 0 and below 1"):
            kept_weights(weights, share, Scope.layer)


def test_the_schedule_is_that_of_the_paper():
    # Zhu and Gupta, equation 1: t_0 = 0, n = 10, dt = 10.
    for step in (0, 10, 50, 99, 100, 500):
        t = min(step, 100)
        literal = 0.9 + (0.0 - 0.9) * (1 - (t - 0) / (10 * 10)) ** 3
        assert cubic(step, final=0.9, begin=0, end=100) == pytest.approx(literal, abs=1e-12)


def test_a_training_reaches_the_share_and_brings_nothing_back():
    model = model_of()
    pruning = MagnitudePruning(model, 0.8, Scope.overall, steps=8, every=2)
    model.add_module("pruning", pruning)
    assert len(list(model.parameters())) == len(list(model_of().parameters()))
    optimiser = torch.optim.Adam(model.parameters(), 1e-2)
    tokens, shares, gone = torch.randint(0, 40, (4, 1, 8)), [], []
    for step in range(1, 12):
        model(tokens, tokens[:, 0]).nll.mean().backward()
        optimiser.step()
        optimiser.zero_grad()
        pruning.after_step(step, torch.Generator())
        shares.append(share_of_zeros(model))
        gone.append([layer.weight == 0 for layer in linear_maps(model).values()])
    for step, share in enumerate(shares, 1):
        due = cubic(step - step % 2, final=0.8, begin=0, end=8)
        assert share == pytest.approx(due, abs=1e-3)
    for earlier, later in pairwise(gone):
        assert all(bool((b | ~a).all()) for a, b in zip(earlier, later, strict=True))
    state = model.state_dict()  # the masks travel with a checkpoint
    other = model_of()
    other.add_module("pruning", MagnitudePruning(other, 0.8, Scope.overall, steps=8, every=2))
    other.load_state_dict(state)
    other.pruning.after_step(12, torch.Generator())
    assert share_of_zeros(other) == shares[-1]


def test_only_projections_networks_and_head_are_pruned():
    model = model_of(AdaptiveSpan)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    prune_weights(model, 0.5)
    changed = {name for name, value in model.state_dict().items() if not value.equal(before[name])}
    maps = linear_maps(model)
    assert changed <= {f"{name}.weight" for name in maps}
    assert {name.rpartition(".")[2] for name in maps} == {
        "q_proj", "k_proj", "v_proj", "out_proj", "0", "3"
    }  # fmt: skip
    assert share_of_zeros(model) == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("share", [0.0, 0.5, 0.95])
def test_a_file_without_zeros_is_smaller_and_comes_back(tmp_path, share):
    model = model_of()
    prune_weights(model, share)
    with torch.no_grad():
        model.stack.blocks[0].network[0].bias[:2] = torch.tensor([-0.0, 0.0])
    state = model.state_dict()
    dense = write_state(state, tmp_path / "dense")
    sparse = write_state(state, tmp_path / "sparse", sparse=True)
    assert (tmp_path / "sparse").stat().st_size == sparse
    maps = sum(layer.weight.numel() for layer in linear_maps(model).values())
    if share:
        # at least: a bias of zeros is left out, too
        assert dense - sparse > 4 * maps * share - maps / 8 - 200
    for name in ("dense", "sparse"):
        found = read_state(tmp_path / name)
        assert set(found) == set(state)
        for key, value in state.items():
            assert np.array_equal(found[key].numpy().view(np.uint32), value.numpy().view(np.uint32))
        other = model_of()
        other.load_state_dict(found)
        tokens = torch.randint(0, 40, (2, 1, 8))
        assert torch.equal(model.predict(tokens)[0], other.predict(tokens)[0])
    numbers = sum(p.numel() for p in model.parameters())  # the tied embedding once
    assert 4 * numbers < dense < 4 * numbers + 6000
