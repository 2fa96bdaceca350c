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
    """Differences between models. `print` writes a sentence for each comparison, then the table.

    Attributes:
        verdicts: The result of each comparison, in a sentence.
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

    Runs of the same task and seed form pairs. For example, `lra.compare("results", "mamba2",
    "linear", sweep="quickstart")`.

    Args:
        path: A results folder, a file of published rows (`.jsonl`), several such files, or
            `example`, as in `lra.rows`. Or rows, as `lra.rows` returns them, without their options;
            or what `lra.run` returned; or a list of these.
        names: Two or more: a model as reports name it, its family, or KEY=VALUE of an option or
            column; join several by spaces, as in `linear optim.steps=400`.
        sweep: Name of a stored sweep; None: every stored run.
        metric: The score to compare; None: the first that all have.
        split: The part of the data; None: `test`.
        where: KEY=VALUE conditions for all names, as in `["task=listops"]`.
        best: Compare each with the best one; by default with the first.
        untuned: After a search, compare trainings with the options that it started from; by
            default those with the options that it chose.

    Returns:
        A table of differences, first minus second, by task and over all tasks.

    Raises:
        ValueError: A name is unknown, or no two runs form a pair.

    Warns:
        DamagedCell: A stored run cannot be read and is excluded.

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
        raise ConfigError(f"got {strange[0]!r:.80} for a name; give several results as a list")
    numbers, comparisons, left_out = compare_words(
        names, **_results(path, sweep), metric=metric, split=split, where=where, best=best,
        untuned=untuned,
    )  # fmt: skip
    for line in left_out:
        warnings.warn(f"excluded: {line}", DamagedCell, stacklevel=3)
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
                f"sweep={sweep!r} is for a results folder, and these are rows: remove it"
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
    files = [file_at(each, sweep, "; give the names of models after it") for each in paths]
    if len(paths) > 1 and None in files:
        raise ConfigError(
            f"got {paths[files.index(None)]}, a results folder; give one results folder, or files"
        )
    return {"root": paths[0], "sweep": sweep, "files": [file for file in files if file]}
