"""Published data or the user's own, whole or a part: no row may be silent about that."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from lra.conf.short_values import short_repr
from lra.tasks.errors import BadData

MARK = " (a part)"
"""What the source of every row made from a part ends with."""
SAMPLE = "sample"
"""The source whose data are made here, for trials."""


def given_path(path: str | None, source: StrEnum) -> Path | None:
    """Return the path that a user gave; ValueError where the source reads no files."""
    if source == SAMPLE and path is not None:
        readers = " or ".join(other for other in type(source) if other != SAMPLE)
        raise ValueError(
            f"source=sample reads no files: got path={short_repr(path)}; set source={readers}"
        )
    return named_path(path) if path is not None else None


def named_path(path: str) -> Path:
    """Return a path that a user gave, with a name that rows can state where it is `.`, too."""
    if not path.strip():
        raise ValueError(f"got the path {path!r}; wanted a file or folder (the current one is .)")
    given = Path(path).expanduser()
    return given if given.name not in {"", ".."} else given.resolve()


def source_name(
    source: StrEnum, path: Path | None, *, partial: bool, public: str | None = None, form: str = ""
) -> str:
    """Return where data come from, as rows and tables print it.

    Args:
        source: The option of this name.
        path: Of the user's own files.
        partial: Whether they are a part.
        public: Name of the public data; None: that of the source.
        form: Which form of the text, if it is not the usual one.
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
    """Raise `BadData` unless data are as many as published, or named a part.

    Args:
        numbers: Numbers by split, or by split and class.
        wanted: The published ones, by the same names.
        where: The data come from.
        of: What is counted, e.g. reviews.
        partial: Whether the user says that they are a part.
        at_least: Whether `wanted` is the least.

    An empty split is refused, whatever the user says.
    """
    for name, number in wanted.items():
        there = numbers.get(name, 0)
        if not there:
            raise BadData(f"{where}: {name} contains none of {number:,} {of}: fetch it again")
        enough = there >= number if at_least else there == number
        if not (partial or enough):
            raise BadData(
                f"{where}: {name} contains {there:,} {of}, wanted "
                f"{'at least ' if at_least else ''}{number:,} as published: the data are "
                "truncated or others; fetch them again, or, if you want a part of them, set "
                "task.partial=true, which marks every row"
            )


def check_partial(partial: bool, files: bool) -> None:
    """Raise ValueError where `partial` is given for data that are not the user's own files."""
    if partial and not files:
        raise ValueError(
            "task.partial=true is for your data alone: public, generated and sample data are "
            "complete; name the part by task.path, or remove task.partial"
        )
