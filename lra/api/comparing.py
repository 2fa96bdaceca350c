"""Comparisons of two or more models over stored rows."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from lra.api.plain_errors import plainly
from lra.api.results import DamagedCell, file_at
from lra.api.running import CompletedSweep
from lra.api.tabling import ResultTable
from lra.errors import ConfigError

if TYPE_CHECKING:
    import pandas as pd


Results: TypeAlias = "str | Path | pd.DataFrame | CompletedSweep"
"""Where numbers are: a store or file, rows, or what `lra.run` returned."""


@dataclass(frozen=True, slots=True, repr=False)
class ComparisonTable(ResultTable):
    """Differences between models: a table whose `print` begins with what they show.

    Attributes:
        verdicts: What each comparison shows, in a sentence.
        numbers: Every number at full precision, as `lra compare --json` prints them.
    """

    verdicts: tuple[str, ...]
    numbers: dict[str, Any]

    def __repr__(self) -> str:
        return "\n".join([*self.verdicts, "", self.to_markdown()])


@plainly
def compare(
    path: "Results | Sequence[Results]",
    *names: str,
    sweep: str | None = None,
    metric: str | None = None,
    split: str | None = None,
    where: Sequence[str] = (),
    best: bool = False,
    untuned: bool = False,
) -> ComparisonTable:
    """Tell whether one model is better than another: paired differences with intervals and tests.

    Args:
        path: The folder of a store, a file of published rows (`.jsonl`), or several such files;
            `example`, as of `lra.rows`. Or rows, as `lra.rows` returns them, whose options are not
            known; or what `lra.run` returned; or a list of these.
        names: Two or more: a model as reports name it, its family, or KEY=VALUE of any option or
            column; several words are separated by spaces, as in `linear optim.steps=400`.
        sweep: Name of a sweep of the store; None: all that is stored.
        metric: What is compared; None: the first score that all have.
        split: Of the data; None: `test`.
        where: KEY=VALUE words that hold for all names, as in `["task=listops"]`.
        best: Compare all with the best, not with the first.
        untuned: After a search, compare the final trainings with the options that it began from,
            not those with the options that it chose.

    Returns:
        A table of differences, first minus second, by task and over all tasks.

    Raises:
        ValueError: A name stands for nothing, or no two results form a pair.

    Warns:
        DamagedCell: A cell of the store cannot be read and is left out.

    Examples:
        >>> import lra
        >>> file = "reports/published/tutorial_longer-epyc-2026-11-23.jsonl"
        >>> found = lra.compare(file, "linear", "sdpa")
        >>> found.verdicts[0].partition(";")[0]
        'linear − sdpa at mqar: −6.4 [−14.8, +2.0] over 5 seeds, p = 0.10: no difference is shown'
    """
    from lra.reports.comparison.wording import as_json, comparison_table, verdict
    from lra.reports.style import TableStyle
    from lra.results.comparing import compare_words

    if strange := [name for name in names if not isinstance(name, str)]:
        raise ConfigError(f"got {strange[0]!r:.80} for a name; several results are a list")
    numbers, comparisons, left_out = compare_words(
        names, **_results(path, sweep), metric=metric, split=split, where=where, best=best,
        untuned=untuned,
    )  # fmt: skip
    for line in left_out:
        warnings.warn(f"left out: {line}", DamagedCell, stacklevel=3)
    return ComparisonTable(
        table=comparison_table(numbers, comparisons),
        style=TableStyle(),
        verdicts=tuple(verdict(numbers, each) for each in comparisons),
        numbers=as_json(numbers, comparisons),
    )


def _results(path: Any, sweep: str | None) -> dict[str, Any]:
    """Return where results lie as arguments of `compare_words`."""
    import pandas as pd

    if isinstance(path, CompletedSweep):
        return {"root": path.results, "sweep": sweep or path.sweep}
    if isinstance(path, pd.DataFrame):
        if sweep is not None:
            raise ConfigError(
                f"sweep={sweep!r} chooses from a store, and these are rows: leave it out"
            )
        return {"root": None, "rows": path}
    several = [path] if isinstance(path, (str, Path)) else [*path]
    if several and all(isinstance(each, (pd.DataFrame, CompletedSweep)) for each in several):
        frames = [each.rows if isinstance(each, CompletedSweep) else each for each in several]
        return {"root": None, "rows": pd.concat(frames, ignore_index=True)}
    if not several or not all(isinstance(each, (str, Path)) for each in several):
        raise ConfigError(
            f"got {path!r:.80}; wanted a path, rows, what lra.run returned, or a list of one kind"
        )
    paths = [Path(each) for each in several]
    files = [file_at(each, sweep, "; names of models follow it") for each in paths]
    if len(paths) > 1 and None in files:
        raise ConfigError(f"got {paths[files.index(None)]}, a store; wanted one store, or files")
    return {"root": paths[0], "sweep": sweep, "files": [file for file in files if file]}
