"""T5's buckets by hand, and every encoding's scores against loops; who refuses them."""

import math

import pytest
import torch

from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.families.linear import LinearAttention
from lra.models.families.sdpa import SDPA
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Layout, Positions, Site, Unsupported
from lra.models.relative import BucketScores, bucket
from tests.attention import compare, drawn

LENGTH = 150


def literal(distance: int, causal: bool) -> int:
    """The rule of the paper's code for one distance, with 32 buckets up to 128."""
    buckets, first = 32, 0
    if causal:
        distance = max(distance, 0)
    else:
        buckets = 16
        first, distance = (16 if distance < 0 else 0), abs(distance)
    single = buckets // 2
    if distance < single:
        return first + distance
    # whole powers that make the logarithm whole are told by whole numbers
    grown = 0
    while distance ** (buckets - single) >= single ** (buckets - single) * (
        (128 // single) ** (grown + 1)
    ):
        grown += 1
    return first + min(single + grown, buckets - 1)


@pytest.mark.parametrize("causal", [False, True])
def test_buckets_by_hand(causal: bool) -> None:
    distance = torch.arange(-300, 301)
    wanted = [literal(int(d), causal) for d in distance]
    assert bucket(distance, causal=causal).tolist() == wanted
    assert set(wanted) == set(range(32)) - (set() if causal else {16})  # 16: distance -0


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("make", [SoftmaxAttention, SDPA])
def test_the_bucket_of_the_distance_is_added_to_the_score(make, causal: bool, padded: bool) -> None:
    site = Site(width=12, heads=3, max_length=LENGTH, causal=causal, positions=Positions.t5)
    mixer = make(site).double().eval()
    x = drawn(2, LENGTH, 12).requires_grad_()
    keep = drawn(2, LENGTH, seed=3) > -0.5 if padded else None
    q, k, v = mixer.project(x, Layout(keep=keep))
    scores = q @ k.mT / math.sqrt(4)
    table = mixer.core.relative.weight
    buckets = torch.tensor([[literal(i - j, causal) for j in range(LENGTH)] for i in range(LENGTH)])
    scores = scores + table[buckets].permute(2, 0, 1)
    hidden = torch.zeros(1, 1, LENGTH, LENGTH, dtype=torch.bool)
    if causal:
        hidden = hidden | torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    if keep is not None:
        hidden = hidden | ~keep[:, None, None]
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1).nan_to_num(0.0)
    wanted, seen = mixer.merge(weights @ v), mixer(x, Layout(keep=keep))
    rows = slice(None) if keep is None else keep
    leaves = [x, table, *(layer.weight for layer in (mixer.q_proj, mixer.v_proj))]
    compare(seen[rows], wanted[rows], leaves, looser=100)


def shaw_scores(mixer, q, i: int, j: int):
    """q . a_{clip(i - j)}, the same table for all heads."""
    relative = mixer.core.relative
    reach, least = relative.reach, 0 if relative.causal else -relative.reach
    row = max(least, min(reach, i - j)) - least
    return q[:, :, i] @ relative.weight[row]


def sinusoid_scores(mixer, q, i: int, j: int):
    """(q + v) . W_r r_{i - j}, by head."""
    relative = mixer.core.relative
    angles = [(i - j) * 10_000.0 ** (-2 * p / 12) for p in range(6)]
    r = torch.tensor(
        [math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64
    )
    keys = (relative.r_proj.weight @ r).view(3, 4)
    return ((q[:, :, i] + relative.biases.position) * keys).sum(-1)


SCORES = {Positions.shaw: shaw_scores, Positions.transformer_xl: sinusoid_scores}


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("positions", SCORES)
@pytest.mark.parametrize("make", [SoftmaxAttention, SDPA])
def test_vectors_of_distances_against_loops(make, positions: Positions, causal: bool) -> None:
    length = 9
    site = Site(
        width=12, heads=3, max_length=length, causal=causal, positions=positions,
        relative_distance=4,
    )  # fmt: skip
    mixer = make(site).double().eval()
    x = drawn(2, length, 12).requires_grad_()
    q, k, v = mixer.project(x, Layout())
    met = q
    if positions == Positions.transformer_xl:
        met = q + mixer.core.relative.biases.content[:, None]
    added = torch.stack(
        [
            torch.stack([SCORES[positions](mixer, q, i, j) for j in range(length)], -1)
            for i in range(length)
        ],
        -2,
    )
    scores = (met @ k.mT + added) / math.sqrt(4)
    if causal:
        hidden = torch.ones(length, length, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -torch.inf)
    wanted, seen = mixer.merge(scores.softmax(-1) @ v), mixer(x, Layout())
    compare(seen, wanted, [x, *mixer.parameters()], looser=10)
    # keys in any order: distances by number in place of rows that are shifted
    distance = torch.arange(length)[:, None] - torch.arange(length)
    order = torch.tensor([4, 0, 8, 2, 6, 1, 3, 7, 5])
    here = mixer.core.relative(q, distance[None][..., order], later=not causal)
    there = mixer.core.relative.in_order(q, length, later=not causal)[..., order]
    sight = (distance >= 0)[..., order] if causal else torch.ones_like(distance, dtype=torch.bool)
    torch.testing.assert_close(here * sight, there * sight, atol=1e-13, rtol=0)


def build(mixer, **options) -> Backbone:
    config = BackboneConfig(width=16, feed_forward_width=24, positions=Positions.t5, **options)
    facts = TaskFacts(head=Head.classification, vocabulary=11, classes=3, max_length=12)
    return Backbone(config, facts, [mixer], seed=0)


def test_all_layers_have_one_table() -> None:
    model = build(SoftmaxAttention, depth=3)
    tables = {id(block.mixer.core.relative) for block in model.stack.blocks}
    assert len(tables) == 1
    table = model.stack.blocks[0].mixer.core.relative
    assert isinstance(table, BucketScores)
    assert table.weight.shape == (32, 2)
    plain = Backbone(
        BackboneConfig(width=16, feed_forward_width=24, positions=Positions.none, depth=3),
        model.facts, [SoftmaxAttention], seed=0,
    )  # fmt: skip
    count = [sum(p.numel() for p in part.parameters()) for part in (model, plain)]
    assert count[0] - count[1] == 64
    # what the table does not belong to is drawn as without it
    theirs, ours = plain.state_dict(), model.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    with torch.device("meta"):
        assert build(SoftmaxAttention).stack.blocks[1].mixer.core.relative.weight.is_meta


def test_who_has_no_scores_refuses() -> None:
    with pytest.raises(Unsupported, match="LinearAttention does not support t5 positions"):
        build(LinearAttention)
