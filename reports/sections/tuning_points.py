"""Draw the scores of all trials of a search against each searched option.

If a search has a single option, or an option has few values, lines join the means at each value.
Otherwise there are only points, because the other options differ between neighbouring points.
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
"""The most values of an option that are drawn as categories at equal distances."""
_BESIDE = 0.14
"""The distance of two models at the same category; categories have distance 1."""
_EDGE = 0.05
"""The distance of crosses (failed trials) from the worse edge, as a fraction of the height."""


def point_data(searches: Searches, metric: str) -> pd.DataFrame:
    """Return a row for each option of each trial that reached full length or failed."""
    records = []
    for arm, trials in searches.per_arm(metric):
        chosen_trials = {(c.study, c.trial) for c in searches.choices.get(arm, [])}
        logs, best = log_options(trials), searches.best_baseline(arm, metric, "validation")
        _, baseline = best or ("", float("nan"))
        failed = trials[(trials["status"] != "ok") & (trials["rung"] != "")]
        for trial in pd.concat([whole(trials), failed]).to_dict("records"):
            for option, value in trial["point"].items():
                number, point = as_number(value), trial["point"]
                records.append({
                    **dict(zip(ARM, arm, strict=True)), "metric": metric,
                    "option": option_name(option), "study": trial["study"],
                    "trial": trial["trial"], "setting": str(value), "x": number,
                    "log": option in logs, "alone": len(point) == 1, "value": trial["score"],
                    "chosen": (trial["study"], trial["trial"]) in chosen_trials,
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
    """Return a figure of data from `point_data`: a panel for each place and option."""
    has_failures = bool((data["status"] != "ok").any())
    grey = "; dashed: score of the best baseline" if data["baseline"].notna().any() else ""
    parts = by_place(data, POINT_PANEL)
    looks = named_looks(looks_of(data, given), model_order([*data["model"]]), lines=False)
    return draw_panels(
        [((place_title(key), ""), part) for key, part in parts],
        partial(_draw_panel, looks=looks), plot=(2.9, 2.1),
        title=(_range_title(parts[0][1]) if len(parts) == 1 else "")
        or "Validation scores by option",
        subtitle="each point is a trial; filled points: chosen trials; good trials: near a model's "
        f"best{'; crosses at the edge: failed trials' if has_failures else ''}{grey}",
    )  # fmt: skip


def _range_title(part: pd.DataFrame) -> str:
    """Return a title with the ratio of the largest to the smallest good value, by model."""
    ok, widths = part[part["status"] == "ok"].assign(score=part["value"]), dict[str, float]()
    for name, trials in ok.groupby("model") if part["log"].all() else ():
        values = trials["x"][good_trials(trials, str(part["metric"].iloc[0]))]
        widths[str(name)] = float(values.max() / values.min())
    option = str(part["option"].iloc[0]).rpartition(".")[2].replace("_", " ")
    texts = [
        f"{significant(widths[name], 2)}-fold for {model_list([name])}"
        for name in sorted(widths, key=lambda name: -widths[name])
    ]
    shown = texts if len(texts) <= FEW else [texts[0], texts[-1]]
    return f"Good values of {option} span a range: {', '.join(shown)}" if len(texts) > 1 else ""


def _draw_panel(axes: Axes, part: pd.DataFrame, looks: dict[str, Look]) -> dict[str, Line2D]:
    """Draw the trials of one panel against one option; return a handle for each model."""
    score, placed = score_of(str(part["metric"].iloc[0])), _set_axis(axes, part)
    handles = {
        name: _draw_points(axes, placed[placed["model"] == name], looks[name], name, score)
        for name in model_order([*part["model"]])
    }
    if pd.notna(baseline := part["baseline"].iloc[0]):
        axes.axhline(score.factor * baseline, color="0.45", linewidth=1, linestyle=(0, (4, 3)))
    axes.set_ylabel(score.axis)
    axes.set_xlabel(str(part["option"].iloc[0]).rpartition(".")[2].replace("_", " "))
    return handles


def _set_axis(axes: Axes, part: pd.DataFrame) -> pd.DataFrame:
    """Set the horizontal axis; return the points with `x` on it, and whether they are `joined`.

    Words are categories, and so are few numbers (three trials for each) that span no decade.
    """
    few_values = part["x"].nunique() <= min(_MOST_VALUES, len(part) // 3) and not part["log"].all()
    if part["x"].isna().any() or few_values:
        ordered = part.sort_values(["x", "setting"], na_position="last")
        names, models = [*dict.fromkeys(ordered["setting"])], model_order([*part["model"]])
        axes.set_xticks(range(len(names)), names)
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_xlim(-0.5, len(names) - 0.5)
        offsets = [_BESIDE * (models.index(m) - (len(models) - 1) / 2) for m in part["model"]]
        places = [float(names.index(text)) for text in part["setting"]]
        return part.assign(x=[a + b for a, b in zip(places, offsets, strict=True)], joined=True)
    if part["log"].all():
        low, high = float(part["x"].min()), float(part["x"].max())
        axes.set_xscale("log")
        axes.set_xlim(low / 1.25, high * 1.25)
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 3) if high > 100 * low else (1, 2, 5)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    return part.assign(joined=part["alone"])


def _draw_points(axes: Axes, points: pd.DataFrame, look: Look, name: str, score: Score) -> Line2D:
    """Draw the trials of one model, and a line through their means; return its handle."""
    factor, edge = score.factor, _EDGE if score.higher else 1 - _EDGE
    ok, failed = points[points["status"] == "ok"], points[points["status"] != "ok"]
    form: dict[str, Any] = {"color": look.color, "marker": look.marker, "linestyle": "none"}
    if points["joined"].all() and len(ok):
        means = ok.groupby("x")["value"].mean()
        axes.plot(
            means.index, factor * means, color=look.color, linewidth=1.1,
            linestyle=(0, look.dashes) if look.dashes else "-", marker="",
        )  # fmt: skip
    axes.plot(ok["x"], factor * ok["value"], markersize=4, markerfacecolor="white", **form)
    chosen = ok[ok["chosen"]]
    axes.plot(chosen["x"], factor * chosen["value"], markersize=6.5, zorder=4, **form)
    axes.plot(
        failed["x"], [edge] * len(failed), transform=axes.get_xaxis_transform(), marker="x",
        markersize=5, linestyle="none", color=look.color,
    )  # fmt: skip
    return Line2D(
        [], [], color=look.color, marker=look.marker, markersize=4, markerfacecolor="white",
        linestyle=(0, look.dashes) if look.dashes else "-", label=legend_name(name),
    )  # fmt: skip
