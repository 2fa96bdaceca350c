"""How fast a model recovers that took its weights from another one: curves and a table.

A panel for each model. The lines are the scores on validation along the fine-tuning, and from
scratch with the same settings; level lines show the model that gave its weights, and what they give
as they come, before any step. The form is that of the Performer paper's figure (arXiv:2009.14794).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from lra.reports.figures.curves import EVALUATION
from lra.reports.figures.drawing import style
from lra.reports.figures.layout import arrange, sheet
from lra.reports.rows import as_text, model_order, short
from lra.reports.sections.section import PagesPart, Part, TablePart, alike
from lra.reports.tables.marks import absent, failed
from lra.reports.tables.places import extremes, place_facts, summaries
from lra.reports.tables.table import Column, Entry, Table, TableRow

SCRATCH = "scratch"
TUNED, PLAIN, SOURCE = "fine-tuned", "from scratch", "source"
_COLORS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7")
"""Of what the weights come from, in the order of names."""
_GREY = "#7F7F7F"
_PLOT = (2.9, 1.75)
"""Inches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryScore:
    """A score that is followed along the fine-tuning."""

    metric: str
    axis: str
    factor: float
    digits: int
    higher: bool


MEASURES = (
    RecoveryScore(
        metric="accuracy", axis="validation accuracy (%)", factor=100, digits=1, higher=True
    ),
    RecoveryScore(metric="loss", axis="validation loss (nat)", factor=1, digits=3, higher=False),
)
COLUMNS = (*EVALUATION, "model", "start", "line", "step", "value", "low", "high", "seeds")


def recovery_data(rows: pd.DataFrame, measure: RecoveryScore) -> pd.DataFrame:
    """Return means and extremes over seeds: of every curve by step, of every source once.

    Args:
        rows: As `lra.reports.rows.prepare` returns them.
        measure: Which score.
    """
    scores = rows[(rows["runner"] == "transfer") & (rows["status"] == "ok")]
    scores = scores[scores["split"] == "validation"]
    curves = scores[(scores["metric"] == measure.metric) & scores["step"].notna()]
    lines = [PLAIN if start == SCRATCH else TUNED for start in curves["start"]]
    sources = scores[scores["metric"] == f"source_{measure.metric}"]
    both = pd.concat([curves.assign(line=lines), sources.assign(line=SOURCE)])
    both = both.assign(length=[as_text(value) for value in both["length"]])
    keys = [*EVALUATION, "name", "start", "line", "step"]
    records = summaries(both.assign(name=both["base"]), keys, extremes)
    return pd.DataFrame(records, columns=list(COLUMNS)).astype({"step": "Int64"})


def _panels(data: pd.DataFrame) -> list[tuple[Any, ...]]:
    """Return the places of tasks and models that took weights, exact attention first."""
    tuned = data[data["line"] == TUNED]
    keys = set(tuned[[*EVALUATION, "model"]].itertuples(index=False, name=None))
    order = model_order([str(key[-1]) for key in keys])
    return sorted(keys, key=lambda key: (key[:-1], order.index(key[-1])))


def _keys(data: pd.DataFrame) -> list[tuple[Any, ...]]:
    return _panels(data) or sorted(
        set(data[[*EVALUATION, "model"]].itertuples(index=False, name=None))
    )


def _selected(data: pd.DataFrame, key: tuple[Any, ...]) -> pd.DataFrame:
    part: pd.DataFrame = data[(data[[*EVALUATION, "model"]] == list(key)).all(axis=1)]
    return part


def recovery_figure(data: pd.DataFrame, measure: RecoveryScore) -> Figure:
    """Draw what `recovery_data` returned; bands are the extremes over seeds.

    Of losses, the axis leaves out that of the weights as drawn, which would flatten all others: the
    line from scratch comes in from above.
    """
    keys = _keys(data)
    starts = sorted(set(data["start"]) - {SCRATCH})
    colors = {start: _COLORS[i % len(_COLORS)] for i, start in enumerate(starts)}
    several = len({key[:-1] for key in keys}) > 1
    with style():
        grid = sheet(len(keys), plot=_PLOT)
        for number, (axes, key) in enumerate(zip(grid.axes, keys, strict=True)):
            _draw_starts(axes, _selected(data, key), colors, measure)
            model = str(key[-1])
            axes.set_title(f"{model}, {place_facts(key[:-1])}" if several else model, size=8.5)
            if number % grid.across == 0 or several:
                axes.set_ylabel(measure.axis)
            if not measure.higher:
                _set_limits(axes, data if not several else _selected(data, key), measure)
            if number + grid.across >= len(keys):
                axes.set_xlabel("optimiser step")
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        if not several:
            limits = [axes.get_ylim() for axes in grid.axes]
            for axes in grid.axes:  # so that panels can be compared
                axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
        return arrange(
            grid,
            title=f"Recovery: {measure.axis}",
            subtitle="" if several else place_facts(keys[0][:-1]),
            handles=_legend(colors, scratch=bool((data["line"] == PLAIN).any())),
        )


def _draw_starts(
    axes: Axes, data: pd.DataFrame, colors: dict[str, str], measure: RecoveryScore
) -> None:
    scratch = data[data["line"] == PLAIN]
    if len(scratch):
        _draw_curve(axes, scratch, measure, color=_GREY, linestyle=(0, (5, 2)), marker="s")
    for start, color in colors.items():
        mine = data[data["start"] == start]
        tuned = mine[mine["line"] == TUNED]
        if len(tuned):
            first = float(tuned.iloc[0]["value"]) * measure.factor
            axes.axhline(first, color=color, linestyle=(0, (1, 1.5)), linewidth=1.1)
            _draw_curve(axes, tuned, measure, color=color, linestyle="-", marker="o")
        for value in mine[mine["line"] == SOURCE]["value"]:
            axes.axhline(float(value) * measure.factor, color=color, linewidth=3.2, alpha=0.3)


def _draw_curve(axes: Axes, line: pd.DataFrame, measure: RecoveryScore, **look: Any) -> None:
    steps = line["step"].astype(float)
    values = line[["value", "low", "high"]].astype(float) * measure.factor
    face = "white" if look["marker"] == "s" else look["color"]
    axes.plot(steps, values["value"], markersize=3.5, markerfacecolor=face, linewidth=1.3, **look)
    if (line["seeds"] > 1).any():
        axes.fill_between(
            steps, values["low"], values["high"], color=look["color"], alpha=0.12, linewidth=0
        )


def _set_limits(axes: Axes, data: pd.DataFrame, measure: RecoveryScore) -> None:
    drawn = (data["line"] == PLAIN) & (data["step"] == 0).fillna(False)
    visible = data[~drawn][["low", "high"]].astype(float) * measure.factor
    low, high = float(visible["low"].min()), float(visible["high"].max())
    if high > low:
        margin = 0.06 * (high - low)
        axes.set_ylim(low - margin, high + margin)


def _legend(colors: dict[str, str], *, scratch: bool) -> list[Line2D]:
    handles = []
    for start, color in colors.items():
        handles += [
            Line2D([], [], color=color, marker="o", markersize=3.5, linewidth=1.3,
                   label=f"weights of {start}, fine-tuned"),
            Line2D([], [], color=color, linestyle=(0, (1, 1.5)), linewidth=1.1,
                   label=f"weights of {start}, as they come"),
            Line2D([], [], color=color, linewidth=3.2, alpha=0.3, label=f"{start} itself"),
        ]  # fmt: skip
    if scratch:
        handles.append(
            Line2D([], [], color=_GREY, marker="s", markersize=3.5, markerfacecolor="white",
                   linestyle=(0, (5, 2)), linewidth=1.3, label="from scratch")
        )  # fmt: skip
    return handles


def recovery_table(rows: pd.DataFrame, data: pd.DataFrame, measure: RecoveryScore) -> Table:
    """Build the table of what the curves begin and end with.

    Args:
        rows: As `lra.reports.rows.prepare` returns them: for failures, and for what was taken.
        data: What `recovery_data` returned for them.
        measure: Which score.
    """
    titles = ("as they come", "fine-tuned", "from scratch", "source", "steps to pass scratch")
    columns = (*(Column(title=title) for title in titles), Column(title="parameters taken"))
    table_rows = []
    tasks = list(dict.fromkeys(place_facts(key[:-1]) for key in _panels(data)))
    several = len(tasks) > 1
    for key in _panels(data):
        part = _selected(data, key)
        for start in sorted(set(part[part["line"] == TUNED]["start"])):
            taken = rows[(rows["base"] == key[-1]) & (rows["start"] == start)]
            entries = _entries(part, start, taken[taken["task"] == key[0]], measure)
            title = f"{key[-1]}, weights of {start}"
            table_rows.append(
                TableRow(
                    title=title, entries=entries, section=place_facts(key[:-1]) if several else ""
                )
            )
    table_rows += _failed(rows, len(columns))
    of = f"; {tasks[0]}" if len(tasks) == 1 else ""
    unit = "Percent" if measure.factor == 100 else "Nats, lower is better"
    return Table(
        title=f"Recovery: validation {measure.metric}",
        caption=f"{unit}; means over seeds{of}. Steps to pass scratch: the first evaluation at "
        "which fine-tuning is at least as good as training from scratch with the same settings at "
        "its end. Parameters taken: the share that did not stay as drawn.",
        stub="model",
        columns=columns,
        rows=tuple(table_rows),
    )


def _entries(
    data: pd.DataFrame, start: str, rows: pd.DataFrame, measure: RecoveryScore
) -> tuple[Entry, ...]:
    tuned = data[(data["line"] == TUNED) & (data["start"] == start)]
    scratch = data[data["line"] == PLAIN]
    source = data[(data["line"] == SOURCE) & (data["start"] == start)]
    last = scratch.iloc[-1] if len(scratch) else None
    return (
        _score(tuned.iloc[0] if tuned.iloc[0]["step"] == 0 else None, measure),
        _score(tuned.iloc[-1], measure),
        _score(last, measure),
        _score(source.iloc[0] if len(source) else None, measure),
        _passing(tuned, last, measure),
        _taken(rows),
    )


def _score(row: Any, measure: RecoveryScore) -> Entry:
    if row is None:
        return absent("not run")
    value = float(row["value"])
    facts: dict[str, float | int | str] = {
        "low": float(row["low"]), "high": float(row["high"]), "seeds": int(row["seeds"]),
        "step": "" if pd.isna(row["step"]) else int(row["step"]),
    }  # fmt: skip
    return Entry(text=f"{measure.factor * value:.{measure.digits}f}", value=value, facts=facts)


def _passing(tuned: pd.DataFrame, last: Any, measure: RecoveryScore) -> Entry:
    if last is None:
        return absent("not run")
    sign = 1 if measure.higher else -1
    good = tuned[sign * tuned["value"] >= sign * float(last["value"])]
    if good.empty:
        return Entry(text="never", notes=(f"not within {int(tuned['step'].max()):,} steps",))
    step = int(good.iloc[0]["step"])
    return Entry(text=f"{step:,} of {int(last['step']):,}", value=float(step))


def _taken(rows: pd.DataFrame) -> Entry:
    counts = rows[(rows["metric"] == "initial_parameters") & (rows["status"] == "ok")]
    total = float(counts["value"].sum())
    if not total:
        return absent("not recorded")
    origin = pd.Series([labels["origin"] for labels in counts["labels"]], index=counts.index)
    share = 1 - float(counts[origin == "drawn"]["value"].sum()) / total
    return Entry(text=f"{100 * share:.1f} %", value=share)


def _failed(rows: pd.DataFrame, width: int) -> Sequence[TableRow]:
    bad = rows[(rows["runner"] == "transfer") & (rows["status"] != "ok")]
    bad = bad[bad["start"] != SCRATCH].drop_duplicates(["base", "start", "task"])
    table_rows = []
    for _, row in bad.assign(reason=bad["reason"].map(short)).iterrows():
        title = f"{row['base']}, weights of {row['start']}"
        table_rows.append(TableRow(title=title, entries=(failed(row),) * width))
    return table_rows


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield table and figure of every score."""
    for measure in MEASURES:
        data = recovery_data(rows, measure)
        if data.empty:
            continue
        name, metric = f"recovery-{measure.metric}", measure.metric
        heading = f"Recovery with weights of another model, {metric}"
        yield TablePart(name, heading, recovery_table(rows, data, measure))
        yield PagesPart(
            f"{name}-curve", f"Validation {metric} against steps of fine-tuning",
            f"validation {metric} against steps of fine-tuning",
            alike(partial(recovery_figure, measure=measure)), panel=(*EVALUATION, "model"),
            lines=None, along="step", data=pd.concat([_selected(data, key) for key in _keys(data)]),
        )  # fmt: skip
