"""Rows as a table, one type per column."""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Any

from runners.records import COLUMNS
from runners.storage.blocks import OWN, SHARED, Block

if TYPE_CHECKING:
    import pandas as pd

_TYPES = {
    **dict.fromkeys(("schema", "task_version", "length", "seed", "threads", "step"), "Int64"),
    "causal": "boolean",
    "value": "float64",
    "created": "datetime64[us, UTC]",
}
_TEXTS = (*(name for name in COLUMNS if name not in {*_TYPES, "samples", "labels"}), "created")


class Gathered:
    """Rows on their way into a table, column by column.

    Of a column of texts, each is kept once, and for each row its place among them: most columns
    hold few, and 100,000 texts would be 100,000 objects to convert.
    """

    def __init__(self) -> None:
        self._texts: dict[str, dict[str, int]] = {name: {} for name in _TEXTS}
        self._columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
        self._counts: list[int] = []
        """Rows of each block."""

    def add(self, blocks: Sequence[Block]) -> None:
        """Add rows that were checked: each has every column, and text where text belongs."""
        if not blocks:
            return
        self._counts += [len(block.rows) for block in blocks]
        self._gather(SHARED, [block.shared for block in blocks])
        self._gather(OWN, [row for block in blocks for row in block.rows])

    def _gather(self, names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        for name, values in zip(
            names, zip(*map(itemgetter(*names), rows), strict=True), strict=True
        ):
            texts = self._texts.get(name)
            if texts is None:
                self._columns[name] += values
            else:
                self._columns[name] += [texts.setdefault(text, len(texts)) for text in values]

    def table(self) -> "pd.DataFrame":
        """Return what was added, as `table_of` does."""
        import numpy as np
        import pandas as pd

        if not self._counts:
            return table_of([])
        blocks = np.repeat(np.arange(len(self._counts)), self._counts)
        found: dict[str, Any] = {}
        for name, values in self._columns.items():
            kind: Any = _TYPES.get(name, "object")
            if name in self._texts:
                texts = pd.Series([*self._texts[name]])
                places = np.array(values)
                whole = (texts.astype(kind) if name in _TYPES else texts).array
                found[name] = whole.take(places[blocks] if name in SHARED else places)
            else:
                whole = pd.Series(values, dtype="object").astype(kind).array
                found[name] = whole.take(blocks) if name in SHARED else whole
        return pd.DataFrame(found, copy=False)


def table_of(rows: Sequence[Mapping[str, Any]]) -> "pd.DataFrame":
    """Return rows as a table with exactly `COLUMNS` and one type per column."""
    import pandas as pd

    return pd.DataFrame(rows, columns=list(COLUMNS)).astype(_TYPES)
