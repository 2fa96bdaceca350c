"""Plans and runs the sweep of a command in the foreground, and prints what happens."""

import math
import sys
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lra.composition.configuration import ReportChoice
from lra.composition.run import Composed
from lra.execution import in_memory
from lra.reports.style import ReportStyle
from lra.results.style import read_style
from lra.runners.measurement.hardware import Device
from lra.runners.records import Status
from lra.runners.storage.index import RowsIndex
from lra.sweep.agent import agent_run, unheard
from lra.sweep.overview import overview
from lra.sweep.places import check_places
from lra.sweep.sweep import Sweep, SweepOutcome
from lra.sweep.sweep_logger import SweepLogger
from lra.terminal.volume import Volume
from lra.tuning.growing_search import GrowingSearch
from lra.tuning.sweep_plan import plan_sweep

RESUME = "rerun the same command to resume (training continues from its last checkpoint)"


class ExecutedSweep(NamedTuple):
    """The sweep that a command has run, and how it ended."""

    code: int
    """The exit code of `lra run`."""
    sweep: Sweep
    outcome: SweepOutcome


def execute(entries: Sequence[Composed], *, volume: Volume = Volume.normal) -> ExecutedSweep:
    """Plan and run the sweep of `entries`, the composed configurations of a command.

    At the end, the report and the remaining runs of the dashboard are written.
    """
    choice, several = ReportChoice.of(entries[0].config), entries[0].several
    style, remarks = read_style(choice.style)  # first, so that a mistake is reported at once
    for line in remarks:
        print(line, file=sys.stderr)
    dry_run = bool(entries[0].config["runner"].get("dry_run"))
    sweep, growing = plan_sweep(entries, elsewhere=dry_run)
    if dry_run:  # only CPU cells are checked: GPUs may be on another machine
        check_places([item for item in sweep.planned if item.run.hardware.device is Device.cpu])
    if sweep.control.dry_run:
        for line in (*overview(sweep), *(growing.said() if growing else ())):
            print(line)
        return ExecutedSweep(0, sweep, SweepOutcome())
    logger = SweepLogger(sweep, agent_run(sweep))
    if line := unheard(sweep):  # an agent of W&B waits for a score in vain
        print(line, file=sys.stderr)
    for line in growing.warned() if growing else ():
        print(line, file=sys.stderr)
    limit = sweep.control.sweep_timeout_s
    until = math.inf if limit is None else time.monotonic() + limit
    begin = growing.keep if growing else None
    outcome = in_memory.execute(sweep, volume, begin, until, logger=logger)
    while growing is not None and not (outcome.refused or outcome.stopped_by or outcome.late):
        before, sweep = sweep, growing.next_round()
        if {cell.key for cell in sweep.cells} <= {cell.key for cell in before.cells}:
            break  # the search has no further cells
        logger.sweep = sweep
        outcome = in_memory.execute(sweep, volume, until=until, logger=logger).after(outcome)
    _print_end(sweep, outcome, logger, choice.write, style, growing=growing, multirun=several)
    return ExecutedSweep(_exit_code(sweep, outcome), sweep, outcome)


def _print_end(
    sweep: Sweep,
    outcome: SweepOutcome,
    logger: SweepLogger,
    report_wanted: bool | None,
    style: ReportStyle,
    *,
    growing: GrowingSearch | None,
    multirun: bool,
) -> None:
    """Write the report of a sweep, and print which cells have no results and why."""
    from lra.results.finish import finish, tell_runs  # pandas and matplotlib, at the end alone

    with RowsIndex(sweep.root) as index:
        unfinished = sum(not index.complete(cell) for cell in sweep.cells)
    if outcome.refused is not None or outcome.stopped_by is not None:
        if outcome.refused is not None:
            print(f"lra: {outcome.refused}", file=sys.stderr)
        print(f"interrupted: {unfinished} of {len(sweep.cells)} runs are left; {RESUME}")
    else:
        if unfinished < len(sweep.cells):
            finish(sweep, report_wanted, style, multirun=multirun)
            tell_runs(logger, ran=bool(outcome.endings))
            for line in growing.said() if growing else ():
                print(line)
        if outcome.late:
            limit = sweep.control.sweep_timeout_s
            print(
                f"the time limit is over (runner.sweep_timeout_s={limit:g}): {unfinished} of "
                f"{len(sweep.cells)} runs are left; {RESUME}"
            )
        elif outcome.stopped:
            _say_stopped(sweep, outcome.stopped, unfinished)


def _exit_code(sweep: Sweep, outcome: SweepOutcome) -> int:
    """Return the exit code of a sweep, 0 if every cell has its rows: see the list in `lra.cli`."""
    if outcome.refused is not None:
        return 2
    if outcome.stopped_by is not None:
        return 128 + outcome.stopped_by
    failures = {status for status in outcome.endings.values() if status is not Status.ok}
    alone = sum(not planned.beside for planned in sweep.planned) == 1
    incomplete = outcome.stopped or outcome.late
    return 1 if incomplete or Status.crashed in failures or (alone and failures) else 0


def _say_stopped(sweep: Sweep, stopped: Mapping[str, str], left: int) -> None:
    """Print the cells that another program has stopped, and how to resume."""
    total = len(sweep.cells)
    print(f"something outside lra stopped {len(stopped)} of {total} runs:")
    for cell in sweep.cells:
        if (reason := stopped.get(cell.key)) is not None:
            print(f"  {cell.key}  {sweep.titles[cell.key]}: {reason}")
    print(f"{left} of {total} runs have no results yet; {RESUME}")
