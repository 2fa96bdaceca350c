"""Sensitivity to options: scores of all trials against each option that was searched.

Where a search has one option, or an option few values, lines join means over what shares a value;
else there are points alone, since the other options differ from one to the next.
"""

from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

from lra.reports.figures.drawing import Look, legend_name, named_looks
from lra.reports.figures.findings import FEW, model_list
from lra.reports.figures.small_multiples import draw_panels
from lra.reports.rows import model_order
from lra.reports.sections.tuning_curves import looks_of
from lra.reports.tables.costs import significant
from lra.reports.tables.places import by_place, place_title
from lra.reports.tables.scores import Score, score_of
from lra.reports.tables.searches import (
    ARM,
    PLACE,
    Searches,
    as_number,
    good_trials,
    log_options,
    option_name,
    whole,
)

POINT_PANEL = (*PLACE, "metric", "option")
_MOST_VALUES = 6
"""Of an option that has a place of its own for each."""
_BESIDE = 0.14
"""Of the distance of such places, between models."""
_EDGE = 0.05
"""Of the height of a plot: how far from its worse edge the crosses of failed trials stand."""


def point_data(searches: Searches, metric: str) -> pd.DataFrame:
    """Return a line for each trial of full length and option, and for each that failed."""
    records = []
    for arm, trials in searches.per_arm(metric):
        picked = {(c.study, c.trial) for c in searches.choices.get(arm, [])}
        logs, best = log_options(trials), searches.best_baseline(arm, metric, "validation")
        baseline = best[1] if best else float("nan")
        failed = trials[(trials["status"] != "ok") & (trials["rung"] != "")]
        for trial in pd.concat([whole(trials), failed]).to_dict("records"):
            for option, value in trial["point"].items():
                number, point = as_number(value), trial["point"]
                records.append({
                    **dict(zip(ARM, arm, strict=True)), "metric": metric,
                    "option": option_name(option), "study": trial["study"],
                    "trial": trial["trial"], "setting": str(value), "x": number,
                    "log": option in logs, "alone": len(point) == 1, "value": trial["score"],
                    "chosen": (trial["study"], trial["trial"]) in picked,
                    "status": trial["status"], "reason": trial["reason"],
                    "baseline": baseline,
                })  # fmt: skip
    columns = [
        *ARM, "metric", "option", "study", "trial", "setting", "x", "log", "alone", "value",
        "chosen", "status", "reason", "baseline",
    ]  # fmt: skip
    data = pd.DataFrame(records, columns=columns)
    return data.sort_values([*PLACE, "option", "model", "study", "trial"], ignore_index=True)


def point_figure(data: pd.DataFrame, given: dict[str, Look]) -> Figure:
    """Draw what `point_data` returned: a panel for each place and option."""
    lost = bool((data["status"] != "ok").any())
    grey = "; dashed: the best baseline" if data["baseline"].notna().any() else ""
    parts = by_place(data, POINT_PANEL)
    looks = named_looks(looks_of(data, given), model_order([*data["model"]]), lines=False)
    return draw_panels(
        [((place_title(key), ""), part) for key, part in parts],
        partial(_draw_panel, looks=looks), plot=(2.9, 2.1),
        title=(_window(parts[0][1]) if len(parts) == 1 else "") or "Validation scores by option",
        subtitle="validation scores of trials; good: near a model's best; filled: chosen"
        f"{'; crosses at the edge: failed' if lost else ''}{grey}",
    )  # fmt: skip


def _window(part: pd.DataFrame) -> str:
    """Return how wide the good values of a logarithmic option lie, the widest window first."""
    good, widths = part[part["status"] == "ok"].assign(score=part["value"]), dict[str, float]()
    for name, trials in good.groupby("model") if part["log"].all() else ():
        values = trials["x"][good_trials(trials, str(part["metric"].iloc[0]))]
        widths[str(name)] = float(values.max() / values.min())
    option = str(part["option"].iloc[0]).rpartition(".")[2].replace("_", " ")
    texts = [
        f"{significant(widths[name], 2)}-fold for {model_list([name])}"
        for name in sorted(widths, key=lambda name: -widths[name])
    ]
    chosen = texts if len(texts) <= FEW else [texts[0], texts[-1]]
    return f"Range of good values of {option}: {', '.join(chosen)}" if len(texts) > 1 else ""


def _draw_panel(axes: Axes, part: pd.DataFrame, looks: dict[str, Look]) -> dict[str, Line2D]:
    score, placed = score_of(str(part["metric"].iloc[0])), _axis(axes, part)
    handles = {
        name: _draw(axes, placed[placed["model"] == name], looks[name], name, score)
        for name in model_order([*part["model"]])
    }
    if (level := part["baseline"].iloc[0]) == level:
        axes.axhline(score.factor * level, color="0.45", linewidth=1, linestyle=(0, (4, 3)))
    axes.set_ylabel(score.axis)
    axes.set_xlabel(str(part["option"].iloc[0]).rpartition(".")[2].replace("_", " "))
    return handles


def _axis(axes: Axes, part: pd.DataFrame) -> pd.DataFrame:
    """Set the horizontal axis; return the points with their places on it, and which are joined."""
    few = part["x"].nunique() <= min(_MOST_VALUES, len(part) // 3) and not part["log"].all()
    if part["x"].isna().any() or few:
        ordered = part.sort_values(["x", "setting"], na_position="last")
        names, models = [*dict.fromkeys(ordered["setting"])], model_order([*part["model"]])
        axes.set_xticks(range(len(names)), names)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(-0.5, len(names) - 0.5)
        beside = [_BESIDE * (models.index(m) - (len(models) - 1) / 2) for m in part["model"]]
        places = [float(names.index(text)) for text in part["setting"]]
        return part.assign(x=[a + b for a, b in zip(places, beside, strict=True)], joined=True)
    if part["log"].all():
        low, high = float(part["x"].min()), float(part["x"].max())
        axes.set_xscale("log")
        axes.set_xlim(low / 1.25, high * 1.25)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3) if high > 100 * low else (1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    return part.assign(joined=part["alone"])


def _draw(axes: Axes, points: pd.DataFrame, look: Look, name: str, score: Score) -> Line2D:
    factor, edge = score.factor, _EDGE if score.higher else 1 - _EDGE
    good, lost = points[points["status"] == "ok"], points[points["status"] != "ok"]
    open_: dict[str, Any] = {"color": look.color, "marker": look.marker, "linestyle": "none"}
    if points["joined"].all() and len(good):
        means = good.groupby("x")["value"].mean()
        axes.plot(
            means.index, factor * means, color=look.color, linewidth=1.1,
            linestyle=(0, look.dashes) if look.dashes else "-", marker="",
        )  # fmt: skip
    axes.plot(good["x"], factor * good["value"], markersize=4, markerfacecolor="white", **open_)
    best = good[good["chosen"]]
    axes.plot(best["x"], factor * best["value"], markersize=6.5, zorder=4, **open_)
    axes.plot(
        lost["x"], [edge] * len(lost), transform=axes.get_xaxis_transform(), marker="x",
        markersize=5, linestyle="none", color=look.color,
    )  # fmt: skip
    return Line2D(
        [], [], color=look.color, marker=look.marker, markersize=4, markerfacecolor="white",
        linestyle=(0, look.dashes) if look.dashes else "-", label=legend_name(name),
    )  # fmt: skip
