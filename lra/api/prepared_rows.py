"""Rows as tables and figures take them: checked, with the models that are asked for."""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.errors import ConfigError, unknown

if TYPE_CHECKING:
    import pandas as pd

    from lra.reports.rows import CostPoint


class LeftOutOfStyle(UserWarning):
    """A setting of a style that the rows or a figure cannot use."""


@contextmanager
def styled_rows(rows: Any, style: "str | Path | None") -> "Iterator[pd.DataFrame]":
    """Put a style in force, and yield the rows that it shows; see `checked_rows`."""
    from lra.reports.style import using
    from lra.results.style import read_style

    style_read, not_taken = read_style(None if style is None else str(style))
    with using(style_read) as in_use:
        frame, hidden = in_use.select(checked_rows(rows))
        for line in (*not_taken, *hidden):
            warnings.warn(line, LeftOutOfStyle, stacklevel=5)
        yield frame


def checked_rows(rows: Any) -> "pd.DataFrame":
    """Return rows with the columns that reports add.

    Raises:
        ConfigError: They are no rows, or come from a CSV file.
        ValueError: There are none, or columns are missing.
    """
    import pandas as pd

    from lra.reports.rows import prepare

    if not isinstance(rows, pd.DataFrame):
        raise ConfigError(
            f"got {rows!r:.80} ({type(rows).__name__}); wanted rows, as lra.rows(path) returns them"
        )
    for column in ("samples", "options"):
        texts = [each for each in rows.get(column, ()) if isinstance(each, str)]
        if texts:
            raise ConfigError(
                f"{column}: got the text {texts[0]!r:.40}, as a CSV file stores it; wanted rows "
                "as lra.rows returns them; to_json(FILE, orient='records', lines=True, "
                "date_format='iso', double_precision=15) stores them for pandas.read_json(FILE, "
                "lines=True, precise_float=True)"
            )
    return prepare(rows)


def of_models(frame: "pd.DataFrame", models: Sequence[str] | None) -> "pd.DataFrame":
    """Return the rows of some models, by name or by family; baselines stay.

    Raises:
        ConfigError: There are no rows of one of them.
    """
    if models is None:
        return frame
    if isinstance(models, str):
        raise ConfigError(f"models: got {models!r}; wanted a list, as in [{models!r}]")
    models_rows = frame[frame["baseline"] == ""]
    names = {*models_rows["name"], *models_rows["family"]}
    for name in models:
        if name not in names:
            raise ConfigError(f"models: {unknown('model', str(name), names, listed=False)}")
    kept = frame["name"].isin([*models]) | frame["family"].isin([*models])
    return frame[kept | (frame["baseline"] != "")]


def only_setting(frame: "pd.DataFrame") -> tuple[str, "list[CostPoint]"]:
    """Return the setting of the rows of cost, and their points.

    Raises:
        ConfigError: There are no such rows, or their settings differ.
    """
    from lra.reports.rows import COST_SETTING, by_setting, cost_points, cost_rows

    timed = cost_rows(frame)
    if timed.empty:
        raise ConfigError(
            f"these rows are of {_runners(frame)}, without time and memory by length: "
            "`lra run -m runner=scaling` measures them"
        )
    parts = by_setting(timed)
    if len(parts) > 1:
        column = next(c for c in COST_SETTING if timed[c].nunique(dropna=False) > 1)
        values = sorted(map(str, timed[column].unique()))
        first = timed[column].iloc[0]
        raise ConfigError(
            f"the rows have {len(parts)} settings, and a table or figure shows one: they differ in "
            f"{column} ({', '.join(values)}). Choose one, as in rows[rows[{column!r}] == {first!r}]"
        )
    return parts[0].title, cost_points(parts[0].rows)


def only_mode(points: "Sequence[CostPoint]", mode: str | None) -> str:
    """Return the mode that is asked for, or the only one there is."""
    from lra.reports.tables.costs import modes

    return one_of("mode", mode, modes(points))


def one_of(kind: str, name: str | None, names: Sequence[str]) -> str:
    """Return the chosen name if the rows have it, or the only one that they have.

    Raises:
        ConfigError: They do not have it, or several and none is chosen.
    """
    if name is not None:
        if name not in names:
            raise ConfigError(unknown(kind, str(name), names))
        return name
    if len(names) != 1:
        raise ConfigError(
            f"the rows have {len(names)} {kind}s, {', '.join(names)}: choose one, as in "
            f"{kind}={names[0]!r}"
        )
    return names[0]


def none_of(what: str, frame: "pd.DataFrame") -> ConfigError:
    """Return the error to raise where the rows do not hold what is asked for."""
    return ConfigError(
        f"the rows have no {what}: they are of {_runners(frame)}, with {_metrics(frame)}"
    )


def refuse(kind: str, **options: Any) -> None:
    """Raise ConfigError for an argument that what is asked for does not take."""
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"{name}={value!r} has no effect on {kind!r}: remove it")


def _runners(frame: "pd.DataFrame") -> str:
    return ", ".join(f"runner={name}" for name in sorted(map(str, frame["runner"].unique())))


def _metrics(frame: "pd.DataFrame") -> str:
    names = sorted(map(str, frame["metric"].unique()))
    rest = f" and {len(names) - 8} more metrics" if len(names) > 8 else ""
    return ", ".join(names[:8]) + rest
