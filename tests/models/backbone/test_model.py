"""What a backbone answers: heads, padding, streams, penalties, refusals."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from lra.models.backbone.model import (
    Backbone,
    FeedForward,
    Head,
    Interaction,
    Pooling,
    Positions,
)
from lra.models.backbone.placing import encoded_at, sinusoid_like
from lra.models.mixer import Flow, Layout, Site, Traits, Unsupported
from lra.models.state import detach, join, select
from tests.models.backbone.small_backbones import (
    CLASSES,
    CONFIG,
    KEEP,
    LENGTH,
    VOCABULARY,
    build,
    facts,
    tokens,
)
from tests.models.ops.linear.test_feature_calls import Calls


@pytest.mark.parametrize("pooling", list(Pooling))
@pytest.mark.parametrize("positions", [Positions.none, Positions.learned, Positions.sinusoidal])
def test_classification_judges_each_example(averaging, pooling, positions):
    model = build(averaging, pooling=pooling, positions=positions)
    target = torch.tensor([0, 4, 2])
    outcome = model(tokens(), target, KEEP[:, None])
    logits, state = model.predict(tokens(), KEEP[:, None])
    assert logits.shape == (3, CLASSES)
    assert state is None
    assert outcome.state is None
    torch.testing.assert_close(outcome.nll, -logits.log_softmax(-1)[range(3), target])
    assert torch.equal(outcome.hit, logits.argmax(-1) == target)


@pytest.mark.parametrize("pooling", [Pooling.cls, Pooling.mean, Pooling.last])
def test_padding_changes_nothing(averaging, pooling):
    model = build(averaging, pooling=pooling)
    padded, _ = model.predict(tokens(), KEEP[:, None])
    other, _ = model.predict(tokens().masked_fill(~KEEP[:, None], 9), KEEP[:, None])
    short, _ = model.predict(tokens()[1:2, :, :7])
    assert torch.equal(padded, other)
    torch.testing.assert_close(padded[1:2], short)


def test_mean_over_padded_divides_by_the_padded_length(averaging):
    seen: list[Tensor] = []
    outputs = {}
    for pooling in (Pooling.mean, Pooling.mean_over_padded):
        model = build(averaging, pooling=pooling)
        model.head.hidden.register_forward_hook(lambda _, inputs, __: seen.append(inputs[0]))
        model.predict(tokens(), KEEP[:, None])
        outputs[pooling] = seen.pop()
    share = KEEP.sum(1, keepdim=True) / LENGTH
    torch.testing.assert_close(outputs[Pooling.mean] * share, outputs[Pooling.mean_over_padded])


def test_the_cls_vector_stands_first_and_is_learned(averaging):
    model = build(averaging)
    assert model.cls.tolist() == [0.0] * 8
    assert model.positions.table.shape == (LENGTH + 1, 8)
    sites: list[Site] = []

    def spying(site: Site) -> nn.Module:
        sites.append(site)
        return averaging(site)

    Backbone(CONFIG, facts(), [spying], seed=0)
    assert [site.max_length for site in sites] == [LENGTH + 1] * 2
    assert [(site.layer, site.depth, site.causal) for site in sites] == [(0, 2, False)] * 1 + [
        (1, 2, False)
    ]
    before, _ = model.predict(tokens())
    with torch.no_grad():
        model.cls.add_(1.0).mul_(torch.arange(8))
    after, _ = model.predict(tokens())
    assert not torch.allclose(before, after)


def test_cls_is_never_padding(averaging):
    layouts: list[Layout] = []

    class Watching(averaging):
        def extend(self, flow: Flow, layout: Layout) -> Flow:
            layouts.append(layout)
            return super().extend(flow, layout)

    build(Watching).predict(tokens(), KEEP[:, None])
    assert torch.equal(layouts[0].keep, torch.cat((torch.ones(3, 1, dtype=bool), KEEP), 1))
    build(Watching).predict(tokens())
    assert layouts[-1].keep is None


@pytest.mark.parametrize("interaction", list(Interaction))
@pytest.mark.parametrize("pooling", list(Pooling))
def test_a_pair_is_two_towers_with_one_set_of_weights(averaging, interaction, pooling):
    model = build(averaging, Head.pair, interaction=interaction, pooling=pooling)
    features: list[Tensor] = []
    model.head.hidden.register_forward_hook(lambda _, inputs, __: features.append(inputs[0]))
    both = tokens(parts=2)
    keep = torch.stack((KEEP, KEEP.flip(0)), 1)
    outcome = model(both, torch.tensor([0, 1, 2]), keep)
    assert outcome.nll.shape == (3,)
    model(both.flip(1), torch.tensor([0, 1, 2]), keep.flip(1))
    here, there = (part.unflatten(-1, (-1, 8)) for part in features)
    torch.testing.assert_close(here[:, [1, 0]], there[:, :2])
    if interaction is Interaction.nli:
        torch.testing.assert_close(here[:, 2], here[:, 0] * here[:, 1])
        torch.testing.assert_close(here[:, 3], here[:, 0] - here[:, 1])


@pytest.mark.parametrize(
    ("head", "parts", "wanted"), [(Head.pair, 1, 2), (Head.classification, 2, 1)]
)
def test_the_number_of_sequences_must_fit(averaging, head, parts, wanted):
    with pytest.raises(ValueError, match=rf"takes {wanted} sequence\(s\) per example: got {parts}"):
        build(averaging, head).predict(tokens(parts=parts))


def test_a_sequence_beyond_the_end_is_refused(averaging):
    with pytest.raises(ValueError, match=f"1 to {LENGTH} tokens: got {LENGTH + 1}; truncate"):
        build(averaging).predict(tokens(length=LENGTH + 1))


def test_training_does_not_ask_what_is_right(averaging):
    for head in (Head.classification, Head.language_modelling):
        model = build(averaging, head).train()
        target = tokens()[:, 0] if head is Head.language_modelling else torch.tensor([0, 4, 2])
        with Calls() as calls:
            assert model(tokens(), target, KEEP[:, None]).hit is None
        assert calls.of["argmax"] == 0
        assert model.eval()(tokens(), target, KEEP[:, None]).hit.shape == target.shape


@pytest.mark.parametrize("tied", [True, False])
def test_a_language_model_judges_each_position(averaging, tied):
    model = build(averaging, Head.language_modelling, tied_embeddings=tied)
    target = tokens(length=LENGTH)[:, 0].flip(1)
    outcome = model(tokens(), target)
    logits, _ = model.predict(tokens())
    assert logits.shape == (3, LENGTH, VOCABULARY)
    wanted = -logits.log_softmax(-1).gather(-1, target[..., None]).squeeze(-1)
    torch.testing.assert_close(outcome.nll, wanted)
    assert torch.equal(outcome.hit, logits.argmax(-1) == target)
    assert not model.has_cls
    assert (model.head.weight is model.embedding.weight) is tied


def test_a_stream_beyond_learned_positions_is_refused(averaging):
    model = build(averaging, Head.language_modelling)
    _, state = model.predict(tokens(), state=model.initial_state(3, 99))
    with pytest.raises(ValueError, match=f"end at {LENGTH} tokens: the stream would reach 13"):
        model.predict(tokens(length=1), state=state)
    endless = build(averaging, Head.language_modelling, positions=Positions.sinusoidal)
    _, state = endless.predict(tokens(), state=endless.initial_state(3, 99))
    assert endless.predict(tokens(length=1), state=state)[1][0].tolist() == [LENGTH + 1] * 3


def test_streams_can_be_reordered_and_stand_at_different_places(averaging):
    model = build(averaging, Head.language_modelling)
    whole, _ = model.predict(tokens())
    _, early = model.predict(tokens()[:1, :, :3], state=model.initial_state(1, LENGTH))
    _, late = model.predict(tokens()[1:2, :, :8], state=model.initial_state(1, LENGTH))
    mixed = select(join(early, late), torch.tensor([1, 0]))
    following = torch.stack((tokens()[1, :, 8:11], tokens()[0, :, 3:6]))
    logits, _ = model.predict(following, state=mixed)
    torch.testing.assert_close(logits, torch.stack((whole[1, 8:11], whole[0, 3:6])))


def test_history_carries_gradients_until_detached(averaging):
    model = build(averaging, Head.language_modelling)
    first, second = tokens().split([6, 6], dim=-1)
    state = model(first, first[:, 0], state=model.initial_state(3, LENGTH)).state
    assert state[1][0][0].requires_grad
    outcome = model(second, second[:, 0], state=detach(state))
    assert not detach(state)[1][0][0].requires_grad
    outcome.nll.sum().backward()


def test_states_belong_to_language_models(averaging):
    with pytest.raises(Unsupported, match="belongs to language models: got head=classification"):
        build(averaging).initial_state(1, 4)


def test_a_state_takes_no_mask(averaging):
    model = build(averaging, Head.language_modelling)
    with pytest.raises(ValueError, match="full rows only"):
        model.predict(tokens(), KEEP[:, None], model.initial_state(3, LENGTH))


def test_penalties_are_summed_and_shared_modules_pay_once(averaging):
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.tensor(2.0))

        def penalties(self) -> dict[str, Tensor]:
            return {"table": self.weight**2}

    class Charging(averaging):
        def __init__(self, site: Site) -> None:
            super().__init__(site)
            self.table = site.share("table", Table)

        def extend(self, flow: Flow, layout: Layout) -> Flow:
            return super().extend(flow, layout).add_penalty("ones", torch.ones(()))

        def penalties(self) -> dict[str, Tensor]:
            return {"own": torch.tensor(3.0)}

    outcome = build(Charging)(tokens(), torch.tensor([0, 1, 2]))
    assert {name: value.item() for name, value in outcome.penalties.items()} == {
        "ones": 2.0,
        "table": 4.0,
        "own": 6.0,
    }


def test_one_factory_per_layer(averaging):
    class Other(averaging):
        pass

    model = Backbone(CONFIG, facts(), [averaging, Other], seed=0)
    assert [type(block.mixer).__name__ for block in model.stack.blocks] == ["Averaging", "Other"]
    with pytest.raises(ValueError, match="1 for all layers or depth=2 of them: got 3"):
        Backbone(CONFIG, facts(), [averaging] * 3, seed=0)


def test_attention_dropout_is_reported_where_it_acts(averaging):
    class Weighted(averaging):
        def __init__(self, site: Site) -> None:
            super().__init__(site)
            self.traits = dataclasses.replace(self.traits, weight_dropout=True)

    config = dataclasses.replace(CONFIG, attention_dropout=0.1)
    model = Backbone(config, facts(), [averaging, Weighted], seed=0)
    assert model.effective_attention_dropout == (0.0, 0.1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "heads must divide width: got heads=3, width=8"),
        ({"head_width": 3}, "Averaging has no use for head_width .*head_width=3; set it to null"),
        ({"head_width": 0}, "head_width must be at least 1: got 0"),
        ({"depth": 0}, "depth must be at least 1: got 0"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\): got 1.0"),
        ({"positions": Positions.rotary}, "Averaging does not apply rotary positions"),
    ],
)
def test_what_does_not_fit_is_refused(averaging, changes, message):
    with pytest.raises(ValueError, match=message):
        build(averaging, **changes)


@pytest.mark.parametrize("head", [Head.classification, Head.pair])
def test_a_causal_mixer_has_no_cls_vector_before_all_tokens(averaging, head):
    class OneWay(averaging):
        """Causal wherever it is built, as a recurrence is."""

        def __init__(self, site: Site) -> None:
            super().__init__(dataclasses.replace(site, causal=True))

    with pytest.raises(Unsupported, match=r"position 0 sees only itself.*set it to last"):
        build(OneWay, head)
    with pytest.raises(Unsupported, match=r"the first token sees only itself: got .*pooling=first"):
        build(OneWay, head, pooling=Pooling.first)
    with pytest.raises(Unsupported, match="OneWay looks at earlier tokens alone"):
        Backbone(CONFIG, facts(head), [averaging, OneWay], seed=0)
    parts = 2 if head is Head.pair else 1
    for pooling in (Pooling.last, Pooling.mean):
        model = build(OneWay, head, pooling=pooling)
        changed = tokens(parts).clone()
        changed[:, :, 0] = (changed[:, :, 0] + 1) % VOCABULARY
        assert not torch.allclose(model.predict(tokens(parts))[0], model.predict(changed)[0])


def test_a_mixer_that_refuses_the_task_is_not_caught(averaging):
    class Encoder(averaging):
        def __init__(self, site: Site) -> None:
            if site.causal:
                raise Unsupported("Encoder looks both ways")
            super().__init__(site)

    with pytest.raises(Unsupported, match="both ways"):
        build(Encoder, Head.language_modelling)


def test_traits_and_missing_networks(averaging):
    model = build(averaging, feed_forward=FeedForward.none)
    assert model.traits == [Traits(sees_order=False)] * 2
    assert not [name for name, _ in model.named_parameters() if "network" in name]


def test_runs_under_bfloat16(averaging):
    model = build(averaging, Head.language_modelling).float()
    with torch.autocast("cpu", torch.bfloat16):
        outcome = model(tokens(), tokens()[:, 0])
    assert outcome.nll.dtype == torch.float32
    assert outcome.nll.isfinite().all()


def test_codes_of_positions_are_added_to_the_tokens():
    x = torch.randn(2, 5, 8)
    codes = sinusoid_like(torch.arange(5)[None], x)
    placed = encoded_at(x, sinusoid_like, None, cls=False, document=None)
    torch.testing.assert_close(placed, x + codes)
