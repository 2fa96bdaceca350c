"""`lra clean`: what fills the disk, and how it goes: sweeps, weights, superseded rows, data."""

import argparse
import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from lra.composition.arguments import Parser, path_word
from lra.errors import CommandError, unknown
from lra.terminal.console import print_table
from runners.storage import writers
from runners.storage.formats import BadStore, cell_folders, fingerprint_of, read_newest_rows
from runners.store import Store

UNITS = ("B", "kB", "MB", "GB", "TB")


class Item(NamedTuple):
    """What can be removed as one."""

    kind: str
    """One of `KINDS`."""
    name: str
    """Of a sweep or a data set; of others what it is."""
    paths: list[Path]
    """Files and folders, which go in this order."""
    cells: list[str]
    """The cells that these lie in: nobody may be at work on them."""
    note: str = ""
    """What goes with it, in a few words."""


def sweeps(results: Path) -> Iterator[Item]:
    """Yield each sweep, with the cells that no other sweep has; of cells in none, one item."""
    store = Store(results)
    members = {name: store.cells_of(name) for name in store.sweeps()}
    owners: dict[str, int] = {}
    for keys in members.values():
        for key in keys:
            owners[key] = owners.get(key, 0) + 1
    for name, keys in members.items():
        alone = [key for key in keys if owners[key] == 1]
        folders = [results / part / name for part in ("sweeps", "plans", "reports")]
        shared = len(keys) - len(alone)
        note = f"{len(alone):,} cells" + (
            f"; {shared:,} of other sweeps too stay" if shared else ""
        )
        # The list of the sweep goes last: what an interruption leaves is still found by its name.
        yield Item("sweeps", name, [*map(store.cell_folder, alone), *folders[::-1]], alone, note)
    single = [folder for folder in cell_folders(results, left_out=[]) if folder.name not in owners]
    if single:
        note = f"{len(single):,} cells of single runs"
        yield Item("sweeps", "(none)", single, [folder.name for folder in single], note)


def weights(results: Path) -> Iterator[Item]:
    """Yield the weights and states of complete cells."""
    folders = cell_folders(results, left_out=[])
    paths = [
        path
        for folder in folders
        for path in sorted(folder.glob("checkpoint-*"))
        if (folder / f"rows-{path.name.partition('-')[2]}.jsonl").exists()
    ]
    if paths:
        note = "of complete trainings, which other runs may start from; their rows stay"
        yield Item("weights", "weights", paths, [path.parent.name for path in paths], note)


def old(results: Path) -> Iterator[Item]:
    """Yield rows of earlier sources beside newer ones, damaged files, and half-written ones."""
    paths = []
    for folder in cell_folders(results, left_out=[]):
        newest = None
        with suppress(BadStore):  # lra doctor --store says what is damaged
            newest = read_newest_rows(folder)
        if newest is not None:
            stays = fingerprint_of(newest[0])
            paths += [
                path
                for path in sorted(folder.iterdir())
                if path.name.startswith(("rows-", "outcomes-", "environment-", "checkpoint-"))
                and path.name.partition("-")[2].partition(".")[0] != stays
            ]
        paths += sorted(folder.glob("damaged-*"))
    paths += filter(writers.has_died, sorted((results / "cells").glob("**/.*.tmp")))
    if paths:
        note = (
            f"{len(paths):,} files that no report reads: of earlier sources, damaged, half written"
        )
        yield Item("old", "old", paths, [path.parent.name for path in paths], note)


def dashboards(results: Path) -> Iterator[Item]:
    """Yield what W&B and TensorBoard have on disk; the next run fills it again from rows."""
    for name in ("wandb", "tensorboard"):
        if (results / name).is_dir():
            note = "made again from rows; runs that were not synchronised are not sent"
            yield Item("dashboards", name, [results / name], [], note)


def data(results: Path) -> Iterator[Item]:  # noqa: ARG001
    """Yield the prepared data sets in the data folder, wherever the results are."""
    from tasks.data.sources import data_root

    root = data_root()
    for path in sorted(root.iterdir()) if root.is_dir() else ():
        if path.is_dir() and path.name not in ("locks", "hashes") and path.name[0] != ".":
            yield Item("data", path.name, [path], [], "prepared again, or downloaded, when needed")


KINDS: dict[str, Callable[[Path], Iterator[Item]]] = {
    "sweeps": sweeps, "weights": weights, "old": old, "dashboards": dashboards, "data": data,
}  # fmt: skip


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra clean`."""
    args = Parser(
        prog="lra clean",
        description="What fills the disk, with sizes. Named items are removed with --yes, and "
        "without it only listed.",
        epilog="examples: lra clean | lra clean sweeps quickstart | lra clean weights --yes | "
        "lra clean data 'listops-*' --yes",
    )
    args.add_argument("kind", nargs="?", choices=list(KINDS), help="what to remove; all if none")
    args.add_argument("names", nargs="*", help="of sweeps, data or dashboards, or patterns")
    args.add_argument("--yes", action="store_true", help="remove what would be listed")
    args.add_argument(
        "--results", type=path_word, default=Path("results"), metavar="DIR", help="default: results"
    )
    args.add_argument("--json", action="store_true", help="print JSON")
    return args


def main(argv: list[str]) -> int:
    """List what is there, or remove what is named."""
    arguments = parser().parse_intermixed_args(argv)
    if arguments.yes and arguments.kind is None:
        raise CommandError(f"--yes removes one kind: lra clean {'|'.join(KINDS)} --yes")
    if arguments.results != Path("results") and not arguments.results.is_dir():
        raise FileNotFoundError(f"no results folder {arguments.results.resolve()}")
    kinds = [arguments.kind] if arguments.kind else list(KINDS)
    items = [item for kind in kinds for item in KINDS[kind](arguments.results)]
    items = chosen(items, arguments.kind, arguments.names)
    sizes = [sum(map(size_of, item.paths)) for item in items]
    if arguments.json:
        records = [
            {"kind": item.kind, "name": item.name, "bytes": size, "note": item.note}
            for item, size in zip(items, sizes, strict=True)
        ]
        print(json.dumps(records, indent=2, ensure_ascii=False))
    elif items:
        pairs = sorted(
            zip(items, sizes, strict=True), key=lambda pair: (kinds.index(pair[0].kind), -pair[1])
        )
        print_table([(item.kind, size_words(size), item.name, item.note) for item, size in pairs])
    if not items:
        print("nothing to remove")
    elif arguments.yes:
        check_idle(arguments.results, items)
        for item in items:
            for path in item.paths:
                remove(path)
        print(f"removed: {size_words(sum(sizes))}")
    elif arguments.kind and not arguments.json:
        print(f"\n{size_words(sum(sizes))} would go: the same command with --yes")
    return 0


def chosen(items: Sequence[Item], kind: str | None, names: Sequence[str]) -> list[Item]:
    """Return the items of these names, all if there are none. Raises CommandError."""
    for name in names:
        if not any(fnmatchcase(item.name, name) for item in items):
            raise CommandError(unknown(f"name of {kind}", name, [item.name for item in items]))
    return [item for item in items if not names or any(fnmatchcase(item.name, n) for n in names)]


def check_idle(results: Path, items: Sequence[Item]) -> None:
    """Raise CommandError where a process works on a cell that would go, or starts from it."""
    busy = Store(results).claims()
    if busy and any(item.kind in ("sweeps", "weights", "old") for item in items):
        at_work = sorted({key for item in items for key in item.cells} & busy.keys()) or sorted(
            busy
        )
        raise CommandError(
            f"{len(busy)} cells of {results} are being run, as {at_work[0]}: wait, or stop them "
            "(lra submit --stop SWEEP), then clean"
        )


def size_of(path: Path) -> int:
    """Return the bytes of a file or of all files in a folder; links count as themselves."""
    try:
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        return sum(size_of(Path(entry)) for entry in os.scandir(path))
    except FileNotFoundError:
        return 0


def size_words(count: float) -> str:
    """Return a number of bytes in words: 12.3 MB."""
    unit = 0
    while count >= 999.5 and unit < len(UNITS) - 1:
        count, unit = count / 1000, unit + 1
    return f"{count:.3g} {UNITS[unit]}"


def remove(path: Path) -> None:
    """Remove a file, or a folder at once: nobody sees a part of it, also after an interruption."""
    if path.is_symlink() or not path.is_dir():
        path.unlink(missing_ok=True)
        return
    aside = writers.temporary(path)
    path.rename(aside)
    shutil.rmtree(aside)
