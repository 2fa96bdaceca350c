"""Patterns that are found, beside those that the papers' formulas give."""

from functools import partial

import pytest
import torch

from lra.models.backbone.model import Backbone, BackboneConfig, Head, Positions, TaskFacts
from lra.models.families.h_transformer import HTransformer
from lra.models.families.light_conv import LightConv
from lra.models.families.local import LocalAttention
from lra.models.families.longformer import Longformer
from lra.models.families.reformer import Reformer
from lra.models.families.sparse_transformer import SparseTransformer
from lra.models.families.tlb import TemporalLatentBottleneck
from lra.models.mixer import Unsupported
from lra.runners.measures.attention.pattern import groups
from lra.runners.measures.pattern import Pattern, seen_keys

LENGTH = 16
I = torch.arange(LENGTH)[:, None]  # noqa: E741
J = torch.arange(LENGTH)


def found(mixer, *, head=Head.language_modelling, heads=2, depth=1, **options):
    config = BackboneConfig(width=8, heads=heads, depth=depth, positions=Positions.none, **options)
    length = LENGTH - (head == Head.classification)
    facts = TaskFacts(head=head, vocabulary=5, classes=5, max_length=length)
    model = Backbone(config, facts, [mixer], seed=0)
    matrices = {}
    for row in seen_keys(model, positions=LENGTH, seed=0):
        assert row.value == sum(size > 0 for size in row.samples)
        matrices.setdefault(row.labels["same"], []).append(row.samples)
    return {same: torch.tensor(rows) for same, rows in matrices.items()}


def test_equal_weights_are_one_group_and_nothing_is_none():
    matrix = torch.tensor([[0.25, 0.25, 0.5], [0.0, 1.0, 0.0]], dtype=torch.float64)
    assert groups(matrix).tolist() == [[2, 2, 1], [0, 1, 0]]


CAUSAL = I >= J
BLOCKS = I // 4 == J // 4
SUMMARY = (J % 4 == 3) | (J % 4 == 0)


@pytest.mark.parametrize(
    ("mixer", "wanted"),
    [
        (partial(LocalAttention, block=4), {"0:0, 0:1": BLOCKS & CAUSAL}),
        (partial(LightConv, kernel=[3]), {"0:all": (I - J < 3) & CAUSAL}),
        (
            partial(SparseTransformer, stride=4, summary=1, head_use="heads"),
            {"0:0": BLOCKS & CAUSAL, "0:1": SUMMARY & CAUSAL},
        ),
    ],
)
def test_causal_patterns_are_those_of_their_formulas(mixer, wanted):
    patterns = found(mixer)
    assert set(patterns) == set(wanted)
    for same, matrix in wanted.items():
        assert torch.equal(patterns[same], matrix.float())


def test_layers_and_global_tokens_are_told_apart():
    mixer = partial(Longformer, window=[2], dilation=[1, 2])
    patterns = found(mixer, head=Head.classification, depth=2)
    apart = (I - J).abs()
    opened = (I == 0) | (J == 0)
    near = {"0:all": apart <= 2, "1:all": (apart <= 4) & (apart % 2 == 0)}
    assert set(patterns) == set(near)
    for same, matrix in near.items():
        assert torch.equal(patterns[same], (matrix | opened).float())


def test_levels_of_a_hierarchy_are_groups_of_keys():
    mixer = partial(HTransformer, block=4)
    (both,) = found(mixer, head=Head.masked_modelling).values()
    (past,) = found(mixer).values()
    assert torch.equal(past > 0, CAUSAL)
    near, far = [1.0] * 8, [2.0] * 8
    assert both[0].tolist() == near + far
    assert both[15].tolist() == past[15].tolist() == far + near


def test_hashed_queries_see_their_chunk_and_the_one_before():
    mixer = partial(Reformer, chunk=4, rounds=1)
    (matrix,) = found(mixer, heads=1, head=Head.masked_modelling).values()
    # Sixteen tokens in four chunks, each of which sees itself and one other.
    assert matrix.sum(1).tolist() == [8.0] * LENGTH
    assert bool(matrix.diagonal().all())
    assert len(matrix.unique(dim=0)) == 4


def test_what_has_no_layers_says_so():
    config = BackboneConfig(width=8, heads=2, depth=2, pooling="mean")
    facts = TaskFacts(head=Head.classification, vocabulary=5, classes=5, max_length=8)
    model = Backbone(config, facts, [], stack=TemporalLatentBottleneck, seed=0)
    with pytest.raises(Unsupported, match="arranges its layers itself"):
        list(seen_keys(model, positions=9, seed=0))
    with pytest.raises(ValueError, match="length must be from 1 to 512"):
        Pattern(length=513)
