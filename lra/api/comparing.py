"""Compare two or more models by their stored rows."""

import math
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
"""A source of results: the path of a folder or file, rows, or what `lra.run` returned."""


@dataclass(frozen=True, slots=True, repr=False)
class ComparisonTable(ResultTable):
    """Differences between models. `print` writes a sentence for each comparison, then the table.

    Attributes:
        verdicts: The result of each comparison, in a sentence.
        numbers: Every number at full precision, as `lra compare --json` prints them.
        matrix: A table of all pairs of models: is the model of a row better than that of a column?
    """

    verdicts: tuple[str, ...]
    numbers: dict[str, Any]
    matrix: ResultTable

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
    margin: float | None = None,
) -> ComparisonTable:
    """Test whether one model is better than another, by paired differences with intervals.

    Runs of the same task and seed form pairs. For example, `lra.compare("results", "mamba2",
    "linear", sweep="quickstart")`.

    Args:
        path: A results folder, a file of published rows (`.jsonl`), several such files, or
            `example`, as in `lra.rows`. Or rows that `lra.rows` returned (then KEY=VALUE can name
            columns, but no options); or what `lra.run` returned; or a list of rows and returned
            sweeps.
        names: Two or more groups of runs, each given by the name of a model in reports, by its
            family, or by KEY=VALUE of an option or column; join several conditions by spaces, as
            in `linear optim.steps=400`. `published=65.9` is a score of a paper.
        sweep: Name of a stored sweep; None: every stored run.
        metric: The score to compare; None: the first score that all runs have.
        split: The part of the data; None: `test`.
        where: KEY=VALUE conditions that all compared runs meet, as in `["task=listops"]`.
        best: Whether to compare the best group of runs with all others, instead of the first.
        untuned: After a search, whether to compare trainings with the options that the search
            started from, instead of the options that it chose.
        margin: The largest difference that counts as equal, in the unit of the table (for an
            accuracy, percentage points); None: equivalence is not tested.

    Returns:
        A table of differences, first group minus second, for each task and over all tasks.

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
    from lra.reports.comparison.matrix import matrix_table
    from lra.reports.comparison.pairs import compare as every_pair
    from lra.reports.comparison.wording import as_json, comparison_table, verdict
    from lra.reports.style import TableStyle
    from lra.results.comparing import compare_words

    for name in names:
        if not isinstance(name, str):
            raise ConfigError(
                f"names: got {name!r:.80}; wanted text such as 'linear'. To compare several "
                "results, give them as one list, the first argument"
            )
    if margin is not None and not 0 < margin < math.inf:
        raise ConfigError(f"margin: got {margin!r}; wanted a number above 0, such as 1")
    numbers, sides, comparisons, left_out = compare_words(
        names, **_locate_results(path, sweep), metric=metric, split=split, where=where, best=best,
        untuned=untuned,
    )  # fmt: skip
    for line in left_out:
        warnings.warn(f"excluded: {line}", DamagedCell, stacklevel=3)
    return ComparisonTable(
        table=comparison_table(numbers, comparisons),
        style=TableStyle(),
        verdicts=tuple(verdict(numbers, comparison, margin) for comparison in comparisons),
        numbers=as_json(numbers, comparisons, margin),
        matrix=ResultTable(
            matrix_table(numbers, sides, every_pair(numbers, sides, every=True)), TableStyle()
        ),
    )


def _locate_results(path: Any, sweep: str | None) -> dict[str, Any]:
    """Return the arguments of `compare_words` that say where the results are.

    Args:
        path: What the caller of `compare` gave as `path`, of any type.
        sweep: The name of a sweep, or None.
    """
    import pandas as pd

    if isinstance(path, CompletedSweep):
        return {"root": path.results, "sweep": sweep or path.sweep}
    if isinstance(path, pd.DataFrame):
        if sweep is not None:
            raise ConfigError(
                f"sweep={sweep!r} selects runs of a results folder, but you gave rows; remove it"
            )
        return {"root": None, "rows": path}
    sources = [path] if isinstance(path, (str, Path)) else [*path]
    if sources and all(isinstance(source, (pd.DataFrame, CompletedSweep)) for source in sources):
        frames = [
            source.rows if isinstance(source, CompletedSweep) else source for source in sources
        ]
        return {"root": None, "rows": pd.concat(frames, ignore_index=True)}
    if not sources or not all(isinstance(source, (str, Path)) for source in sources):
        raise ConfigError(
            f"path: got {path!r:.80}; wanted a path, rows, what lra.run returned, or a list with "
            "only paths or without paths"
        )
    paths = [Path(source) for source in sources]
    hint = "; the names of models follow the path"
    files = [file_at(source_path, sweep, hint) for source_path in paths]
    if len(paths) > 1 and None in files:
        raise ConfigError(
            f"path: got {paths[files.index(None)]}, which is a results folder, in a list; give one "
            "results folder alone, or a list of files"
        )
    return {"root": paths[0], "sweep": sweep, "files": [file for file in files if file]}
