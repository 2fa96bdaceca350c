"""Check rows, and select what a table or figure of `import lra` shows."""

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
    """Warns that a style has a setting which the rows or a figure cannot use."""


@contextmanager
def styled_rows(rows: Any, style: "str | Path | None") -> "Iterator[pd.DataFrame]":
    """Use `style` inside the `with` block, and yield the rows that it shows.

    Args:
        rows: What the caller gave as rows; see `checked_rows`.
        style: Name or file of a style; None: the default of reports.
    """
    from lra.reports.style import using
    from lra.results.style import read_style

    style_read, unused_settings = read_style(None if style is None else str(style))
    with using(style_read) as active_style:
        frame, unmatched_names = active_style.select(checked_rows(rows))
        for line in (*unused_settings, *unmatched_names):
            warnings.warn(line, LeftOutOfStyle, stacklevel=5)  # names the line that called lra
        yield frame


def checked_rows(rows: Any) -> "pd.DataFrame":
    """Return `rows` with the columns that reports add.

    Raises:
        ConfigError: `rows` is not a frame, or comes from a CSV file.
        ValueError: `rows` is empty, or lacks columns.
    """
    import pandas as pd

    from lra.reports.rows import prepare

    if not isinstance(rows, pd.DataFrame):
        raise ConfigError(
            f"rows: got {rows!r:.80} ({type(rows).__name__}); wanted the frame that lra.rows(path) "
            "returns"
        )
    for column in ("samples", "options"):
        # Only a CSV file turns the lists and mappings of these columns into text.
        for value in rows.get(column, ()):
            if isinstance(value, str):
                raise ConfigError(
                    f"{column}: got the text {value!r:.40}, as a CSV file stores it; wanted rows "
                    "as lra.rows returns them. Store rows by to_json(FILE, orient='records', "
                    "lines=True, date_format='iso', double_precision=15) and read them by "
                    "pandas.read_json(FILE, lines=True, precise_float=True)"
                )
    return prepare(rows)


def of_models(frame: "pd.DataFrame", models: Sequence[str] | None) -> "pd.DataFrame":
    """Return the rows of baselines and of the given models.

    Args:
        frame: Rows.
        models: Names or families of models; None: all models.

    Raises:
        ConfigError: The rows lack one of the models.
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
    selected = frame["name"].isin([*models]) | frame["family"].isin([*models])
    return frame[selected | (frame["baseline"] != "")]


def only_setting(frame: "pd.DataFrame") -> tuple[str, "list[CostPoint]"]:
    """Return the setting of the rows with times and memory, in words, and these rows as points.

    Raises:
        ConfigError: There are no such rows, or they have several settings.
    """
    from lra.reports.rows import COST_SETTING, by_setting, cost_points, cost_rows

    timed = cost_rows(frame)
    if timed.empty:
        raise ConfigError(
            f"the rows contain results of {_list_runners(frame)}, but no time or memory at several "
            "lengths; `lra run -m runner=scaling` measures both"
        )
    parts = by_setting(timed)
    if len(parts) > 1:
        column = next(c for c in COST_SETTING if timed[c].nunique(dropna=False) > 1)
        values = sorted(map(str, timed[column].unique()))
        first = timed[column].iloc[0]
        raise ConfigError(
            f"the rows have {len(parts)} settings, which differ in {column} ({', '.join(values)}), "
            "but a table or figure shows rows of one setting. Select rows, for example by "
            f"rows[rows[{column!r}] == {first!r}]"
        )
    return parts[0].title, cost_points(parts[0].rows)


def only_mode(points: "Sequence[CostPoint]", mode: str | None) -> str:
    """Return `mode` or, if it is None, the only mode that the points have."""
    from lra.reports.tables.costs import modes

    return one_of("mode", mode, modes(points))


def one_of(kind: str, name: str | None, names: Sequence[str]) -> str:
    """Return `name` or, if it is None, the only element of `names`.

    Args:
        kind: What the names are, for messages: mode or runner.
        name: The name that the caller chose, or None.
        names: The names that occur in the rows.

    Raises:
        ConfigError: `names` lacks the name, or has several and the caller chose none.
    """
    if name is not None:
        if name not in names:
            raise ConfigError(unknown(kind, str(name), names))
        return name
    if len(names) != 1:
        raise ConfigError(
            f"the rows have {len(names)} values of {kind} ({', '.join(names)}); choose one of "
            f"them, for example {kind}={names[0]!r}"
        )
    return names[0]


def none_of(what: str, frame: "pd.DataFrame") -> ConfigError:
    """Return the error to raise if the rows `frame` lack `what`, for example scores."""
    return ConfigError(
        f"the rows have no {what}; they contain results of {_list_runners(frame)} with the "
        f"metrics {_list_metrics(frame)}"
    )


def refuse(kind: str, **options: Any) -> None:
    """Raise ConfigError if one of `options` is not None, because a table `kind` does not use it."""
    for name, value in options.items():
        if value is not None:
            raise ConfigError(f"{name}={value!r} has no effect on {kind!r}; remove {name}")


def _list_runners(frame: "pd.DataFrame") -> str:
    return ", ".join(f"runner={name}" for name in sorted(map(str, frame["runner"].unique())))


def _list_metrics(frame: "pd.DataFrame") -> str:
    """Return the first eight metrics of the rows, and how many more there are."""
    names = sorted(map(str, frame["metric"].unique()))
    rest = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return ", ".join(names[:8]) + rest
