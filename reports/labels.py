"""What the labels of rows say, and what their models are called. Reads no table."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lra.reports.names import FAITHFUL, TUNED, UNTUNED, display_name, fit_value, last_words
from lra.reports.style import Names, current_style
from lra.runners.records import baseline_of

RUN_MARKS = ("protocol", "scale", "changed")
"""Labels of a run under a protocol that tell it from others: rows that differ in one are never
merged. What was changed is named where runs of one model at one task differ in it."""
TIMED = ("time", "token_time")
"""Metrics that every cell has which was timed at a length, be it to say why there is no number."""
READ = ("model", "task", "runner", "labels", "samples")
"""Columns that names and other words of rows are made of."""


def disturbance_of(row: Mapping[str, Any]) -> str:
    """Return what disturbed the measurement of a row, or "": the one place that reads it."""
    return str(row["labels"].get("disturbed", ""))


def first_position(row: Mapping[str, Any]) -> int:
    """Return where in its window a row's part begins: the one place that reads this label.

    It is stored as `12` or as `1,024–2,047`.
    """
    return int(str(row["labels"]["part"]).partition("–")[0].replace(",", ""))


def names_in(label: str) -> list[str]:
    """Return the names in a label that lists them: `changed` or `deviations` of a run."""
    return [name for name in label.split(", ") if name]


def labels_of(value: Any) -> dict[str, str]:
    """Read one entry of the labels column: a mapping, its JSON text, or nothing."""
    if isinstance(value, str):
        value = json.loads(value or "{}")
    if isinstance(value, Mapping):
        return {str(k): str(v) for k, v in value.items() if v is not None}
    return {}


def samples_of(value: Any) -> tuple[float, ...]:
    """Read one entry of the samples column: a sequence or nothing."""
    if isinstance(value, str | Mapping) or not hasattr(value, "__len__"):
        return ()
    return tuple(float(v) for v in value)


def columns_in_words(columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Return what `lra.reports.rows.prepare` makes of the columns of `READ`.

    Args:
        columns: as lists; with `family` and `options` where models are told apart by them.
    """
    labels = [labels_of(value) for value in columns["labels"]]
    models = [str(model) for model in columns["model"]]
    families, options = columns.get("family", models), columns.get("options", [{}] * len(models))
    # a file of columns, as Parquet, has every option in every row
    options = [{k: v for k, v in each.items() if v is not None} for each in options]
    parts = list(zip(models, families, options, strict=True))
    baselines = [baseline_of(model) or "" for model in models]
    marks = {
        mark: [entry.get(mark, "") for entry in labels]
        for mark in ("regime", "tokenizer", "start", *RUN_MARKS)
    }
    kept = [entry for entry, name in zip(labels, baselines, strict=True) if not name]
    several = [m for m in RUN_MARKS[:2] if len({entry.get(m, "") for entry in kept}) > 1]
    places = list(zip(families, columns["task"], columns["runner"], strict=True))
    changes: dict[tuple[Any, ...], set[str]] = {}
    for place, changed in zip(places, marks["changed"], strict=True):
        changes.setdefault(place, set()).add(changed)
    short = current_style().style.names is Names.short
    unnamed = {place: _shared(texts) if short else set() for place, texts in changes.items()}
    plain = [
        departures_of(
            entry, [*several, *(("changed",) if len(changes[place]) > 1 else ())], unnamed[place]
        )
        for entry, place in zip(labels, places, strict=True)
    ]
    saved = {n: f"saved run {at}" for at, n in enumerate(sorted(_saved(labels)), 1)}
    starts = [
        (f"from {saved.get(entry['start'], entry['start'])}",) if "start" in entry else ()
        for entry in labels
    ]
    departures = list(map(tuple.__add__, plain, starts))
    current_style().shorten(
        (family, told, words)
        for (_, family, told), words, name in zip(parts, departures, baselines, strict=True)
        if not name
    )
    return {
        "labels": labels,
        "samples": [samples_of(value) for value in columns["samples"]],
        "family": [family for _, family, _ in parts],
        "options": [told for _, _, told in parts],
        "baseline": baselines,
        **marks,
        "departures": departures,
        "base": list(map(_name, parts, plain)),
        "name": list(map(_name, parts, departures)),
        "split": [entry.get("split", "") for entry in labels],
        "reference": [entry.get("reference", "") for entry in labels],
        "disturbed": [disturbance_of({"labels": entry}) for entry in labels],
    }


def _saved(labels: Sequence[Mapping[str, str]]) -> set[str]:
    """Return the keys of the runs whose weights others took."""
    starts = {entry.get("start", "") for entry in labels}
    return {start for start in starts if re.fullmatch("[0-9a-f]{16}", start)}


def _shared(changes: Collection[str]) -> set[str]:
    """Return the names that all labels of changes hold."""
    return set.intersection(*(set(names_in(label)) for label in changes))


def departures_of(
    labels: Mapping[str, str], marks: Sequence[str] = (), unnamed: Collection[str] = ()
) -> tuple[str, ...]:
    """Return what labels say of how a model departs from its paper's.

    Args:
        labels: of a row.
        marks: those of `RUN_MARKS` that are named as well.
        unnamed: options that are not named among the changed ones.
    """
    variant = labels.get("variant", FAITHFUL)
    words = ["" if variant == FAITHFUL else variant, labels.get("layers", "")]
    if "tuned" in labels:
        words.append(UNTUNED if labels.get("trial") == "0" else f"{TUNED}{labels['tuned']}")
        words.append(labels.get("transferred", ""))
    words += [labels.get(mark, "") for mark in marks if mark != "changed"]
    changed = [key for key in names_in(labels.get("changed", "")) if key not in unnamed]
    if "changed" in marks and changed:
        if current_style().style.names is Names.short:
            changed = [last_words(key) for key in changed]
        words.append(f"changed: {fit_value(', '.join(changed))}")
    return tuple(filter(None, words))


def _name(parts: tuple[str, str, Mapping[str, str]], departures: Sequence[str]) -> str:
    model, family, options = parts
    if baseline_of(model):
        return display_name(model, {}, departures)
    return current_style().name(family, options, departures)


def name_with(row: Mapping[Any, Any], *further: str, without: Collection[str] = ()) -> str:
    """Return another name of a row's model, made from the columns that `prepare` adds.

    Args:
        row: of a prepared frame, or its columns `family`, `options` and `departures`.
        further: words that it gains.
        without: options that it does not name, by dotted name.
    """
    options = {name: value for name, value in row["options"].items() if name not in without}
    return current_style().name(row["family"], options, row["departures"], further)
