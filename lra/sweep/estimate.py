"""How long cells will take in all: what is said before a sweep runs."""

import time
from collections.abc import Mapping, Sequence

from lra.sweep.forecast import Forecast, Forecaster
from lra.sweep.past import stored
from lra.sweep.planned import Planned
from runners.measurement.hardware import Device
from runners.store import Store

COUNTING_S = 3.0
"""Seconds of counting before a sweep; `lra plan` takes what it needs."""
WORTH_COUNTING = 1_000_000
"""Tokens of a sweep below which its first cell is through before it would be counted."""
MINUTE, HOUR, DAY = 60, 3600, 86_400
NARROWING = (
    "runner=", "model=", "task=", "seed=", "logger=", "results=", "sweep=", "runner.",
)  # fmt: skip
"""Words that leave a preset what it is."""
BASES = {
    "stored": "from stored cells like these",
    "corrected": "counted, and corrected by stored cells",
    "counted": "counted",
    "scaled": "scaled from other stored cells",
}
"""What an estimate rests on, the surest first."""


def announcement(waiting: Sequence[Planned], store: Store, sweep: str) -> str:
    """Return one line: how many cells there are to run, and how long they will take."""
    many = "1 cell" if len(waiting) == 1 else f"{len(waiting):,} cells"
    past = [*stored(waiting, store, sweep)]
    takes = None if past else _preset(waiting)
    if takes:
        return f"{many} to run; the whole preset takes {takes}"
    small = sum(map(_tokens, waiting)) < WORTH_COUNTING
    forecaster = Forecaster(past, until=time.monotonic() + (0.0 if small else COUNTING_S))
    pairs = [(planned, forecaster.of(planned)) for planned in waiting]
    known = [(planned, found) for planned, found in pairs if found.seconds is not None]
    if not known:
        return f"{many} to run; how long is not known until the first one is through"
    bases = [found.basis for _, found in known if found.basis in BASES]
    basis = max(bases, key=list(BASES).index) if bases else "counted"
    roughly = "about" if basis in ("stored", "corrected") else "very roughly"
    hours = elapsed(known)
    about = f"{roughly} {spelt(hours)}{gpu_hours(known)} ({BASES[basis]})"
    rest = len(waiting) - len(known)
    if not rest:
        return f"{many} to run, {about}"
    return f"{many} to run: {len(known):,} take {about}, of {rest:,} it is not known"


def _tokens(planned: Planned) -> int:
    """Return about how many tokens a cell reads, those of evaluation left out."""
    run, length = planned.run, int(planned.cell.columns["length"])
    if run.runner.trains:
        return run.optim.steps * run.optim.batch_size * length
    if run.runner.by_length:
        return 20 * (1 + len(run.runner.beside)) * max(length, run.hardware.token_budget)
    return 0


def gpu_hours(known: Sequence[tuple[Planned, Forecast]]) -> str:
    """Return what a GPU is needed for, in words; "" for none."""
    on_gpu = [pair for pair in known if pair[0].run.hardware.device is Device.cuda]
    if not on_gpu:
        return ""
    return f" = {sum(found.seconds or 0.0 for _, found in on_gpu) / HOUR:.2g} GPU-hours"


def _preset(waiting: Sequence[Planned]) -> str | None:
    """Return what a preset says of itself, where nothing but the preset was asked for."""
    for planned in waiting:
        words = [word for word in planned.cell.overrides if "+experiment=" not in word]
        narrowing = all(word.startswith(NARROWING) for word in words)
        if len(words) == len(planned.cell.overrides) or not narrowing:
            return None
    about = waiting[0].run.config.get("about")
    takes = about.get("takes") if isinstance(about, Mapping) else None
    return takes if isinstance(takes, str) else None


def spelt(seconds: float) -> str:
    """Return a length of time as one says it: 40 s, 3 min, 2 h 10 min, 3 days."""
    if seconds < 99.5:
        return f"{max(1, round(seconds))} s"
    if seconds < 99.5 * MINUTE:
        return f"{round(seconds / MINUTE)} min"
    if seconds < 2 * DAY:
        hours, minutes = divmod(round(seconds / MINUTE / 10) * 10, 60)
        return f"{hours} h" + (f" {minutes} min" if minutes else "")
    return f"{seconds / DAY:.0f} days"


def elapsed(known: Sequence[tuple[Planned, Forecast]]) -> float:
    """Return the seconds of all: each kind by itself, some of its cells side by side."""
    total = 0.0
    for name in {str(planned.cell.columns["runner"]): None for planned, _ in known}:
        group = [pair for pair in known if pair[0].cell.columns["runner"] == name]
        first = group[0][0].run
        lanes = 1 if first.runner.timed else first.hardware.side_by_side()
        seconds = [found.seconds or 0.0 for _, found in group]
        total += max(*seconds, sum(seconds) / lanes)
    return total
