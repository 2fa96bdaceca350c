"""Stored rows as a frame: of a store, of one sweep, or of a published file."""

import warnings
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from lra.api.plain_errors import plainly
from lra.errors import ConfigError, near
from lra.results.stored import file_of_rows

if TYPE_CHECKING:
    import pandas as pd

ROWS = ".jsonl"
"""What the name of a published file of rows ends with."""


class DamagedCell(UserWarning):
    """A stored cell that cannot be read, and was left out."""


@plainly
def rows(path: "str | Path" = "results", sweep: str | None = None) -> "pd.DataFrame":
    """Return stored rows, one measurement each, with models named as in reports.

    Args:
        path: The folder of a store, or a published file of rows (`.jsonl`). The file beside it
            (`.json`), where there is one, says how its cells differ. `example`: the rows of a
            quickstart, which come with lra.
        sweep: Name of a sweep of the store; None: all that is stored.

    Returns:
        A frame with the columns of rows (`lra.runners.records.COLUMNS`) and two more: `family`, the
        registered name of the model, and `options`, those that tell it from others of that name.
        `model` is the name to display, such as `performer (features=64)`.

    Raises:
        FileNotFoundError: There is nothing at `path`, or it holds no rows.
        ValueError: There is no such sweep, or the file is damaged.

    Warns:
        DamagedCell: A cell of the store cannot be read and is left out.

    Examples:
        >>> import lra
        >>> rows = lra.rows("example")
        >>> sorted(rows["metric"].unique())[:2]
        ['accuracy', 'bandwidth']
    """
    return rows_of(file_of_rows(Path(path)), sweep)


def rows_of(
    path: Path, sweep: str | None = None, cells: Collection[str] | None = None
) -> "pd.DataFrame":
    """Return stored rows, of some cells where these are named; see `rows`."""
    from lra.results.stored import published_with_names, stored_rows

    if not path.exists():
        raise FileNotFoundError(nothing_at(path))
    if path.is_file():
        if path.suffix != ROWS:
            raise ConfigError(
                f"{path} is no file of rows: wanted one that ends with {ROWS}, as "
                "`lra report --publish` writes it, or the folder of a store"
            )
        if sweep is not None:
            raise ConfigError(
                f"sweep={sweep!r} chooses from a store, and {path} is a file of rows: leave it out"
            )
        frame = published_with_names(path)
        if frame.empty:
            raise FileNotFoundError(f"{path} holds no rows")
        return frame
    frame, _, left_out = stored_rows(path, sweep, cells)
    for line in left_out:
        warnings.warn(f"left out: {line}", DamagedCell, stacklevel=4)
    return frame


def nothing_at(path: Path) -> str:
    """Return the sentence for a path at which nothing lies."""
    neighbours = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
    close = [repr(str(path.parent / name)) for name in near(path.name, neighbours)]
    hint = f": did you mean {' or '.join(close)}?" if close else "."
    return (
        f"there is nothing at {path}{hint} Wanted the folder of a store, which `lra run` makes "
        f"({Path.cwd()} is where this looks from), or a published file of rows ({ROWS})"
    )
