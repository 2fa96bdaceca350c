"""Make tables of rows, which a notebook shows and which can become frames or files."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from lra.api.plain_errors import plainly
from lra.api.prepared_rows import (
    none_of,
    of_models,
    one_of,
    only_mode,
    only_setting,
    refuse,
    styled_rows,
)
from lra.errors import ConfigError, unknown
from lra.runners.metrics import JUDGED_BY

if TYPE_CHECKING:
    import pandas as pd

    from lra.reports.style import TableStyle
    from lra.reports.tables.table import Entry, Table

Kind = Literal[
    "accuracy", "bits_per_byte", "bits_per_character", "word_perplexity", "perplexity", "mse",
    "efficiency", "crossover", "growth", "metrics",
]  # fmt: skip
KINDS = get_args(Kind)


@dataclass(frozen=True, slots=True, repr=False)
class ResultTable:
    """One table. A notebook shows it, and `print` writes it as Markdown.

    Attributes:
        table: The title, caption, columns and rows with intervals and footnotes, as in a report.
        style: The style of the table in LaTeX.
    """

    table: "Table"
    style: "TableStyle"

    def to_pandas(self, *, text: bool = False, intervals: bool = False) -> "pd.DataFrame":
        """Return the table as a pandas frame, with one row for each row of the table.

        Args:
            text: Whether to return the printed texts, with intervals and marks, instead of numbers.
            intervals: Whether two columns `TITLE, low` and `TITLE, high` follow each column that
                has intervals.

        Returns:
            A frame of floats, with NaN for missing numbers and text in columns of words. If the
            table has section headings or groups of columns, they are the first level of the index
            or of the columns.
        """
        import pandas as pd

        table = self.table
        columns: dict[tuple[str, str], Sequence[str | float]] = {}
        for number, column in enumerate(table.columns):
            entries = [row.entries[number] for row in table.rows]
            words = text or column.words
            columns[column.group, column.title] = [
                e.text if words else _as_float(e) for e in entries
            ]
            for end in ("low", "high") if intervals and any(e.interval for e in entries) else ():
                ends = [float(getattr(e.interval, end, "nan")) for e in entries]
                columns[column.group, f"{column.title}, {end}"] = ends
        sections, titles = [r.section for r in table.rows], [r.title for r in table.rows]
        index: pd.Index[str] = pd.Index(titles, name=table.stub)
        if any(sections):
            index = pd.MultiIndex.from_arrays([sections, titles], names=["section", table.stub])
        frame = pd.DataFrame(columns, index=index)
        if not any(column.group for column in table.columns):
            frame.columns = frame.columns.get_level_values(1)
        return frame

    def to_markdown(self) -> str:
        """Return the table as GitHub Markdown, followed by its footnotes."""
        from lra.reports.tables.table import to_markdown

        return to_markdown(self.table)

    def to_latex(self) -> str:
        """Return the table as LaTeX for the packages booktabs and array, with its footnotes."""
        from lra.reports.tables.latex_tables import to_latex

        return to_latex(self.table, self.style)

    def to_csv(self) -> str:
        """Return CSV with a line for each entry of the table, with its interval and all digits."""
        from lra.reports.tables.table import to_csv

        return to_csv(self.table)

    def to_html(self) -> str:
        """Return the table as a fragment of HTML without scripts; all text is escaped."""
        from lra.reports.page.alone import to_html_alone

        return to_html_alone(self.table)

    def _repr_html_(self) -> str:
        return self.to_html()

    def __repr__(self) -> str:
        return self.to_markdown()


def _as_float(entry: "Entry") -> float:
    """Return the number of an entry; nan if it has none."""
    return float("nan") if entry.value is None else float(entry.value)


@plainly
def table(
    rows: "pd.DataFrame",
    kind: Kind = "accuracy",
    *,
    models: Sequence[str] | None = None,
    mode: str | None = None,
    split: str | None = None,
    runner: str | None = None,
    style: "str | Path | None" = None,
) -> ResultTable:
    """Return one table of rows, for example `lra.table(lra.rows("example"), "accuracy")`.

    A table never averages numbers of different settings. If the rows have several configurations,
    machines or modes, the error message shows you how to select rows.

    Args:
        rows: Rows, as `lra.rows` returns them.
        kind: What the table shows. `accuracy`, `bits_per_byte`, `bits_per_character`,
            `word_perplexity`, `perplexity` or `mse`: final scores by task, with intervals and
            baselines. `efficiency`: speed and memory by length, compared with exact attention.
            `crossover`: the length from which a model is faster than exact attention. `growth`:
            fitted exponents of time and memory. `metrics`: every final metric of one runner.
        models: Names or families to show; None: all.
        mode: For `efficiency`: `step`, a training step, or `forward`, a forward pass; optional if
            the rows have only one mode.
        split: The split of the data, for scores; None: `test`.
        runner: The runner, for `metrics`; optional if the rows have only one.
        style: Names, order and choice of models, and the width of LaTeX: a name such as
            `paper_column`, or a file, as for `lra report --style`; None: the default of reports.

    Returns:
        The table.

    Raises:
        ValueError: The rows lack such numbers, or have several settings; or an argument has no
            effect on this kind.

    Examples:
        >>> import lra
        >>> rows = lra.rows("example")
        >>> growth = lra.table(rows, "growth", models=["linear", "sdpa"])
        >>> round(growth.to_pandas()["training step, time", "exponent"]["sdpa"])
        2
    """
    from lra.reports.style import current_style

    if kind not in KINDS:
        raise ConfigError(unknown("table", str(kind), KINDS))
    with styled_rows(rows, style) as prepared:
        frame = of_models(prepared, models)
        result = _make_table(frame, kind, mode=mode, split=split, runner=runner)
        if result is None:
            raise none_of(f"numbers for {kind!r}", frame)
        return ResultTable(result, current_style().style.tables)


def _make_table(
    frame: "pd.DataFrame", kind: str, *, mode: str | None, split: str | None, runner: str | None
) -> "Table | None":
    """Return the table `kind`, or None if the rows lack its numbers; refuse unused arguments."""
    from lra.reports.tables.costs import crossover_table, efficiency_table, growth_table

    if kind in JUDGED_BY:
        refuse(kind, mode=mode, runner=runner)
        return _make_score_table(frame, kind, split or "test")
    if kind == "metrics":
        refuse(kind, mode=mode, split=split)
        return _make_metric_table(frame, runner)
    refuse(kind, split=split, runner=runner)
    _, points = only_setting(frame)
    if kind == "efficiency":
        return efficiency_table(points, only_mode(points, mode))
    refuse(kind, mode=mode)
    return crossover_table(points) if kind == "crossover" else growth_table(points)


def _make_score_table(frame: "pd.DataFrame", kind: str, split: str) -> "Table | None":
    """Return the table of the score `kind` on `split`; None if the rows have no scores at all."""
    from lra.reports.tables.scores import score_tables

    by_score = dict(score_tables(frame, split))
    if kind in by_score or not by_score:
        return by_score.get(kind)
    raise ConfigError(unknown(f"score of the {split} split", kind, by_score))


def _make_metric_table(frame: "pd.DataFrame", runner: str | None) -> "Table":
    """Return the table of all final metrics of `runner`, or of the only runner if it is None."""
    from lra.reports.rows import FINAL_SETTING, by_setting
    from lra.reports.sections.generic import generic_table

    runner = one_of("runner", runner, sorted(map(str, frame["runner"].unique())))
    final = frame[(frame["runner"] == runner) & frame["step"].isna()]
    if final.empty:
        raise none_of(f"final numbers of runner={runner}", frame)
    parts = by_setting(final, FINAL_SETTING)
    if len(parts) > 1:
        column = next(c for c in FINAL_SETTING if final[c].nunique(dropna=False) > 1)
        raise ConfigError(
            f"the rows of runner={runner} have {len(parts)} settings, which differ in {column}, "
            "but a table shows rows of one setting. Select rows, for example by "
            f"rows[rows[{column!r}] == {final[column].iloc[0]!r}]"
        )
    return generic_table(parts[0].rows, parts[0].title)
