"""What a finished sweep gives to its user: report, dashboard, and tables on the terminal."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from lra.composition.protocol import first_look
from lra.composition.spelling import in_results
from lra.reports.rows import by_setting, cost_points, cost_rows, prepare
from lra.reports.sections import tuning
from lra.reports.sections.arena import undrawn
from lra.reports.sections.best_on_validation import best_on_validation
from lra.reports.sections.section import TablePart
from lra.reports.style import ReportStyle, using
from lra.reports.tables.costs import crossover_table
from lra.reports.tables.scores import score_tables
from lra.reports.tables.table import Table
from lra.results.reporting import write
from lra.results.runs_from_rows import write_runs
from lra.results.score_line import score_lines
from lra.sweep.sweep import SweepCells
from lra.sweep.sweep_logger import SweepLogger, name_of
from lra.terminal.result_table import print_result


def finish(
    sweep: SweepCells,
    report_wanted: bool | None,
    style: ReportStyle,
    *,
    multirun: bool,
) -> None:
    """Write the report, and print the paths of the results.

    Args:
        sweep: The sweep; some of its cells have rows.
        report_wanted: Whether a report is written; None: if the command asked for a sweep.
        style: The style of the report.
        multirun: Whether the command asked for a sweep.
    """
    writes_report = multirun if report_wanted is None else report_wanted
    written: list[Path] = []
    if writes_report:
        report = write(sweep.root, sweep.name, style=style)
        written = report.files
        for line in report.left_out:
            print(f"excluded: {line}")
        with using(style):
            concluded = [*conclusions(report.rows)]
        for conclusion in concluded:
            print(f"\n{conclusion}") if isinstance(conclusion, str) else print_result(conclusion)
    print()
    for cell in sweep.cells if len(sweep.cells) == 1 else ():
        for number, line in enumerate(score_lines(cell, sweep.store.rows_of(cell), sweep.store)):
            print(f"{'' if number else 'score':13} {line}")  # the first line has the label
        print(f"details       lra show {cell.key}{in_results(sweep.root)}")
        print(f"rows          {sweep.store.cell_folder(cell.key)}")
    for label, suffixes in (("tables", (".md",)), ("figures", (".png",)), ("page", (".html",))):
        for path in written:
            if path.suffix in suffixes:
                print(f"{label:13} {path}")
    print(f"results       {sweep.root}")
    for look in dict.fromkeys(filter(None, (first_look(cell.config) for cell in sweep.cells))):
        print(f"note          {look}")


def tell_runs(logger: SweepLogger, *, ran: bool) -> None:
    """Write the runs of the dashboard that are made from rows, and print where all runs are.

    Args:
        logger: The dashboard of the sweep.
        ran: Whether this command has run cells of the sweep.
    """
    if sentence := write_runs(logger, ran=ran):
        print(f"{name_of(logger.sweep.logger):13} {sentence}")


def conclusions(rows: pd.DataFrame) -> Iterator[Table | str]:
    """Yield tables: of searches, scores, and lengths from which a model is faster than references.

    Then yield sentences that say why a figure of the Long Range Arena is not drawn.
    """
    frame = prepare(rows)
    yield from (p.table for p in tuning.section(frame) if isinstance(p, TablePart))
    yield from (p.table for p in best_on_validation(frame) if isinstance(p, TablePart))
    for _, table in score_tables(frame):
        yield table
    timed = cost_rows(frame)
    for part in by_setting(timed) if not timed.empty else ():
        crossing = crossover_table(cost_points(part.rows))
        if crossing is not None:
            yield crossing
    yield from undrawn(frame)
