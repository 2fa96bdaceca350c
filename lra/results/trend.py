"""`lra report trend`: speed and memory of one family over the revisions of lra that measured it."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from lra.composition.arguments import Parser, add_results, path_word
from lra.composition.catalogue import our_file
from lra.errors import CommandError
from lra.reports.comparison.trend import NoTrend, trend_figure, trend_points, trend_table
from lra.reports.rows import prepare
from lra.reports.tables.table import to_markdown
from lra.results.rows import file_of_rows, published_cells, published_with_names, stored_rows


def main(argv: list[str]) -> int:
    """Print the table that the arguments `argv` ask for; return 1 if a damaged file excludes runs.

    Raises:
        CommandError: no row tells the speed of the family.
    """
    parser = Parser(
        prog="lra report trend",
        description="Print the speed and memory of a family relative to exact attention (SDPA) for "
        "each machine and model size, with a line for each day and revision.",
        epilog="""\
examples:
  lra report trend linear                              rows of the results folder
  lra report trend linear --rows reports/published     a folder of published rows
  lra report trend linear --out figures                also draw a figure""",
    )
    parser.add_argument("family", help="the name of a family, for example linear")
    add_results(parser)
    parser.add_argument(
        "--rows", type=path_word, help="read a published file of rows, or a folder of them"
    )
    parser.add_argument("--out", type=path_word, help="write a figure into this folder")
    choice = parser.parse_args(argv)
    excluded: list[str] = []
    if choice.rows is None:
        rows, cells, excluded = stored_rows(choice.results, None)
        read = [(rows, cells)]
    else:
        files = _files(choice.rows, choice.family)
        read = [(published_with_names(f), published_cells(f)) for f in files]
    frames = []
    for rows, cells in read:
        changed = {key: _changed_options(cell["described"]) for key, cell in cells.items()}
        frames.append(prepare(rows).assign(changed_options=rows["cell"].map(changed).fillna("")))
    try:
        points = trend_points(pd.concat(frames), choice.family)
    except NoTrend as error:
        raise CommandError(str(error)) from None
    print(to_markdown(trend_table(points, choice.family)).rstrip())
    if choice.out is not None:
        choice.out.mkdir(parents=True, exist_ok=True)
        figure = trend_figure(points, choice.family)
        for ending in ("png", "pdf", "svg"):
            figure.savefig(choice.out / f"trend-{choice.family}.{ending}", dpi=200)
            print(choice.out / f"trend-{choice.family}.{ending}")
    for line in excluded:
        print(f"excluded: {line}", file=sys.stderr)
    return 1 if excluded else 0


def _changed_options(described: Mapping[str, Any]) -> str:
    """Return the options of a mixer that differ from the defaults of today, in words."""
    usual = our_file(f"model/{described.get('model')}").get("mixer", {})
    told = described.get("mixer", {})
    changed = [name for name in usual if name in told and told[name] != usual[name]]
    return ", ".join(f"{name}={told[name]}" for name in changed)


def _files(place: Path, family: str) -> list[Path]:
    """Return the files of rows at a path; of a folder those that name the family, or else one.

    Raises CommandError for a folder without any.
    """
    if not place.is_dir():
        return [file_of_rows(place)]
    named = json.dumps(family).encode()
    files, told = list[Path](), list[Path]()
    for file in sorted(place.glob("*.jsonl")):
        content = file.read_bytes()
        if b'"fingerprint"' in content:  # files of benchmark scripts have other columns
            files.append(file)
            told += [file] if named in content else []
    if not files:
        raise CommandError(
            f"--rows={place}: the folder has no file of rows; name one that has files *.jsonl, "
            "which `lra report --publish` writes"
        )
    return told or files[:1]
