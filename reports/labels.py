"""Read the labels of rows, and make the names of their models from them."""

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from lra.reports.names import FAITHFUL, TUNED, UNTUNED, display_name, fit_value, last_words
from lra.reports.style import Names, current_style
from lra.runners.records import baseline_of

CHOSEN_KERNELS = "hardware.kernels"
RUN_MARKS = ("protocol", "scale", "changed", CHOSEN_KERNELS)
"""Labels of a run: those of its protocol, and who computes operations unless our own forms do. Rows
that differ in one of these labels are never merged. A model's name lists changed options if runs of
this model on one task differ in them."""
TIMED = ("time", "token_time")
"""Every run that was timed at a length has a row of one of these metrics; if the timing failed, the
row holds the reason."""
READ = ("model", "task", "runner", "labels", "samples")
"""The columns from which `columns_in_words` makes its columns."""


def disturbance_of(row: Mapping[str, Any]) -> str:
    """Return what disturbed the measurement of a row, or "" if it was undisturbed.

    All code of reports reads this label here.
    """
    return str(row["labels"].get("disturbed", ""))


def first_position(row: Mapping[str, Any]) -> int:
    """Return the first position of the part of a window that a row measured.

    The label `part` holds one position, as `12`, or a range, as `1,024–2,047`.
    """
    return int(str(row["labels"]["part"]).partition("–")[0].replace(",", ""))


def names_in(label: str) -> list[str]:
    """Return the names in a label that lists them, separated by commas: `changed`, `deviations`."""
    return [name for name in label.split(", ") if name]


def all_names(labels: Iterable[Mapping[str, str]], label: str) -> list[str]:
    """Return the names in a label that lists them, from the labels of rows; each name once."""
    return [*dict.fromkeys(n for mapping in labels for n in names_in(mapping.get(label, "")))]


def labels_of(value: Any) -> dict[str, str]:
    """Return an entry of the column `labels` as texts; it is a mapping, JSON text, or None."""
    if isinstance(value, str):
        value = json.loads(value or "{}")
    if isinstance(value, Mapping):
        return {str(k): str(v) for k, v in value.items() if v is not None}
    return {}


def samples_of(value: Any) -> tuple[float, ...]:
    """Return an entry of the column `samples` as a tuple; an entry without samples gives ()."""
    if isinstance(value, str | Mapping) or not hasattr(value, "__len__"):
        return ()
    return tuple(float(v) for v in value)


def columns_in_words(columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the columns that `lra.reports.rows.prepare` adds: names of models, and labels.

    Args:
        columns: the columns of `READ` as lists; also `family` and `options`, if the rows have
            these columns because several configurations of one family were run.
    """
    labels = [labels_of(value) for value in columns["labels"]]
    models = [str(model) for model in columns["model"]]
    families, options = columns.get("family", models), columns.get("options", [{}] * len(models))
    # Parquet stores every option in every row; None means that the row's model lacks the option.
    options = [{k: v for k, v in mapping.items() if v is not None} for mapping in options]
    parts = list(zip(models, families, options, strict=True))
    baselines = [baseline_of(model) or "" for model in models]
    marks = {
        mark: [entry.get(mark, "") for entry in labels]
        for mark in ("regime", "tokenizer", "start", *RUN_MARKS)
    }
    without_start = _departures_without_start(
        labels, marks["changed"], columns, families, baselines
    )
    places = list(zip(models, columns["task"], columns["runner"], strict=True))
    kernels = _kernel_words(labels, places)
    without_start = [
        words + (kernel,) * bool(kernel)
        for words, kernel in zip(without_start, kernels, strict=True)
    ]
    saved_runs = {key: f"saved run {n}" for n, key in enumerate(sorted(_start_runs(labels)), 1)}
    starts = [
        (f"from {saved_runs.get(entry['start'], entry['start'])}",) if "start" in entry else ()
        for entry in labels
    ]
    departures = list(map(tuple.__add__, without_start, starts))  # joined, for each row
    current_style().shorten(  # it must know all models before it names one
        (family, mapping, words)
        for (_, family, mapping), words, name in zip(parts, departures, baselines, strict=True)
        if not name
    )
    return {
        "labels": labels,
        "samples": [samples_of(value) for value in columns["samples"]],
        "family": list(families),
        "options": options,
        "baseline": baselines,
        **marks,
        "departures": departures,
        "kernels": kernels,
        "base": list(map(_model_name, parts, without_start)),
        "name": list(map(_model_name, parts, departures)),
        "split": [entry.get("split", "") for entry in labels],
        "reference": [entry.get("reference", "") for entry in labels],
        "disturbed": [disturbance_of({"labels": entry}) for entry in labels],
    }


def _departures_without_start(
    labels: Sequence[Mapping[str, str]],
    changed_labels: Sequence[str],
    columns: Mapping[str, list[Any]],
    families: Sequence[str],
    baselines: Sequence[str],
) -> list[tuple[str, ...]]:
    """Return for each row the words of `departures_of`, without what its training began from.

    Protocol and scale (`RUN_MARKS[:2]`) are named if they differ among models, changed options if
    they differ within a family, task and runner. Lists have an entry for each row.
    """
    of_models = [entry for entry, name in zip(labels, baselines, strict=True) if not name]
    varying = [m for m in RUN_MARKS[:2] if len({entry.get(m, "") for entry in of_models}) > 1]
    places = list(zip(families, columns["task"], columns["runner"], strict=True))
    changes: dict[tuple[Any, ...], set[str]] = {}
    for place, changed in zip(places, changed_labels, strict=True):
        changes.setdefault(place, set()).add(changed)
    short = current_style().style.names is Names.short
    unnamed = {
        place: _in_all_changes(texts) if short else set() for place, texts in changes.items()
    }
    return [
        departures_of(
            entry, [*varying, *(("changed",) if len(changes[place]) > 1 else ())], unnamed[place]
        )
        for entry, place in zip(labels, places, strict=True)
    ]


def _start_runs(labels: Sequence[Mapping[str, str]]) -> set[str]:
    """Return the keys of the runs from which other runs took their first weights."""
    starts = {entry.get("start", "") for entry in labels}
    return {start for start in starts if re.fullmatch("[0-9a-f]{16}", start)}


def _in_all_changes(changes: Collection[str]) -> set[str]:
    """Return the options that all of these labels `changed` name."""
    return set.intersection(*(set(names_in(label)) for label in changes))


def departures_of(
    labels: Mapping[str, str], marks: Sequence[str] = (), unnamed: Collection[str] = ()
) -> tuple[str, ...]:
    """Return words for a model's name that say how it differs from the model of its paper.

    For example, `("tuned: lr", "changed: depth")`.

    Args:
        labels: the labels of a row.
        marks: the labels of `RUN_MARKS` that the words name, too.
        unnamed: changed options that the words omit.
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


def _kernel_words(
    labels: Sequence[Mapping[str, str]], places: Sequence[tuple[str, ...]]
) -> list[str]:
    """Return for each row the words on its kernels in the name of its model; "" for our own forms.

    The labels `forms` of some rows say who computed operations. All rows of one model with one
    choice of kernels have the same words, so that a run that failed stays on the line of its model.

    Args:
        labels: the labels of each row.
        places: model, task and runner of each row.
    """
    chosen = [entry.get(CHOSEN_KERNELS, "") for entry in labels]
    forms: dict[tuple[str, ...], set[str]] = {}
    choices: dict[tuple[str, ...], set[str]] = {}
    for place, choice, entry in zip(places, chosen, labels, strict=True):
        choices.setdefault(place, set()).add(choice)
        forms.setdefault((*place, choice), set()).update({entry.get("forms", "")} - {""})
    words = []
    for place, choice in zip(places, chosen, strict=True):
        ran = forms[*place, choice]
        if ran == {"public"}:
            words.append("public kernels")
        elif ran - {"own"}:
            words.append("some public kernels")
        else:
            words.append(f"kernels={choice}" if choice and len(choices[place]) > 1 else "")
    return words


def _model_name(parts: tuple[str, str, Mapping[str, str]], departures: Sequence[str]) -> str:
    """Return the printed name of a model, from its column `model`, its family and its options."""
    model, family, options = parts
    if baseline_of(model):
        return display_name(model, {}, departures)
    return current_style().name(family, options, departures)


def name_with(row: Mapping[Any, Any], *further: str, without: Collection[str] = ()) -> str:
    """Return the name of a row's model with further words, or without some of its options.

    Args:
        row: a row of a frame from `prepare`, or its columns `family`, `options`, `departures`.
        further: words to add to the name.
        without: dotted names of the options that the name omits.
    """
    options = {name: value for name, value in row["options"].items() if name not in without}
    return current_style().name(row["family"], options, row["departures"], further)
