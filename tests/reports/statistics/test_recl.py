"""Relative effective context length: against loops written from the definition, and by hand."""

import math

import numpy as np
import pytest

from lra.reports.statistics.recl import EffectiveContext, relative_effective_context


def literal(group, step, share, threshold=0.01):
    """The definition, word by word."""
    found = {}
    for name in group:
        c = step
        while True:
            if any(c + step not in losses for losses in group.values()):
                found[name] = (c, True)
                break
            tokens = range(len(group[name][c]))
            best = {t: min(losses[c][t] for losses in group.values()) for t in tokens}
            order = sorted(tokens, key=lambda t: (-best[t], t))
            hard = order[: max(1, round(share * len(order)))]
            f_short = sum(min(best[t], group[name][c][t]) for t in hard) / len(hard)
            f_long = sum(min(best[t], group[name][c + step][t]) for t in hard) / len(hard)
            gain = (math.exp(f_short) - math.exp(f_long)) / math.exp(f_short)
            if gain < threshold:
                found[name] = (c, False)
                break
            c += step
    return found


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("step", [1, 3])
def test_the_definition_in_loops(share, step):
    seen = set()
    for seed in range(12):
        draw = np.random.default_rng(seed)
        group = {}
        for name, reach in (("long", 20), ("short", 4), ("noisy", 9)):
            base = draw.gamma(2.0, 1.0, 30)
            group[name] = {
                c: base * (0.3 + 1 / min(c, reach)) + 0.02 * draw.random(30) for c in range(1, 25)
            }
        found = relative_effective_context(group, step=step, share=share)
        assert {name: tuple(one) for name, one in found.items()} == literal(group, step, share)
        seen |= set(found.values())
    assert len(seen) > 3


def test_by_hand():
    # The second token is the harder one for both at any context.
    group = {
        "a": {2: [1.0, 3.0], 4: [1.0, 2.9], 6: [1.0, 2.9]},
        "b": {2: [1.5, 3.2], 4: [0.5, 3.2], 6: [0.5, 2.0]},
    }
    # r = 0.5, T = {1}: b(2) = 3.0. a gains 1 - exp(-0.1) at 4 and nothing at 6; b, whose 3.2 is
    # no better than the group's 3.0, nothing at 4 already.
    assert relative_effective_context(group, step=2, share=0.5) == {
        "a": EffectiveContext(4, at_least=False),
        "b": EffectiveContext(2, at_least=False),
    }
    # r = 1: b(2) = (1, 3), and b gains 1 - exp(-0.25) by the first token; b(4) = (0.5, 2.9), and it
    # gains again by the second one.
    assert relative_effective_context(group, step=2, share=1.0) == {
        "a": EffectiveContext(4, at_least=False),
        "b": EffectiveContext(6, at_least=True),
    }


def test_what_another_model_knows_already_is_no_gain():
    """The number belongs to the group: beside a better model the same losses gain nothing."""
    slow = {c: np.full(5, 3.0 - 0.1 * c) for c in (1, 2, 3)}
    bad, good = ({c: np.full(5, x) for c in (1, 2, 3)} for x in (4.0, 2.0))
    beside_bad = relative_effective_context({"slow": slow, "other": bad}, step=1, share=1.0)
    beside_good = relative_effective_context({"slow": slow, "other": good}, step=1, share=1.0)
    assert beside_bad["slow"] == (3, True)
    assert beside_good["slow"] == (1, False)


@pytest.mark.parametrize("order", [8, 12, 30])
def test_a_source_of_known_order(order):
    """One model sees all of what decides the next token, 4 to 40 tokens back; the other 4."""
    entropy = np.linspace(1.0, 4.0, 50)
    group = {
        name: {c: entropy * (2 - min(c, reach) / order) for c in range(4, 44, 4)}
        for name, reach in (("whole", order), ("blind", 4))
    }
    found = relative_effective_context(group, step=4, share=0.1)
    assert order <= found["whole"].tokens < order + 4
    assert found["blind"] == (4, False)


@pytest.mark.parametrize(
    ("group", "options", "message"),
    [
        ({"a": {1: [1.0], 2: [1.0]}}, {}, "belongs to a group of models: got a; measure another"),
        ({}, {}, "got none"),
        ({"a": {1: [1.0], 2: [1.0]}, "b": {1: [1.0]}}, {}, "fewest that can be compared"),
        ({"a": {1: [1.0], 2: [1.0]}, "b": {2: [1.0]}}, {"step": 2}, "fewest that can"),
        ({"a": {1: [1.0], 2: [1.0]}, "b": {1: [1.0, 2.0], 2: [1.0, 2.0]}}, {}, "other tokens"),
        ({"a": {1: [1.0], 2: [1.0]}, "b": {1: [1.0], 2: [1.0]}}, {"share": 0.0}, "share=0.0"),
    ],
)
def test_what_cannot_be_compared(group, options, message):
    with pytest.raises(ValueError, match=message):
        relative_effective_context(group, **{"step": 1, "share": 0.5, **options})
