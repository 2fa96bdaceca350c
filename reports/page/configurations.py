"""Collect the configuration, the command and the machine of each run for the report's page.

Runs share nearly all of these values. The page therefore stores each value once in a list, and for
each run the indices of its values.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from lra.reports.rows import MARKS, as_text, values

MOST_CELLS = 5_000
"""The most runs whose configurations one page has."""
MOST_NUMBERS = 9_000
"""If there are more final rows, the page has none of them."""
COLUMNS = ("model", "task", "runner", "mode", "length", "seed", "outcome")
"""Columns of the page's list of runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellAccount:
    """The stored information about one run, except its rows."""

    config: Mapping[str, Any] = field(default_factory=dict)
    """The resolved configuration, or the options by dotted name."""
    command: str = ""
    """The command that repeats the run; "" if it is unknown."""
    environment: Mapping[str, Any] = field(default_factory=dict)
    """Versions of packages and facts about the machine, by name."""


class _Pool:
    """A list of different values, with their indices."""

    def __init__(self) -> None:
        self.values: list[Any] = []
        self._indices: dict[Any, int] = {}

    def index(self, value: Any) -> int:
        """Return the index of a value; a new value is added to the list."""
        index = self._indices.get(value)
        if index is None:
            index = self._indices[value] = len(self.values)
            self.values.append(value)
        return index


def listed_cells(frame: pd.DataFrame) -> list[str]:
    """Return the keys of the runs that the page lists, in the order of the list."""
    first = frame.drop_duplicates("cell")
    first = first.assign(mode=first["mode"].astype(str))
    ordered = first.sort_values(["task", "runner", "mode", "name", "length", "seed", "cell"])
    return [str(key) for key in ordered["cell"][:MOST_CELLS]]


def cells_json(
    frame: pd.DataFrame, keys: Sequence[str], accounts: Mapping[str, CellAccount]
) -> dict[str, Any]:
    """Return the data about runs that the page's script reads.

    The options of a run are stored as differences (added or changed, and missing) from the usual
    options.

    Args:
        frame: rows from `lra.reports.rows.prepare`.
        keys: the keys of the runs, in order.
        accounts: the stored information about runs, by key.
    """
    pairs, words, environments = _Pool(), _Pool(), _Pool()
    unknown = CellAccount()
    flat = {key: flat_pairs(accounts.get(key, unknown).config) for key in keys}
    usual = _usual_options(flat.values())
    base = [pairs.index(pair) for pair in usual.items()]
    unlike = []
    for key in keys:
        options = dict(flat[key])
        changed = [pairs.index((n, v)) for n, v in options.items() if usual.get(n) != v]
        missing = [pairs.index((name, usual[name])) for name in usual if name not in options]
        # None: the configuration of this run is unknown
        unlike.append([changed, missing] if options else None)
    commands, machines = [], []
    for key in keys:
        account = accounts.get(key, unknown)
        commands.append([words.index(word) for word in account.command.split(" ")])
        machines.append(environments.index(flat_pairs(account.environment)))
    columns, numbers = _facts_and_numbers(frame, keys, words)
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
    """Return a configuration as pairs of (dotted name, value as text)."""
    pairs: list[tuple[str, str]] = []
    _flatten(node, "", pairs)
    return tuple(pairs)


def _flatten(node: Mapping[str, Any], beginning: str, pairs: list[tuple[str, str]]) -> None:
    """Append the pairs of a nested configuration whose names start with `beginning`."""
    for key, value in node.items():
        name = f"{beginning}{key}"
        if isinstance(value, str):
            pairs.append((name, value))
        elif isinstance(value, Mapping) and value:
            _flatten(value, f"{name}.", pairs)
        else:
            pairs.append((name, _value_text(value)))


def _value_text(value: Any) -> str:
    """Return a value as YAML spells it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(_value_text, value)) + "]"
    return str(value)


def _usual_options(configurations: Iterable[Sequence[tuple[str, str]]]) -> dict[str, str]:
    """Return the options with a value that more than half of the runs have."""
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


def _facts_and_numbers(
    frame: pd.DataFrame, keys: Sequence[str], words: _Pool
) -> tuple[list[list[Any]], list[list[Any]]]:
    """Return the facts of each run, and its final numbers; [] if the page has no room for them."""
    indices = {key: number for number, key in enumerate(keys)}
    # a run with rows of models and baselines is listed under its model
    models_first = frame.assign(last=frame["baseline"] != "").sort_values("last", kind="stable")
    listed = models_first[models_first["cell"].isin(indices)]
    facts: list[list[Any]] = [[] for _ in keys]
    failures = listed[(listed["status"] != "ok") & (listed["reference"] == "")]
    failures = failures.drop_duplicates("cell")
    failed = dict(zip(failures["cell"], failures["status"], strict=True))
    reasons = dict(zip(failures["cell"], failures["reason"], strict=True))
    first = listed.drop_duplicates("cell")
    columns = [
        values(first, c) for c in ("cell", "name", "task", "runner", "mode", "length", "seed")
    ]
    for cell, name, task, runner, mode, length, seed in zip(*columns, strict=True):
        outcome = MARKS.get(failed[cell], str(failed[cell])) if cell in failed else "ok"
        facts[indices[cell]] = [
            str(name), as_text(task), str(runner), str(mode),
            None if pd.isna(length) else int(length), None if pd.isna(seed) else int(seed), outcome,
            words.index(str(reasons.get(cell, ""))),
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
        numbers[indices[cell]].append([str(metric), number, str(unit), details])
    return facts, numbers


_NOT_LISTED = frozenset({"sentence", "settings", "deviations", "weights"})
"""Labels that are sentences, or that the configuration repeats."""


def environment_table(accounts: Mapping[str, CellAccount]) -> list[tuple[str, list[str]]]:
    """Return each name of an environment with its values, the most frequent one first."""
    counts: dict[str, Counter[str]] = {}
    for account in accounts.values():
        for name, value in flat_pairs(account.environment):
            counts.setdefault(name, Counter())[value] += 1
    return [
        (name, [value for value, _ in sorted(values.items(), key=lambda v: (-v[1], v[0]))])
        for name, values in sorted(counts.items())
    ]
