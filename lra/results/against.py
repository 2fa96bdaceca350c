"""`lra plan --against`: what stored runs took, compared with their uncorrected forecasts."""

import csv
import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from lra.composition.class_path import NotNamed
from lra.composition.compose import typed
from lra.conf.short_values import number_of
from lra.runners.records import Status
from lra.runners.storage.formats import BadStore, cell_folders, read_newest_rows
from lra.runners.store import Store
from lra.sweep.forecast import Forecaster
from lra.terminal.screen import table

FACTOR = 1.5
"""A ratio from 1 / FACTOR to FACTOR counts as near 1."""
COLUMNS = (
    "cell", "runner", "mode", "model", "task", "length", "batch", "quantity", "measured",
    "predicted", "ratio",
)  # fmt: skip
QUANTITIES = {
    "train_step_time": "time of a training step, in seconds",
    "train_time": "time of all training steps, in seconds",
    "time": "time of one measured pass, in seconds",
    "peak_tensor_bytes": "peak memory of the tensors of one measured pass, in bytes",
    "process_peak_bytes": "peak memory of the process of a training, in bytes",
}
"""The metrics that are compared, and what they mean."""


def against(results: Path, *, as_json: bool, as_csv: bool) -> int:
    """Print measured and predicted values of stored cells; return 1 if one is damaged, else 0."""
    lines, excluded, unnamed = [], 0, dict[str, None]()
    damaged: list[BadStore] = []
    for line in compared_cells(results, unnamed, damaged):
        if line is None:
            excluded += 1
        else:
            lines.append(line)
    for reason in (*unnamed, *(f"excluded: {error}" for error in damaged)):
        print(reason, file=sys.stderr)
    summaries = {
        quantity: summary([line["ratio"] for line in lines if line["quantity"] == quantity])
        for quantity in QUANTITIES
        if any(line["quantity"] == quantity for line in lines)
    }
    if as_json:
        print(
            json.dumps({"schema": 1, "cells": lines, "left_out": excluded, **summaries}, indent=1)
        )
    elif as_csv:
        writer = csv.DictWriter(sys.stdout, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
    else:
        _print(lines, summaries, excluded)
    return 1 if damaged else 0


def compared_cells(
    results: Path, unnamed: dict[str, None], damaged: list[BadStore]
) -> Iterator[dict[str, Any] | None]:
    """Yield a mapping (keys: `COLUMNS`) for each quantity of each stored cell.

    Yields None for a cell with measured quantities whose operations cannot be counted.

    Args:
        results: the results folder.
        unnamed: gains a message for each plug-in that cells need and the command does not name.
        damaged: gains the errors of cells that cannot be read, which are excluded.

    Raises:
        FileNotFoundError: there is no such folder.
    """
    if not results.is_dir():
        raise FileNotFoundError(
            f"there is no results folder {results}: name one that `lra run` has made"
        )
    forecaster, store = Forecaster(), Store(results)
    for folder in cell_folders(results, damaged):
        try:
            description, newest = store.cell(folder.name), read_newest_rows(folder)
        except BadStore as error:
            damaged.append(error)
            yield None
            continue
        rows = newest[1] if newest else []  # `newest` is a file and its rows
        values = {
            row["metric"]: row["value"]
            for row in rows
            if row["status"] == Status.ok and "reference" not in row["labels"]  # of the model alone
        }
        expected = predicted_costs(description, forecaster, unnamed)
        if expected is None:
            if values.keys() & QUANTITIES.keys():
                yield None
            continue
        columns, config = description["columns"], description["config"]
        for quantity, value in expected.items():
            if (measured := values.get(quantity)) and value:
                yield {
                    "cell": folder.name,
                    **{name: columns[name] for name in COLUMNS[1:6]},  # runner to length
                    "batch": config["optim"]["batch_size"],
                    "quantity": quantity,
                    "measured": measured,
                    "predicted": value,
                    "ratio": measured / value,
                }


def predicted_costs(
    description: Mapping[str, Any], forecaster: Forecaster, unnamed: dict[str, None]
) -> dict[str, float] | None:
    """Return the time and memory of a stored cell as counted, by metric; None: not countable.

    `unnamed` gains a message if the cell needs a plug-in that the command does not name.
    """
    columns = description["columns"]
    try:
        run = typed(description["config"])
        forecast = forecaster.counted(run, columns)
    except NotNamed as error:
        unnamed[str(error)] = None
        return None
    except Exception:  # noqa: BLE001 - of an older version, or of a package that is not here
        return None
    if forecast.step_s is None or forecast.steps is None or forecast.need_bytes is None:
        return None
    if run.runner.trains:
        return {
            "train_step_time": forecast.step_s,
            "train_time": forecast.step_s * forecast.steps,
            "process_peak_bytes": float(forecast.need_bytes),
        }
    return {"time": forecast.step_s, "peak_tensor_bytes": float(forecast.peak_bytes or 0)}


def summary(ratios: list[float]) -> dict[str, float]:
    """Return statistics of ratios; `within` is the share of those from 1 / FACTOR to FACTOR.

    Half of the ratios are at most `typical_factor` away from 1, as a factor or as its inverse.
    """
    is_near = [1 / FACTOR <= ratio <= FACTOR for ratio in ratios]
    typical_factor = math.exp(median(abs(math.log(ratio)) for ratio in ratios))
    return {
        "cells": len(ratios),
        "within": sum(is_near) / len(is_near),
        "median": median(ratios),
        "typical_factor": typical_factor,
        "least": min(ratios),
        "most": max(ratios),
    }


def _print(
    lines: list[dict[str, Any]], summaries: Mapping[str, Mapping[str, float]], excluded: int
) -> None:
    """Print the lines of `compared_cells` as a table, and below it the `summary` of a quantity."""
    head = ("model", "task", "length", "batch", "quantity", "measured", "predicted", "ratio")
    rows = [
        tuple(
            f"{line[name]:.3g}" if isinstance(line[name], float) else str(line[name])
            for name in head
        )
        for line in lines
    ]
    print(table([head, *rows], indent=""))
    print()
    for quantity, numbers in summaries.items():
        print(
            f"{QUANTITIES[quantity]} ({quantity}): over {number_of(int(numbers['cells']), 'run')}, "
            f"the ratio measured / predicted has the median {numbers['median']:.2f} and lies "
            f"between {numbers['least']:.2f} and {numbers['most']:.2f}; "
            f"for {numbers['within']:.0%} of the runs, it is within a factor of {FACTOR}"
        )
    if not lines:
        print("nothing is compared, as this folder has no run of runner=train or runner=scaling")
    if excluded:
        print(f"lra excludes {number_of(excluded, 'run')}, because it cannot count the operations")
