"""`lra list`: what can be chosen, one line each with its source. Reads YAML, imports no torch."""

import argparse
import json
from dataclasses import asdict

from lra.composition.arguments import Parser, add_plugin_words
from lra.composition.catalogue import OF_SUBMIT, asked, choices, entries, words
from lra.errors import plural
from lra.terminal.console import print_table


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra list`."""
    args = Parser(
        prog="lra list",
        description="What can be chosen, one line each, with its source; or names in full.",
        epilog="examples: lra list | lra list models --traits | lra list tasks --json | "
        "lra list performer | lra list model linear performer",
    )
    args.add_argument(
        "words",
        nargs="*",
        metavar="GROUP | NAME",
        help="models, tasks, hardware, experiments …, all if none; or choices in full: every "
        "option, its values and what they mean",
    )
    add_plugin_words(args)
    args.add_argument(
        "--traits",
        action="store_true",
        help="models: build each without weights and print what it guarantees (needs torch)",
    )
    args.add_argument(
        "--all", action="store_true", help="of a choice: also the options that others share"
    )
    args.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return args


def main(argv: list[str]) -> int:
    """Print the choices."""
    arguments = parser().parse_intermixed_args(argv)
    folders = arguments.config_dir
    given = arguments.words or (["model"] if arguments.traits else [])
    chosen, files = asked(given, folders)
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
        print(f"{chr(10) if number else ''}{plural(group)}  ({words_of_groups[group]}=NAME)")
        print_table([(entry.name, entry.summary, entry.source or entry.package) for entry in rows])
    return 0
