"""`lra list`: what can be chosen, one line each with its source. Reads YAML, imports no torch."""

import argparse
import json
from dataclasses import asdict

from lra.composition.arguments import Parser, add_plugin_words
from lra.composition.catalogue import OF_SUBMIT, choose_groups, entries, named, words
from lra.errors import plural
from lra.terminal.console import print_table


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra list`."""
    args = Parser(
        prog="lra list",
        description="What can be chosen, one line each, with its source; or all about one name.",
        epilog="examples: lra list | lra list models --traits | lra list tasks --json | "
        "lra list performer | lra list model linear",
    )
    args.add_argument(
        "group", nargs="?", help="models, tasks, hardware, experiments …; all if none"
    )
    args.add_argument(
        "name", nargs="?", help="one choice in full: every option, its values and what they mean"
    )
    add_plugin_words(args)
    args.add_argument(
        "--traits",
        action="store_true",
        help="models: build each one without weights and print what it guarantees (needs torch)",
    )
    args.add_argument(
        "--all", action="store_true", help="of one choice: also the options that others share"
    )
    args.add_argument("--json", action="store_true", help="print JSON instead of a table")
    return args


def main(argv: list[str]) -> int:
    """Print the choices."""
    arguments = parser().parse_intermixed_args(argv)
    if files := named(arguments.group, arguments.name, arguments.config_dir):
        from lra.choices.explain import explained

        explained(files, arguments.config_dir, everything=arguments.all, as_json=arguments.json)
        return 0
    chosen = choose_groups(
        arguments.group or ("model" if arguments.traits else None), arguments.config_dir
    )
    if arguments.traits:
        from lra.choices.traits import print_traits

        code: int = print_traits(chosen, arguments.config_dir, arguments.plugin, arguments.json)
        return code
    listed = {group: entries(group, arguments.config_dir) for group in chosen}
    if arguments.json:
        everything = [asdict(entry) for rows in listed.values() for entry in rows]
        print(json.dumps(everything, indent=2, ensure_ascii=False))
        return 0
    words_of_groups = {**words(arguments.config_dir), OF_SUBMIT: OF_SUBMIT}
    for number, (group, rows) in enumerate(listed.items()):
        print(f"{chr(10) if number else ''}{plural(group)}  ({words_of_groups[group]}=NAME)")
        print_table([(entry.name, entry.summary, entry.source or entry.package) for entry in rows])
    return 0
