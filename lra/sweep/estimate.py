"""How long cells will take in all: the announcement before a sweep runs."""

import time
from collections.abc import Mapping, Sequence

from lra.composition.run import Run
from lra.conf.short_values import number_of
from lra.runners.measurement.gpus import gpus
from lra.runners.measurement.hardware import Device
from lra.runners.store import Store
from lra.sweep.costs import NO_TIME, Costs
from lra.sweep.forecast import Forecast, Forecaster
from lra.sweep.kept_counts import KeptCounts
from lra.sweep.past import past_cells
from lra.sweep.preset_counts import shipped_counts
from lra.sweep.sweep import PlannedCell

COUNTING_S = 3.0
"""Seconds of counting before a sweep; `lra plan` takes what it needs."""
LISTED_S = 40.0
"""Seconds of counting for a dry run, for its trainings and its first cell."""
WORTH_COUNTING = 1_000_000
"""A sweep of fewer tokens is not counted, as its first cell ends sooner than the counting."""
MINUTE, HOUR, DAY, YEAR = 60, 3600, 86_400, 31_557_600
NARROWING = (
    "runner=", "model=", "task=", "seed=", "logger=", "results=", "sweep=", "runner.",
)  # fmt: skip
"""Beginnings of arguments that only select runs of a preset, or say where results go."""
BASES = {
    "stored": "similar stored runs took this long",
    "corrected": "the operations are counted, and stored runs correct the result",
    "counted": "counted",
    "scaled": "the time is scaled from different stored runs",
}
"""What an estimate is based on, the most certain first."""


Forecasts = Sequence[tuple[PlannedCell, Forecast]]
"""Cells, each with its forecast."""


def forecasts(
    waiting: Sequence[PlannedCell],
    store: Store,
    sweep: str,
    within_s: float | None = None,
    *,
    listed: bool = False,
    together: bool = False,
) -> Forecasts:
    """Return each cell with its forecast, from stored cells and by counting for a few seconds.

    Args:
        waiting: the cells that are to be run.
        store: the results.
        sweep: the name of the sweep.
        within_s: seconds of counting; None: `COUNTING_S`.
        listed: whether the cells are only listed. If so, trainings and the first cell are counted
            for longer, and small sweeps are counted, too.
        together: whether one process will run the cells, and so time a reference once for several.
    """
    past = [*past_cells(waiting, store, sweep)]
    small = not listed and sum(map(_count_tokens, waiting)) < WORTH_COUNTING
    seconds = 0.0 if small else COUNTING_S if within_s is None else within_s
    costs = Costs(ready=shipped_counts(), kept=KeptCounts())
    forecaster = Forecaster(past, costs, trials=listed, together=waiting if together else ())
    pairs: list[tuple[PlannedCell, Forecast]] = []
    begin_s = time.monotonic()
    for planned in waiting:
        longer = listed and (planned.run.runner.trains or not pairs)
        costs.until = begin_s + (LISTED_S if longer else seconds)
        pairs.append((planned, forecaster.of(planned)))
    costs.keep()
    return pairs


def announcement(pairs: Forecasts) -> str:
    """Return one line that says how many cells are to be run, and how long they will take."""
    runs = number_of(len(pairs), "run")
    timed = [(planned, f) for planned, f in pairs if f.seconds is not None]
    takes = _read_preset_time([planned for planned, _ in pairs])
    preset_note = "" if takes is None else f"; the whole preset takes {takes} on an idle machine"
    if not timed:
        unknown = "the time is unknown until the first run has ended, but `lra plan` computes it"
        return f"{runs} to do{preset_note or f'; {unknown}'}"
    bases = [forecast.basis for _, forecast in timed if forecast.basis in BASES]
    basis = max(bases, key=list(BASES).index) if bases else "counted"  # the least certain one
    roughly = "about" if basis in ("stored", "corrected") else "very roughly"
    expected = f"{roughly} {format_duration(elapsed_s(timed))}{gpu_hours(timed)} ({BASES[basis]})"
    rest = len(pairs) - len(timed)
    if not rest:
        return f"{runs} to do, {expected}"
    any_uncounted = any(
        forecast.seconds is None and forecast.reason == NO_TIME for _, forecast in pairs
    )
    way_out = ("; `lra plan` computes the unknown times" if any_uncounted else "") + preset_note
    return f"{runs} to do: {len(timed):,} take {expected}; the time of {rest:,} is unknown{way_out}"


def _count_tokens(planned: PlannedCell) -> int:
    """Return roughly how many tokens a cell reads, without those of its evaluation.

    A measured model, and each reference, is taken to make 20 passes.
    """
    run, length = planned.run, int(planned.cell.columns["length"])
    if run.runner.trains:
        return run.optim.steps * run.optim.batch_size * length
    if run.runner.by_length:
        return 20 * (1 + len(run.runner.beside)) * max(length, run.hardware.token_budget)
    return 0


def gpu_hours(pairs: Forecasts) -> str:
    """Return the hours in which cells need a GPU, for example " = 12 GPU-hours"; "" for none."""
    on_gpu = [f for planned, f in pairs if planned.run.hardware.device is Device.cuda]
    if not on_gpu:
        return ""
    hours = sum(forecast.seconds or 0.0 for forecast in on_gpu) / HOUR
    return f" = {hours:,.0f} GPU-hours" if hours >= 10 else f" = {hours:.2g} GPU-hours"


def _read_preset_time(waiting: Sequence[PlannedCell]) -> str | None:
    """Return the time that a preset states for itself.

    None unless the command asks for a preset that states it, and changes none of its settings.
    """
    for planned in waiting:
        words = [word for word in planned.cell.overrides if "+experiment=" not in word]
        only_selects = all(word.startswith(NARROWING) for word in words)
        # As many words as overrides: no `+experiment=` was among them, so there is no preset.
        if len(words) == len(planned.cell.overrides) or not only_selects:
            return None
    description = waiting[0].run.config.get("about")
    takes = description.get("takes") if isinstance(description, Mapping) else None
    return takes if isinstance(takes, str) else None


def format_duration(seconds: float) -> str:
    """Return a number of seconds in a readable unit: 40 s, 3 min, 2 h 10 min, 3 days."""
    if seconds < 99.5:
        return f"{max(1, round(seconds))} s"
    if seconds < 99.5 * MINUTE:
        return f"{round(seconds / MINUTE)} min"
    if seconds < 2 * DAY:
        hours, minutes = divmod(round(seconds / MINUTE / 10) * 10, 60)
        return f"{hours} h" + (f" {minutes} min" if minutes else "")
    if seconds < 2 * YEAR:
        return f"{seconds / DAY:.0f} days"
    return f"{seconds / YEAR:,.0f} years"


def elapsed_s(pairs: Forecasts) -> float:
    """Return the seconds that all cells take, one runner after the other.

    A runner takes the time of its longest cell, or the sum divided by the number of cells that run
    at the same time, whichever is longer.
    """
    total = 0.0
    for name in {str(planned.cell.columns["runner"]): None for planned, _ in pairs}:
        group = [(p.run, f) for p, f in pairs if p.cell.columns["runner"] == name]
        first_run, _ = group[0]
        lanes = lanes_of(first_run)
        seconds = [forecast.seconds or 0.0 for _, forecast in group]
        total += max(*seconds, sum(seconds) / lanes)
    return total


def lanes_of(run: Run) -> int:
    """Return how many cells like `run` this machine runs at once: 1 if they are timed."""
    if run.runner.timed:
        return 1
    found_gpus = gpus() if run.hardware.device is Device.cuda else ()
    return run.hardware.side_by_side(gpus=len(found_gpus))
