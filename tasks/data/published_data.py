"""Published data or the user's data, complete or a part: the source in every row says which."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from lra.conf.short_values import short_repr
from lra.tasks.errors import BadData

MARK = " (a part)"
"""Ending of the source in rows of a part of the data."""
SAMPLE = "sample"
"""The source of small synthetic data, for trials."""


def given_path(path: str | None, source: StrEnum) -> Path | None:
    """Return the path that a user gave, or None; raise ValueError if the source reads no files."""
    if source == SAMPLE and path is not None:
        readers = " or ".join(f"task.source={other}" for other in type(source) if other != SAMPLE)
        raise ValueError(
            f"task.source=sample reads no files: got task.path={short_repr(path)}; set {readers}"
        )
    return named_path(path) if path is not None else None


def named_path(path: str) -> Path:
    """Return a path that a user gave; `.` and `..` become absolute, so that rows have a name."""
    if not path.strip():
        raise ValueError(
            f"the path is empty: got {path!r}; wanted a file or a folder, for example . for the "
            "current folder"
        )
    given = Path(path).expanduser()
    return given if given.name not in {"", ".."} else given.resolve()


def source_name(
    source: StrEnum, path: Path | None, *, partial: bool, public: str | None = None, form: str = ""
) -> str:
    """Return the source of data, as rows and tables print it.

    Args:
        source: Value of the option `source`.
        path: The user's files; None: public data.
        partial: Whether the files are a part of the data.
        public: Name of the public data; None: the name of the source.
        form: Form of the text, if it is not the usual one.
    """
    if source == SAMPLE:
        return "sample (synthetic)"
    name = f"{source}: {path.name}" if path is not None else public or str(source)
    return f"{name}{form}{MARK if partial else ''}"


def check_whole(
    numbers: Mapping[str, int],
    wanted: Mapping[str, int],
    *,
    where: str,
    of: str,
    partial: bool,
    at_least: bool = False,
) -> None:
    """Raise `BadData` unless the data have the published numbers of examples, or are a part.

    An empty split is refused even for a part.

    Args:
        numbers: Number of examples by split, or by split and class.
        wanted: Published numbers, by the same names.
        where: Source of the data, for messages.
        of: What is counted, for example reviews.
        partial: Whether the user says that the data are a part.
        at_least: Whether more examples than `wanted` are allowed.
    """
    for name, number in wanted.items():
        actual = numbers.get(name, 0)
        if not actual:
            raise BadData(
                f"{where}: {name} has 0 of the {number:,} published {of}; fetch the data again"
            )
        enough = actual >= number if at_least else actual == number
        if not (partial or enough):
            raise BadData(
                f"{where}: {name} has {actual:,} {of}; wanted {'at least ' if at_least else ''}"
                f"{number:,} as published; fetch the data again, or, to use a part or other data, "
                "set task.partial=true, which marks every row"
            )


def check_partial(partial: bool, files: bool) -> None:
    """Raise ValueError if `partial` is set for other data than the user's files."""
    if partial and not files:
        raise ValueError(
            "task.partial=true needs task.path, because public, generated and sample data are "
            "complete; set task.path to your part of the data, or remove task.partial"
        )
