"""What a backbone answers: heads, padding, streams, penalties, refusals."""

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from lra.models.backbone.model import (
    Backbone,
    Head,
    Interaction,
    Pooling,
    Positions,
)
from lra.models.mixer import Flow, Layout, Site, Unsupported
from tests.models.backbone.small_backbones import (
    CONFIG,
    KEEP,
    LENGTH,
    VOCABULARY,
    build,
    facts,
    tokens,
)
from tests.models.ops.linear.test_feature_calls import Calls


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
    with pytest.raises(
        ValueError, match=f"1 to {LENGTH} tokens: got {LENGTH + 1} tokens; truncate"
    ):
        build(averaging).predict(tokens(length=LENGTH + 1))


def test_training_does_not_ask_what_is_right(averaging):
    for head in (Head.classification, Head.language_modelling):
        model = build(averaging, head).train()
        target = tokens()[:, 0] if head is Head.language_modelling else torch.tensor([0, 4, 2])
        with Calls() as calls:
            assert model(tokens(), target, KEEP[:, None]).hit is None
        assert calls.of["argmax"] == 0
        assert model.eval()(tokens(), target, KEEP[:, None]).hit.shape == target.shape


def test_a_stream_beyond_learned_positions_is_refused(averaging):
    model = build(averaging, Head.language_modelling)
    _, state = model.predict(tokens(), state=model.initial_state(3, 99))
    with pytest.raises(ValueError, match=f"for {LENGTH} tokens, but the text would be 13"):
        model.predict(tokens(length=1), state=state)
    endless = build(averaging, Head.language_modelling, positions=Positions.sinusoidal)
    _, state = endless.predict(tokens(), state=endless.initial_state(3, 99))
    assert endless.predict(tokens(length=1), state=state)[1][0].tolist() == [LENGTH + 1] * 3


def test_states_belong_to_language_models(averaging):
    with pytest.raises(
        Unsupported, match="from token to token: got a model with head=classification"
    ):
        build(averaging).initial_state(1, 4)


def test_a_state_takes_no_mask(averaging):
    model = build(averaging, Head.language_modelling)
    with pytest.raises(ValueError, match="only rows without padding"):
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 3}, "heads must divide width: got heads=3, width=8"),
        ({"head_width": 3}, "Averaging has no use for head_width .*head_width=3; set it to null"),
        ({"head_width": 0}, "head_width must be at least 1: got 0"),
        ({"depth": 0}, "depth must be at least 1: got 0"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\): got 1.0"),
        ({"positions": Positions.rotary}, "Averaging does not support rotary positions"),
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

    with pytest.raises(
        Unsupported, match=r"position 0, would depend on no other token.*set it to last"
    ):
        build(OneWay, head)
    with pytest.raises(
        Unsupported, match=r"the first token, would depend on no other token: got .*pooling=first"
    ):
        build(OneWay, head, pooling=Pooling.first)
    with pytest.raises(Unsupported, match="OneWay attends only to earlier tokens"):
        Backbone(CONFIG, facts(head), [averaging, OneWay], seed=0)
    parts = 2 if head is Head.pair else 1
    for pooling in (Pooling.last, Pooling.mean):
        model = build(OneWay, head, pooling=pooling)
        changed = tokens(parts).clone()
        changed[:, :, 0] = (changed[:, :, 0] + 1) % VOCABULARY
        assert not torch.allclose(model.predict(tokens(parts))[0], model.predict(changed)[0])
