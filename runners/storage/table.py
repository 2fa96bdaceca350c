"""Rows as a table, one type per column."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from runners.records import COLUMNS

if TYPE_CHECKING:
    import pandas as pd

_TYPES = {
    **dict.fromkeys(("schema", "task_version", "length", "seed", "threads", "step"), "Int64"),
    "causal": "boolean",
    "value": "float64",
    "created": "datetime64[us, UTC]",
}
_TEXTS = (*(name for name in COLUMNS if name not in {*_TYPES, "samples", "labels"}), "created")
_VALUES = itemgetter(*COLUMNS)


class Gathered:
    """Rows on their way into a table, column by column.

    Of a column of texts, each is kept once, and for each row its place among them: most columns
    hold few, and 100,000 texts would be 100,000 objects to convert.
    """

    def __init__(self) -> None:
        self._texts: dict[str, dict[str, int]] = {name: {} for name in _TEXTS}
        self._columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}

    def add(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows that were checked: each has every column, and text where text belongs."""
        if not rows:
            return
        for name, values in zip(COLUMNS, zip(*map(_VALUES, rows), strict=True), strict=True):
            texts = self._texts.get(name)
            if texts is None:
                self._columns[name] += values
            else:
                self._columns[name] += [texts.setdefault(text, len(texts)) for text in values]

    def table(self) -> "pd.DataFrame":
        """Return what was added, as `table_of` does."""
        import pandas as pd

        if not self._columns["cell"]:
            return table_of([])
        found: dict[str, Any] = {}
        for name, values in self._columns.items():
            kind: Any = _TYPES.get(name, "object")
            if name in self._texts:
                texts = pd.Series([*self._texts[name]])
                found[name] = (texts.astype(kind) if name in _TYPES else texts).array.take(values)
            else:
                found[name] = pd.Series(values, dtype="object").astype(kind)
        return pd.DataFrame(found, copy=False)


def table_of(rows: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return rows as a table with exactly `COLUMNS` and one type per column."""
    import pandas as pd

    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(_TYPES)
