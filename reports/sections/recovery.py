"""Show how fast fine-tuning recovers the score of the model that gave its weights.

A figure has a panel for each model, with curves of the validation score during fine-tuning and
during training from scratch with the same settings. Horizontal lines show the model that gave its
weights, and the score before the first step. The figure follows the Performer paper
(arXiv:2009.14794).
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from lra.reports.figures.findings import clause
from lra.reports.figures.small_multiples import draw_panels
from lra.reports.figures.ticks import step_axis
from lra.reports.rows import as_text, model_order, short
from lra.reports.sections.section import PagesPart, Part, TablePart, alike
from lra.reports.tables.marks import absent, failure_entry
from lra.reports.tables.pivot import listed_table
from lra.reports.tables.places import extremes, place_facts, place_words, summaries
from lra.reports.tables.scores import ACCURACY, TASK, Score, score_of
from lra.reports.tables.table import Column, Entry, Table

SCRATCH = "scratch"
TUNED, PLAIN, SOURCE = "fine-tuned", "from scratch", "source"
_COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7")
"""Colours of the models that gave their weights, in the order of their names."""
_GREY = "#7F7F7F"
MEASURES = (ACCURACY, score_of("loss"))
"""The metrics that are shown during fine-tuning."""
COLUMNS = (*TASK, "model", "start", "line", "step", "value", "low", "high", "seeds")


def recovery_data(rows: pd.DataFrame, measure: Score) -> pd.DataFrame:
    """Return means and extremes over seeds: of each curve by step, and of each source model."""
    scores = rows[(rows["runner"] == "transfer") & (rows["status"] == "ok")]
    scores = scores[scores["split"] == "validation"]
    curves = scores[(scores["metric"] == measure.metric) & scores["step"].notna()]
    lines = [PLAIN if start == SCRATCH else TUNED for start in curves["start"]]
    sources = scores[scores["metric"] == f"source_{measure.metric}"]
    both = pd.concat([curves.assign(line=lines), sources.assign(line=SOURCE)])
    both = both.assign(length=[as_text(value) for value in both["length"]])
    keys = [*TASK, "name", "start", "line", "step"]
    records = summaries(both.assign(name=both["base"]), keys, extremes)
    return pd.DataFrame(records, columns=list(COLUMNS)).astype({"step": "Int64"})


def _panels(data: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Return (columns of `TASK`, model) of each model that took weights, in the order of tables."""
    tuned = data[data["line"] == TUNED]
    keys = set(tuned[[*TASK, "model"]].itertuples(index=False, name=None))
    order = model_order([str(key[-1]) for key in keys])
    return sorted(keys, key=lambda key: (key[:-1], order.index(key[-1])))


def _panel_keys(data: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Return the keys of `_panels`; if all fine-tunings failed, those of every model."""
    return _panels(data) or sorted(set(data[[*TASK, "model"]].itertuples(index=False, name=None)))


def _selected(data: pd.DataFrame, key: tuple[Any, ...]) -> pd.DataFrame:
    """Return the data of one panel; `key` is from `_panels`."""
    part: pd.DataFrame = data[(data[[*TASK, "model"]] == list(key)).all(axis=1)]
    return part


def recovery_figure(data: pd.DataFrame, measure: Score) -> Figure:
    """Return a figure of the data from `recovery_data`; bands are the extremes over seeds.

    For losses, the axis excludes the loss of random weights, because its size would flatten all
    other lines. The line from scratch then enters the panel from above.
    """
    keys = _panel_keys(data)
    starts = sorted(set(data["start"]) - {SCRATCH})
    colors = {start: _COLORS[i % len(_COLORS)] for i, start in enumerate(starts)}
    several = len({key[:-1] for key in keys}) > 1
    panels = []
    for *place, model in keys:
        task, facts = place_words(TASK, (*place,))
        words = (f"{model}, {task}", facts) if several else (str(model), "")
        panels.append((words, _selected(data, (*place, model))))
    # Panels of a single task share their vertical scale, so that they can be compared.
    shared = None if several else data
    draw = partial(_draw_starts, shared=shared, colors=colors, measure=measure)
    return draw_panels(
        panels, draw, plot=(2.9, 1.75),
        title=_finding([part for _, part in panels], measure),
        subtitle="" if several else f"validation {measure.axis}; {place_facts(keys[0][:-1])}",
    )  # fmt: skip


def _finding(parts: Sequence[pd.DataFrame], measure: Score) -> str:
    """Return the title: for how many models the weights of another model helped in the end."""
    sign, better, compared = 1 if measure.higher else -1, list[str](), 0
    for part in parts:
        ends = part.dropna(subset="step").sort_values("step").groupby("line").last()
        if {TUNED, PLAIN} <= {*ends.index}:
            compared += 1
            tuned, plain = (
                sign * float(ends["value"].astype(float)[line]) for line in (TUNED, PLAIN)
            )
            better += [str(part["model"].iloc[0])] * (tuned > plain)
    if not compared:
        return f"Recovery: validation {measure.axis}"
    words = "a better score with the weights of another model than from scratch"
    return clause(better, compared, f"reaches {words}", f"reach {words}")


def _draw_starts(
    axes: Axes,
    data: pd.DataFrame,
    shared: pd.DataFrame | None,
    colors: dict[str, str],
    measure: Score,
) -> dict[str, Line2D]:
    """Draw the lines of one model; return a handle for the legend by the name of each line.

    `shared` is the data of all panels, if they share their vertical scale, and else None.
    """
    handles = {}

    def add_handle(label: str, **look: Any) -> dict[str, Any]:
        """Add a handle to the legend; return `look`, with which the line is drawn as well."""
        handles[label] = Line2D([], [], label=label, **look)
        return look

    def draw_curve(label: str, line: pd.DataFrame, **look: Any) -> None:
        """Draw means over seeds, and a band of extremes if there are several seeds."""
        steps = line["step"].astype(float)
        values = line[["value", "low", "high"]].astype(float) * measure.factor
        look_of_line = add_handle(label, markersize=3.5, linewidth=1.3, **look)
        axes.plot(steps, values["value"], **look_of_line)
        if (line["seeds"] > 1).any():
            band = {"color": look["color"], "alpha": 0.12, "linewidth": 0}
            axes.fill_between(steps, values["low"], values["high"], **band)

    scratch = data[data["line"] == PLAIN]
    if len(scratch):
        dashed = {"linestyle": (0, (5, 2)), "marker": "s", "markerfacecolor": "white"}
        draw_curve(PLAIN, scratch, color=_GREY, **dashed)
    for start, color in colors.items():
        of_start, weights = data[data["start"] == start], f"weights of {start}"
        tuned = of_start[of_start["line"] == TUNED]
        if len(tuned):
            before = f"{weights}, before fine-tuning"
            look = add_handle(before, color=color, linestyle=":", linewidth=1.1)
            axes.axhline(float(tuned.iloc[0]["value"]) * measure.factor, **look)
            draw_curve(f"{weights}, {TUNED}", tuned, color=color, linestyle="-", marker="o")
        for value in of_start[of_start["line"] == SOURCE]["value"]:
            look = add_handle(f"{start} itself", color=color, linewidth=3.2, alpha=0.3)
            axes.axhline(float(value) * measure.factor, **look)
    _limit_axis(axes, data if shared is None else shared, measure)
    axes.set_xlabel("optimiser step")
    axes.set_ylabel(f"validation {measure.axis}")
    step_axis(axes)
    return handles


def _limit_axis(axes: Axes, data: pd.DataFrame, measure: Score) -> None:
    """Set the limits of the vertical axis; they exclude the loss of random weights."""
    hidden = (data["line"] == PLAIN) & (data["step"] == 0).fillna(False) & (not measure.higher)
    visible = data[~hidden][["low", "high"]].astype(float) * measure.factor
    low, high = float(visible["low"].min()), float(visible["high"].max())
    if high > low:
        margin = 0.06 * (high - low)
        axes.set_ylim(low - margin, high + margin)


def recovery_table(rows: pd.DataFrame, data: pd.DataFrame, measure: Score) -> Table:
    """Return the table of the scores at the beginning and the end of the curves.

    Args:
        rows: rows from `lra.reports.rows.prepare`, with failures and counts of parameters.
        data: the data that `recovery_data` made from these rows.
        measure: the metric.
    """
    titles = ("before fine-tuning", "fine-tuned", "from scratch", "source",
              "steps to pass scratch", "parameters taken")  # fmt: skip
    lines: list[tuple[str, str, Sequence[Entry]]] = []
    tasks = list(dict.fromkeys(place_facts(key[:-1]) for key in _panels(data)))
    for key in _panels(data):
        part = _selected(data, key)
        for start in sorted(set(part[part["line"] == TUNED]["start"])):
            taken = rows[(rows["base"] == key[-1]) & (rows["start"] == start)]
            entries = _entries_of_start(part, start, taken[taken["task"] == key[0]], measure)
            section = place_facts(key[:-1]) if len(tasks) > 1 else ""
            lines.append((section, f"{key[-1]}, weights of {start}", entries))
    failed = rows[(rows["runner"] == "transfer") & (rows["status"] != "ok")]
    failed = failed[failed["start"] != SCRATCH].drop_duplicates(["base", "start", "task"])
    for _, row in failed.assign(reason=failed["reason"].map(short)).iterrows():
        title = f"{row['base']}, weights of {row['start']}"
        lines.append(("", title, [failure_entry(row)] * len(titles)))
    task_in_words = f" on {tasks[0]}" if len(tasks) == 1 else ""
    unit = "in percent" if measure.shares else "in nats (lower is better)"
    return listed_table(
        lines, [Column(title=title) for title in titles],
        title=f"Recovery: validation {measure.metric}",
        caption=f"Scores are {unit}, as means over seeds{task_in_words}. Steps to pass scratch: "
        "the step from which fine-tuning is at least as good as the last score of a training from "
        "scratch with the same settings. Parameters taken: the percentage of the model's "
        "parameters that come from the source, which is the model that gave its weights.",
    )  # fmt: skip


def _entries_of_start(
    data: pd.DataFrame, start: str, rows: pd.DataFrame, measure: Score
) -> tuple[Entry, ...]:
    """Return the entries of a model that took the weights of `start`; `rows` count parameters."""
    tuned = data[(data["line"] == TUNED) & (data["start"] == start)]
    scratch = data[data["line"] == PLAIN]
    source = data[(data["line"] == SOURCE) & (data["start"] == start)]
    last = scratch.iloc[-1] if len(scratch) else None
    return (
        _mean_entry(tuned.iloc[0] if tuned.iloc[0]["step"] == 0 else None, measure),
        _mean_entry(tuned.iloc[-1], measure),
        _mean_entry(last, measure),
        _mean_entry(source.iloc[0] if len(source) else None, measure),
        _steps_to_pass(tuned, last, measure),
        _parameters_taken(rows),
    )


def _mean_entry(row: Any, measure: Score) -> Entry:
    """Return the mean of a line of `recovery_data`, with its extremes as facts; a dash for None."""
    if row is None:
        return absent("not run")
    value = float(row["value"])
    facts: dict[str, float | int | str] = {
        "low": float(row["low"]), "high": float(row["high"]), "seeds": int(row["seeds"]),
        "step": "" if pd.isna(row["step"]) else int(row["step"]),
    }  # fmt: skip
    return Entry(text=measure.text(value), value=value, facts=facts)


def _steps_to_pass(tuned: pd.DataFrame, last: Any, measure: Score) -> Entry:
    """Return the step from which fine-tuning is as good as `last`, the end of the training."""
    if last is None:
        return absent("not run")
    sign = 1 if measure.higher else -1
    passing = tuned[sign * tuned["value"] >= sign * float(last["value"])]
    if passing.empty:
        note = f"fine-tuning does not reach this score within {int(tuned['step'].max()):,} steps"
        return Entry(text="never", notes=(note,))
    step = int(passing.iloc[0]["step"])
    return Entry(text=f"{step:,} of {int(last['step']):,}", value=float(step))


def _parameters_taken(rows: pd.DataFrame) -> Entry:
    """Return the fraction of a model's parameters that come from another model, in percent."""
    counts = rows[(rows["metric"] == "initial_parameters") & (rows["status"] == "ok")]
    total = float(counts["value"].sum())
    if not total:
        return absent("not recorded")
    origin = pd.Series([labels["origin"] for labels in counts["labels"]], index=counts.index)
    share = 1 - float(counts[origin == "drawn"]["value"].sum()) / total
    return Entry(text=f"{100 * share:.1f} %", value=share)


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield a table and a figure for each metric."""
    for measure in MEASURES:
        data = recovery_data(rows, measure)
        if data.empty:
            continue
        name, metric = f"recovery-{measure.metric}", measure.metric
        heading = f"Recovery of models that took the weights of another model, {metric}"
        yield TablePart(name, heading, recovery_table(rows, data, measure))
        yield PagesPart(
            f"{name}-curve", f"Validation {metric} during fine-tuning",
            f"validation {metric} against the steps of fine-tuning",
            alike(partial(recovery_figure, measure=measure)), panel=(*TASK, "model"), lines=None,
            along="step", data=pd.concat([_selected(data, key) for key in _panel_keys(data)]),
        )  # fmt: skip
