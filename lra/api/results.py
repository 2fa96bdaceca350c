"""Stored rows as a frame: of a results folder, of one sweep, or of a published file."""

import warnings
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from lra.api.plain_errors import plainly
from lra.errors import ConfigError, near
from lra.results.rows import file_of_rows

if TYPE_CHECKING:
    import pandas as pd

ROWS = ".jsonl"
"""What the name of a published file of rows ends with."""


class DamagedCell(UserWarning):
    """A stored run that cannot be read, and was excluded."""


@plainly
def rows(path: "str | Path" = "results", sweep: str | None = None) -> "pd.DataFrame":
    """Return stored rows, one measured number each, with models named as in reports.

    Args:
        path: A results folder, or a published file of rows (`.jsonl`) with the settings of its runs
            in a file of the same name (`.json`). `example`: the rows of a quickstart, which come
            with lra.
        sweep: Name of a stored sweep; None: every stored run.

    Returns:
        A frame with the columns of rows (`lra.runners.records.COLUMNS`) and three more: `family`,
        the registered name of the model; `options`, in which it differs from others of that name;
        and `split`, the part of the data, or "" if there is none. `model` is the name to display,
        such as `performer (features=64)`. To store the frame with every digit, use
        `to_json(FILE, orient="records", lines=True, date_format="iso", double_precision=15)` and
        `pandas.read_json(FILE, lines=True, precise_float=True)`; CSV loses samples and labels.

    Raises:
        FileNotFoundError: `path` does not exist, or has no rows.
        ValueError: The sweep is unknown, or the file is damaged.

    Warns:
        DamagedCell: A stored run cannot be read and is excluded.

    Examples:
        >>> import lra
        >>> rows = lra.rows("example")
        >>> sorted(rows["metric"].unique())[:2]
        ['accuracy', 'bandwidth']
    """
    return rows_of(Path(path), sweep)


def rows_of(
    path: Path, sweep: str | None = None, cells: Collection[str] | None = None
) -> "pd.DataFrame":
    """Return stored rows, of some runs if these are named; see `rows`."""
    from lra.reports.labels import labels_of
    from lra.results.rows import published_with_names, stored_rows

    left_out: list[str] = []
    if (file := file_at(path, sweep)) is not None:
        frame = published_with_names(file)
        if frame.empty:
            raise FileNotFoundError(f"{file} holds no rows")
    else:
        frame, _, left_out = stored_rows(path, sweep, cells)
    for line in left_out:
        warnings.warn(f"excluded: {line}", DamagedCell, stacklevel=4)
    return frame.assign(split=[labels_of(each).get("split", "") for each in frame["labels"]])


def file_at(path: Path, sweep: str | None, hint: str = "") -> Path | None:
    """Return the file of rows that a path is; None for a results folder.

    Raises:
        FileNotFoundError: There is nothing; `hint` ends the message.
        ConfigError: It is another file, or a sweep of a file is wanted.
    """
    found = file_of_rows(path)
    if not found.exists():
        raise FileNotFoundError(nothing_at(found) + hint)
    if not found.is_file():
        return None
    if found.suffix != ROWS:
        raise ConfigError(
            f"{found} is no file of rows: give one that ends with {ROWS}, as "
            "`lra report --publish` writes it, or a results folder"
        )
    if sweep is not None:
        raise ConfigError(
            f"sweep={sweep!r} is for a results folder, and {found} is a file of rows: remove it"
        )
    return found


def nothing_at(path: Path) -> str:
    """Return the sentence for a path at which nothing lies."""
    neighbours = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
    close = [repr(str(path.parent / name)) for name in near(path.name, neighbours)]
    hint = f": did you mean {' or '.join(close)}?" if close else "."
    return (
        f"there is nothing at {path}{hint} Give a results folder, which `lra run` makes, or a "
        f"published file of rows ({ROWS}); the current folder is {Path.cwd()}"
    )
