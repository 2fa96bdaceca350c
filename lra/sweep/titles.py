"""Names of cells for people: what runs on what and, in a sweep, the options that differ."""

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from typing import Any

from lra.composition.runner_class import runner_of
from lra.runners.records import Cell, Memo, canonical, digest

LONGEST_VALUE = 60
"""Characters of an option's value."""
PATHS = {"mixer": "model.mixer", "backbone": "model.backbone", "task.options": "task"}
"""What the beginning of a name in an identity is called on the command line."""
MACHINE = ("device", "precision", "matmul_precision", "compile", "kernels")
"""Options of the hardware at the top of an identity."""
TITLED = ("schema", "mode", "model", "pattern", "runner.name", "runner.source", "runner.qk",
          "task.name", "task.options.name")  # fmt: skip
"""Entries of an identity that a title has already, or that mean nothing to people."""
DERIVED = ("task.data", "task.version", "task.source", "task.vocabulary", "task.classes",
           "length", "trainings.", "machine.name", "machine.torch", "kernel_versions.")  # fmt: skip
"""Entries that follow from options: they are named only where no option distinguishes two cells."""


def title(cell: Cell) -> str:
    """Return a short name of a cell: mode and model, with the length or with task and seed."""
    columns = cell.columns
    kind = runner_of(cell)
    if kind.by_length:
        return f"{columns['mode']} {columns['model']} at {columns['length']}"
    if not kind.models:
        return f"baselines of {columns['task']}"
    start = cell.described.get("runner", {}).get("source")
    origin = f" from {start}" if start else ""
    return (
        f"{columns['mode']} {columns['model']}{origin} on {columns['task']}, seed {columns['seed']}"
    )


def titles(planned: Sequence[tuple[Cell, Mapping[str, Cell]]]) -> dict[str, str]:
    """Return a name for each cell of a sweep, by its key: no two are equal.

    A name is the `title`, followed by the options in which cells of one runner, model and task
    differ. Options have the shortest end of their dotted names that is unambiguous. Length and
    seed are in the title or count as options.

    Args:
        planned: every cell of the sweep, and the cells of trainings that each starts from.
    """
    cells = {cell.key: cell for cell, _ in planned}
    groups: dict[tuple[str, ...], dict[str, dict[str, str]]] = defaultdict(dict)
    derived: dict[str, dict[str, str]] = {}
    options = _TitleOptions()
    for cell, trainings in planned:
        columns = cell.columns
        kind = (str(columns["runner"]), str(columns["model"]), str(columns["task"]))
        chosen, derived[cell.key] = options.of(cell, trainings.values())
        groups[kind][cell.key] = chosen
    differing_options: dict[str, dict[str, str]] = {}
    for group in groups.values():
        differing_options |= _discriminating_options(group, derived, cells)
    _add_choices(differing_options, cells)
    texts = _option_texts(differing_options.values())
    names = {
        key: ", ".join((title(cells[key]), *(texts[pair] for pair in sorted(differing.items()))))
        for key, differing in differing_options.items()
    }
    counts = Counter(names.values())
    return {key: name if counts[name] == 1 else f"{name} [{key}]" for key, name in names.items()}


def _discriminating_options(
    group: Mapping[str, Mapping[str, str]],
    derived: Mapping[str, Mapping[str, str]],
    cells: Mapping[str, Cell],
) -> dict[str, dict[str, str]]:
    """Return the options that distinguish each cell of a group from the others.

    Args:
        group: options by key of the cell.
        derived: what follows from the options, by key of the cell. It is used for cells with equal
            titles and options, for example after a file has got new content.
        cells: the cells by key.
    """
    differing = _find_differing(group.values())
    memo = Memo()

    def only_differing(options: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in options.items() if name in differing}

    chosen = {
        key: dict(memo.of("differing", (options,), partial(only_differing, options)))
        for key, options in group.items()
    }
    alike: dict[tuple[str, tuple[tuple[str, str], ...]], list[str]] = defaultdict(list)
    for key, options in chosen.items():
        alike[title(cells[key]), tuple(sorted(options.items()))].append(key)
    for keys in alike.values():
        if len(keys) == 1:
            continue
        names = _find_differing([derived[key] for key in keys])
        for key in keys:
            chosen[key] |= {name: derived[key][name] for name in derived[key] if name in names}
    return chosen


class _TitleOptions:
    """Finds the options of cells; equal parts of several cells are examined once."""

    def __init__(self) -> None:
        self._memo = Memo()

    def of(self, cell: Cell, trainings: Iterable[Cell]) -> tuple[dict[str, str], dict[str, str]]:
        """Return what was chosen for a cell and its trainings, and what follows from it.

        Both are mappings from the name on the command line to the value as canonical JSON.
        """
        titled = "length" if runner_of(cell).by_length else "seed"
        model = cell.config.get("model", {})
        config = {name: model.get(name) or {} for name in ("mixer", "backbone")}
        # The options of trainings are listed, instead of their keys, which stand for the options.
        nodes = [cell.described, *(source.described for source in trainings)]
        plain: list[tuple[str, object]] = [
            (name, canonical(value))
            for node in nodes
            for name, value in node.items()
            if not isinstance(value, Mapping) and name != titled
        ]
        parts = [
            value
            for node in (*nodes, config)
            for value in node.values()
            if isinstance(value, Mapping) and (value or node is not config)  # {} is no mixer
        ]
        names = tuple(name for node in nodes for name in node)
        return self._memo.of(
            (titled, names, *plain), tuple(parts), partial(self._split, nodes, config, titled)
        )

    def _split(
        self, nodes: Sequence[Mapping[str, Any]], configured: Mapping[str, Any], titled: str
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Split the options of a cell (first node) and its trainings: see `of`."""
        flat = dict(self._flatten(nodes[0]))
        for name, value in self._flatten(configured).items():  # `described` may have another value
            planned = flat.get(name, value)
            if planned != value and json.loads(planned) != json.loads(value):
                flat[name] = value
        for node in nodes[1:]:
            flat = {**self._flatten(node), **flat}
        in_title = (*TITLED, titled)
        derived = {
            name: value
            for name, value in flat.items()
            if name not in in_title and _is_derived(name)
        }
        chosen = {
            _option_name(name): value
            for name, value in flat.items()
            if name not in in_title and not _is_derived(name)
        }
        return chosen, derived

    def _flatten(self, node: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
        """Return a nested mapping as one level: dotted names, values as canonical JSON."""
        flat: dict[str, str] = {}
        for name, value in node.items():
            if isinstance(value, Mapping) and value:
                inside = f"{prefix}{name}."
                flat |= self._memo.of(inside, (value,), partial(self._flatten, value, inside))
            else:
                flat[f"{prefix}{name}"] = canonical(value)
        return flat


@lru_cache(maxsize=4096)
def _is_derived(name: str) -> bool:
    return name.startswith(DERIVED)


@lru_cache(maxsize=4096)
def _option_name(name: str) -> str:
    """Return what the command line calls an entry of an identity."""
    for beginning, path in PATHS.items():
        if name.startswith(f"{beginning}."):
            return f"{path}.{name.removeprefix(f'{beginning}.')}"
    if name in MACHINE:
        return f"hardware.{name}"
    words = {
        "threads": "hardware.training_threads",
        "machine.threads": "hardware.threads",
        "machine.token_budget": "hardware.token_budget",
    }
    return words.get(name, name)


def _find_differing(all_options: Collection[Mapping[str, str]]) -> set[str]:
    """Return the names of options that some mappings lack, or that have different values."""
    # Cells may share one mapping, which is then examined once and counted several times.
    distinct = {id(options): options for options in all_options}
    times = Counter(map(id, all_options))
    counts: Counter[tuple[str, str]] = Counter()
    for object_id, options in distinct.items():
        for pair in options.items():
            counts[pair] += times[object_id]
    return {name for (name, _), count in counts.items() if count < len(all_options)}


def _add_choices(named: dict[str, dict[str, str]], cells: Mapping[str, Cell]) -> None:
    """Add runner or task to the options of cells whose titles lack them, if a sweep has several."""
    kinds = {str(cell.columns["runner"]): runner_of(cell) for cell in cells.values()}
    measured = {name for name, kind in kinds.items() if kind.by_length}
    tasks = {kind: set[str]() for kind in measured}
    modes = defaultdict(set)
    for cell in cells.values():
        columns = cell.columns
        if columns["runner"] in measured:
            tasks[columns["runner"]].add(columns["task"])
            modes[columns["mode"]].add(columns["runner"])
    for key, options in named.items():
        columns = cells[key].columns
        if len(tasks.get(columns["runner"], ())) > 1:
            options["task"] = canonical(columns["task"])
        if len(modes[columns["mode"]]) > 1:
            options["runner"] = canonical(columns["runner"])


def _option_texts(named: Iterable[Mapping[str, str]]) -> dict[tuple[str, str], str]:
    """Return `name=value` in few words for each pair of name and value."""
    columns: dict[str, set[str]] = defaultdict(set)
    for options in named:
        for name, value in options.items():
            columns[name].add(value)
    return {
        (name, value): f"{_shorten(name, columns)}={text}"
        for name, column in columns.items()
        for value, text in _value_texts(column).items()
    }


def _shorten(name: str, every: Iterable[str]) -> str:
    """Return the shortest end of a dotted name that no other name has."""
    parts = name.split(".")
    others = [other.split(".") for other in every if other != name]
    for count in range(1, len(parts)):
        if not any(other[-count:] == parts[-count:] for other in others):
            return ".".join(parts[-count:])
    return name


def _value_texts(column: set[str]) -> dict[str, str]:
    """Return each value of an option as the command line spells it.

    If every value is a list of one entry, the brackets are omitted. A long text is cut, and ends in
    a hash of the whole.

    Args:
        column: canonical JSON.
    """
    loaded = {value: json.loads(value) for value in column}
    if all(isinstance(entry, list) and len(entry) == 1 for entry in loaded.values()):
        loaded = {value: entry[0] for value, entry in loaded.items()}
    texts = {value: _word_text(entry) for value, entry in loaded.items()}
    counts = Counter(texts.values())
    # Values that would look alike, such as 1 and "1", stay JSON.
    return {v: _make_legible(text if counts[text] == 1 else v) for v, text in texts.items()}


def _make_legible(text: str) -> str:
    """Return a text, cut to `LONGEST_VALUE` characters with a hash if it is long or unprintable."""
    if len(text) <= LONGEST_VALUE and text.isprintable():
        return text
    printable = "".join(letter if letter.isprintable() else "?" for letter in text)
    return f"{printable[: LONGEST_VALUE - 10]}… {digest(text, digits=8)}"


def _word_text(value: Any) -> str:
    """Return a value as it is typed on the command line."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return f"[{','.join(map(_word_text, value))}]"
    return json.dumps(value, ensure_ascii=False)
