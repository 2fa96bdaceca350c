"""`lra report`: tables and figures from stored results. Needs no torch and no network."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lra.suggest import UnknownName, unknown
from lra.variants import tell_apart


def stored(root: Path, sweep: str | None) -> tuple[pd.DataFrame, dict[str, dict[str, Any]]]:
    """Return the rows of a sweep (None: of the whole store), and each cell's cell.json.

    Models of one name and several configurations are told apart by name.

    Raises:
        FileNotFoundError: there is no store, or it holds no rows.
        UnknownName: there is no such sweep; the message lists those that exist.
    """
    from runners.store import Store, read_rows

    store = Store(root)
    if sweep is not None and sweep not in store.sweeps():
        raise UnknownName(unknown("sweep", sweep, store.sweeps()))
    rows = read_rows(root, sweep)
    if rows.empty:
        raise FileNotFoundError(f"no results under {root}: `lra run` makes some")
    cells = {
        key: json.loads((store.cell_folder(key) / "cell.json").read_text())
        for key in rows["cell"].unique()
    }
    return tell_apart(rows, {key: cell["identity"] for key, cell in cells.items()}), cells


def write(root: Path, sweep: str | None, out: Path | None, title: str | None) -> list[Path]:
    """Write every table and figure that the rows allow; return the files."""
    from reports.report import write_report

    rows, _ = stored(root, sweep)
    folder = out or root / "reports" / (sweep or "all")
    return write_report(rows, folder, title=title or f"Results of {sweep or 'all sweeps'}")


def config_by_cell(cells: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the resolved configuration of each cell, for the dashboard."""
    return {key: cell["config"] for key, cell in cells.items()}


def main(argv: list[str]) -> int:
    """Parse the words after `lra report` and write the report."""
    parser = argparse.ArgumentParser(prog="lra report", description=__doc__)
    parser.add_argument("--results", type=Path, default=Path("results"), help="the store")
    parser.add_argument("--sweep", help="name of a sweep; default: every stored result")
    parser.add_argument("--out", type=Path, help="folder; default: RESULTS/reports/SWEEP")
    parser.add_argument("--title", help="heading of the report")
    choice = parser.parse_args(argv)
    written = write(choice.results, choice.sweep, choice.out, choice.title)
    for path in written:
        print(path)
    return 0
