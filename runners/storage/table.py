"""Rows as a table, one type per column."""

import warnings
from collections.abc import Iterable, Mapping
from itertools import islice
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from lra.runners.records import COLUMNS
from lra.runners.storage.formats import some

if TYPE_CHECKING:
    import pandas as pd

_TYPES = {
    **dict.fromkeys(("schema", "task_version", "length", "seed", "threads", "step"), "Int64"),
    "causal": "boolean",
    "value": "float64",
    "created": "datetime64[us, UTC]",
}
_TEXTS = (*(name for name in COLUMNS if name not in {*_TYPES, "samples", "labels"}), "created")
_AT_ONCE = 2048
"""Rows that are held whole."""
_values = itemgetter(*COLUMNS)


def table_of(rows: Iterable[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return rows that were checked as a table with exactly `COLUMNS` and one type per column."""
    import numpy as np
    import pandas as pd

    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    rows = iter(rows)
    while part := [*islice(rows, _AT_ONCE)]:
        for name, values in zip(COLUMNS, zip(*map(_values, part), strict=True), strict=True):
            columns[name] += values
    arrays: dict[str, Any] = {}
    for name, column in columns.items():
        kind: Any = _TYPES.get(name)
        if name in _TEXTS:  # most columns hold few, and each that differs is converted once
            places, distinct = pd.factorize(np.array(column, dtype=object))
            series = pd.Series([*distinct])
            arrays[name] = (series.astype(kind) if kind else series).array.take(places)
        else:
            arrays[name] = pd.Series(column, dtype=object).astype(kind or object).array
    return pd.DataFrame(arrays, copy=False)


class MixedSources(UserWarning):
    """Rows of one kind in one table come from different versions of the code."""


def warn_if_mixed(table: "pd.DataFrame") -> None:
    """Warn the caller's caller where one kind of measurement comes from several versions."""
    # Other families, in some layers or as what the weights come from, have other sources; so has a
    # mode that starts from trained weights.
    kinds = table[["runner", "model", "task", "mode", "fingerprint"]].assign(
        layers=[labels.get("layers", "") for labels in table["labels"]],
        start=[labels.get("start", "") for labels in table["labels"]],
    )
    distinct = kinds.drop_duplicates()
    measured = distinct.drop(columns="fingerprint")
    mixed = sorted(
        {
            f"{runner}/{' '.join(filter(None, (model, layers, start)))}/{task}"
            for runner, model, task, _, layers, start in measured[measured.duplicated()].to_numpy()
        }
    )
    if mixed:
        warnings.warn(
            f"one table has rows made by different versions of the code: {some(mixed)} "
            "(runner/model/task); rerun the sweep to compare them under one version",
            MixedSources,
            stacklevel=3,
        )
