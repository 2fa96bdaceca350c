"""Where layers are built, and what is remembered of the law that a parameter is drawn from.

A parameter is drawn at many seeds. Of its values are remembered, by place: the means of nine of its
numbers; and of all: `within`, the deviation over seeds of one and the same number, its kurtosis,
the quantiles, and for matrices `stretch`, the mean over seeds of the largest singular value in
roots of the mean square of all: 1 where it is orthogonal. Where seeds decide nothing, `within` is
0, and means are values. Two laws are equal where no number is farther from the other's than five
standard errors.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

Draw = Mapping[str, Tensor]
"""Parameters of one layer by our names, in our layout."""
Law = dict[str, Any]


class Place(NamedTuple):
    """Width, heads, which layer of how many, and the longest input."""

    width: int
    heads: int
    layer: int
    depth: int = 5
    longest: int = 256


PLACES = Place(64, 8, 0), Place(128, 16, 2), Place(64, 8, 4)
"""Two widths; a first layer, a middle one and a last one."""
ENOUGH = 4000
"""Numbers by which a deviation is known to 2 %."""
SEEDS = 32, 1000
LIMIT = 100_000
"""Numbers that quantiles are taken of."""
SHARES = [each / 8 for each in range(1, 8)]
ERRORS = 5.0
ROUNDING = 2e-5
SLACK = 0.03
"""Of `stretch`, a mean of few numbers."""


def draws(draw: Callable[[], Draw]) -> dict[str, Tensor]:
    """Draw each parameter until its law is known; seeds are the first axis."""
    torch.manual_seed(0)
    first, second = draw(), draw()
    wanted = {
        name: min(SEEDS[1], max(SEEDS[0], ENOUGH // value.numel()))
        for name, value in first.items()
        if not torch.equal(value, second[name])
    }
    found = {name: [value, second[name]] for name, value in first.items()}
    for index in range(2, max(wanted.values(), default=0)):
        more = draw()
        for name, seeds in wanted.items():
            if index < seeds:
                found[name].append(more[name])
    return {
        name: torch.stack([each.detach().to(torch.float64) for each in values])
        for name, values in found.items()
    }


def places_of(values: Tensor) -> Tensor:
    """Return nine numbers of each seed, evenly spaced."""
    flat = values.flatten(1)
    return flat[:, torch.linspace(0, flat.shape[1] - 1, 9).round().long()]


def sample(values: Tensor) -> Tensor:
    """Return all numbers, or evenly spaced ones where there are very many."""
    flat = values.flatten()
    return flat[:: max(1, len(flat) // LIMIT) | 1][:LIMIT]


def stretch_of(values: Tensor) -> float | None:
    """Return how much longer the longest axis of matrices is than the others; None for others."""
    if values.ndim < 3 or min(values.shape[-2:]) < 8:
        return None
    sizes = torch.linalg.svdvals(values[:16])
    mean = sizes.square().mean(-1).sqrt()
    return float((sizes[..., 0] / mean).mean()) if mean.min() > 0 else None


def law_of(values: Tensor) -> Law:
    """Return what is remembered of a parameter, whose seeds are the first axis."""
    rest = values - values.mean(0)
    within = float(rest.square().sum(0).div(max(1, len(values) - 1)).mean().sqrt())
    means = [_short(float(each)) for each in places_of(values).mean(0)]
    law: Law = {"shape": list(values.shape[1:]), "means": means}
    if len(set(means)) == 1:
        law["means"] = means[:1]
    if within < ROUNDING * float(values.abs().max()) or within == 0:
        return law
    octiles = torch.quantile(sample(values), torch.tensor(SHARES, dtype=torch.float64))
    kurtosis = float(rest.pow(4).mean() / rest.square().mean().square())
    law |= {"seeds": len(values), "within": _short(within), "kurtosis": _short(kurtosis)}
    law["octiles"] = [_short(float(each)) for each in octiles]
    if (stretch := stretch_of(values)) is not None:
        law["stretch"] = _short(stretch)
    return law


def _short(value: float) -> float:
    return float(f"{value:.6g}") + 0.0


def differences(values: Tensor, law: Law) -> list[str]:
    """Say in what draws of ours (their seeds the first axis) differ from a law."""
    ours = law_of(values)
    if ours["shape"] != law["shape"]:
        return [f"shape {ours['shape']}, there {law['shape']}"]
    if ("within" in ours) != ("within" in law):
        return [f"seeds decide it {'here' if 'within' in ours else 'there'} alone"]
    found = []
    sigma = law.get("within", 0.0)
    fewer = math.sqrt(1 / len(values) + 1 / law.get("seeds", len(values)))
    for here, there in zip(*(each["means"] for each in _alike(ours, law)), strict=True):
        if abs(here - there) > ERRORS * sigma * fewer + ROUNDING * (abs(there) + sigma):
            found.append(f"mean {here:.5g}, there {there:.5g}")
    if not sigma:
        return found
    size = math.prod(law["shape"])
    error = math.sqrt(
        max(0.1, law["kurtosis"] - 1) / (4 * size) * (1 / len(values) + 1 / law["seeds"])
    )
    if abs(ours["within"] / sigma - 1) > ERRORS * error + ROUNDING:
        found.append(f"deviation {ours['within']:.5g}, there {sigma:.5g}")
    flat = sample(values).sort().values
    fewer = math.sqrt(1 / len(flat) + 1 / min(LIMIT, size * law["seeds"]))
    for share, value in zip(SHARES, law["octiles"], strict=True):
        near = torch.tensor([value - ROUNDING * abs(value), value + ROUNDING * abs(value)])
        low, high = (torch.searchsorted(flat, near.to(flat)) / len(flat)).tolist()
        allowed = ERRORS * math.sqrt(share * (1 - share)) * fewer
        if not low - allowed <= share <= high + allowed:
            found.append(f"{low:.3f} of the numbers below {value:.5g}, there {share:.3f}")
    if "stretch" in law and abs(ours["stretch"] / law["stretch"] - 1) > SLACK:
        found.append(f"stretch {ours['stretch']:.4g}, there {law['stretch']:.4g}")
    return found


def _alike(*laws: Law) -> list[Law]:
    longest = max(len(law["means"]) for law in laws)
    return [{"means": law["means"] * (longest if len(law["means"]) == 1 else 1)} for law in laws]
