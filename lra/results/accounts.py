"""What a report's page shows of each cell besides its rows: configuration, command, environment."""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pandas as pd

from lra.errors import ConfigError, UnknownName
from lra.reports.page.configurations import CellAccount
from lra.results.repeat import HERE, origin_of, repeat
from lra.runners.records import CELL_COLUMNS, Cell, baseline_of
from lra.runners.storage.formats import read_object
from lra.runners.store import BadStore, Store
from lra.sweep.sweep import WEIGHTS


def stored_accounts(
    root: Path, rows: pd.DataFrame, cells: Mapping[str, Mapping[str, Any]]
) -> dict[str, CellAccount]:
    """Return configuration, command and environment of stored cells, by key.

    Args:
        root: the results folder.
        rows: the rows of the cells.
        cells: the content of each cell.json, by key.
    """
    store = Store(root)
    fingerprints = dict(zip(rows["cell"], rows["fingerprint"], strict=True))
    accounts = {}
    for key, description in cells.items():
        try:
            file = store.cell_folder(key) / f"environment-{fingerprints[key]}.json"
            environment = read_object(file)
        except BadStore:  # this file only describes the machine: a report can do without it
            environment = {}
        cell = Cell(
            identity=description["identity"],
            columns=description["columns"],
            config=description["config"],
            overrides=tuple(description["overrides"]),
            place=origin_of(description),
        )
        environment.pop("sources", None)  # hashes of all modules, which no page shows
        accounts[key] = CellAccount(
            config=cell.config or description["described"],
            command=_find_command(cell, store),
            environment=environment,
        )
    return accounts


def published_accounts(
    rows: pd.DataFrame, cells: Mapping[str, Mapping[str, Any]]
) -> dict[str, CellAccount]:
    """Return configuration, command and environment of published cells, by key.

    A cell that starts from the weights of another one has no command: weights are not published.

    Args:
        rows: the published rows.
        cells: what `lra.results.rows.published_cells` returns.
    """
    models = rows[rows["model"].map(baseline_of).isna()]
    first = pd.concat([models, rows]).drop_duplicates("cell")[["cell", *CELL_COLUMNS]]
    without_nan = first.astype(object).where(first.notna(), None)
    accounts = {}
    for columns in without_nan.to_dict("records"):
        key = str(columns.pop("cell"))
        if (description := cells.get(key)) is None:
            continue
        overrides = description.get("overrides")
        command = ""
        if isinstance(overrides, list) and WEIGHTS not in description["identity"].get(
            "trainings", {}
        ):
            cell = Cell(
                identity=description["identity"],
                columns={str(name): value for name, value in columns.items()},
                config={},
                overrides=tuple(map(str, overrides)),
            )
            command = _find_command(cell)
        environment = description.get("environment")
        accounts[key] = CellAccount(
            config=description["described"],
            command=command,
            environment=environment if isinstance(environment, Mapping) else {},
        )
    return accounts


def _find_command(cell: Cell, store: Store = HERE) -> str:
    """Return the command that repeats a cell; "" if the package of its runner is not installed."""
    with suppress(ConfigError, UnknownName):
        return repeat(cell, store)
    return ""
