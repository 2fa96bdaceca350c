"""`lra report`: write tables and figures from stored results, without torch or a network."""

import importlib
import sys
from pathlib import Path

from lra.composition.arguments import Parser, add_plugin_words, add_results, path_word


def main(argv: list[str]) -> int:
    """Write the report that the arguments `argv` ask for; return 1 if a damaged file excludes runs.

    Prints the paths of written files to stdout, and what is missing in the report to stderr.
    """
    if argv[:1] in (["claims"], ["trend"]):  # each has arguments of its own
        return int(importlib.import_module(f"lra.results.{argv[0]}").main(argv[1:]))
    parser = Parser(
        prog="lra report",
        description="Write tables, figures and a page from stored results. The exit code is 1 if a "
        "damaged file excludes runs.",
        epilog="""\
examples:
  lra report --sweep quickstart               write results/reports/quickstart/report.html
  lra report --rows example                   report published rows that come with lra
  lra report --sweep mine --style slides      use larger letters and lines
  lra report --sweep mine --publish my_rows   write my_rows.jsonl and my_rows.json to share
  lra report compare --sweep mine             print your scores next to published ones
  lra report claims TABLE.csv --seeds 3       test which ranks of a published table can survive
  lra report trend linear                     print speed and memory by day and revision""",
    )
    parser.add_argument(
        "what", nargs="?", choices=["compare", "claims", "trend"],
        help="print a table instead. compare: your scores under each protocol with the published "
        "ones, the difference and a verdict, or why nothing compares. `lra report claims --help` "
        "and `lra report trend --help` explain the others",
    )  # fmt: skip
    add_results(parser)
    parser.add_argument("--sweep", help="name of a sweep; default: every stored run")
    parser.add_argument(
        "--out", type=path_word, help="folder of the report; default: RESULTS/reports/SWEEP"
    )
    parser.add_argument("--title", help="heading of the report")
    parser.add_argument(
        "--rows", type=path_word,
        help="read a published file of rows, in place of a results folder; `example` names a file "
        "that comes with lra",
    )  # fmt: skip
    parser.add_argument(
        "--style", metavar="FILE_OR_NAME",
        help="how figures and tables look: default, paper_column, paper_full, slides, a YAML file "
        "or a matplotlib .mplstyle file",
    )  # fmt: skip
    add_plugin_words(parser)
    parser.add_argument(
        "--publish", type=path_word,
        help="write no report, but two files that you can share: the rows and the settings of the "
        "sweep",
    )  # fmt: skip
    choice = parser.parse_args(argv)
    if choice.what in {"claims", "trend"}:
        parser.error(f"write {choice.what} first: lra report {choice.what} …")
    if choice.what and any((choice.publish, choice.out, choice.title, choice.style)):
        parser.error("`lra report compare` prints a table: omit --publish, --out, --title, --style")
    from lra.results.rows import file_of_rows, publish

    if choice.publish:
        if not choice.sweep:
            parser.error("--publish needs the name of a sweep: --sweep NAME")
        for path in publish(choice.results, choice.sweep, choice.publish):
            print(path)
        return 0
    if choice.what:
        return _compare(choice.results, choice.sweep, choice.rows and file_of_rows(choice.rows))
    from lra.reports.rows import prepare
    from lra.reports.sections.arena import undrawn
    from lra.results.reporting import write
    from lra.results.style import read_style
    from lra.terminal.console import busy

    style, not_taken = read_style(choice.style)
    for line in not_taken:
        print(line, file=sys.stderr)
    with busy("tables and figures …"):
        written = write(
            choice.results, choice.sweep, file=choice.rows and file_of_rows(choice.rows),
            out=choice.out, title=choice.title, style=style, config_dirs=choice.config_dir,
            plugins=choice.plugin,
        )  # fmt: skip
    for path in written.files:
        print(path)
    for line in undrawn(prepare(written.rows)):
        print(line, file=sys.stderr)
    for line in written.unfinished:
        print(line, file=sys.stderr)
    for line in written.left_out:
        print(f"excluded: {line}", file=sys.stderr)
    return 1 if written.left_out else 0


def _compare(results: Path, sweep: str | None, file: Path | None) -> int:
    """Print stored scores next to published ones; return 1 if a damaged file excludes runs."""
    from lra.reports.arena.verdicts import published_table
    from lra.reports.rows import prepare
    from lra.reports.tables.table import to_markdown
    from lra.results.rows import published_with_names, stored_rows

    damaged: list[str] = []
    if file is not None:
        rows = published_with_names(file)
    else:
        rows, _, damaged = stored_rows(results, sweep)
    outcome = published_table(prepare(rows))
    print(outcome if isinstance(outcome, str) else to_markdown(outcome).rstrip())
    for line in damaged:
        print(f"excluded: {line}", file=sys.stderr)
    return 1 if damaged else 0
