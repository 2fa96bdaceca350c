"""What cells are called: by what runs on what and, within a sweep, by the options that differ."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from lra.kinds import KINDS
from runners.records import Cell, canonical, digest

if TYPE_CHECKING:
    from lra.foregone import Planned

LONGEST_VALUE = 60
"""Characters of an option's value."""
PLACES = {"mixer": "model.mixer", "backbone": "model.backbone", "task.options": "task"}
"""Where the command line has what an identity holds, by the beginning of the name."""
MACHINE = ("device", "precision", "matmul_precision", "compile")
"""Options of the hardware at the top of an identity."""
TITLED = ("schema", "mode", "model", "length", "runner.name", "runner.source", "runner.qk",
          "task.name", "task.options.name")  # fmt: skip
"""What a title says already, or a machine alone can read."""
DERIVED = ("task.data", "task.version", "task.source", "task.vocabulary", "task.classes",
           "trainings.", "machine.name", "machine.torch")  # fmt: skip
"""What follows from options: named where no option tells cells apart."""


def title(cell: Cell) -> str:
    """Return a cell's name for people: what runs, on what, where on the axes."""
    columns = cell.columns
    if KINDS[columns["runner"]].by_length:
        return f"{columns['mode']} {columns['model']} at {columns['length']}"
    if not KINDS[columns["runner"]].models:
        return f"floors of {columns['task']}"
    start = cell.identity.get("runner", {}).get("source")
    begun = f" from {start}" if start else ""
    return (
        f"{columns['mode']} {columns['model']}{begun} on {columns['task']}, seed {columns['seed']}"
    )


def titles(planned: Sequence["Planned"]) -> dict[str, str]:
    """Return a name for each cell of a sweep, by its key: no two are equal.

    A name is that of `title` and, among cells of one runner, model and task, the options that
    differ, each by the shortest name that no other of them ends with. Length and seed are told by
    the title or count as options.

    Args:
        planned: every cell of the sweep, and the trainings that each starts from.
    """
    cells = {each.cell.key: each.cell for each in planned}
    groups: dict[tuple[str, ...], dict[str, dict[str, str]]] = defaultdict(dict)
    derived: dict[str, dict[str, str]] = {}
    for each in planned:
        columns = each.cell.columns
        kind = (str(columns["runner"]), str(columns["model"]), str(columns["task"]))
        chosen, derived[each.cell.key] = _options(each)
        groups[kind][each.cell.key] = chosen
    said: dict[str, dict[str, str]] = {}
    for group in groups.values():
        differing = _differing(group.values())
        for key, options in group.items():
            said[key] = {name: options[name] for name in options if name in differing}
            same = [k for k in group if k != key and group[k] == options]
            if same:  # only what follows from options tells these apart, as new content of a file
                apart = _differing(derived[k] for k in (key, *same))
                said[key] |= {n: v for n, v in derived[key].items() if n in apart}
    _add_choices(said, cells)
    return _distinct({key: _named(cells[key], own, said) for key, own in said.items()})


def _options(planned: "Planned") -> tuple[dict[str, str], dict[str, str]]:
    """Return what was chosen for a cell and its trainings, and what follows from it.

    By the name on the command line, as canonical JSON.
    """
    flat = _flat(planned.cell.identity)
    for source in planned.trainings.values():  # its own options are what its key stands for
        flat = {**_flat(source.identity), **flat}
    by_length = KINDS[str(planned.cell.columns["runner"])].by_length
    titled = (*TITLED, *(() if by_length else ("seed",)))
    derived = {name: value for name, value in flat.items() if name.startswith(DERIVED)}
    chosen = {
        _word(name): value
        for name, value in flat.items()
        if name not in derived and name not in titled
    }
    return chosen, derived


def _flat(node: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return a nested mapping as one level: dotted names, values as canonical JSON."""
    flat: dict[str, str] = {}
    for name, value in node.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = canonical(value)
    return flat


def _word(name: str) -> str:
    """Return what the command line calls an entry of an identity."""
    for beginning, place in PLACES.items():
        if name.startswith(f"{beginning}."):
            return f"{place}.{name.removeprefix(f'{beginning}.')}"
    if name in MACHINE:
        return f"hardware.{name}"
    words = {
        "threads": "hardware.training_threads",
        "machine.threads": "hardware.timing_threads",
        "machine.token_budget": "hardware.token_budget",
    }
    return words.get(name, name)


def _differing(many: Iterable[Mapping[str, str]]) -> set[str]:
    """Return the names that not all have, or have with different values."""
    every = list(many)
    counts = Counter(pair for options in every for pair in options.items())
    return {name for (name, _), count in counts.items() if count < len(every)}


def _add_choices(said: dict[str, dict[str, str]], cells: Mapping[str, Cell]) -> None:
    """Name runner and task where a title leaves them out and the sweep has several."""
    kinds = {str(cell.columns["runner"]) for cell in cells.values()}
    measured = {kind for kind in kinds if KINDS[kind].by_length}
    tasks = {kind: set[str]() for kind in measured}
    modes = defaultdict(set)
    for cell in cells.values():
        columns = cell.columns
        if columns["runner"] in measured:
            tasks[columns["runner"]].add(columns["task"])
            modes[columns["mode"]].add(columns["runner"])
    for key, own in said.items():
        columns = cells[key].columns
        if len(tasks.get(columns["runner"], ())) > 1:
            own["task"] = canonical(columns["task"])
        if len(modes[columns["mode"]]) > 1:
            own["runner"] = canonical(columns["runner"])


def _named(cell: Cell, own: Mapping[str, str], said: Mapping[str, Mapping[str, str]]) -> str:
    """Return the title of a cell with its options."""
    every = {name for options in said.values() for name in options}
    columns: dict[str, set[str]] = defaultdict(set)
    for options in said.values():
        for name, value in options.items():
            columns[name].add(value)
    shown = (f"{_shortest(n, every)}={_shown(own[n], columns[n])}" for n in sorted(own))
    return ", ".join((title(cell), *shown))


def _shortest(name: str, every: Iterable[str]) -> str:
    """Return the shortest end of a dotted name that no other name has."""
    parts = name.split(".")
    others = [other.split(".") for other in every if other != name]
    for count in range(1, len(parts)):
        if not any(other[-count:] == parts[-count:] for other in others):
            return ".".join(parts[-count:])
    return name


def _shown(value: str, column: set[str]) -> str:
    """Return a value as the command line spells it; a list of one without brackets.

    Args:
        value: canonical JSON.
        column: every value of this option.
    """
    loaded = {one: json.loads(one) for one in column}
    lists = all(isinstance(one, list) and len(one) == 1 for one in loaded.values())
    texts = {one: _plain(found[0] if lists else found) for one, found in loaded.items()}
    text = texts[value] if Counter(texts.values())[texts[value]] == 1 else value
    if len(text) <= LONGEST_VALUE and text.isprintable():
        return text
    kept = "".join(letter if letter.isprintable() else "?" for letter in text)
    return f"{kept[: LONGEST_VALUE - 10]}… {digest(value, digits=8)}"


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return f"[{','.join(map(_plain, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _distinct(names: dict[str, str]) -> dict[str, str]:
    """Return the names, with the key where two are equal all the same."""
    counts = Counter(names.values())
    return {k: name if counts[name] == 1 else f"{name} [{k}]" for k, name in names.items()}
