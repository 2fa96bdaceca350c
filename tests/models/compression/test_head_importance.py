"""Importance of heads against finite differences, and layers without heads against closed gates."""

import pytest
import torch

from lra.models.backbone.config import BackboneConfig, Head, TaskFacts
from lra.models.backbone.model import Backbone
from lra.models.compression.head_importance import (
    Examples,
    attention_layers,
    gate_heads,
    head_importance,
    keep_heads,
    least_important,
    remove_heads,
)
from lra.models.families.adaptive_span import AdaptiveSpan
from lra.models.families.grouped_query import GroupedQueryAttention
from lra.models.families.linear import LinearAttention
from lra.models.families.lstm import LSTM
from lra.models.families.performer import Performer
from lra.models.families.sdpa import SDPA
from lra.models.families.sliding_window import SlidingWindow
from lra.models.families.softmax import SoftmaxAttention
from lra.models.families.talking_heads import TalkingHeads
from lra.models.mixer import Positions, Unsupported

FACTS = TaskFacts(head=Head.pair, vocabulary=11, classes=3, max_length=9, padded=True)


def model_of(mixer=SoftmaxAttention, *, facts=FACTS, **options):
    config = BackboneConfig(
        **{"width": 12, "heads": 3, "depth": 2, "feed_forward_width": 8, **options}
    )
    return Backbone(config, facts, [mixer], seed=1).double()


def examples(number=4):
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 11, (number, 2, 9), generator=draw)
    keep = torch.arange(9) < torch.tensor([9, 5, 7, 8])[:number, None, None]
    target = torch.randint(0, 3, (number,), generator=draw)
    return Examples(tokens, target, keep.expand(number, 2, 9))


def logits(model, batch):
    with torch.inference_mode():
        return model.eval().predict(batch.tokens, batch.keep)[0]


def test_importance_is_the_mean_size_of_each_example_s_own_derivative():
    model, batch = model_of(dropout=0.3), examples()
    model.train()
    found = head_importance(model, [batch], normalised=False)
    assert model.training
    model.eval()
    layers, step = attention_layers(model), 1e-5
    for at, scores in found.items():
        for head, score in enumerate(scores):
            losses = []
            for sign in (1, -1):
                gate = torch.ones(3, dtype=torch.float64)
                gate[head] += sign * step
                with torch.no_grad(), gate_heads(layers, {at: gate}):
                    losses.append(model(batch.tokens, batch.target, batch.keep).nll)
            literal = ((losses[0] - losses[1]) / (2 * step)).abs().mean()
            torch.testing.assert_close(score, literal, rtol=1e-6, atol=1e-9)
    each = [head_importance(model, [Examples(*(part[i : i + 1] for part in batch[:3]))],
                            normalised=False) for i in range(4)]  # fmt: skip
    for at, scores in found.items():  # by example, whatever the batches
        torch.testing.assert_close(scores, torch.stack([one[at] for one in each]).mean(0))
    for at, scores in head_importance(model, [batch]).items():
        torch.testing.assert_close(scores, found[at] / found[at].norm())


def test_items_that_do_not_count_have_no_part():
    facts = TaskFacts(head=Head.language_modelling, vocabulary=11, classes=11, max_length=9)
    model, tokens = model_of(facts=facts), torch.randint(0, 11, (2, 1, 9))
    weight = torch.zeros(2, 9)
    weight[:, 4] = 1.0
    other = tokens[:, 0].clone()
    other[:, 5:] = 0
    ours = [head_importance(model, [Examples(tokens, target, None, weight)])
            for target in (tokens[:, 0], other)]  # fmt: skip
    for at in ours[0]:
        assert torch.equal(ours[0][at], ours[1][at])


@pytest.mark.parametrize("mixer", [SoftmaxAttention, LinearAttention, Performer, SlidingWindow])
@pytest.mark.parametrize("positions", [Positions.learned, Positions.rotary])
def test_a_closed_gate_is_a_head_that_is_not_there(mixer, positions):
    model, batch = model_of(mixer, positions=positions), examples()
    remove = {0: [1], 1: [0, 2]}
    gates = {at: torch.ones(3, dtype=torch.float64) for at in remove}
    for at, heads in remove.items():
        gates[at][heads] = 0.0
    with gate_heads(attention_layers(model), gates):
        wanted = logits(model, batch)
    before = sum(p.numel() for p in model.parameters())
    remove_heads(model, remove)
    torch.testing.assert_close(logits(model, batch), wanted, rtol=0, atol=1e-12)
    # a head of width 4: four rows or columns of 12, and a bias but of the projection back
    assert before - sum(p.numel() for p in model.parameters()) == 3 * (4 * 4 * 12 + 3 * 4)
    assert [scores.shape for scores in head_importance(model, [batch]).values()] == [(2,), (1,)]


def test_gates_of_outputs_go_with_their_heads():
    def mixer(site):
        return SDPA(site, output_gate=True, qk_norm=True)

    model, batch = model_of(mixer, positions=Positions.rotary), examples()
    shut = torch.tensor([0.0, 1.0, 1.0], dtype=torch.float64)
    with gate_heads(attention_layers(model), {0: shut}):
        wanted = logits(model, batch)
    remove_heads(model, {0: [0]})
    torch.testing.assert_close(logits(model, batch), wanted, rtol=0, atol=1e-12)
    assert attention_layers(model)[0].gate_proj.weight.shape == (8, 12)


@pytest.mark.parametrize(
    ("mixer", "positions", "words"),
    [
        (TalkingHeads, Positions.learned, "depend on each other"),
        (AdaptiveSpan, Positions.none, "depend on each other"),
        (SoftmaxAttention, Positions.alibi, "depend on each other"),
        (GroupedQueryAttention, Positions.learned, "share keys or values"),
    ],
)
def test_heads_that_depend_on_each_other_stay(mixer, positions, words):
    facts = TaskFacts(head=Head.language_modelling, vocabulary=11, classes=11, max_length=9)
    model = model_of(mixer, facts=facts, positions=positions, order_blind=False)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(Unsupported, match=words):
        remove_heads(model, {1: [0]})
    assert attention_layers(model)[1].heads == 3
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name])


def test_every_layer_keeps_a_head():
    importance = {0: torch.tensor([0.1, 0.2, 0.9]), 1: torch.tensor([0.3, 0.1, 0.15])}
    assert least_important(importance, 3) == {0: [0], 1: [1, 2]}
    with pytest.raises(ValueError, match="got 5 heads to remove, but only 4 of 6"):
        least_important(importance, 5)
    with pytest.raises(ValueError, match="needs at least one head"):
        remove_heads(model_of(), {0: [0, 1, 2]})
    with pytest.raises(ValueError, match="heads 0 to 2: got 3"):
        remove_heads(model_of(), {0: [3]})
    with pytest.raises(Unsupported, match="LSTM has no such heads"):
        attention_layers(model_of(LSTM))
    with pytest.raises(ValueError, match="got 0 examples"):
        head_importance(model_of(), [])


def test_a_reversible_stack_says_why_it_has_no_importance():
    with pytest.raises(Unsupported, match="residual=pre_norm"):
        head_importance(model_of(residual="reversible"), [examples()])


def test_order_of_kept_heads_is_as_given():
    first, second = model_of(), model_of()
    keep_heads(attention_layers(first)[0], [2, 0], tokens=9)
    keep_heads(attention_layers(second)[0], [0, 2], tokens=9)
    torch.testing.assert_close(logits(first, examples()), logits(second, examples()))
