"""How fast a model recovers that took its weights from another one: curves and a table.

A panel for each model. The lines are the scores on validation along the fine-tuning, and from
scratch with the same settings; level lines show the model that gave its weights, and what they give
as they come, before any step. The form is that of the Performer paper's figure (arXiv:2009.14794).
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
"""Of what the weights come from, in the order of names."""
_GREY = "#7F7F7F"
MEASURES = (ACCURACY, score_of("loss"))
"""What is followed along the fine-tuning."""
COLUMNS = (*TASK, "model", "start", "line", "step", "value", "low", "high", "seeds")


def recovery_data(rows: pd.DataFrame, measure: Score) -> pd.DataFrame:
    """Return means and extremes over seeds: of every curve by step, of every source once."""
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
    """Return the places of tasks and models that took weights, exact attention first."""
    tuned = data[data["line"] == TUNED]
    keys = set(tuned[[*TASK, "model"]].itertuples(index=False, name=None))
    order = model_order([str(key[-1]) for key in keys])
    return sorted(keys, key=lambda key: (key[:-1], order.index(key[-1])))


def _keys(data: pd.DataFrame) -> list[tuple[Any, ...]]:
    return _panels(data) or sorted(set(data[[*TASK, "model"]].itertuples(index=False, name=None)))


def _selected(data: pd.DataFrame, key: tuple[Any, ...]) -> pd.DataFrame:
    part: pd.DataFrame = data[(data[[*TASK, "model"]] == list(key)).all(axis=1)]
    return part


def recovery_figure(data: pd.DataFrame, measure: Score) -> Figure:
    """Draw what `recovery_data` returned; bands are the extremes over seeds.

    Of losses, the axis leaves out that of the weights as drawn, which would flatten all others: the
    line from scratch comes in from above.
    """
    keys = _keys(data)
    starts = sorted(set(data["start"]) - {SCRATCH})
    colors = {start: _COLORS[i % len(_COLORS)] for i, start in enumerate(starts)}
    several = len({key[:-1] for key in keys}) > 1
    panels = []
    for *place, model in keys:
        task, facts = place_words(TASK, (*place,))
        words = (f"{model}, {task}", facts) if several else (str(model), "")
        panels.append((words, _selected(data, (*place, model))))
    # panels of one task have one scale, so that they can be compared
    draw = partial(_draw_starts, every=None if several else data, colors=colors, measure=measure)
    return draw_panels(
        panels, draw, plot=(2.9, 1.75),
        title=_finding([part for _, part in panels], measure),
        subtitle="" if several else f"validation {measure.axis}; {place_facts(keys[0][:-1])}",
    )  # fmt: skip


def _finding(parts: Sequence[pd.DataFrame], measure: Score) -> str:
    """Return for how many models weights of another one help, at the end of the fine-tuning."""
    sign, better, compared = 1 if measure.higher else -1, list[str](), 0
    for part in parts:
        ends = part.dropna(subset="step").sort_values("step").groupby("line").last()
        if {TUNED, PLAIN} <= {*ends.index}:
            compared += 1
            tuned, plain = (
                sign * float(ends["value"].astype(float)[line]) for line in (TUNED, PLAIN)
            )
            better += [str(part["model"].iloc[0])] * (tuned > plain)
    end = "better with the weights of another model than from scratch"
    plain_title = f"Recovery: validation {measure.axis}"
    return clause(better, compared, f"ends {end}", f"end {end}") if compared else plain_title


def _draw_starts(
    axes: Axes,
    data: pd.DataFrame,
    every: pd.DataFrame | None,
    colors: dict[str, str],
    measure: Score,
) -> dict[str, Line2D]:
    handles = {}

    def named(label: str, **look: Any) -> dict[str, Any]:
        handles[label] = Line2D([], [], label=label, **look)  # a legend names it, not its end
        return look

    def curve(label: str, line: pd.DataFrame, **look: Any) -> None:
        steps = line["step"].astype(float)
        values = line[["value", "low", "high"]].astype(float) * measure.factor
        axes.plot(steps, values["value"], **named(label, markersize=3.5, linewidth=1.3, **look))
        if (line["seeds"] > 1).any():
            band = {"color": look["color"], "alpha": 0.12, "linewidth": 0}
            axes.fill_between(steps, values["low"], values["high"], **band)

    scratch = data[data["line"] == PLAIN]
    if len(scratch):
        dashed = {"linestyle": (0, (5, 2)), "marker": "s", "markerfacecolor": "white"}
        curve(PLAIN, scratch, color=_GREY, **dashed)
    for start, color in colors.items():
        mine, weights = data[data["start"] == start], f"weights of {start}"
        tuned = mine[mine["line"] == TUNED]
        if len(tuned):
            look = named(f"{weights}, as they come", color=color, linestyle=":", linewidth=1.1)
            axes.axhline(float(tuned.iloc[0]["value"]) * measure.factor, **look)
            curve(f"{weights}, {TUNED}", tuned, color=color, linestyle="-", marker="o")
        for value in mine[mine["line"] == SOURCE]["value"]:
            look = named(f"{start} itself", color=color, linewidth=3.2, alpha=0.3)
            axes.axhline(float(value) * measure.factor, **look)
    _limit(axes, data if every is None else every, measure)
    axes.set_xlabel("optimiser step")
    axes.set_ylabel(f"validation {measure.axis}")
    step_axis(axes)
    return handles


def _limit(axes: Axes, data: pd.DataFrame, measure: Score) -> None:
    hidden = (data["line"] == PLAIN) & (data["step"] == 0).fillna(False) & (not measure.higher)
    visible = data[~hidden][["low", "high"]].astype(float) * measure.factor
    low, high = float(visible["low"].min()), float(visible["high"].max())
    if high > low:
        margin = 0.06 * (high - low)
        axes.set_ylim(low - margin, high + margin)


def recovery_table(rows: pd.DataFrame, data: pd.DataFrame, measure: Score) -> Table:
    """Build the table of what the curves begin and end with.

    Args:
        rows: As `lra.reports.rows.prepare` returns them: for failures, and for what was taken.
        data: What `recovery_data` returned for them.
        measure: Which score.
    """
    titles = ("as they come", "fine-tuned", "from scratch", "source", "steps to pass scratch",
              "parameters taken")  # fmt: skip
    lines: list[tuple[str, str, Sequence[Entry]]] = []
    tasks = list(dict.fromkeys(place_facts(key[:-1]) for key in _panels(data)))
    for key in _panels(data):
        part = _selected(data, key)
        for start in sorted(set(part[part["line"] == TUNED]["start"])):
            taken = rows[(rows["base"] == key[-1]) & (rows["start"] == start)]
            entries = _entries(part, start, taken[taken["task"] == key[0]], measure)
            section = place_facts(key[:-1]) if len(tasks) > 1 else ""
            lines.append((section, f"{key[-1]}, weights of {start}", entries))
    bad = rows[(rows["runner"] == "transfer") & (rows["status"] != "ok")]
    bad = bad[bad["start"] != SCRATCH].drop_duplicates(["base", "start", "task"])
    for _, row in bad.assign(reason=bad["reason"].map(short)).iterrows():
        title = f"{row['base']}, weights of {row['start']}"
        lines.append(("", title, [failure_entry(row)] * len(titles)))
    of = f"; {tasks[0]}" if len(tasks) == 1 else ""
    unit = "Percent" if measure.shares else "Nats, lower is better"
    return listed_table(
        lines, [Column(title=title) for title in titles],
        title=f"Recovery: validation {measure.metric}",
        caption=f"{unit}; means over seeds{of}. Steps to pass scratch: the first evaluation at "
        f"which fine-tuning is at least as good as training from scratch is at its end, with the "
        f"same settings. Parameters taken: the fraction that was taken from the other model.",
    )  # fmt: skip


def _entries(
    data: pd.DataFrame, start: str, rows: pd.DataFrame, measure: Score
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


def _score(row: Any, measure: Score) -> Entry:
    if row is None:
        return absent("not run")
    value = float(row["value"])
    facts: dict[str, float | int | str] = {
        "low": float(row["low"]), "high": float(row["high"]), "seeds": int(row["seeds"]),
        "step": "" if pd.isna(row["step"]) else int(row["step"]),
    }  # fmt: skip
    return Entry(text=measure.text(value), value=value, facts=facts)


def _passing(tuned: pd.DataFrame, last: Any, measure: Score) -> Entry:
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
            alike(partial(recovery_figure, measure=measure)), panel=(*TASK, "model"),
            lines=None, along="step", data=pd.concat([_selected(data, key) for key in _keys(data)]),
        )  # fmt: skip
