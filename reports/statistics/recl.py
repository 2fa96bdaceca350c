"""Relative effective context length (RECL): how much context a model uses, compared with others.

    l_i(c, t)    loss of token t by model i from c tokens before it
    b(c, t)      min over the models i of l_i(c, t)
    T            the fraction r of tokens with the largest b(c, t)
    f_i(c, c')   mean over T of min(b(c, t), l_i(c', t))
    g_i(c, c')   (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c)

The RECL of model i is the smallest c among step, 2 step, 3 step, ... with g_i(c, c + step) < 0.01:
a longer context improves its perplexity by less than 1 %. It depends on all models of the group,
because b does, so a single model has no RECL.

Source: Dai et al. 2019, arXiv:1901.02860, appendix C.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

SHARES = (0.1, 0.5, 1.0)
"""The published values of r."""
THRESHOLD = 0.01

Losses = Mapping[int, ArrayLike]
"""The loss of each token in nats, by context. All contexts have the same tokens in one order."""


class EffectiveContext(NamedTuple):
    """How much context a model uses, in tokens."""

    tokens: int
    at_least: bool
    """Whether the true value may be larger, because no longer context was measured."""


def relative_effective_context(
    group: Mapping[str, Losses], *, step: int, share: float, threshold: float = THRESHOLD
) -> dict[str, EffectiveContext]:
    """Return the relative effective context length of each model of a group.

    Args:
        group: the losses of at least two models on the same tokens, by model.
        step: the difference of contexts in tokens. Contexts are step, 2 step and so on, as far as
            all models have them.
        share: the fraction r of tokens, of which the hardest at each context count.
        threshold: the smallest gain, as a fraction of perplexity.

    Raises:
        ValueError: the group has a single model, fewer than two contexts, or different tokens.
    """
    if len(group) < 2:
        raise ValueError(
            f"the relative effective context length needs at least two models: got "
            f"{', '.join(group) or 'none'}; measure another model on the same tokens"
        )
    if step < 1 or not 0 < share <= 1:
        raise ValueError(
            f"step and share: got step={step}, share={share}; wanted a step of at least 1 and a "
            "share above 0 and at most 1"
        )
    contexts = [step]
    while all(contexts[-1] + step in losses for losses in group.values()):
        contexts.append(contexts[-1] + step)
    if len(contexts) < 2 or any(step not in losses for losses in group.values()):
        raise ValueError(
            f"each model needs losses at contexts of {step} and {2 * step} tokens: "
            f"got {', '.join(f'{name} with {sorted(losses)}' for name, losses in group.items())}"
        )
    table = {
        name: {c: np.asarray(losses[c], dtype=np.float64) for c in contexts}
        for name, losses in group.items()
    }
    sizes = {losses.shape for by_context in table.values() for losses in by_context.values()}
    if len(sizes) > 1 or sizes & {(), (0,)}:
        raise ValueError(
            "all models and contexts must have losses of the same tokens: got arrays of shapes "
            f"{sorted(sizes)}"
        )
    return {name: _recl_of_model(table, name, contexts, share, threshold) for name in group}


def _recl_of_model(
    table: Mapping[str, Mapping[int, NDArray[np.float64]]],
    name: str,
    contexts: list[int],
    share: float,
    threshold: float,
) -> EffectiveContext:
    """Return the RECL of `name` by the formulas above; `table` has losses by model and context."""
    for short, long in pairwise(contexts):
        best = np.min([by_context[short] for by_context in table.values()], axis=0)  # b, (tokens)
        number = max(1, round(share * len(best)))
        hardest = np.argsort(-best, kind="stable")[:number]  # T
        before = best[hardest].mean()  # f(c, c)
        after = np.minimum(best, table[name][long])[hardest].mean()  # f(c, c + step)
        if -np.expm1(after - before) < threshold:  # g(c, c + step)
            return EffectiveContext(short, at_least=False)
    return EffectiveContext(contexts[-1], at_least=True)
