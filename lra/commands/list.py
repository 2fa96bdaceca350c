"""`lra list`: print the names that can be chosen, with a summary. Names need no torch."""

import argparse
import json
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict

from lra.composition.arguments import Parser, add_plugin_words
from lra.composition.catalogue import OF_SUBMIT, asked, choices, entries, words
from lra.errors import plural
from lra.terminal.console import console_of, print_table
from lra.terminal.screen import trim

WIDTH, LONGEST_SOURCE = 100, 22
"""The widths of a line and of the source in it, in characters."""


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra list`."""
    args = Parser(
        prog="lra list",
        description="List the names that you can choose, with a summary and a source; or explain "
        "the names that you give.",
        epilog="""\
examples:
  lra list                  list all names
  lra list models           list one group
  lra list performer        list every option of Performer, with its default
  lra list performer --all  the same with types, values and shared options
  lra list models --traits  list what each model supports
  lra list kernels          list public kernels for shared operations""",
    )
    args.add_argument(
        "words", nargs="*", metavar="GROUP | NAME",
        help="groups to list (models, tasks, hardware, experiments …), or names to explain; "
        "default: all groups",
    )  # fmt: skip
    add_plugin_words(args)
    args.add_argument(
        "--traits", action="store_true",
        help="print the properties of each model: its direction (causal or not), how its cost "
             "grows with length, its state, and how it encodes positions",
    )  # fmt: skip
    args.add_argument(
        "--all",
        action="store_true",
        help="also print types, all values, and the options that other names have, too",
    )
    args.add_argument("--json", action="store_true", help="print JSON")
    return args


def main(argv: list[str]) -> int:
    """Print the names of groups, or explain names, as the arguments ask."""
    arguments = parser().parse_intermixed_args(argv)
    if arguments.words in (["kernel"], ["kernels"]):
        from lra.choices.kernels import print_kernels

        print_kernels(as_json=arguments.json)
        return 0
    folders = arguments.config_dir
    words_given = arguments.words or (["model"] if arguments.traits else [])
    chosen, files = asked(words_given, folders)
    if arguments.traits:
        from lra.choices.traits import print_traits

        of_groups = [file for group in chosen for file in choices(group, folders)]
        code: int = print_traits(files or of_groups, arguments.plugin, arguments.json)
        return code
    if files:
        from lra.choices.explain import print_choices

        print_choices(files, folders, everything=arguments.all, as_json=arguments.json)
        return 0
    listed = {group: entries(group, folders) for group in chosen}
    if arguments.json:
        everything = [asdict(entry) for rows in listed.values() for entry in rows]
        print(json.dumps(everything, indent=2, ensure_ascii=False))
        return 0
    words_of_groups = {**words(folders), OF_SUBMIT: OF_SUBMIT}
    for number, (group, rows) in enumerate(listed.items()):
        # chr(10), a line end, separates groups.
        print(f"{chr(10) if number else ''}{plural(group)}  ({words_of_groups[group]}=NAME)")
        described = [(row.name, row.summary, brief(row.source or row.package)) for row in rows]
        print_table(described if console_of(sys.stdout) else [*wrapped_rows(described)])
    return 0


def brief(source: str) -> str:
    """Return the arXiv number in `source`, or else its beginning, to fit into a line."""
    paper = re.search(r"arXiv:[\d.]+\d", source)
    return paper[0] if paper else trim(re.split("[;,(]", source)[0].strip(), LONGEST_SOURCE)


def wrapped_rows(rows: Sequence[tuple[str, str, str]]) -> Iterator[tuple[str, str, str]]:
    """Yield rows (name, text, source) with the text wrapped, so that a line fits `WIDTH`."""
    longest_name = max(len(name) for name, _, _ in rows)
    longest_source = max(len(source) for _, _, source in rows)
    text_width = WIDTH - 6 - longest_name - longest_source  # 6: two blanks before each column
    for name, text, source in rows:
        first, *others = textwrap.wrap(text, text_width) or [""]
        yield name, first, source
        yield from (("", line, "") for line in others)
