"""`lra report`: tables and figures from stored results. Needs no torch and no network."""

import sys
from pathlib import Path
from typing import Any

from lra.composition.arguments import Parser, add_plugin_words, add_results, path_word
from lra.results.stored import (
    destination,
    deviations,
    file_of_rows,
    publish,
    published_cells,
    published_with_names,
    stored,
)


def main(argv: list[str]) -> int:
    """Parse the words after `lra report` and write the report."""
    parser = Parser(
        prog="lra report",
        description=f"{__doc__} Exit code 1 where cells were left out because a file of theirs is "
        "damaged.",
    )
    add_results(parser)
    parser.add_argument("--sweep", help="name of a sweep; default: every stored result")
    parser.add_argument("--out", type=path_word, help="folder; default: RESULTS/reports/SWEEP")
    parser.add_argument("--title", help="heading of the report")
    parser.add_argument(
        "--rows",
        type=path_word,
        help="a published file of rows, instead of a store; example: one that comes with lra",
    )
    parser.add_argument(
        "--style", metavar="FILE_OR_NAME",
        help="how figures and tables look: default, paper_column, paper_full, slides, a YAML file "
        "or a matplotlib .mplstyle file",
    )  # fmt: skip
    add_plugin_words(parser)
    parser.add_argument(
        "--publish", type=path_word, help="only write the sweep's rows, and its cells beside them"
    )
    choice = parser.parse_args(argv)
    left_out: list[str] = []
    why: list[str] = []
    cells: dict[str, dict[str, Any]] = {}
    about: dict[str, dict[str, Any]] = {}
    if choice.publish:
        if not choice.sweep:
            parser.error("--publish needs --sweep")
        paths = publish(choice.results, choice.sweep, choice.publish)
    else:
        from lra.composition.runner_class import first_metrics, sections
        from lra.composition.selection import kinds
        from lra.reports.report import write_report
        from lra.reports.rows import prepare
        from lra.reports.sections.arena import undrawn
        from lra.results.accounts import published_accounts, stored_accounts
        from lra.results.style import read_style
        from lra.terminal.console import busy

        style, not_taken = read_style(choice.style)
        for line in not_taken:
            print(line, file=sys.stderr)

        if choice.rows:
            choice.rows = file_of_rows(choice.rows)
            rows, name = published_with_names(choice.rows), choice.rows.stem
            folder = Path("reports-of-" + name)
            about = published_cells(choice.rows)
            accounts = published_accounts(rows, about)
        else:
            rows, cells, left_out = stored(choice.results, choice.sweep)
            folder, name = destination(choice.results, choice.sweep)
            about = {key: cell["config"] for key, cell in cells.items()}
            accounts = stored_accounts(choice.results, rows, cells)
        with busy(f"tables and figures of {rows['cell'].nunique():,} cells …"):
            paths = write_report(
                rows,
                choice.out or folder,
                title=choice.title or name,
                groups=kinds(choice.config_dir),
                left_out=left_out,
                sections=sections(cells, choice.config_dir, choice.plugin),
                metrics=first_metrics(cells),
                deviations={key: deviations(node) for key, node in about.items()},
                style=style,
                cells=accounts,
            )
        why = [*undrawn(prepare(rows))]
    for path in paths:
        print(path)
    for line in why:
        print(line, file=sys.stderr)
    for line in left_out:
        print(f"left out: {line}", file=sys.stderr)
    return 1 if left_out else 0
