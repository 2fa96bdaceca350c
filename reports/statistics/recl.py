"""Relative effective context length: how much context a model uses, compared with other models.

    l_i(c, t)    loss of token t by model i from c tokens before it
    b(c, t)      min over the models i of l_i(c, t)
    T            the share r of tokens with the largest b(c, t)
    f_i(c, c')   mean over T of min(b(c, t), l_i(c', t))
    g_i(c, c')   (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c)

RECL of model i is the least c, from one step on and in steps, at which the next step gains less
than the threshold, g_i(c, c + step) < 0.01. Since b belongs to the group, so does the number: a
model alone has none, and in another group it has another one.

Source: Dai et al. 2019, arXiv:1901.02860, appendix C.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

SHARES = (0.1, 0.5, 1.0)
"""r, as published."""
THRESHOLD = 0.01

Losses = Mapping[int, ArrayLike]
"""By context, the loss in nats of every token, in one order."""


class EffectiveContext(NamedTuple):
    """How much context a model uses, in tokens."""

    tokens: int
    at_least: bool
    """Whether the next step was not measured, and might gain as well."""


def relative_effective_context(
    group: Mapping[str, Losses], *, step: int, share: float, threshold: float = THRESHOLD
) -> dict[str, EffectiveContext]:
    """Return the relative effective context length of each model of a group.

    Args:
        group: Losses of the same tokens by model: two models or more.
        step: Tokens that context grows by; its multiples are looked at as far as all models have
            them.
        share: r: of the tokens, the hardest ones at each context.
        threshold: The least gain, a share of perplexity.

    Raises:
        ValueError: There is one model alone, no second step, or tokens that are not the same.
    """
    if len(group) < 2:
        raise ValueError(
            f"the relative effective context length belongs to a group of models: got "
            f"{', '.join(group) or 'none'}; measure another model on the same tokens"
        )
    if step < 1 or not 0 < share <= 1:
        raise ValueError(
            f"wanted a step of at least 1 and a share above 0, at most 1: got step={step}, "
            f"share={share}"
        )
    contexts = [step]
    while all(contexts[-1] + step in losses for losses in group.values()):
        contexts.append(contexts[-1] + step)
    if len(contexts) < 2 or any(step not in losses for losses in group.values()):
        raise ValueError(
            f"two contexts of {step} and {2 * step} tokens are the fewest that can be compared: "
            f"got {', '.join(f'{name} with {sorted(losses)}' for name, losses in group.items())}"
        )
    table = {
        name: {c: np.asarray(losses[c], dtype=np.float64) for c in contexts}
        for name, losses in group.items()
    }
    sizes = {losses.shape for by_context in table.values() for losses in by_context.values()}
    if len(sizes) > 1 or sizes & {(), (0,)}:
        raise ValueError(f"losses of other tokens cannot be compared: got shapes {sorted(sizes)}")
    return {name: _effective(table, name, contexts, share, threshold) for name in group}


def _effective(
    table: Mapping[str, Mapping[int, NDArray[np.float64]]],
    name: str,
    contexts: list[int],
    share: float,
    threshold: float,
) -> EffectiveContext:
    for short, long in pairwise(contexts):
        best = np.min([by_context[short] for by_context in table.values()], axis=0)
        number = max(1, round(share * len(best)))
        hardest = np.argsort(-best, kind="stable")[:number]
        before = best[hardest].mean()
        after = np.minimum(best, table[name][long])[hardest].mean()
        if -np.expm1(after - before) < threshold:
            return EffectiveContext(short, at_least=False)
    return EffectiveContext(contexts[-1], at_least=True)
