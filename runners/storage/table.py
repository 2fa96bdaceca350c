"""Makes a pandas table of rows, with one type in each column."""

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
"""So many rows are read before their values are moved to columns, which limits memory."""
_values = itemgetter(*COLUMNS)


def table_of(rows: Iterable[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return checked rows as a table with exactly `COLUMNS` and one type in each column."""
    import numpy as np
    import pandas as pd

    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    rows = iter(rows)
    while chunk := [*islice(rows, _AT_ONCE)]:
        for name, values in zip(COLUMNS, zip(*map(_values, chunk), strict=True), strict=True):
            columns[name] += values
    arrays: dict[str, Any] = {}
    for name, column in columns.items():
        kind: Any = _TYPES.get(name)
        if name in _TEXTS:  # a column has few different texts, so each is converted only once
            indices, distinct = pd.factorize(np.array(column, dtype=object))
            series = pd.Series([*distinct])
            arrays[name] = (series.astype(kind) if kind else series).array.take(indices)
        else:
            arrays[name] = pd.Series(column, dtype=object).astype(kind or object).array
    return pd.DataFrame(arrays, copy=False)


class MixedSources(UserWarning):
    """Warns that rows of one kind in one table come from different versions of the code."""


def warn_if_mixed(table: "pd.DataFrame") -> None:
    """Warn if one kind of measurement in a table comes from several versions of the code."""
    # Rows differ in kind if their models have other families in some layers, start from other
    # weights, or may use public kernels, because these use other source files.
    kinds = table[["runner", "model", "task", "mode", "fingerprint"]].assign(
        layers=[labels.get("layers", "") for labels in table["labels"]],
        start=[labels.get("start", "") for labels in table["labels"]],
        kernels=[labels.get("hardware.kernels", "") for labels in table["labels"]],
    )
    distinct = kinds.drop_duplicates()
    measured = distinct.drop(columns="fingerprint")
    mixed = sorted(
        {
            f"{runner}/{' '.join(filter(None, (model, layers, start)))}/{task}"
            for runner, model, task, _, layers, start, _ in measured[
                measured.duplicated()
            ].to_numpy()
        }
    )
    if mixed:
        warnings.warn(
            f"different versions of the code have made the rows of one table: {some(mixed)} "
            "(runner/model/task); rerun the sweep, so that one version makes all of them",
            MixedSources,
            stacklevel=3,
        )
