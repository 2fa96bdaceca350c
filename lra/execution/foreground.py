"""A command's sweep, planned and run in the foreground, with what a person wants to see of it."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from lra.composition.configuration import ReportChoice
from lra.composition.run import Composed
from lra.results.finish import finish
from lra.terminal import progress
from lra.terminal.volume import Volume
from runners.isolation import isolate

if TYPE_CHECKING:
    from lra.sweep.cell_list import Sweep
    from reports.style import ReportStyle

PRELOAD = (
    "torch._dynamo",  # which PyTorch loads at the first custom gradient: a second in every cell
    "lra.sweep.cells",
    "lra.sweep.trial_builds",
    "lra.sweep.work",
    "runners.measures.train",  # with what trains, which other runners need, too
)
"""What the fork server imports once, besides torch, so that a cell starts in milliseconds."""
GOES_ON = "the same command goes on from here (training continues at its last checkpoint)"
PRINTING = ("--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i", "runner.dry_run")
"""Words that end with something printed, and start no cell."""


def ready(argv: Sequence[str], volume: Volume) -> None:
    """Begin what takes long while this process composes: the fork server imports torch."""
    progress.shown = volume is not Volume.quiet
    isolate.prepare(*PRELOAD)
    if not any(word.startswith(PRINTING) for word in argv):
        isolate.start_server()


class Executed(NamedTuple):
    """What one command has done."""

    code: int
    """As `lra run` ends with it."""
    sweep: "Sweep"


def execute(
    entries: Sequence[Composed], *, multirun: bool, volume: Volume = Volume.normal
) -> Executed:
    """Plan and run the entries; report, and what its dashboard lacks, at the end."""
    from lra.results.style import read_style
    from lra.sweep import cell_list
    from lra.sweep.places import check_places
    from runners.measurement.hardware import Device

    choice = ReportChoice.of(entries[0].config)
    style, not_taken = read_style(choice.style)  # before any cell: a slip is reported in a second
    for line in not_taken:
        print(line, file=sys.stderr)
    planning = bool(entries[0].config["runner"].get("dry_run"))
    sweep = cell_list.build(entries, elsewhere=planning)
    if planning:  # a GPU may be somewhere else; processors are here
        check_places([item for item in sweep.planned if item.run.hardware.device is Device.cpu])
    return Executed(_executed(sweep, choice.write, style, volume, multirun=multirun), sweep)


def _executed(
    sweep: "Sweep",
    report_wanted: bool | None,
    style: "ReportStyle",
    volume: Volume,
    *,
    multirun: bool,
) -> int:
    """Run a sweep and return the exit code."""
    from lra.execution import executor
    from lra.sweep.overview import overview
    from runners.storage.index import RowsIndex

    if sweep.control.dry_run:
        for line in overview(sweep):
            print(line)
        return 0
    live = executor.execute(sweep, volume)
    with RowsIndex(sweep.root) as index:
        left = sum(not index.complete(planned.cell) for planned in sweep.planned)
    if sweep.refused is not None or sweep.stopped_by is not None:
        if sweep.refused is not None:
            print(f"lra: {sweep.refused}", file=sys.stderr)
        print(f"interrupted: {left} of {len(sweep.planned)} cells are left; {GOES_ON}")
        return executor.exit_code(sweep)
    if left < len(sweep.planned):
        finish(sweep, report_wanted, style, multirun=multirun, live=live)
    if sweep.stopped:
        _say_stopped(sweep, left)
    return executor.exit_code(sweep)


def _say_stopped(sweep: "Sweep", left: int) -> None:
    """Name the cells that somebody else has stopped, and what to do."""
    total = len(sweep.planned)
    print(f"{len(sweep.stopped)} of {total} cells were stopped from outside:")
    for planned in sweep.planned:
        reason = sweep.stopped.get(planned.cell.key)
        if reason is not None:
            print(f"  {planned.cell.key}  {sweep.titles[planned.cell.key]}: {reason}")
    print(f"{left} of {total} cells have no rows; {GOES_ON}")
