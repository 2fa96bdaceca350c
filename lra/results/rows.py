"""Reads the rows of a store or of a published file, with the options that distinguish models."""

import json
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.composition.protocol import ADHOC
from lra.errors import UnknownName, unknown
from lra.runners.storage import schema_1
from lra.runners.storage.formats import read_object, some, without_gc
from lra.runners.store import BadStore, Store, UnknownCell, read_rows, read_rows_file, table_of
from lra.sweep.model_names import with_distinct_names

if TYPE_CHECKING:  # half a second, which nobody waits for who asks for help
    import pandas as pd

EXAMPLE = "example"
"""The name of rows that come with lra."""
PUBLISHED = ("identity", "described", "overrides", "environment")
"""The entries of a cell that `publish` writes."""


def stored_rows(
    root: Path, sweep: str | None, only: Collection[str] | None = None
) -> "tuple[pd.DataFrame, dict[str, dict[str, Any]], list[str]]":
    """Return rows, the cell.json of each cell by key, and a message for each damaged file.

    Several configurations of one model get different names. A cell with a damaged file is excluded.

    Args:
        root: The results folder.
        sweep: The sweep; None: all cells of the store.
        only: Keys of the cells to return; None: all.

    Raises:
        FileNotFoundError: there is no store, or it holds no rows.
        UnknownName: there is no such sweep; the message lists those that exist.
        BadStore: every cell is damaged; the message is that of the first.
    """
    store = Store(root)
    if sweep is not None and sweep not in store.sweeps():
        later = "A sweep that has just been started is listed when its plan is complete."
        raise UnknownName(unknown("sweep", sweep, store.sweeps(), way_out=later))
    left_out: list[BadStore] = []
    rows = read_rows(root, sweep, left_out=left_out)
    if only is not None:
        rows = rows[rows["cell"].isin([*only])]
    cells = {}
    known: dict[str, Any] = {}
    with without_gc():
        for key in rows["cell"].unique():
            try:
                cells[str(key)] = _share_parts(store.cell(key), known)
            except BadStore as error:
                left_out.append(error)
    sound = rows[rows["cell"].isin(list(cells))].reset_index(drop=True)
    if sound.empty and left_out:
        raise left_out[0]
    if sound.empty and sweep is not None and store.cells_of(sweep):
        raise FileNotFoundError(
            f"no run of {sweep} in {root} is finished yet; rerun the same command to resume it"
        )
    if sound.empty:
        raise FileNotFoundError(f"there are no results in {root}: `lra run` writes results")
    renamed = with_distinct_names(sound, cells)
    return renamed, cells, [str(error) for error in left_out]


def _share_parts(value: Any, parts: dict[str, Any], levels: int = 2) -> Any:
    """Return an equal value made of the same objects as earlier cells, to save memory.

    The cells of a sweep differ in a few of hundreds of options: sharing saves 2 GiB for 50,000.
    The mappings of the upper `levels` are made anew; the values below them are shared.
    """
    if levels and isinstance(value, dict):
        return {sys.intern(k): _share_parts(part, parts, levels - 1) for k, part in value.items()}
    return parts.setdefault(repr(value), value)


def lines_of_unfinished(root: Path, sweep: str | None) -> list[str]:
    """Return a line for each sweep with unfinished runs, which lists them.

    Args:
        root: The results folder.
        sweep: Only this sweep; None: all.
    """
    store, lines = Store(root), []
    for name in store.sweeps() if sweep is None else [sweep]:
        seeds: dict[str, list[str]] = {}
        with suppress(UnknownCell):  # a folder whose name no sweep can have
            for title in store.unfinished(name):
                run_title, comma, seed = title.partition(", seed ")
                seeds.setdefault(run_title, []).extend([seed] if comma else [])
        texts = [
            run_title
            + (f", seed{'s' * (len(run_seeds) > 1)} {', '.join(run_seeds)}" if run_seeds else "")
            for run_title, run_seeds in seeds.items()
        ]
        if texts:
            cells = some(texts, between="; ")
            rerun = "rerun the same command to resume"
            lines.append(f"these runs of {name} are unfinished: {cells}; {rerun}")
    return lines


def destination(root: Path, sweep: str | None) -> tuple[Path, str]:
    """Return the folder and the heading of the report on a sweep, or on the whole store."""
    if sweep is not None:
        mixed = "all runs without a named sweep (adhoc)"
        return root / "reports" / sweep, f"Results of {mixed if sweep == ADHOC else sweep}"
    sweeps = Store(root).sweeps()
    return root / "reports" / "all", f"Results of all sweeps: {', '.join(sweeps)}"


def publish(root: Path, sweep: str, target: Path) -> list[Path]:
    """Write a sweep's rows, and what repeats them, as two files to keep in a repository.

    `TARGET.jsonl` holds the rows, `TARGET.json` the identity and the command-line words of each
    cell, and the versions. The target may be named with either ending, or without.
    """
    store, rows = Store(root), read_rows(root, sweep)
    descriptions = {}
    for key in rows["cell"].unique():
        cell = store.describe(key)
        # The hashes of all modules are of use only in the results folder.
        (cell["environment"] or {}).pop("sources", None)
        # A folder of this machine; the command that repeats a cell names another one.
        cell["overrides"] = [word for word in cell["overrides"] if not word.startswith("results=")]
        descriptions[key] = {k: cell[k] for k in PUBLISHED if k in cell}
        if sentences := deviations(cell["config"]):
            descriptions[key]["deviations"] = sentences
    if target.suffix in {".jsonl", ".json"}:
        target = target.with_suffix("")
    target.parent.mkdir(parents=True, exist_ok=True)
    lines, description = (target.with_name(target.name + end) for end in (".jsonl", ".json"))
    rows.to_json(lines, orient="records", lines=True, date_format="iso", double_precision=15)
    description.write_text(json.dumps(descriptions, indent=1, sort_keys=True) + "\n")
    return [lines, description]


def deviations(node: Mapping[str, Any]) -> dict[str, str]:
    """Return the sentences that say where a run deviates from the paper of its protocol, by name.

    Args:
        node: the configuration of a cell, or its entry in a file that `publish` wrote.
    """
    sentences = node.get("deviations")
    items = sentences.items() if isinstance(sentences, Mapping) else ()
    return {str(name): str(text) for name, text in items if text is not None}


def file_of_rows(path: Path) -> Path:
    """Return the file of rows at a path; `example` names rows of the quickstart that ship with lra.

    A file or folder called `example` has priority over this name.
    """
    if str(path) != EXAMPLE or path.exists():
        return path
    folder = Path(str(resources.files("lra.reports")))
    return max([*folder.glob("example.jsonl"), *folder.glob("published/quickstart-*.jsonl")])


def published_rows(path: Path) -> "pd.DataFrame":
    """Read rows that `publish` wrote. Raises BadStore, with the line, for a damaged row."""
    return table_of(read_rows_file(path))


def published_with_names(path: Path) -> "pd.DataFrame":
    """Read rows that `publish` wrote, with models named as in reports.

    The names need the file `TARGET.json` next to `TARGET.jsonl`; without it, the families stay.
    """
    rows, cells = published_rows(path), published_cells(path)
    return with_distinct_names(rows, cells) if path.with_suffix(".json").is_file() else rows


def published_cells(path: Path) -> dict[str, dict[str, Any]]:
    """Return the entries of `TARGET.json` next to the rows `TARGET.jsonl`, by cell; {} if none."""
    about_file = path.with_suffix(".json")
    return {
        key: {**cell, "described": _describe(cell)}
        for key, cell in (read_object(about_file) if about_file.is_file() else {}).items()
        if isinstance(cell, dict) and isinstance(cell.get("identity"), dict)
    }


def _describe(cell: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the options of a published cell, spelled out."""
    options = cell.get("described")
    return options if isinstance(options, Mapping) else schema_1.describe_cell(cell["identity"])
