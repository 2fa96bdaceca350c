"""Draw the final scores of all models as points with their intervals, the best one first."""

from functools import partial

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from lra.reports.figures.drawing import Look
from lra.reports.figures.findings import best_models
from lra.reports.figures.small_multiples import draw_panels
from lra.reports.figures.words import NAMES, font_size, wrap
from lra.reports.names import display_name
from lra.reports.rows import MARKS, model_order
from lra.reports.sections.score_data import PANEL, panel_words, score_data
from lra.reports.sections.section import PagesPart, Section
from lra.reports.statistics.intervals import LEVEL
from lra.reports.style import current_style
from lra.reports.tables.places import by_place
from lra.reports.tables.scores import score_of

_PLOT = 2.6
"""Width of a plot in inches."""
_STUB = 1.2
"""Width in inches of the longest line of a name."""
_LOWEST = 1.2
"""The least height of a panel in inches."""
_LINE, _GAP = 1.25, 0.05
"""Distance of two lines of a name, in heights of a letter, and of two names, in inches."""
_EDGE = 0.6
"""Distance of the first and the last point from the border, in rows."""
_GREY = "0.45"
MODELS = 40
"""The most models of one figure."""


def dots_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return `score_data` of panels with at least one model and at least two scores."""
    data = score_data(rows)
    if data.empty:
        return data
    panels = data.assign(is_model=data["baseline"] == "").groupby(list(PANEL), dropna=False)
    comparable = panels["is_model"].transform("any") & (panels["score"].transform("count") > 1)
    return data[comparable].reset_index(drop=True)


def dots_figure(data: pd.DataFrame, looks: dict[str, Look]) -> Figure:
    """Return a figure of data from `dots_data`: a panel for each task and score."""
    panels = [
        (panel_words(PANEL, key), part[part["score"].notna()])
        for key, part in by_place(data, PANEL)
    ]
    size = font_size("ticks", NAMES)
    labels = [_ordered_labels(part, size) for _, part in panels]
    lines = max(label.count("\n") + 1 for by_name in labels for label in by_name.values())
    row_height = _LINE * lines * size / 72 + _GAP
    height = max(_LOWEST, row_height * (max(map(len, labels)) + 2 * _EDGE - 1))
    without_score = data[data["score"].isna()]
    notes = [
        f"{', '.join(part['model'])}: no point, because {MARKS.get(str(status), status)}, {reason}"
        for (status, reason), part in without_score.groupby(["status", "reason"], sort=False)
    ]
    grey = "; grey: baselines, which need no long-range model; dashed: the best baseline"
    models = [part[part["baseline"] == ""] for _, part in panels]
    return draw_panels(
        panels, partial(_draw_dots, looks=looks), plot=(_PLOT, height), rows=True, lines=False,
        title=best_models(models, "score") or f"Scores of {len({*data['model']})} models",
        subtitle=f"{data['split'].iloc[0]} split: means over seeds with {100 * LEVEL:g} % "
        "intervals over seeds (for a single seed, over examples)"
        f"{grey if (data['baseline'] != '').any() else ''}", notes=notes,
    )  # fmt: skip


def _ordered_labels(part: pd.DataFrame, size: float) -> dict[str, str]:
    """Return the label of each model, then of each baseline, by name: the best ones first.

    Models that the style puts in an order precede the others. Long labels are broken into lines.
    """
    baselines = dict(zip(part["model"], part["baseline"], strict=True))
    sign = -1 if score_of(str(part["metric"].iloc[0])).higher else 1
    scores = dict(zip(part["model"], sign * part["score"], strict=True))
    # Highlighted models do not precede others here: both have the rank after `order`.
    ranks = {n: min(current_style().rank(n), len(current_style().style.order)) for n in baselines}
    sort_keys = {n: (bool(baselines[n]), ranks[n], scores[n]) for n in baselines}
    order = sorted(model_order([*baselines]), key=sort_keys.__getitem__)
    texts = {name: display_name(baselines[name].replace("_", " ") or name, {}) for name in order}
    return {name: "\n".join(wrap(text, _STUB, size, most=4)) for name, text in texts.items()}


def _draw_dots(axes: Axes, part: pd.DataFrame, looks: dict[str, Look]) -> None:
    """Draw the point and the interval of each model in a separate row, the first on top."""
    size, scale = font_size("ticks", NAMES), score_of(str(part["metric"].iloc[0]))
    labels = _ordered_labels(part, size)
    by_name = {str(point["model"]): point for point in part.to_dict("records")}
    baselines = part["score"][part["baseline"] != ""]
    if len(baselines):
        best = scale.factor * float(baselines.max() if scale.higher else baselines.min())
        axes.axvline(best, color="0.55", linewidth=0.9, linestyle=(0, (4, 2)), zorder=1)
    for place, name in enumerate(labels):
        point = by_name[name]
        look = looks.get(name, Look(_GREY, "D", ()))
        score, low, high = (scale.factor * float(point[c]) for c in ("score", "low", "high"))
        if pd.notna(point["low"]):
            axes.plot([low, high], [place, place], color=look.color, linewidth=1.4, marker="")
        axes.plot(
            [score], [place], linestyle="none", marker=look.marker, markersize=5, color=look.color
        )
    texts = [*labels.values()]
    axes.set_ylim(len(labels) - 1 + _EDGE, -_EDGE)
    axes.set_yticks(range(len(labels)), minor=False)
    axes.set_yticks([], minor=True)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda place, _: texts[round(place)]))
    axes.tick_params(axis="y", labelsize=size)
    for name, label in zip(labels, axes.get_yticklabels(), strict=True):
        label.set_fontweight("bold" if current_style().highlighted(name) else "normal")
    axes.grid(visible=False, axis="y")
    axes.set_xlabel(scale.axis)


score_dots = Section(
    name="scores",
    heading="Scores",
    data=dots_data,
    figure=PagesPart(
        "scores", "Scores", "scores of all models with their intervals", dots_figure, panel=PANEL,
        lines=MODELS, number="score",
    ),
)  # fmt: skip
