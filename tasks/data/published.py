"""How much of each data set is published; less is a part, and no row may be silent about that."""

from collections.abc import Mapping

from tasks.errors import BadData

MARK = " (a part)"
"""What the source of every row made from a part ends with."""


def check_whole(
    found: Mapping[str, int],
    wanted: Mapping[str, int],
    *,
    where: str,
    of: str,
    partial: bool,
    at_least: bool = False,
) -> None:
    """Raise `BadData` unless data are as many as published, or named a part.

    Args:
        found: Numbers by split, or by split and class.
        wanted: The published ones, by the same names.
        where: The data come from.
        of: What is counted, e.g. reviews.
        partial: Whether the user says that they are a part.
        at_least: Whether `wanted` is the least.

    An empty split is refused, whatever the user says.
    """
    for name, number in wanted.items():
        there = found.get(name, 0)
        if not there:
            raise BadData(f"{where}: {name} holds none of {number:,} {of}: fetch it again")
        enough = there >= number if at_least else there == number
        if not (partial or enough):
            raise BadData(
                f"{where}: {name} holds {there:,} {of}, wanted "
                f"{'at least ' if at_least else ''}{number:,} as published: the data are cut or "
                "others; fetch them again, or, if they are a part on purpose, set "
                "task.partial=true, and every row says so"
            )


def check_partial(partial: bool, files: bool) -> None:
    """Raise ValueError where `partial` is given for data that are not the user's own files."""
    if partial and not files:
        raise ValueError(
            "task.partial=true is about data of your own: public, generated and sample data are "
            "whole; name the part by task.path, or leave task.partial out"
        )
