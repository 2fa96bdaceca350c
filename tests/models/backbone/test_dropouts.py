"""Dropout inside networks, of words and of rare groups, beside what papers' codes write out."""

import pytest
import torch
from torch.nn import functional as F

from lra.models.backbone.adaptive import TiedAdaptiveHead
from lra.models.backbone.config import BackboneConfig, Embedding, Head, Softmax, TaskFacts
from lra.models.backbone.heads import AdaptiveHead
from lra.models.backbone.model import Backbone
from lra.models.backbone.networks import FeedForward, network_of
from lra.models.families.identity import Identity
from lra.models.mixer import Positions

SHARE = 0.4
FACTS = TaskFacts(head=Head.language_modelling, vocabulary=40, classes=40, max_length=16)
ADAPTIVE = {
    "softmax": Softmax.adaptive, "embedding": Embedding.adaptive, "softmax_cutoffs": [10, 20],
    "softmax_shrink": 2.0,
}  # fmt: skip


def model_of(seed=3, **options):
    config = BackboneConfig(
        width=8, heads=2, depth=1, feed_forward_width=8, positions=Positions.none, **options
    )
    return Backbone(config, FACTS, [Identity], seed=seed).double()


def batch():
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, 40, (3, 17), generator=generator)
    return ids[:, None, :-1], ids[:, 1:]


def test_activation_dropout_is_inside_the_network_alone():
    """fairseq: fc2(dropout(relu(fc1 x), activation_dropout)), and dropout after it."""
    model = model_of(activation_dropout=SHARE, feed_forward=FeedForward.relu)
    block = model.stack.blocks[0]
    first, _, inside, last = block.network
    assert (inside.p, block.dropout.p) == (SHARE, 0.0)
    x = torch.randn(2, 5, 8, dtype=torch.float64)
    torch.manual_seed(1)
    found = block.network(x)
    torch.manual_seed(1)
    assert torch.equal(found, last(F.dropout(F.relu(first(x)), SHARE)))
    usual = model_of(dropout=0.3).stack.blocks[0]
    assert (usual.network[2].p, usual.dropout.p) == (0.3, 0.3)
    assert network_of(8, 8, SHARE)[2].p == SHARE


def test_tied_dropout_takes_a_channel_at_all_positions():
    model = model_of(dropout=SHARE, tied_dropout=True)
    drop, x = model.stack.blocks[0].dropout, torch.rand(64, 7, 8, dtype=torch.float64) + 1
    found = drop(x)
    kept = found[:, :1] != 0
    torch.testing.assert_close(found, x * kept / (1 - SHARE))
    assert 0.5 < kept.double().mean() < 0.7
    assert torch.equal(drop.eval()(x), x)
    with pytest.raises(ValueError, match="tied_dropout"):
        model_of(dropout=SHARE, tied_dropout=True, feed_forward_chunks=2)


@pytest.mark.parametrize("tied", [True, False])
def test_softmax_dropout_is_of_what_rare_groups_read(tied):
    """fairseq: each tail is a projection, dropout, and the group's table."""
    own = {} if tied else {"embedding": Embedding.full, "tied_embeddings": False}
    model = model_of(softmax_dropout=SHARE, **ADAPTIVE | own)
    head, plain = model.head, model_of(**ADAPTIVE | own).head
    assert head.state_dict().keys() == plain.state_dict().keys()
    x, target = torch.randn(12, 8, dtype=torch.float64), torch.arange(12) + 9
    torch.manual_seed(1)
    found, _ = head.judge(x[None], target[None])
    torch.manual_seed(1)
    if tied:
        assert isinstance(head, TiedAdaptiveHead)
        tables = [(head.embedding.maps[g].weight, head.embedding.tables[g]) for g in (1, 2)]
        first = F.linear(x, torch.cat((head.embedding.weight, head.groups))).log_softmax(-1)
    else:
        assert isinstance(head, AdaptiveHead)
        tables = [(part[0].weight.T, part[1].weight) for part in head.groups.tail]
        first = F.linear(x, head.groups.head.weight).log_softmax(-1)
    wanted = torch.empty(12, dtype=torch.float64)
    for group, (begin, end) in enumerate(((0, 10), (10, 20), (20, 40))):
        rows = ((target >= begin) & (target < end)).nonzero().squeeze(1)
        if group == 0:
            wanted[rows] = -first[rows, target[rows]]
            continue
        narrow, table = tables[group - 1]
        inside = F.linear(F.dropout(x[rows] @ narrow, SHARE), table).log_softmax(-1)
        wanted[rows] = -first[rows, 9 + group] - inside.gather(1, target[rows, None] - begin)[:, 0]
    torch.testing.assert_close(found[0], wanted, rtol=0, atol=1e-12)
    head.eval()
    plain.eval()
    assert torch.equal(head.judge(x[None], target[None])[0], plain.judge(x[None], target[None])[0])


def test_pieces_of_a_dropped_head_are_computed_again_with_the_same_masks(monkeypatch):
    """The gradient is that of the loss that was computed: found by a finite difference."""
    head = model_of(softmax_dropout=SHARE, **ADAPTIVE).head
    monkeypatch.setattr("lra.models.backbone.adaptive.ADAPTIVE_ELEMENTS", 60)
    x = torch.randn(1, 12, 8, dtype=torch.float64, requires_grad=True)
    target = torch.arange(12)[None] + 9

    def loss():
        torch.manual_seed(1)
        return head.judge(x, target)[0].sum()

    (slope,) = torch.autograd.grad(loss(), x)
    way = torch.randn_like(x)
    with torch.no_grad():
        x += 1e-6 * way
        above = loss()
        x -= 2e-6 * way
        assert float((above - loss()) / 2e-6) == pytest.approx(float((slope * way).sum()), rel=1e-6)


@pytest.mark.parametrize("options", [{}, ADAPTIVE])
def test_word_dropout_drops_rows_of_the_table_on_the_way_in(options):
    """AWD-LSTM's embedded_dropout: a mask of the vocabulary over its share, and a whole table."""
    tokens, target = batch()
    model, plain = model_of(word_dropout=SHARE, **options), model_of(**options)
    torch.manual_seed(1)
    found = model(tokens, target).nll
    torch.manual_seed(1)
    mask = F.dropout(torch.ones(40, 1, dtype=torch.float64), SHARE)
    assert set(mask.unique().tolist()) == {0.0, 1 / (1 - SHARE)}
    if options:
        plain.embedding.register_forward_hook(lambda _, ids, out: out * mask[ids[0]])
        assert torch.equal(found, plain(tokens, target).nll)
    else:
        table = mask * plain.embedding.weight
        plain.embedding.register_forward_hook(lambda _, ids, out: F.embedding(ids[0], table))
        torch.testing.assert_close(found, plain(tokens, target).nll, rtol=0, atol=1e-12)
    fresh = model_of(**options)
    assert torch.equal(model.eval()(tokens, target).nll, fresh.eval()(tokens, target).nll)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"softmax_dropout": 0.2}, "softmax_dropout has no effect under softmax=full"),
        ({"activation_dropout": 0.2, "feed_forward": FeedForward.none}, "activation_dropout has"),
        ({"activation_dropout": 1.0}, r"activation_dropout must lie in \[0, 1\): got 1.0"),
        ({"word_dropout": -0.1}, r"word_dropout must lie in \[0, 1\): got -0.1"),
    ],
)
def test_what_does_not_apply_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        BackboneConfig(**options)
