"""Write reports from a notebook or a script."""

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
        path: A results folder, a published file of rows (`.jsonl`), `example`, or what `lra.run`
            returned.
        sweep: Name of a stored sweep; None: every stored run.
        out: The folder of the report; None: `RESULTS/reports/SWEEP`, or `reports-of-FILE`.
        title: The heading of the report; None: a heading that names the results.
        style: How figures and tables look: a name such as `paper_column`, or a file.
        config_dir: A folder with your configuration files.
        plugins: Names of packages that contain your runners.

    Returns:
        The path of the page, `report.html`; tables and figures are in the same folder.

    Raises:
        FileNotFoundError: `path` does not exist.
        ValueError: The sweep is unknown, or the style shows none of the rows.

    Warns:
        DamagedCell: A stored run cannot be read and is excluded.

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
            f"path: got a {type(path).__name__}; wanted a path, or what lra.run returned. A report "
            "also shows configurations, which rows lack. Use lra.table or lra.figure for rows"
        )
    file = file_at(Path(path), sweep)
    style_read, unused_settings = read_style(None if style is None else str(style))
    for line in unused_settings:
        warnings.warn(line, LeftOutOfStyle, stacklevel=3)
    written = write(
        Path(path), sweep, file=file,
        out=None if out is None else Path(out), title=title, style=style_read,
        config_dirs=() if config_dir is None else (Path(config_dir),), plugins=plugins,
    )  # fmt: skip
    for line in written.left_out:
        warnings.warn(f"excluded: {line}", DamagedCell, stacklevel=3)
    return next(file for file in written.files if file.suffix == ".html")
