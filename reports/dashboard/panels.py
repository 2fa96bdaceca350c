"""The panels of a W&B workspace, as plain data: over the keys that runs carry, and no others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum, auto
from typing import Any

from lra.reports.dashboard import keys
from lra.reports.dashboard.plan import RunPlan
from lra.runners.metrics import JUDGED_BY, METRICS

TRAINED = ("train_step_time", "train_time", "process_peak_bytes", "parameters")
"""What a training costs: in its run's summary, beside its scores."""
_ALIKE = frozenset({
    "sweep", "model", "family", "kind", "seed", "cells", "disturbed_cells", keys.LENGTH_AXIS,
    "longest_length", "mode",
})  # fmt: skip
"""What may differ along one line, or is said by the model's name or by the metric's key."""
_STEERING = frozenset(
    keys.option("runner", name)
    for name in ("shard", "retry", "timeout_s", "dry_run", "lengths", "modes", "log_every_steps",
                 "checkpoint_every_s")
)  # fmt: skip
"""Options of which no number depends: which cells are run, and when something is written."""
_AXES_OF_OPTIONS = 6
"""That can be told apart in one plot of parallel coordinates, beside cost and score."""


class Form(StrEnum):
    """How a panel is drawn."""

    lines = auto()
    """Histories over an axis of `keys.AXES`."""
    scatter = auto()
    """One point for each group of runs."""
    parallel = auto()
    """Parallel coordinates: a line for each run; keys of the configuration begin with `config:`."""
    bars = auto()
    """One bar for each group of runs."""
    table = auto()
    """The tables that runs logged under one key, below each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture."""

    form: Form
    title: str
    names: tuple[str, ...]
    """Keys of what is drawn: coordinates in order, one of any other form."""
    along: str = ""
    """Key of the horizontal axis of lines and of a scatter."""
    log: bool = False
    """Whether all axes are logarithmic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """What W&B shows of some runs."""

    title: str
    sweep: str | None
    """Group of the runs that it shows; None: all of the project."""
    group_by: tuple[str, ...]
    """Keys of the configuration that make lines of the runs: those of one line differ in nothing
    but their seed."""
    columns: tuple[str, ...]
    """Keys of the summary that stand first in the list of runs."""
    sections: Mapping[str, tuple[Panel, ...]]

    def as_json(self) -> dict[str, Any]:
        """Return plain JSON for the process that makes W&B's specification of it."""
        return asdict(self)


def plan_workspace(runs: Sequence[RunPlan], *, title: str, sweep: str | None) -> Workspace:
    """Plan the panels that some runs allow: each has all of its keys in one of them.

    Args:
        runs: as `lra.reports.dashboard.plan.plan_runs` returns them.
        title: of the workspace.
        sweep: group of the runs; None for those of several sweeps.
    """
    scores = [*_scores(runs)]
    curves = _axis_panels(runs, keys.STEP_AXIS)
    live = [_line_panel(name, keys.STEP_AXIS) for name in keys.TRAINING] if curves else []
    sections = {
        "Cost against length": _axis_panels(runs, keys.LENGTH_AXIS),
        "Learning curves": curves,
        "While training": live,
        "Scores": [_panel(Form.bars, name) for name in scores],
        "Score against cost": [*_trade_offs(runs, scores)],
        "Failures": [*_failures(runs)],
    }
    return Workspace(
        title=title,
        sweep=sweep,
        group_by=("model", *_differing(runs)),
        columns=(keys.STATUS, *scores[:2]),
        sections={name: tuple(panels) for name, panels in sections.items() if panels},
    )


def _panel(form: Form, name: str, along: str = "", *, log: bool = False) -> Panel:
    title = _titled(name) + (f" against {_titled(along)}" if form is Form.scatter else "")
    return Panel(form=form, title=title, names=(name,), along=along, log=log)


def _line_panel(name: str, axis: str) -> Panel:
    return _panel(Form.lines, name, axis, log=axis == keys.LENGTH_AXIS)


def _titled(name: str) -> str:
    """Return a key with its unit, where it ends in the name of a metric."""
    last = name.rpartition("/")[2]
    metric = max((each for each in METRICS if last.endswith(each)), key=len, default=None)
    return f"{name}, {METRICS[metric].unit}" if metric and METRICS[metric].unit else name


def _axis_panels(runs: Sequence[RunPlan], axis: str) -> list[Panel]:
    """Return a panel for each key that has values over an axis."""
    lines = [line for run in runs for line in run.history if axis in line]
    carried = {name for line in lines for name in line} - {axis}
    return [_line_panel(name, axis) for name in sorted(carried)]


def _scores(runs: Sequence[RunPlan]) -> Iterator[str]:
    """Yield the score of each split that is in a summary, test first."""
    carried = {name for run in runs for name in run.summary}
    for split in ("test", "validation"):
        names = (keys.score(split, metric) for metric in (*JUDGED_BY, "loss"))
        yield from [name for name in names if name in carried][:1]


def _trade_offs(runs: Sequence[RunPlan], scores: Sequence[str]) -> Iterator[Panel]:
    """Yield the first score against each cost of a training, and with the options that differ."""
    for score in scores[:1]:
        scored = [run for run in runs if score in run.summary]
        costs = [
            name for name in map(keys.trained, TRAINED)
            if any(name in run.summary for run in scored)
        ]  # fmt: skip
        for cost in costs:
            yield _panel(Form.scatter, score, cost, log=True)
        if len(scored) > 1:
            options = [f"config:{name}" for name in ("model", *_differing(scored))]
            names = (*options[:_AXES_OF_OPTIONS], *costs[:1], score)
            yield Panel(form=Form.parallel, title="options, cost, score", names=names)


def _failures(runs: Sequence[RunPlan]) -> Iterator[Panel]:
    if any("failed_at_length" in run.summary for run in runs):
        yield _panel(Form.bars, "failed_at_length")
    for table in sorted({name for run in runs for name in run.tables}):
        yield _panel(Form.table, table)


def _differing(runs: Sequence[RunPlan]) -> tuple[str, ...]:
    """Return the keys in which runs of one model that carry one metric differ, but for the seed.

    Runs that differ in one of them are lines of their own: a mean over two machines, protocols,
    versions of a task or learning rates would be a number of none.
    """
    first: dict[tuple[str, object], Mapping[str, Any]] = {}
    differing: set[str] = set()
    for run in runs:
        metrics = {name for line in run.history for name in line} | run.summary.keys()
        metrics -= {*keys.AXES, keys.STATUS}
        others = (first.setdefault((name, run.config.get("model")), run.config) for name in metrics)
        # most metrics of a run have the same first run
        for other in {id(config): config for config in others}.values():
            if other is not run.config:
                differing |= {name for name in run.config if _differs(name, run.config, other)}
    named = [name for name in keys.CONFIGURATION if name in differing]
    return (*named, *sorted(differing - {*named}))


def _differs(name: str, one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    # an option of one alone is one of another runner, which has a key of its own
    comparable = name in other or name in keys.CONFIGURATION
    return comparable and name not in _ALIKE | _STEERING and one[name] != other.get(name)
