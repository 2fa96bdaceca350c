"""Writes reports on a results folder, on one of its sweeps, or on a published file of rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from lra.composition.runner_class import first_metrics, sections
from lra.composition.selection import kinds
from lra.reports.report import write_report
from lra.reports.style import DEFAULT, ReportStyle
from lra.results.accounts import published_accounts, stored_accounts
from lra.results.rows import (
    destination,
    deviations,
    lines_of_unfinished,
    published_cells,
    published_with_names,
    stored_rows,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenReport:
    """A report that was written: its rows and files, and what it does not contain."""

    rows: pd.DataFrame
    files: list[Path]
    left_out: list[str]
    """A message for each damaged cell, which is excluded."""
    unfinished: list[str]
    """A line for each sweep that has cells without rows."""


def write(
    root: Path,
    sweep: str | None = None,
    *,
    file: Path | None = None,
    out: Path | None = None,
    title: str | None = None,
    style: ReportStyle | None = None,
    config_dirs: Sequence[Path] = (),
    plugins: Sequence[str] = (),
) -> WrittenReport:
    """Write a report.

    Args:
        root: The results folder.
        sweep: One of its sweeps; None: all of them.
        file: A file of published rows, instead of the results folder.
        out: The folder of the report; None: `reports/SWEEP` in the results folder, or
            `reports-of-FILE` for published rows.
        title: The heading; None: the name of the sweep or file.
        style: How figures and tables look; None: the default.
        config_dirs: The user's folders with configuration files.
        plugins: Packages whose runners have sections in reports.
    """
    damaged: list[str] = []
    unfinished: list[str] = []
    cells: dict[str, dict[str, Any]] = {}
    if file is not None:
        rows, about = published_with_names(file), published_cells(file)
        folder, heading = Path(f"reports-of-{file.stem}"), file.stem
        accounts = published_accounts(rows, about)
    else:
        rows, cells, damaged = stored_rows(root, sweep)
        unfinished = lines_of_unfinished(root, sweep)
        folder, heading = destination(root, sweep)
        about = {key: cell["config"] for key, cell in cells.items()}
        accounts = stored_accounts(root, rows, cells)
    files = write_report(
        rows,
        out or folder,
        title=title or heading,
        groups=kinds(config_dirs),
        left_out=[*damaged, *unfinished],
        sections=sections(cells, config_dirs, plugins),
        metrics=first_metrics(cells),
        deviations={key: deviations(node) for key, node in about.items()},
        style=style or DEFAULT,
        cells=accounts,
    )
    return WrittenReport(rows=rows, files=files, left_out=damaged, unfinished=unfinished)
