"""Read stored rows of a results folder, a sweep or a published file into a pandas frame."""

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
"""The ending of the name of a published file of rows."""


class DamagedCell(UserWarning):
    """Warns that a stored run cannot be read and is excluded."""


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
    """Return stored rows as `rows` does.

    Args:
        path: A results folder or a published file of rows.
        sweep: Name of a stored sweep; None: every stored run.
        cells: Keys of the runs to read; None: all.
    """
    from lra.reports.labels import labels_of
    from lra.results.rows import published_with_names, stored_rows

    left_out: list[str] = []
    if (file := file_at(path, sweep)) is not None:
        frame = published_with_names(file)
        if frame.empty:
            raise FileNotFoundError(f"{file} contains no rows")
    else:
        frame, _, left_out = stored_rows(path, sweep, cells)
    for line in left_out:
        warnings.warn(f"excluded: {line}", DamagedCell, stacklevel=4)
    return frame.assign(split=[labels_of(text).get("split", "") for text in frame["labels"]])


def file_at(path: Path, sweep: str | None, hint: str = "") -> Path | None:
    """Return the path of a published file of rows; None if `path` is a results folder.

    Args:
        path: A file, a folder, or `example`.
        sweep: The sweep that the caller wants; a file has no sweeps.
        hint: The end of the message if `path` does not exist.

    Raises:
        FileNotFoundError: `path` does not exist.
        ConfigError: `path` is another kind of file, or a file together with a sweep.
    """
    file = file_of_rows(path)
    if not file.exists():
        raise FileNotFoundError(nothing_at(file) + hint)
    if not file.is_file():
        return None
    if file.suffix != ROWS:
        raise ConfigError(
            f"{file} is not a file of rows. Give a file that `lra report --publish` wrote, with a "
            f"name that ends with {ROWS}, or a results folder"
        )
    if sweep is not None:
        raise ConfigError(
            f"sweep={sweep!r} selects runs of a results folder, but {file} is a file of rows; "
            "remove the sweep"
        )
    return file


def nothing_at(path: Path) -> str:
    """Return the error message for a `path` that does not exist."""
    neighbours = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
    similar = [repr(str(path.parent / name)) for name in near(path.name, neighbours)]
    hint = f": did you mean {' or '.join(similar)}?" if similar else "."
    return (
        f"the path {path} does not exist{hint} Give a results folder, which `lra run` makes, or a "
        f"published file of rows ({ROWS}); the current folder is {Path.cwd()}"
    )
