"""Reports from a notebook or a script."""

import warnings
from collections.abc import Sequence
from pathlib import Path

from lra.api.plain_errors import plainly
from lra.api.prepared_rows import LeftOutOfStyle
from lra.api.results import DamagedCell, file_at
from lra.api.running import CompletedSweep
from lra.errors import ConfigError


@plainly
def report(
    path: "str | Path | CompletedSweep" = "results",
    sweep: str | None = None,
    *,
    out: "str | Path | None" = None,
    title: str | None = None,
    style: "str | Path | None" = None,
    config_dir: "str | Path | None" = None,
    plugins: Sequence[str] = (),
) -> Path:
    """Write tables, figures and a page, as `lra report` does.

    Args:
        path: The folder of a store, a published file of rows (`.jsonl`), `example`, or what
            `lra.run` returned.
        sweep: Name of a sweep of the store; None: all that is stored.
        out: The folder of the report; None: `reports/SWEEP` in the store, or `reports-of-FILE`.
        title: Its heading.
        style: How figures and tables look: `paper_column` and the like, or a file.
        config_dir: A folder with configuration files of your own.
        plugins: Packages with runners of your own.

    Returns:
        The page, `report.html`; tables and figures lie beside it.

    Raises:
        FileNotFoundError: There is nothing at `path`.
        ValueError: There is no such sweep, or the style fits none of the rows.

    Warns:
        DamagedCell: A cell of the store cannot be read and is left out.

    Examples:
        >>> import lra
        >>> lra.report("example", out="report-of-example").name
        'report.html'
    """
    from lra.results.reporting import write
    from lra.results.style import read_style

    if isinstance(path, CompletedSweep):
        sweep, path = sweep or path.sweep, path.results
    if not isinstance(path, (str, Path)):
        raise ConfigError(
            f"got a {type(path).__name__}; wanted a path, or what lra.run returned: a report shows "
            "configurations, which rows lack; lra.table and lra.figure take rows"
        )
    file = file_at(Path(path), sweep)
    style_read, not_taken = read_style(None if style is None else str(style))
    for line in not_taken:
        warnings.warn(line, LeftOutOfStyle, stacklevel=3)
    written = write(
        Path(path), sweep, file=file,
        out=None if out is None else Path(out), title=title, style=style_read,
        config_dirs=() if config_dir is None else (Path(config_dir),), plugins=plugins,
    )  # fmt: skip
    for line in written.left_out:
        warnings.warn(f"left out: {line}", DamagedCell, stacklevel=3)
    return next(file for file in written.files if file.suffix == ".html")
