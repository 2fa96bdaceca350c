"""Draw tuning curves: the best validation score of k trials, against k and against cost."""

from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from lra.reports.figures.drawing import Look, legend_name, looks, named_looks
from lra.reports.figures.findings import at_end, best_models
from lra.reports.figures.small_multiples import draw_panels
from lra.reports.rows import model_order
from lra.reports.statistics.intervals import LEVEL
from lra.reports.statistics.tuning import (
    ABSENT,
    STUDIES,
    Array,
    TuningCurve,
    expected_best,
    running_best,
    tuning_curve,
)
from lra.reports.tables.places import by_place, place_title
from lra.reports.tables.scores import Score, score_of
from lra.reports.tables.searches import ARM, PLACE, Searches, independent, of_trials, whole

COSTS = {
    "trials": ("numbers of trials", "trials (k)"),
    "hours": ("hours", "hours of training"),
    "multiply-adds": ("multiply-adds", "multiply-adds of training"),
}
"""Budgets of a search: the words for a budget, and the label of its axis."""
CURVE_PANEL = (*PLACE, "metric", "against")
_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


class Curve(NamedTuple):
    """The tuning curve of one arm."""

    arm: tuple[Any, ...]
    curve: TuningCurve
    expected: Any
    """The mean of the best of k trials; array (n)."""
    note: str
    """Why the curve has no band, or is not a median of independent draws; "" otherwise."""
    costs: dict[str, float]
    """The mean cost of a trial, by key of `COSTS`; NaN if it is unknown."""

    @property
    def banded(self) -> bool:
        """Whether the curve has a band for all k at once."""
        return not self.note

    def at_costs(self, budget: str, costs: Array) -> TuningCurve:
        """Return the curve at these `costs`: with the most trials they pay for, at least one."""
        # 1e-9 is for rounding: a budget of exactly k trials pays for k.
        counts = np.maximum(1, (costs / self.costs[budget] + 1e-9).astype(int))
        return TuningCurve(*(line[np.minimum(counts, len(line)) - 1] for line in self.curve))


def arm_curves(searches: Searches, metric: str) -> Iterator[Curve]:
    """Yield the curve of every arm that has a trial of full length."""
    for arm, trials in searches.per_arm(metric):
        drawn = whole(trials)
        if drawn.empty:
            continue
        scores, rungs = [float(value) for value in drawn["score"]], set(trials["rung"]) != {""}
        if not independent(trials):
            by_study = [[*part["score"]] for _, part in drawn.groupby("study")]
            curve = running_best(by_study, metric)
            expected = np.full_like(curve.best, np.nan)
            why = "rungs" if rungs else f"search={trials['sampler'].iloc[0]}"
            over = f"{len(by_study)} searches" if len(by_study) > 1 else "one search"
            band = "t intervals at each k" if len(by_study) >= STUDIES else "no band"
            note = (
                f"Trials depend on each other ({why}), so the curve is the best score so far, as a "
                f"mean over {over} with {band}."
            )
        else:
            curve = tuning_curve(scores, metric)
            expected = expected_best(scores, metric)
            note = ABSENT if np.isnan(curve.low).all() else ""
        yield Curve(arm, curve, expected, note, _mean_costs(trials))


def _mean_costs(trials: pd.DataFrame) -> dict[str, float]:
    """Return the mean cost of a trial with its rungs; hours only from one undisturbed machine."""
    means = of_trials(trials[trials["trial"] > 0]).mean()
    hours_known = trials["device"].nunique() == 1 and not any(trials["disturbed"])
    return {
        "trials": 1.0,
        "hours": float(means["time"]) / 3600 if hours_known else float("nan"),
        "multiply-adds": float(means["multiply_adds"]),
    }


def curve_data(searches: Searches, metric: str) -> pd.DataFrame:
    """Return the points of all curves, against trials and against each known cost."""
    records, curves = [], [*arm_curves(searches, metric)]
    for against in COSTS:
        for arm, curve, expected, note, costs in curves:
            if np.isnan(cost := costs[against]):
                continue
            for k, (best, low, high, mean) in enumerate(zip(*curve, expected, strict=True), 1):
                records.append({
                    **dict(zip(ARM, arm, strict=True)), "metric": metric, "against": against,
                    "k": k, "x": k * cost, "value": best, "low": low, "high": high,
                    "expected": mean, "note": note,
                })  # fmt: skip
    columns = [*ARM, "metric", "against", "k", "x", "value", "low", "high", "expected", "note"]
    data = pd.DataFrame(records, columns=columns)
    return data.sort_values([*PLACE], ignore_index=True)  # stable: arms keep their order


def curve_figure(data: pd.DataFrame, given: dict[str, Look]) -> Figure:
    """Return a figure of data from `curve_data`: a panel for each place and cost."""
    independent_draws = data["note"].isin(["", ABSENT])
    words = "median of the best of k trials" if independent_draws.any() else "best of k trials"
    if (data["note"] == "").any():
        words += f"; {100 * LEVEL:g} % bands, which hold for all k together"
    parts = by_place(data, CURVE_PANEL)
    places = [*dict.fromkeys(place_title(key) for key, _ in parts)]
    ends = [at_end(part, "k") for key, part in parts if key[-1] == "trials"]
    finding = best_models(ends) if len(places) == 1 else ""
    looks = named_looks(looks_of(data, given), model_order([*data["model"]]), lines=True)
    return draw_panels(
        [((f"by {COSTS[key[-1]][0]}" if len(places) == 1 else place_title(key), ""), part)
         for key, part in parts],
        partial(_draw_panel, looks=looks), plot=(2.3, 1.9), across=data["against"].nunique(),
        title=f"After {ends[0]['k'].iloc[0]} trials, {finding}" if finding else "Tuning curves",
        subtitle=f"{', '.join(places) if len(places) == 1 else ''}, validation split; {words}",
        notes=[note for note in dict.fromkeys(data["note"]) if note],
    )  # fmt: skip


def _draw_panel(axes: Axes, part: pd.DataFrame, looks: dict[str, Look]) -> dict[str, Line2D]:
    """Draw the curves of one panel against trials or a cost; return a handle for each model."""
    score, against = score_of(str(part["metric"].iloc[0])), str(part["against"].iloc[0])
    axes.set_ylim(*_vertical_limits(part, score.factor))
    part, unit = _scale_costs(part)
    axes.set_xlabel(f"{COSTS[against][1]}{unit}")
    axes.set_ylabel(f"best {score.axis}")
    handles = {
        name: _draw_curve(axes, part[part["model"] == name], looks[name], name, score)
        for name in model_order([*part["model"]])
    }
    if against == "trials":
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return handles


def looks_of(data: pd.DataFrame, given: dict[str, Look]) -> dict[str, Look]:
    """Return the looks of arms: those that are `given`, and new ones for all other arms."""
    return looks([*dict.fromkeys(data["model"])]) | given


def _scale_costs(part: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Return costs divided by a thousand, a million and so on, and the unit, as in " (10⁶)"."""
    power = 3 * int(np.log10(float(part["x"].max())) // 3)
    if power <= 0:
        return part, ""
    return part.assign(x=part["x"] / 10.0**power), f" (10{str(power).translate(_RAISED)})"


def _vertical_limits(part: pd.DataFrame, factor: float) -> tuple[float, float]:
    """Return finite ends of the vertical axis, although a band may reach to infinity."""
    numbers = factor * part[["value", "low", "high"]].to_numpy(dtype=float)
    numbers = numbers[np.isfinite(numbers)]
    low, high = float(numbers.min()), float(numbers.max())
    margin = 0.04 * (high - low or abs(high) or 1.0)
    return low - margin, high + margin


def _draw_curve(axes: Axes, line: pd.DataFrame, look: Look, name: str, score: Score) -> Line2D:
    """Draw one curve with its band, cut at the vertical limits; return its handle."""
    factor, limits = score.factor, axes.get_ylim()
    x = line["x"].to_numpy(dtype=float)
    best, low, high = (factor * line[c].to_numpy(dtype=float) for c in ("value", "low", "high"))
    best = np.where(np.isfinite(best), best, np.nan)
    (handle,) = axes.plot(
        x, best, color=look.color, linestyle=(0, look.dashes) if look.dashes else "-",
        marker=look.marker, markersize=3.5, markevery=max(1, len(x) // 8), linewidth=1.4,
        label=legend_name(name),
    )  # fmt: skip
    below, above = (np.clip(side, *limits) for side in (low, high))
    axes.fill_between(x, below, above, color=look.color, alpha=0.15, linewidth=0)
    return handle
