"""What regularises the LSTM, and where it answers."""

import pytest
import torch
from torch import nn

from lra.models.backbone.model import Backbone, BackboneConfig, Head, Pooling, Positions, TaskFacts
from lra.models.backbone.networks import FeedForward
from lra.models.families.lstm import LSTM
from lra.models.mixer import Flow, Layout, Unsupported
from tests.attention import builder, drawn, holes
from tests.literal.lstm import lstm as literal

SITE = {"width": 8, "heads": 2, "max_length": 32}
LENGTH = 13
built = builder(LSTM, **SITE)


def weights_of(mixer, cell):
    return [*mixer.cells[cell].lstm.parameters()]


def language_model(**options) -> Backbone:
    config = BackboneConfig(
        depth=3, width=8, heads=2, feed_forward=FeedForward.none, positions=Positions.none
    )
    facts = TaskFacts(head=Head.language_modelling, vocabulary=11, classes=0, max_length=40)
    return Backbone(config, facts, [lambda site: LSTM(site, **options)], seed=0).double()


def test_dropped_weights_are_those_of_one_mask_for_all_rows_and_tokens():
    mixer, x = built(causal=True, weight_drop=0.5), drawn(2, LENGTH, 8)
    w, u, *biases = weights_of(mixer, 0)
    torch.manual_seed(5)
    mask = nn.functional.dropout(torch.ones_like(u), 0.5)
    assert set(mask.unique().tolist()) == {0.0, 2.0}
    mixer.train()
    torch.manual_seed(5)
    found = mixer(x, Layout())
    torch.testing.assert_close(found, literal(x, [w, u * mask, *biases]), atol=1e-12, rtol=0)
    assert not torch.equal(mixer(x, Layout()), found), "the next pass has a mask of its own"
    slope = torch.autograd.grad(found.sum(), u)[0]
    assert (slope != 0).equal(mask > 0)


def test_dropout_is_locked_along_the_row():
    dropping, x = built(causal=True, output_dropout=[0.5]).train(), drawn(4, LENGTH, 8)
    seen = dropping(x, Layout()) == 0
    assert seen.all(1).equal(seen.any(1))
    assert 0 < seen.float().mean() < 1
    masks = seen[:, 0]
    assert len(masks.unique(dim=0)) > 1, "rows have masks of their own"
    everything = built(causal=True, input_dropout=[0.5]).train()
    torch.manual_seed(6)
    found = everything(x, Layout())
    torch.manual_seed(6)
    mask = nn.functional.dropout(torch.ones(4, 1, 8).double(), 0.5)
    wanted = everything.eval()(x * mask, Layout())
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


def test_layers_have_shares_of_their_own():
    shares = [
        built(layer=layer, depth=3, input_dropout=[0.4, 0.25, 0.25], output_dropout=[0, 0, 0.4])
        for layer in range(3)
    ]
    assert [mixer.dropped for mixer in shares] == [(0.4, 0), (0.25, 0), (0.25, 0.4)]


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padding"])
def test_penalties_are_means_over_real_tokens(padded):
    mixer = built(activation_penalty=2.0, change_penalty=3.0).train()
    keep = holes(LENGTH, end=9) if padded else torch.ones(2, LENGTH, dtype=torch.bool)
    flow = mixer.extend(Flow(drawn(2, LENGTH, 8)), Layout(keep=keep if padded else None))
    y = flow.x
    squares = [y[row, t].square() for row in range(2) for t in range(LENGTH) if keep[row, t]]
    changes = [
        (y[row, t] - y[row, t - 1]).square()
        for row in range(2)
        for t in range(1, LENGTH)
        if keep[row, t] and keep[row, t - 1]
    ]
    wanted = {
        "activation": 2.0 * torch.stack(squares).mean(),
        "change": 3.0 * torch.stack(changes).mean(),
    }
    assert flow.penalties.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(flow.penalties[name], value, atol=1e-12, rtol=0)
    assert not mixer.eval().extend(Flow(drawn(2, LENGTH, 8)), Layout()).penalties


def test_constants_do_not_change_and_one_token_has_nothing_before_it():
    mixer = built(causal=True, change_penalty=1.0).train()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.zero_()
    constant = mixer.extend(Flow(torch.ones(2, LENGTH, 8).double()), Layout())
    assert constant.penalties["change"] == 0
    one = built(causal=True, change_penalty=1.0).train().extend(Flow(drawn(2, 1, 8)), Layout())
    assert one.penalties["change"] == 0


def test_activations_cost_what_dropout_leaves_of_them():
    mixer = built(causal=True, output_dropout=[0.5], activation_penalty=1.0).train()
    flow = mixer.extend(Flow(drawn(2, LENGTH, 8)), Layout())
    torch.testing.assert_close(
        flow.penalties["activation"], flow.x.square().mean(), atol=1e-12, rtol=0
    )


def test_the_last_layer_alone_pays():
    model = language_model(activation_penalty=1.0, change_penalty=1.0).train()
    tokens = torch.randint(11, (2, 1, 9), generator=torch.Generator().manual_seed(1))
    outcome = model(tokens, tokens[:, 0])
    seen: list[Flow] = []
    last = model.stack.blocks[-1].mixer
    extend = last.extend
    last.extend = lambda flow, layout: seen.append(extend(flow, layout)) or seen[-1]
    model(tokens, tokens[:, 0])
    assert {name: value.item() for name, value in outcome.penalties.items()} == {
        name: value.item() for name, value in seen[0].penalties.items()
    }
    assert not any(model.stack.blocks[layer].mixer.penalised for layer in (0, 1))


def test_one_direction_answers_at_the_last_token():
    facts = TaskFacts(head=Head.classification, vocabulary=11, classes=2, max_length=9)
    config = BackboneConfig(width=8, positions=Positions.none, feed_forward=FeedForward.none)
    one_way = [lambda site: LSTM(site, bidirectional=False)]
    with pytest.raises(Unsupported, match="set it to last, or mean"):
        Backbone(config, facts, one_way, seed=0)
    config = BackboneConfig(
        width=8, positions=Positions.none, feed_forward=FeedForward.none, pooling=Pooling.last
    )
    assert Backbone(config, facts, one_way, seed=0).stack.blocks[0].mixer.traits.causal


def test_penalties_are_nothing_for_reversible_layers():
    config = BackboneConfig(width=8, positions=Positions.none, residual="reversible")
    facts = TaskFacts(head=Head.language_modelling, vocabulary=11, classes=0, max_length=9)
    with pytest.raises(Unsupported, match="choose residual=pre_norm"):
        Backbone(config, facts, [lambda site: LSTM(site, change_penalty=1.0)], seed=0)
