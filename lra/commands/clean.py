"""`lra clean`: list or remove sweeps, weights, superseded rows and data that fill the disk."""

import argparse
import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path

from lra.composition.arguments import Parser, add_results
from lra.conf.short_values import number_of
from lra.errors import CommandError, unknown
from lra.results.disk import KINDS, Item, remove, size_of
from lra.runners.store import Store
from lra.terminal.console import print_table

UNITS = ("B", "kB", "MB", "GB", "TB")


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra clean`."""
    args = Parser(
        prog="lra clean",
        description="List what fills the disk, with sizes. With --yes, remove what you name.",
        epilog="""\
examples:
  lra clean                          list everything
  lra clean sweeps quickstart        list one sweep
  lra clean sweeps quickstart --yes  remove it
  lra clean data 'listops-*' --yes   remove all prepared data with a name like listops-...""",
    )
    args.add_argument(
        "kind", nargs="?", choices=list(KINDS), help="what to list or remove; default: all"
    )
    args.add_argument("names", nargs="*", help="names or patterns of sweeps, data or dashboards")
    args.add_argument("--yes", action="store_true", help="remove what is listed")
    add_results(args)
    args.add_argument("--json", action="store_true", help="print JSON")
    return args


def main(argv: list[str]) -> int:
    """List what fills the disk, or remove the items that the arguments name."""
    arguments = parser().parse_intermixed_args(argv)
    if arguments.yes and arguments.kind is None:
        raise CommandError(
            f"--yes removes one kind of files: give it, as in lra clean {'|'.join(KINDS)} --yes"
        )
    # The default folder may be absent, as data are elsewhere.
    if arguments.results != Path("results") and not arguments.results.is_dir():
        raise FileNotFoundError(
            f"there is no results folder {arguments.results.resolve()}; set its path by "
            "--results DIR"
        )
    kinds = [arguments.kind] if arguments.kind else list(KINDS)
    items = [item for kind in kinds for item in KINDS[kind](arguments.results)]
    items = items_named(items, arguments.kind, arguments.names)
    sizes = [sum(map(size_of, item.paths)) for item in items]
    if arguments.json:
        records = [
            {"kind": item.kind, "name": item.name, "bytes": size, "note": item.note}
            for item, size in zip(items, sizes, strict=True)
        ]
        print(json.dumps(records, indent=2, ensure_ascii=False))
    elif items:  # by kind, and the largest first
        pairs = sorted(
            zip(items, sizes, strict=True), key=lambda pair: (kinds.index(pair[0].kind), -pair[1])
        )
        print_table([(item.kind, size_words(size), item.name, item.note) for item, size in pairs])
    end = (
        ""
        if arguments.kind is None
        else f"\nadd --yes to remove these files ({size_words(sum(sizes))})"
    )
    if arguments.yes:
        check_idle(arguments.results, items)
        for item in items:
            for path in item.paths:
                remove(path)
        end = f"removed: {size_words(sum(sizes))}"
    if not arguments.json:
        print(end if items else "nothing to remove")
    return 0


def items_named(items: Sequence[Item], kind: str | None, names: Sequence[str]) -> list[Item]:
    """Return the items whose names match one of `names`, which may be patterns such as `list*`.

    Without names, all items are returned. Raises CommandError for a name that matches none.
    """
    for name in names:
        if not any(fnmatchcase(item.name, name) for item in items):
            known = [item.name for item in items]
            is_prefix = any(known_name.startswith(name) for known_name in known)
            hint = f" To select all names that begin so, give '{name}*'." if is_prefix else ""
            raise CommandError(unknown(f"name of {kind}", name, known) + hint)
    return [item for item in items if not names or any(fnmatchcase(item.name, n) for n in names)]


def check_idle(results: Path, items: Sequence[Item]) -> None:
    """Raise CommandError if a process uses, or will soon use, files that would be removed."""
    from lra.cluster.jobs import active
    from lra.cluster.plan import plan_folder
    from lra.cluster.submissions import submissions
    from lra.sweep.users import users_of_data, users_of_results

    # Runs read nothing of the other kind, dashboards.
    kinds = {item.kind for item in items} & {"sweeps", "weights", "old", "data"}
    if not kinds:
        return
    store = Store(results)
    end = "wait until it is finished, or stop it (lra submit --stop SWEEP), then clean"
    busy = {} if kinds == {"data"} else store.claims()
    if busy:
        affected = {key for item in items for key in item.cells} & busy.keys()
        example = min(affected or busy)
        raise CommandError(
            f"{results} has {number_of(len(busy), 'unfinished run')}, for example {example}: {end}"
        )
    users = users_of_data() if kinds == {"data"} else users_of_results(results)
    if users:
        titles = sorted({user.title for user in users.values()})
        raise CommandError(f"{titles[0]} is still running and uses these files: {end}")
    sweeps = [item.name for item in items] if kinds == {"sweeps"} else store.sweeps()
    for sweep in sweeps:
        if jobs := active(submissions(plan_folder(results, sweep))):
            raise CommandError(
                f"workers of sweep {sweep} are running or starting, for example {jobs[0]}: {end}"
            )


def size_words(count: float) -> str:
    """Return a number of bytes with three digits and a unit, for example 12.3 MB."""
    unit = 0
    while count >= 999.5 and unit < len(UNITS) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:.3g} {UNITS[unit]}"
