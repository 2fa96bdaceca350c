"""Which panels a dashboard has: those whose keys its runs carry, and no others.

`plan_dashboard` looks at the runs that are written of some rows, and at the rows themselves
for what a report says in words. `reports.dashboard.workspace` makes W&B's own specification of it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from reports.dashboard import keys
from reports.dashboard.panels import Dashboard, Form, Key, Panel, PanelSection, Place
from reports.dashboard.plan import RunPlan
from reports.rows import COST_SETTING, MARKS, short, shown
from reports.tables.scores import score_tables, splits
from reports.tables.table import Column, Entry, Table, TableRow, to_markdown
from runners.metrics import METRICS

COSTS = (
    "time", "token_time", "tokens_per_second", "peak_tensor_bytes", "process_peak_bytes",
    "state_bytes",
)  # fmt: skip
"""Metrics that are drawn against length."""
TRAINED = ("train_step_time", "train_time", "process_peak_bytes", "parameters")
"""What a training costs: in its run's summary, beside its scores."""
SCORES = ("accuracy", "bits_per_character", "word_perplexity", "perplexity", "loss")
"""The first one that a split has is its score."""
_ALIKE = frozenset({
    "sweep", "model", "family", "kind", "seed", "cells", "disturbed_cells", keys.LENGTH_AXIS,
    "longest_length", "mode",
})  # fmt: skip
"""What may differ along one line, or is said by the model's name or by the metric's key."""
_STEERING = frozenset(
    keys.option("runner", name)
    for name in (
        "shard",
        "retry",
        "timeout_s",
        "dry_run",
        "lengths",
        "modes",
        "log_every_steps",
        "checkpoint_every_s",
    )
)
"""Options of which no number depends: which cells are run, and when something is written."""
_NO_DIFFERENCE = _ALIKE | _STEERING
_COORDINATES = 8
"""Axes that can be told apart in one plot of parallel coordinates."""
_LISTED = 100
"""Failures that a report lists."""


def plan_dashboard(
    frame: pd.DataFrame, runs: Sequence[RunPlan], *, title: str, sweep: str | None
) -> Dashboard:
    """Plan the panels that some runs allow: each has all of its keys in one of them.

    Args:
        frame: prepared rows (`reports.rows.prepare`), of which the runs were planned.
        runs: as `reports.dashboard.plan.plan_runs` returns them.
        title: of workspace and report.
        sweep: group of the runs; None for those of several sweeps.
    """
    costs, trainings = _over(runs, keys.LENGTH_AXIS), _over(runs, keys.STEP_AXIS)
    finals = [run for run in runs if run not in costs]
    against_length = _cost_panels(frame, costs)
    curves = _curve_panels(frame, trainings)
    trade_off = _trade_off_panels(frame, finals)
    coordinates = [*_training_coordinates(frame, finals), *_cost_coordinates(frame, costs)]
    scores = _score_panels(frame, finals)
    failures = _failure_panels(runs)
    live = [_line(name, keys.STEP_AXIS) for name in keys.TRAINING] if trainings else []
    named = (
        ("Cost against length", against_length),
        ("Learning curves", curves),
        ("While training", live),
        ("Scores", scores),
        ("Score against cost", trade_off),
        ("Parallel coordinates", coordinates),
        ("Failures", failures),
    )
    return Dashboard(
        title=title,
        sweep=sweep,
        group_by=("model", *_apart(runs)),
        columns=_columns(frame, runs),
        workspace=tuple(PanelSection(title=name, panels=tuple(own)) for name, own in named if own),
        report=tuple(
            section
            for section in (
                *_by_setting("Cost against length", costs, lambda own: _cost_panels(frame, own)),
                _with_tables("Scores", frame, scores, _apart(finals)),
                *_by_setting("Learning curves", trainings, lambda own: _curve_panels(frame, own)),
                PanelSection(
                    title="Score against cost",
                    panels=(*trade_off, *coordinates),
                    group_by=("model", *_apart(runs)),
                ),
                PanelSection(title="Failures", text=_failures(frame), panels=tuple(failures)),
            )
            if section.panels or section.text
        ),
    )


# ----------------------------------------------------------------------------------- the panels


def _over(runs: Sequence[RunPlan], axis: str) -> list[RunPlan]:
    return [run for run in runs if any(axis in line for line in run.history)]


def _histories(runs: Sequence[RunPlan]) -> set[str]:
    return {name for run in runs for line in run.history for name in line}


def _line(name: str, axis: str, title: str = "", *, log: bool = False) -> Panel:
    along = Key(place=Place.history, name=axis, title=_words(axis), log=log)
    value = Key(place=Place.history, name=name, title=title or name, log=log)
    return Panel(form=Form.lines, title=title or name, values=(value,), along=along)


def _cost_panels(frame: pd.DataFrame, runs: Sequence[RunPlan]) -> list[Panel]:
    """Return time, memory and speed-up against length, on logarithmic axes."""
    carried = _histories(runs)
    found = []
    pairs = frame[["mode", "metric"]].drop_duplicates().itertuples(index=False)
    measured = {(str(mode), str(metric)) for mode, metric in pairs}
    for mode in sorted({mode for mode, _ in measured}):
        for metric in COSTS:
            name = keys.cost(mode, metric)
            if (mode, metric) in measured and name in carried:
                title = f"{_words(mode)}: {_words(metric)}, {METRICS[metric].unit}"
                found.append(_line(name, keys.LENGTH_AXIS, title, log=True))
        for reference in sorted(set(frame["reference"]) - {""}, key=lambda r: (r != "sdpa", r)):
            for metric, words in (
                (keys.SPEEDUP, "times as fast as"),
                ("peak_tensor_bytes_ratio", "memory divided by that of"),
            ):
                name = keys.cost(mode, metric, reference)
                if name in carried:
                    title = f"{_words(mode)}: {words} {reference}"
                    found.append(_line(name, keys.LENGTH_AXIS, title, log=True))
    return found


def _curve_panels(frame: pd.DataFrame, runs: Sequence[RunPlan]) -> list[Panel]:
    """Return the training loss, and scores of the splits that are evaluated in between."""
    carried = _histories(runs)
    found = [_line(keys.LOSS, keys.STEP_AXIS, "training loss, nats")]
    found += [
        _line(keys.score(split, metric), keys.STEP_AXIS, f"{split}: {_words(metric)}")
        for split in sorted(set(frame["split"]) - {""})
        for metric in SCORES
    ]
    return [panel for panel in found if panel.values[0].name in carried]


def _scores(frame: pd.DataFrame, runs: Sequence[RunPlan]) -> Iterator[Key]:
    """Yield the score of each split that is in a summary, test first."""
    carried = {name for run in runs for name in run.summary}
    for split in sorted(set(frame["split"]) - {"", "train"}, key=lambda s: (s != "test", s)):
        for metric in SCORES:
            if (name := keys.score(split, metric)) in carried:
                title = f"{split} {_words(metric)}"
                yield Key(place=Place.summary, name=name, title=title)
                break


def _costs_of_training(runs: Sequence[RunPlan], beside: str) -> Iterator[Key]:
    """Yield costs that stand in one summary with a score."""
    for metric in TRAINED:
        name = keys.trained(metric)
        if any(name in run.summary and beside in run.summary for run in runs):
            title = f"{_words(metric)}, {METRICS[metric].unit}"
            yield Key(place=Place.summary, name=name, title=title, log=True)


def _trade_off_panels(frame: pd.DataFrame, runs: Sequence[RunPlan]) -> list[Panel]:
    return [
        Panel(form=Form.scatter, title=f"{score.title} against {cost.title}", values=(score,),
              along=cost)
        for score in list(_scores(frame, runs))[:1]
        for cost in _costs_of_training(runs, score.name)
    ]  # fmt: skip


def _score_panels(frame: pd.DataFrame, runs: Sequence[RunPlan]) -> list[Panel]:
    return [Panel(form=Form.bars, title=k.title, values=(k,)) for k in _scores(frame, runs)]


def _training_coordinates(frame: pd.DataFrame, runs: Sequence[RunPlan]) -> Iterator[Panel]:
    """Yield options, costs and score of the runs that have a score."""
    for score in list(_scores(frame, runs))[:1]:
        own = [run for run in runs if score.name in run.summary and run.config.get("model")]
        costs = list(_costs_of_training(own, score.name))[:3]
        options = list(_varied(own))[: _COORDINATES - len(costs) - 1]
        if len(own) > 1:
            values = (*options, *costs, score)
            yield Panel(form=Form.parallel, title=f"options, cost, {score.title}", values=values)


def _cost_coordinates(frame: pd.DataFrame, runs: Sequence[RunPlan]) -> Iterator[Panel]:
    """Yield options, time and memory at the shortest and the longest common length."""
    for mode in sorted(set(frame["mode"])):
        names = [keys.cost(mode, metric) for metric in ("time", "peak_tensor_bytes")]
        own = [run for run in runs if all(name in _histories([run]) for name in names)]
        if len(own) < 2:
            continue
        measured = [
            {int(line[keys.LENGTH_AXIS]) for line in run.history if names[0] in line} for run in own
        ]
        common = sorted(set.intersection(*measured))
        ends = list(dict.fromkeys(common[:1] + common[-1:]))
        costs = [
            Key(place=Place.summary, name=name, title=f"{title} at {length}", log=True)
            for length in ends
            for key, title in zip(names, ("time", "memory"), strict=True)
            if all((name := keys.at_length(length, key)) in run.summary for run in own)
        ]
        if costs:
            options = list(_varied(own))[: _COORDINATES - len(costs)]
            title = f"{_words(mode)}: time and memory"
            yield Panel(form=Form.parallel, title=title, values=(*options, *costs))


def _varied(runs: Sequence[RunPlan]) -> Iterator[Key]:
    """Yield the model, and further options of the configuration in which runs differ."""
    yield Key(place=Place.config, name="model", title="model")
    told = {"sweep", "cells", "model", "family", "kind", "disturbed_cells"}
    for name in dict.fromkeys(
        [*keys.CONFIGURATION, *(name for run in runs for name in run.config)]
    ):
        values = [run.config.get(name) for run in runs]
        plain = all(isinstance(value, (str, int, float)) for value in values)
        if name not in told and plain and len(set(values)) > 1:
            yield Key(place=Place.config, name=name, title=_words(name))


def _failure_panels(runs: Sequence[RunPlan]) -> list[Panel]:
    found = []
    if any("failed_at_length" in run.summary for run in runs):
        key = Key(place=Place.summary, name="failed_at_length", title="shortest length that failed")
        found.append(Panel(form=Form.bars, title=key.title, values=(key,)))
    for table in sorted({name for run in runs for name in run.tables}):
        key = Key(place=Place.summary, name=table, title=_words(table))
        found.append(Panel(form=Form.table, title=key.title, values=(key,)))
    return found


def _columns(frame: pd.DataFrame, runs: Sequence[RunPlan]) -> tuple[Key, ...]:
    """Return what stands first in the list of runs: how each ended, and its scores."""
    status = Key(place=Place.summary, name=keys.STATUS, title=keys.STATUS)
    return (status, *list(_scores(frame, runs))[:2])


# ---------------------------------------------------------------------------- what is not merged


def _apart(runs: Sequence[RunPlan]) -> tuple[str, ...]:
    """Return the keys in which runs of one model that carry one metric differ, but for the seed.

    Runs that differ in one of them are lines of their own: a mean over two machines, protocols,
    versions of a task or learning rates would be a number of none.
    """
    first: dict[tuple[str, object], Mapping[str, Any]] = {}
    found: set[str] = set()
    for run in runs:
        metrics = {*_histories([run]), *run.summary} - {*keys.AXES, keys.STATUS}
        others = (first.setdefault((name, run.config.get("model")), run.config) for name in metrics)
        # most metrics of a run have the same first run
        for other in {id(config): config for config in others}.values():
            if other is not run.config:
                found |= {name for name in run.config if _differs(name, run.config, other)}
    named = [name for name in keys.CONFIGURATION if name in found]
    return (*named, *sorted(found - {*named}))


def _differs(name: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    # an option of one alone is one of another runner, which has a key of its own
    known = name in other or name in keys.CONFIGURATION
    return known and name not in _NO_DIFFERENCE and one[name] != other.get(name)


def _by_setting(
    title: str, runs: Sequence[RunPlan], panels: Callable[[Sequence[RunPlan]], list[Panel]]
) -> Iterator[PanelSection]:
    """Yield a section for each setting under which numbers may be compared."""
    told = (*COST_SETTING, "protocol", "scale")
    parts: dict[str, list[RunPlan]] = {}
    for run in runs:
        parts.setdefault(repr([run.config.get(name) for name in told]), []).append(run)
    for _, own in sorted(parts.items()):
        where = {name: own[0].config[name] for name in told if name in own[0].config}
        words = [_setting(name, where.get(name)) for name in told]
        heading = f"{title}: {', '.join(dict.fromkeys(filter(None, words)))}"
        yield PanelSection(
            title=heading,
            panels=tuple(panels(own)),
            where=where,
            group_by=("model", *_apart(own)),
        )


def _setting(name: str, value: Any) -> str:
    if value is None or value == "":
        return ""
    if name == "causal":
        return "causal" if value in (True, "True") else "bidirectional"
    words = {"task_version": "version {}", "threads": "{} threads"}.get(name, "{}")
    return words.format(shown(value))


# ------------------------------------------------------------------------- a report in words


def _with_tables(
    title: str, frame: pd.DataFrame, panels: Sequence[Panel], apart: Collection[str]
) -> PanelSection:
    tables = [to_markdown(table) for split in splits(frame) for _, table in
              score_tables(frame, split)]  # fmt: skip
    return PanelSection(
        title=title, text="\n".join(tables), panels=tuple(panels), group_by=("model", *apart)
    )


def _failures(frame: pd.DataFrame) -> str:
    """Return a table of what has no number, and why, as Markdown; "" where all has one."""
    bad = frame[(frame["status"] != "ok") & (frame["reference"] == "")]
    bad = bad.drop_duplicates(["cell", "status", "reason"])
    if bad.empty:
        return ""
    lines = [
        TableRow(
            title=str(row["name"]),
            entries=tuple(
                Entry(text=text)
                for text in (str(row["task"]), str(row["mode"]), shown(row["length"]),
                             shown(row["seed"]), MARKS[str(row["status"])],
                             short(str(row["reason"])), str(row["cell"]))
            ),
        )
        for row in bad.head(_LISTED).to_dict("records")
    ]  # fmt: skip
    heads = ("task", "mode", "length", "seed", "status", "reason", "cell")
    more = f" The first {_LISTED} of {len(bad):,}." if len(bad) > _LISTED else ""
    table = Table(
        title="Not measured",
        caption=f"What lra show says of a cell has the whole reason.{more}",
        stub="model",
        columns=tuple(Column(title=head, words=True) for head in heads),
        rows=tuple(lines),
    )
    return to_markdown(table)


def _words(name: str) -> str:
    return name.replace(keys.SEPARATOR, ".").replace("_", " ")
