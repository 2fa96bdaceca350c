"""`lra report`: tables and figures from stored results. Needs no torch and no network."""

import sys

from lra.composition.arguments import Parser, add_plugin_words, add_results, path_word


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
    from lra.results.rows import file_of_rows, publish

    if choice.publish:
        if not choice.sweep:
            parser.error("--publish needs --sweep")
        for path in publish(choice.results, choice.sweep, choice.publish):
            print(path)
        return 0
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
        print(f"left out: {line}", file=sys.stderr)
    return 1 if written.left_out else 0
