"""Search for good options from a notebook or a script."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.api.plain_errors import plainly
from lra.api.prepared_rows import styled_rows
from lra.api.running import CompletedSweep, given_words, run
from lra.api.tabling import ResultTable
from lra.composition.configuration import TOP
from lra.composition.python_words import value_text, word
from lra.errors import ConfigError, near, unknown
from lra.tuning.record import SearchOptions

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from lra.reports.tables.searches import Searches

TABLES = {
    "tuned": "tuned-", "window": "tuning-window-", "comparison": "tuning-comparison-",
    "rungs": "tuning-rungs-",
}  # fmt: skip
FIGURES = {"tuning": "tuning-curve-", "sensitivity": "tuning-options-"}
"""Kinds of tables and of figures, with the beginning of their names in a report."""
COLUMNS = (
    "arm", "study", "trial", "rung", "options", "score", "status", "cell", "steps", "seconds",
)  # fmt: skip
"""The columns of `Search.trials`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """A search, with the trials that have ended so far.

    Attributes:
        done: What `lra.run` returned for the search: its sweep, results folder and exit code.
    """

    done: CompletedSweep

    @property
    def rows(self) -> "pd.DataFrame":
        """The rows of all runs of the search, as `lra.rows` returns them."""
        return self.done.rows

    def _read(self) -> "Searches":
        """Return the trials and choices that the rows contain."""
        from lra.reports.tables.searches import Searches

        with styled_rows(self.rows, None) as frame:
            return Searches(frame)

    @property
    def trials(self) -> "pd.DataFrame":
        """One row for each trial and each rung (number of training steps), with `COLUMNS`.

        Steps and seconds are sums over the seeds of a trial.
        """
        trials = self._read().trials
        return trials.assign(
            arm=trials["model"] + " " + trials["task"], study=trials["study"].astype(int),
            options=trials["point"], seconds=trials["time"],
        )[[*COLUMNS]]  # fmt: skip

    @property
    def chosen(self) -> Mapping[str, Mapping[str, Any]]:
        """The values of the chosen options by arm (model and task), and by study if several."""
        searches = self._read()
        return {
            f"{arm[-1]} {arm[0]}"  # model and task: the last and the first column of `ARM`
            + (f", study {choice.study}" if searches.studies > 1 else ""): choice.options
            for arm, choices in searches.choices.items()
            for choice in choices
            if choice.trial is not None
        }

    def table(self, kind: str = "tuned", *, style: "str | Path | None" = None) -> ResultTable:
        """Return a table of the report: `tuned`, `window`, `comparison` or `rungs`.

        Raises:
            ValueError: The kind is unknown, or the rows of the search do not suffice for it.
        """
        from lra.reports.style import current_style

        with styled_rows(self.rows, style) as frame:
            part = _find_part(frame, kind, TABLES)
            return ResultTable(part.table, current_style().style.tables)

    def figure(self, kind: str = "tuning", *, style: "str | Path | None" = None) -> "Figure":
        """Draw the first page of a figure of the report: `tuning` (curves) or `sensitivity`.

        Raises:
            ValueError: The kind is unknown, or the rows of the search do not suffice for it.
        """
        from lra.reports.figures.drawing import looks
        from lra.reports.sections.section import pages_of

        with styled_rows(self.rows, style) as frame:
            part = _find_part(frame, kind, FIGURES)
            model_looks = looks([str(name) for name in frame["name"].unique()])
            drawn: Figure = part.draw(pages_of(part)[0], model_looks)
            return drawn


def _find_part(frame: "pd.DataFrame", kind: str, kinds: Mapping[str, str]) -> Any:
    """Return the table or figure `kind` from the section on tuning that a report of `frame` has.

    `kinds` maps each kind to the beginning of its name in that section.
    """
    from lra.reports.sections.tuning import section

    if kind not in kinds:
        raise ConfigError(unknown("kind", kind, kinds))
    for part in section(frame):
        if part.name.startswith(kinds[kind]):
            return part
    raise ConfigError(f"{kind}: the rows of this search do not suffice for {kind!r}")


@plainly
def search(
    overrides: "str | Sequence[str] | Mapping[str, Any]" = (),
    /,
    *,
    params: "Mapping[str, Sequence[Any]]",
    trials: int = 16,
    sampler: str = "halton",
    config_dir: "str | Path | None" = None,
    plugins: Sequence[str] = (),
    **options: Any,
) -> Search:
    """Tune every model in the same way: choose options on validation data, then score on test data.

    It calls `lra.run` with a search. Make the same call again to resume it.

    Args:
        overrides: The arguments of `lra run`, as in `lra.run`. Each combination of a model and a
            task is an arm, which is tuned separately.
        params: The range of each option to tune: `(low, high)`, which gives whole numbers if both
            ends are whole; `("log", low, high)`, a logarithmic scale; a list of values to choose
            from; a `range`; or a text in Hydra's syntax, as `"tag(log, interval(1e-4, 1e-2))"`.
        trials: Number of trials in each arm, in addition to a trial with the untuned options.
        sampler: What draws the options: `halton`, `random`, `grid`, `tpe`, `gp` or `cmaes`.
        config_dir: A folder with your configuration files.
        plugins: Packages that these files may name.
        options: Options of the group `search`, for example `final_seeds=[1, 2, 3]`; all others as
            in `lra.run`, for example `model=("linear", "sdpa")`.

    Returns:
        The search, with `trials`, `chosen`, `rows`, `table` and `figure`.

    Raises:
        ValueError: A name, option or value is unknown, or there is nothing to search.
        KeyboardInterrupt: The search was interrupted.

    Examples:
        >>> import lra
        >>> found = lra.search(
        ...     "task.source=sample optim.steps=2 optim.warmup_steps=0 logger=none report=false",
        ...     model="linear",
        ...     task="listops",
        ...     params={"optim.peak_learning_rate": ("log", 1e-4, 1e-2)},
        ...     trials=1,
        ...     final_seeds=[1],
        ... )  # doctest: +ELLIPSIS
        20...
        >>> sorted(found.trials["trial"])
        [0, 1]
    """
    ranges = [f"{option}={_write_range(option, given)}" for option, given in params.items()]
    search_options = {field.name for field in fields(SearchOptions)}
    arguments = {*search_options, "params", "sampler", "config_dir", "plugins"}
    for name in sorted(options.keys() - search_options - TOP.keys()):
        if near(name, arguments) and name.isidentifier():
            raise ConfigError(unknown("argument of lra.search", name, arguments))
    chosen = search_options & options.keys()
    search_words = [word(f"search.{name}", options.pop(name)) for name in chosen]
    words = [f"search={sampler}", f"search.trials={trials}", *search_words, *ranges]
    done = run([*given_words(overrides), *words], config_dir=config_dir, plugins=plugins, **options)
    return Search(done=done)


def _write_range(option: str, given: Any) -> str:
    """Return the range `given` for `option`, one of the types of `params`, in Hydra's syntax."""
    if isinstance(given, str):
        return given
    if isinstance(given, range):
        return f"range({given.start},{given.stop},{given.step})"
    if isinstance(given, list):
        return f"choice({','.join(value_text(value, option) for value in given)})"
    ends = given[-2:] if isinstance(given, tuple) else ()  # "log" may come before them
    numbers = all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends)
    if len(ends) == 2 and numbers and given[:-2] in ((), ("log",)):
        interval = f"interval({value_text(ends[0], option)}, {value_text(ends[1], option)})"
        return f"tag(log, {interval})" if len(given) == 3 else interval
    raise ConfigError(
        f"params: {option}: got {given!r:.80}; wanted (low, high), ('log', low, high), a list of "
        "values, a range, or a text such as 'interval(0.1, 0.9)'"
    )
