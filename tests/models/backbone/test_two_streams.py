"""Predicting under a permutation: what queries of a second stream see, ranks, refusals."""

import pytest
import torch

from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.families.grouped_query import GroupedQueryAttention
from lra.models.families.latent_attention import LatentAttention
from lra.models.families.linear import LinearAttention
from lra.models.families.sdpa import SDPA
from lra.models.families.softmax import SoftmaxAttention
from lra.models.families.talking_heads import TalkingHeads
from lra.models.mixer import Layout, Unsupported
from lra.tasks.classification.objectives import random_ranks

LENGTH = 7
ORDER = torch.tensor([[0, 3, 0, 1, 2, 0, 4], [1, 2, 3, 4, 5, 6, 7]])


def model_for(family, **options) -> Backbone:
    given = {"depth": 2, "width": 8, "heads": 2, "feed_forward_width": 8}
    facts = TaskFacts(
        head=Head.permutation_modelling, vocabulary=11, classes=11, max_length=LENGTH,
        masks=frozenset({"order"}),
    )  # fmt: skip
    return Backbone(BackboneConfig(**given | options), facts, [family], seed=3).double().eval()


@pytest.mark.parametrize(
    ("family", "options"),
    [
        (SoftmaxAttention, {"positions": "alibi"}),
        (SDPA, {"residual": "post_norm", "positions": "rotary"}),
        (GroupedQueryAttention, {"positions": "learned"}),
        (TalkingHeads, {"positions": "sinusoidal"}),
    ],
)
def test_an_answer_depends_on_lower_ranks_alone_and_not_on_itself(family, options) -> None:
    model = model_for(family, **options)
    tokens = torch.randint(11, (2, 1, LENGTH), generator=torch.Generator().manual_seed(2))
    plain, _ = model.predict(tokens, layout=Layout(order=ORDER))
    for row in range(2):
        for changed in range(LENGTH):
            other = tokens.clone()
            other[row, 0, changed] = (other[row, 0, changed] + 1) % 11
            moved = (model.predict(other, layout=Layout(order=ORDER))[0] - plain).abs().amax(-1)
            assert not moved[1 - row].any()
            wanted = ORDER[row] > ORDER[row, changed]
            assert torch.equal(moved[row] > 0, wanted), (row, changed)


def test_a_first_layer_of_one_stream_is_attention_by_hand() -> None:
    """One layer without network: the query's attention over the content of lower rank."""
    model = model_for(SoftmaxAttention, depth=1, feed_forward="none", positions="learned")
    tokens = torch.randint(11, (2, 1, LENGTH), generator=torch.Generator().manual_seed(2))
    (block,) = model.stack.blocks
    table = model.positions.table
    content = block.mixer_norm(model.embedding(tokens[:, 0]) * model.input_scale + table)
    asked = model.query + table
    mixer = block.mixer
    q, k, v = (
        mixer.split(part)
        for part in (
            mixer.q_proj(block.mixer_norm(asked).expand(2, -1, -1)),
            mixer.k_proj(content),
            mixer.v_proj(content),
        )
    )
    rows = torch.zeros(2, 2, LENGTH, 4, dtype=torch.float64)
    for b in range(2):
        for i in range(LENGTH):
            lower = (ORDER[b] < ORDER[b, i]).nonzero().flatten()
            if len(lower):
                scores = (q[b, :, i : i + 1] @ k[b][:, lower].mT) / 4**0.5
                rows[b, :, i] = (scores.softmax(-1) @ v[b][:, lower])[:, 0]
    wanted = model.head(model.stack.norm(asked + mixer.merge(rows)))
    found, _ = model.predict(tokens, layout=Layout(order=ORDER))
    torch.testing.assert_close(found, wanted, atol=1e-10, rtol=0)


@pytest.mark.parametrize(
    ("family", "options", "message"),
    [
        (LinearAttention, {}, "does not support a random order"),
        (LatentAttention, {}, "needs attention that takes one order for queries"),
        (SDPA, {"residual": "reversible"}, "cannot compute them"),
        (SDPA, {"residual": "none"}, None),
    ],
)
def test_what_has_no_second_stream_is_refused(family, options, message) -> None:
    if message is None:
        model_for(family, **options)
        return
    with pytest.raises(Unsupported, match=message):
        model_for(family, **options)


def test_ranks_are_a_random_order_of_what_was_drawn() -> None:
    drawn = torch.zeros(400, 9, dtype=torch.bool)
    drawn[:, [1, 4, 8]] = True
    ranks = random_ranks(drawn, torch.arange(400), 5)
    assert not ranks[~drawn].any()
    orders = [tuple(row) for row in ranks[:, [1, 4, 8]].tolist()]
    assert {tuple(sorted(order)) for order in orders} == {(1, 2, 3)}
    counts = [orders.count(order) for order in set(orders)]
    assert len(counts) == 6
    assert min(counts) > 40
    assert torch.equal(random_ranks(drawn[7:, :], torch.arange(7, 400), 5), ranks[7:])
