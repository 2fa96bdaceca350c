"""Figures of the approximation lab: error against budget, against time, against length."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullFormatter, NullLocator

from lra.reports.figures.curves import PANELS
from lra.reports.figures.drawing import Look, legend_name, style
from lra.reports.figures.layout import Sheet, arrange, chunks, sheet
from lra.reports.figures.scaling import draw_marks
from lra.reports.rows import model_order
from lra.reports.sections.approximation import (
    ROUNDING,
    describe,
    measure_title,
    measures,
    of_measure,
    over_layers,
)

_PLOT, _ALONE = (1.95, 1.75), (4.2, 2.3)
"""Inches of one of several plots, and of a single one."""
EXACT = "exact attention (SDPA)"
KERNELS = {
    "softmax": ("positive", "#0072B2", "o"),
    "hyperbolic": ("hyperbolic", "#009E73", "^"),
    "trigonometric": ("trigonometric", "#D55E00", "s"),
}
"""Estimators of the softmax kernel: name, colour and marker."""
DRAWS = {"true": "orthogonal", "false": "independent"}
ROOT = "1 / √features"


def _sheet(panels: int) -> Sheet:
    return sheet(panels, plot=_PLOT if panels > 1 else _ALONE, across=2 if panels == 4 else 3)


def _draw_line(
    axes: Axes, x: Any, line: pd.DataFrame, look: Look, label: str, *, band: bool = True
) -> Line2D:
    (drawn,) = axes.plot(
        x,
        line["value"].astype(float),
        color=look.color,
        marker=look.marker,
        markersize=4,
        markerfacecolor="white" if look.marker in "sDv" else look.color,
        linestyle=(0, look.dashes) if look.dashes else "-",
        linewidth=1.3,
        label=label,
        zorder=3,
    )
    if band and (line["high"] > line["low"]).any():
        axes.fill_between(
            x, line["low"].astype(float), line["high"].astype(float),
            color=look.color, alpha=0.15, linewidth=0, zorder=2,
        )  # fmt: skip
    return drawn


def _doubling(axes: Axes, values: Sequence[int]) -> None:
    """Scale the horizontal axis by powers of two, and name the values that were measured."""
    axes.set_xscale("log", base=2)
    ticks = sorted(set(values))
    step = -(-len(ticks) // 7)
    axes.xaxis.set_major_locator(FixedLocator([float(v) for v in ticks[::-1][::step][::-1]]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:,.0f}"))


def _vertical(axes: Axes, metric: str) -> None:
    """Scale the vertical axis: errors by powers of ten, shares from 0 to 1."""
    if metric == "topk_mass_recall":
        axes.set_ylim(0, 1.04)
        return
    axes.set_yscale("log")
    if axes.get_ylim()[0] <= 0:  # no error is more than rounding: nothing is drawn
        axes.set_ylim(0.1, 10)
    _powers(axes.yaxis, axes.get_ylim())


def _powers(axis: Axis, limits: tuple[float, float]) -> None:
    """Name powers of ten, and 2 and 5 between them where there are few."""
    narrow = limits[1] / limits[0] < 60
    axis.set_major_locator(LogLocator(base=10, subs=(1, 2, 5) if narrow else (1,)))
    axis.set_minor_locator(LogLocator(base=10, subs=tuple(range(2, 10))))
    axis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axis.set_minor_formatter(NullFormatter())


def _drawable(data: pd.DataFrame) -> pd.DataFrame:
    """Leave out errors that are nothing but rounding: a logarithmic axis has no zero."""
    rounding = (data["measure"] != "topk_mass_recall") & (data["value"] < ROUNDING)
    return data[~rounding]


def _names(data: pd.DataFrame) -> dict[str, str]:
    """Return the label of each model in the legend, in the order of tables."""
    options = data.drop_duplicates("model").set_index("model")["option"]
    return {
        m: legend_name(f"{m}: {options[m]}") for m in model_order([str(m) for m in options.index])
    }


def budget_figure(
    data: pd.DataFrame, looks: dict[str, Look], *, mode: str, length: int, subtitle: str = ""
) -> Figure:
    """Draw every measure of one length against the budget, a panel for each.

    Lines are means over draws and layers, bands their extremes. Errors that are nothing but
    rounding are left out.
    """
    means = over_layers(data[(data["mode"] == mode) & (data["length"] == length)])
    heads, names = measures(means), _names(means)
    with style():
        grid = _sheet(len(heads))
        handles: dict[str, Line2D] = {}
        for axes, head in zip(grid.axes, heads, strict=True):
            points = _drawable(of_measure(means, *head))
            for model, label in names.items():
                line = points[points["model"] == model].sort_values("budget")
                drawn = _draw_line(axes, line["budget"].astype(float), line, looks[model], label)
                handles.setdefault(model, drawn)
            _doubling(axes, [int(b) for b in means["budget"]])
            _vertical(axes, head[0])
            axes.set_title(measure_title(*head), size=8.5)
            axes.set_ylabel("share" if head[1] else "relative error", size=8)
            axes.set_xlabel("budget (option in the legend)", size=8)
            axes.tick_params(labelsize=7)
        arrange(
            grid,
            title=f"Error against budget, {describe(mode)}, {length:,} tokens",
            subtitle=_about(subtitle, means),
            handles=[*handles.values()],
        )
    return grid.figure


def _about(subtitle: str, data: pd.DataFrame, what: str = "bands: extremes over draws") -> str:
    layers = int(data["layers"].max()) if len(data) else 1
    words = f"mean over draws and {layers} layers" if layers > 1 else "mean over draws"
    exact = "points without error are left out" if (data["value"] < ROUNDING).any() else ""
    return "; ".join(filter(None, (subtitle, f"{words}, {what}", exact)))


def time_figure(
    data: pd.DataFrame, looks: dict[str, Look], *, mode: str, subtitle: str = ""
) -> Figure:
    """Draw the output error against the time of the core, a panel for each length.

    Times are in units of exact attention, the medians of paired ratios: they compare neighbours in
    time. A line joins the budgets of a family.
    """
    means = over_layers(of_measure(data[data["mode"] == mode], "output_error", ""))
    means = means[means["time_ratio"].notna()]
    lengths, names = sorted(set(means["length"])), _names(means)
    with style():
        grid = _sheet(len(lengths))
        handles: dict[str, Line2D] = {}
        for axes, length in zip(grid.axes, lengths, strict=True):
            here = means[means["length"] == length]
            for model, label in names.items():
                line = _drawable(here[here["model"] == model]).sort_values("budget")
                times = line["time_ratio"].astype(float)
                drawn = _draw_line(axes, times, line, looks[model], label, band=False)
                drawn.set_markevery([n for n, why in enumerate(line["disturbed"]) if not why])
                draw_marks(axes, line.assign(length=line["time_ratio"]), looks[model])
                handles.setdefault(model, drawn)
                if len(line) and not line["disturbed"].iloc[-1]:
                    last = line.iloc[-1]
                    axes.plot(
                        [last["time_ratio"]], [last["value"]], color=looks[model].color,
                        marker=looks[model].marker, markersize=6.5, linestyle="none", zorder=4,
                    )  # fmt: skip
            handles["exact"] = axes.axvline(
                1.0, color="0.4", linestyle="--", linewidth=1, label=EXACT
            )
            axes.set_xscale("log")
            _powers(axes.xaxis, axes.get_xlim())
            _vertical(axes, "output_error")
            axes.set_title(f"{length:,} tokens", size=8.5)
            axes.set_ylabel("output error (relative)", size=8)
            axes.set_xlabel("time of the core / exact attention", size=8)
            axes.tick_params(labelsize=7)
        arrange(
            grid,
            title=f"Error against time, {describe(mode)}",
            subtitle=_about(
                subtitle, means, "a line joins the budgets of a family up to the large marker"
            ),
            handles=[*handles.values()],
        )
    return grid.figure


def length_figure(
    data: pd.DataFrame, looks: dict[str, Look], *, mode: str, subtitle: str = ""
) -> Figure:
    """Draw the output error against the length, a panel for each budget of several families."""
    means = over_layers(of_measure(data[data["mode"] == mode], "output_error", ""))
    budgets = shared_budgets(means)
    means = means[means["budget"].isin(budgets)]
    names = _names(means)
    with style():
        grid = _sheet(len(budgets))
        handles: dict[str, Line2D] = {}
        for axes, budget in zip(grid.axes, budgets, strict=True):
            here = _drawable(means[means["budget"] == budget])
            for model, label in names.items():
                line = here[here["model"] == model].sort_values("length")
                drawn = _draw_line(axes, line["length"].astype(float), line, looks[model], label)
                handles.setdefault(model, drawn)
            _doubling(axes, [int(n) for n in means["length"]])
            _vertical(axes, "output_error")
            axes.set_title(f"budget {budget:,}", size=8.5)
            axes.set_ylabel("output error (relative)", size=8)
            axes.set_xlabel("sequence length (tokens)", size=8)
            axes.tick_params(labelsize=7)
        arrange(
            grid,
            title=f"Error against length, {describe(mode)}",
            subtitle=_about(subtitle, means),
            handles=[*handles.values()],
        )
    return grid.figure


def shared_budgets(data: pd.DataFrame) -> list[int]:
    """Return in rising order the six commonest budgets that most families were measured with."""
    count = data.groupby("budget")["model"].nunique()
    chosen = count[count >= max(1, count.max() / 2)].sort_values(ascending=False, kind="stable")
    return sorted(int(b) for b in chosen.index[:6])


def feature_data(data: pd.DataFrame) -> pd.DataFrame:
    """Return the output errors of the estimators of the softmax kernel, where there are several."""
    errors = of_measure(data[data["kernel"].isin(KERNELS)], "output_error", "")
    if errors[["kernel", "orthogonal"]].drop_duplicates().shape[0] < 2:
        return errors.iloc[:0]
    return errors


def feature_pages(data: pd.DataFrame, further: Mapping[str, str]) -> list[pd.DataFrame]:
    """Return what `feature_data` returned in parts that one figure each can hold."""
    panels = pd.Series(_panels(data, further), index=data.index)
    return [data[panels.isin(part)] for part in chunks(sorted(set(panels)), PANELS)]


def _panels(data: pd.DataFrame, further: Mapping[str, str]) -> list[tuple[int, str]]:
    return [(int(n), further[str(m)]) for n, m in zip(data["length"], data["model"], strict=True)]


def feature_figure(
    data: pd.DataFrame, further: Mapping[str, str], *, mode: str, subtitle: str = ""
) -> Figure:
    """Draw what `feature_data` returned against the number of features.

    A panel for each length and each setting of further options. Colours distinguish the kernels,
    solid lines orthogonal from dashed independent draws. The dotted line falls as the root of the
    number of features.

    Args:
        data: the errors.
        further: the words of the other settings, by model: see `further_words`.
        mode: which of the data.
        subtitle: what they have in common.
    """
    means = over_layers(data[data["mode"] == mode])
    means = means.assign(further=[words for _, words in _panels(means, further)])
    panels = sorted(set(_panels(means, further)))
    labels = [
        f"{name}, {word}"
        for kernel, (name, *_) in KERNELS.items()
        for draw, word in DRAWS.items()
        if ((means["kernel"] == kernel) & (means["orthogonal"] == draw)).any()
    ]
    with style():
        grid = _sheet(len(panels))
        handles: dict[str, Line2D] = {}
        for axes, (length, words) in zip(grid.axes, panels, strict=True):
            here = means[(means["length"] == length) & (means["further"] == words)]
            for kernel, (name, color, marker) in KERNELS.items():
                for draw, word in DRAWS.items():
                    line = here[(here["kernel"] == kernel) & (here["orthogonal"] == draw)]
                    line = line.sort_values("budget")
                    look = Look(color, marker, () if draw == "true" else (4, 2))
                    x = line["budget"].astype(float)
                    drawn = _draw_line(axes, x, line, look, f"{name}, {word}")
                    handles.setdefault(str(drawn.get_label()), drawn)
            budgets = np.array(sorted(set(here["budget"])), dtype=float)
            start = float(here[here["budget"] == budgets[0]]["value"].min())
            root = start * np.sqrt(budgets[0] / budgets)
            (handles[ROOT],) = axes.plot(
                budgets, root, color="0.5", linestyle=":", linewidth=1.2, label=ROOT
            )
            _doubling(axes, [int(b) for b in budgets])
            _vertical(axes, "output_error")
            axes.set_title(f"{length:,} tokens{words}", size=8.5)
            axes.set_ylabel("output error (relative)", size=8)
            axes.set_xlabel("features", size=8)
            axes.tick_params(labelsize=7)
        arrange(
            grid,
            title=f"Random features, {describe(mode)}",
            subtitle=_about(subtitle, means),
            handles=[handles[label] for label in [*labels, ROOT]],
        )
    return grid.figure
