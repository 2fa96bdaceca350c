"""What a finished sweep leaves for its reader: report, dashboard, and tables on the terminal."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.composition.selection import kinds
from lra.composition.spelling import in_results

if TYPE_CHECKING:
    import pandas as pd

    from lra.sweep.cell_list import Sweep
    from lra.sweep.live import LiveSweep
    from reports.style import ReportStyle
    from reports.tables.table import Table


def finish(
    sweep: "Sweep",
    report_wanted: bool | None,
    style: "ReportStyle",
    *,
    multirun: bool,
    live: "LiveSweep | None" = None,
) -> None:
    """Write report and dashboard, and print the paths of the results.

    Args:
        sweep: Of which some cells have rows.
        report_wanted: Whether a report is written; None: of a sweep.
        style: Of the report.
        multirun: Whether the command asked for a sweep.
        live: What the dashboard was told while cells ran; None: nothing had to be run.
    """
    from lra.composition.run import LoggerMode
    from lra.composition.runner_class import first_metrics, sections
    from lra.results.accounts import stored_accounts
    from lra.results.stored import destination, deviations, stored
    from lra.sweep.live import shown_by_tensorboard
    from lra.terminal.console import print_result
    from reports.report import write_report

    wanted = multirun if report_wanted is None else report_wanted
    logger = sweep.logger
    mirrored = logger.for_wandb
    written: list[Path] = []
    sentence = ""
    if wanted or mirrored:
        rows, cells, left_out = stored(sweep.root, sweep.name)
        for line in left_out:
            print(f"left out: {line}")
        if wanted:
            folder, title = destination(sweep.root, sweep.name)
            written = write_report(
                rows,
                folder,
                title=title,
                groups=kinds(),
                left_out=left_out,
                sections=sections(cells),
                metrics=first_metrics(cells),
                deviations={k: deviations(cell["config"]) for k, cell in cells.items()},
                style=style,
                cells=stored_accounts(sweep.root, rows, cells),
            )
            for found in conclusions(rows):
                print(f"\n{found}") if isinstance(found, str) else print_result(found)
        if mirrored:
            sentence = _mirror(sweep, live, rows, cells, written)
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
        print(f"TensorBoard   {shown_by_tensorboard(sweep, live)}")
    if live is not None and (lost := live.dropped):
        print(f"dashboard     {lost:,} numbers of running cells were left out: it was too slow")


def _mirror(
    sweep: "Sweep",
    live: "LiveSweep | None",
    rows: "pd.DataFrame",
    cells: Mapping[str, Mapping[str, Any]],
    written: Sequence[Path],
) -> str:
    """Copy what W&B has not got live; return the sentence that tells where its runs are."""
    from lra.sweep.live import apart
    from lra.sweep.model_names import own_name
    from reports.dashboard.mirror import MirrorMode, mirror

    runs, logger = None if live is None else live.runs, sweep.logger
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
            unreachable=runs.offline if runs is not None else "",
        ).sentence
    except OSError as error:  # no room, no right: the rows are there
        return f"W&B got nothing: {error}"


def conclusions(rows: "pd.DataFrame") -> "Iterator[Table | str]":
    """Yield the tables of scores with baselines, and where each model overtakes the references.

    Sentences follow: why a figure of the Long Range Arena is not drawn.
    """
    from reports.rows import cost_points, cost_rows, prepare, settings
    from reports.sections.arena import undrawn
    from reports.tables.costs import crossover_table
    from reports.tables.scores import score_tables

    frame = prepare(rows)
    for _, table in score_tables(frame):
        yield table
    timed = cost_rows(frame)
    for part in settings(timed) if not timed.empty else ():
        crossing = crossover_table(cost_points(part.rows))
        if crossing is not None:
            yield crossing
    yield from undrawn(frame)
