"""`lra run`: compose, plan, execute, and write what a person wants to see."""

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lra.composition.hydra_entry import MULTIRUN, Composed, entries
from lra.configuration import ReportChoice
from lra.selection import kinds
from lra.spelling import in_results
from lra.sweep import progress
from lra.volume import Volume, taken
from runners.isolation import isolate

if TYPE_CHECKING:
    import pandas as pd

    from lra.compose import Logger
    from lra.sweep.cell_list import Sweep
    from reports.style import ReportStyle

PRELOAD = (
    "torch._dynamo",  # which PyTorch loads at the first custom gradient: a second in every cell
    "lra.sweep.cells",
    "lra.sweep.trial_builds",
    "lra.sweep.work",
    "runners.measures.train",  # with what trains, which other runners need, too
)
"""What the fork server imports once, beside torch, so that a cell starts in milliseconds."""
GOES_ON = "the same command goes on from here (training continues at its last checkpoint)"
PRINTING = ("--help", "-h", "--hydra-help", "--cfg", "-c", "--info", "-i", "runner.dry_run")
"""Words that end with something printed, and start no cell."""


def main(argv: list[str]) -> int:
    """Run the words after `lra run`; return the exit code."""
    volume, argv = taken(argv)
    ready(argv, volume)
    found = entries(argv)
    if not found:
        return 0  # Hydra printed a configuration or its help
    several = len(found) > 1 or any(word in MULTIRUN for word in argv)
    done = execute(found, multirun=several, volume=volume)
    if line := disturbed(done.sweep, argv):
        print(line)
    return done.code


def disturbed(sweep: "Sweep", argv: Sequence[str]) -> str:
    """Return what to type where the machine disturbed cells of a sweep; "" where it did not."""
    from lra.sweep.planned import still_disturbed
    from runners.records import DISTURBED
    from runners.storage.index import RowsIndex

    if sweep.control.dry_run or DISTURBED not in sweep.control.retry:
        return ""
    with RowsIndex(sweep.root) as index:
        count = still_disturbed(sweep.planned, index)
    if not count:
        return ""
    return (
        f"the machine was busy: {count} of {len(sweep.planned)} cells were disturbed while they "
        f"were measured, and are marked; once it is quiet, measure them again by: "
        f"lra run {shlex.join(argv)}"
    )


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
    found: Sequence[Composed], *, multirun: bool, volume: Volume = Volume.normal
) -> Executed:
    """Plan and run the entries; report and mirror at the end."""
    from lra.report_style import read_style
    from lra.sweep import cell_list
    from lra.sweep.places import check_places
    from runners.measurement.hardware import Device

    choice = ReportChoice.of(found[0].config)
    style, not_taken = read_style(choice.style)  # before any cell: a slip is found in a second
    for line in not_taken:
        print(line, file=sys.stderr)
    planning = bool(found[0].config["runner"].get("dry_run"))
    sweep = cell_list.build(found, elsewhere=planning)
    if planning:  # a GPU may be somewhere else; processors are here
        check_places([each for each in sweep.planned if each.run.hardware.device is Device.cpu])
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
    from lra.sweep import execution as sweeps
    from lra.sweep.overview import overview
    from runners.storage.index import RowsIndex

    if sweep.control.dry_run:
        for line in overview(sweep):
            print(line)
        return 0
    sweeps.execute(sweep, volume)
    with RowsIndex(sweep.root) as index:
        left = sum(not index.complete(planned.cell) for planned in sweep.planned)
    if sweep.refused is not None or sweep.stopped_by is not None:
        if sweep.refused is not None:
            print(f"lra: {sweep.refused}", file=sys.stderr)
        print(f"interrupted: {left} of {len(sweep.planned)} cells are left; {GOES_ON}")
        return sweeps.exit_code(sweep)
    if left < len(sweep.planned):
        finish(sweep, report_wanted, style, multirun=multirun)
    if sweep.stopped:
        _say_stopped(sweep, left)
    return sweeps.exit_code(sweep)


def _say_stopped(sweep: "Sweep", left: int) -> None:
    """Name the cells that somebody else has stopped, and what to do."""
    total = len(sweep.planned)
    print(f"{len(sweep.stopped)} of {total} cells were stopped from outside:")
    for planned in sweep.planned:
        reason = sweep.stopped.get(planned.cell.key)
        if reason is not None:
            print(f"  {planned.cell.key}  {sweep.titles[planned.cell.key]}: {reason}")
    print(f"{left} of {total} cells have no rows; {GOES_ON}")


def finish(
    sweep: "Sweep", report_wanted: bool | None, style: "ReportStyle", *, multirun: bool
) -> None:
    """Write report and dashboard, and print the paths of the results."""
    from lra.accounts import stored_accounts
    from lra.commands import report
    from lra.compose import LoggerMode
    from lra.console import print_result
    from lra.runner_class import first_metrics
    from lra.sweep.conclusion import conclusions
    from lra.sweep.live import shown_by_tensorboard
    from reports.report import write_report

    wanted = multirun if report_wanted is None else report_wanted
    logger = sweep.logger
    mirrored = logger.for_wandb
    written: list[Path] = []
    sentence = ""
    if wanted or mirrored:
        rows, cells, left_out = report.stored(sweep.root, sweep.name)
        for line in left_out:
            print(f"left out: {line}")
        if wanted:
            folder, title = report.destination(sweep.root, sweep.name)
            written = write_report(
                rows,
                folder,
                title=title,
                groups=kinds(),
                left_out=left_out,
                metrics=first_metrics(cells),
                deviations={k: report.deviations(cell["config"]) for k, cell in cells.items()},
                style=style,
                cells=stored_accounts(sweep.root, rows, cells),
            )
            for found in conclusions(rows):
                print(f"\n{found}") if isinstance(found, str) else print_result(found)
        if mirrored:
            sentence = _mirror(sweep, logger, rows, cells, written)
    print()
    for planned in sweep.planned if len(sweep.planned) == 1 else ():
        print(f"rows          {sweep.store.cell_folder(planned.cell.key)}")
        print(f"again         lra show {planned.cell.key}{in_results(sweep.root)}")
    for label, suffixes in (("tables", (".md",)), ("figures", (".png",)), ("page", (".html",))):
        for path in written:
            if path.suffix in suffixes:
                print(f"{label:13} {path}")
    print(f"results       {sweep.root}")
    if sentence:
        print(f"W&B           {sentence}")
    if logger.mode is LoggerMode.tensorboard:
        print(f"TensorBoard   {shown_by_tensorboard(sweep)}")
    if sweep.live is not None and (lost := sweep.live.dropped):
        print(f"dashboard     {lost:,} numbers of running cells were left out: it was too slow")


def _mirror(
    sweep: "Sweep",
    logger: "Logger",
    rows: "pd.DataFrame",
    cells: Mapping[str, Mapping[str, Any]],
    written: Sequence[Path],
) -> str:
    """Copy what W&B has not got live; return the sentence that tells where its runs are."""
    from lra.names import own_name
    from lra.sweep.live import apart
    from reports.dashboard.mirror import MirrorMode, mirror

    live = sweep.live.runs if sweep.live is not None else None
    words = {p.cell.key: apart(sweep, p.cell) for p in sweep.planned}
    try:
        return mirror(
            rows,
            list(written),
            sweep=sweep.name,
            cells=cells,
            names={key: own_name(cell) for key, cell in cells.items()},
            apart={key: word for key, word in words.items() if word is not None},
            own={planned.cell.key for planned in sweep.planned},
            mode=MirrorMode[logger.mode],
            folder=sweep.root / "wandb",
            project=logger.project,
            entity=logger.entity,
            unreachable=live.offline if live is not None else "",
        ).sentence
    except OSError as error:  # no room, no right: the rows are there
        return f"W&B got nothing: {error}"
