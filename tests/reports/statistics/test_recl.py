"""Relative effective context length: against loops written from the definition."""

import math

import numpy as np
import pytest

from lra.reports.statistics.recl import relative_effective_context


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


@pytest.mark.parametrize(
    ("group", "options", "message"),
    [
        ({"a": {1: [1.0], 2: [1.0]}}, {}, "needs at least two models: got a; measure another"),
        ({}, {}, "got none"),
        (
            {"a": {1: [1.0], 2: [1.0]}, "b": {1: [1.0]}},
            {},
            "each model needs losses at contexts of 1 and 2",
        ),
        (
            {"a": {1: [1.0], 2: [1.0]}, "b": {2: [1.0]}},
            {"step": 2},
            "each model needs losses at contexts",
        ),
        (
            {"a": {1: [1.0], 2: [1.0]}, "b": {1: [1.0, 2.0], 2: [1.0, 2.0]}},
            {},
            "losses of the same tokens",
        ),
        ({"a": {1: [1.0], 2: [1.0]}, "b": {1: [1.0], 2: [1.0]}}, {"share": 0.0}, "share=0.0"),
    ],
)
def test_what_cannot_be_compared(group, options, message):
    with pytest.raises(ValueError, match=message):
        relative_effective_context(group, **{"step": 1, "share": 0.5, **options})
