"""What a reader of the page may ask of one cell: its configuration, its command, its machine.

Cells share nearly all of this, so the page holds each value once, and for each cell its places.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from lra.reports.rows import MARKS, as_text, values

MOST_CELLS = 5_000
"""Whose configurations one page holds."""
MOST_NUMBERS = 9_000
"""Rows of cells that one page holds; of larger reports it has none."""
COLUMNS = ("model", "task", "runner", "mode", "length", "seed", "outcome")
"""Of a cell in the list of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellAccount:
    """What is stored of one cell in addition to its rows."""

    config: Mapping[str, Any] = field(default_factory=dict)
    """As resolved, or the options by dotted name."""
    command: str = ""
    """The line that computes the cell again; empty where none is stored."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Packages and machine, by name."""


class _Pool:
    """Values by their place in one list, each of them once."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._places: dict[Any, int] = {}

    def place(self, value: Any) -> int:
        """Return the place of a value, which is added where it is new."""
        place = self._places.get(value)
        if place is None:
            place = self._places[value] = len(self.values)
            self.values.append(value)
        return place


def listed_cells(frame: pd.DataFrame) -> list[str]:
    """Return the keys of the cells that the page holds, as the list of all shows them."""
    first = frame.drop_duplicates("cell")
    first = first.assign(mode=first["mode"].astype(str))
    ordered = first.sort_values(["task", "runner", "mode", "name", "length", "seed", "cell"])
    return [str(key) for key in ordered["cell"][:MOST_CELLS]]


def cells_json(
    frame: pd.DataFrame, keys: Sequence[str], accounts: Mapping[str, CellAccount]
) -> dict[str, Any]:
    """Return what the page knows of its cells, as its script reads it.

    Args:
        frame: as `lra.reports.rows.prepare` returns it.
        keys: of the cells, in order.
        accounts: what is stored of cells, by key.
    """
    pairs, words, environments = _Pool(), _Pool(), _Pool()
    unknown = CellAccount()
    flat = {key: flat_pairs(accounts.get(key, unknown).config) for key in keys}
    usual = _usual(flat.values())
    base = [pairs.place(pair) for pair in usual.items()]
    unlike = []
    for key in keys:
        options = dict(flat[key])
        further = [pairs.place(pair) for pair in options.items() if usual.get(pair[0]) != pair[1]]
        lacking = [pairs.place((name, usual[name])) for name in usual if name not in options]
        # a cell without a configuration lacks nothing either
        unlike.append([further, lacking] if options else None)
    commands, machines = [], []
    for key in keys:
        account = accounts.get(key, unknown)
        commands.append([words.place(word) for word in account.command.split(" ")])
        machines.append(environments.place(flat_pairs(account.environment)))
    columns, numbers = _cell_rows(frame, keys, words)
    return {
        "keys": list(keys),
        "columns": list(COLUMNS),
        "facts": columns,
        "numbers": numbers,
        "pairs": [list(pair) for pair in pairs.values],
        "base": base,
        "unlike": unlike,
        "words": words.values,
        "commands": commands,
        "environments": [[list(pair) for pair in facts] for facts in environments.values],
        "machines": machines,
        "more": int(frame["cell"].nunique()) - len(keys),
    }


def flat_pairs(node: Mapping[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return a configuration as pairs of dotted name and text."""
    pairs: list[tuple[str, str]] = []
    _flatten(node, "", pairs)
    return tuple(pairs)


def _flatten(node: Mapping[str, Any], beginning: str, pairs: list[tuple[str, str]]) -> None:
    for key, value in node.items():
        name = f"{beginning}{key}"
        if isinstance(value, str):
            pairs.append((name, value))
        elif isinstance(value, Mapping) and value:
            _flatten(value, f"{name}.", pairs)
        else:
            pairs.append((name, _value_text(value)))


def _value_text(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value_text, value)) + "]"
    return str(value)


def _usual(configurations: Iterable[Sequence[tuple[str, str]]]) -> dict[str, str]:
    """Return the commonest value of every option that most cells have."""
    counts: Counter[tuple[str, str]] = Counter()
    cells = 0
    for pairs in configurations:
        counts.update(pairs)
        cells += bool(pairs)
    usual: dict[str, str] = {}
    for (name, value), count in counts.most_common():
        if 2 * count > cells:
            usual.setdefault(name, value)
    return dict(sorted(usual.items()))


def _cell_rows(
    frame: pd.DataFrame, keys: Sequence[str], words: _Pool
) -> tuple[list[list[Any]], list[list[Any]]]:
    """Return the facts of each cell, and its final numbers where the page has room for them."""
    places = {key: number for number, key in enumerate(keys)}
    models = frame.assign(last=frame["baseline"] != "").sort_values("last", kind="stable")
    listed = models[models["cell"].isin(places)]
    facts: list[list[Any]] = [[] for _ in keys]
    bad = listed[(listed["status"] != "ok") & (listed["reference"] == "")].drop_duplicates("cell")
    failed = dict(zip(bad["cell"], bad["status"], strict=True))
    reasons = dict(zip(bad["cell"], bad["reason"], strict=True))
    first = listed.drop_duplicates("cell")
    columns = [
        values(first, c) for c in ("cell", "name", "task", "runner", "mode", "length", "seed")
    ]
    for cell, name, task, runner, mode, length, seed in zip(*columns, strict=True):
        outcome = MARKS.get(failed[cell], str(failed[cell])) if cell in failed else "ok"
        facts[places[cell]] = [
            str(name), as_text(task), str(runner), str(mode),
            None if pd.isna(length) else int(length), None if pd.isna(seed) else int(seed), outcome,
            words.place(str(reasons.get(cell, ""))),
        ]  # fmt: skip
    final = listed[listed["step"].isna()]
    if len(final) > MOST_NUMBERS:
        return facts, []
    numbers: list[list[Any]] = [[] for _ in keys]
    columns = [values(final, c) for c in ("cell", "metric", "value", "unit", "status", "labels")]
    for cell, metric, value, unit, status, labels in zip(*columns, strict=True):
        remarks = {k: v for k, v in labels.items() if k not in _NOT_LISTED}
        details = ", ".join(f"{name}={text}" for name, text in sorted(remarks.items()))
        number = float(f"{value:.6g}") if status == "ok" else MARKS.get(status, str(status))
        numbers[places[cell]].append([str(metric), number, str(unit), details])
    return facts, numbers


_NOT_LISTED = frozenset({"sentence", "settings", "deviations", "weights"})
"""Labels that are sentences, or stand in the configuration."""


def environment_table(accounts: Mapping[str, CellAccount]) -> list[tuple[str, list[str]]]:
    """Return packages and machine: each name with its values, the commonest first."""
    counts: dict[str, Counter[str]] = {}
    for account in accounts.values():
        for name, value in flat_pairs(account.environment):
            counts.setdefault(name, Counter())[value] += 1
    return [
        (name, [value for value, _ in sorted(values.items(), key=lambda v: (-v[1], v[0]))])
        for name, values in sorted(counts.items())
    ]
