"""Prepare stored rows for tables and figures: names, labels, groups that compare, cost points."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from lra.reports.labels import READ, columns_in_words
from lra.reports.statistics.intervals import (
    ONE_LENGTH,
    Interval,
    beyond_both_ratios,
    median_interval,
)
from lra.reports.statistics.speed_of_light import LeastTime, least_time
from lra.reports.stems import stem
from lra.reports.style import current_style
from lra.runners.records import COLUMNS, Status, shown_source

MARKS: dict[str, str] = {
    Status.out_of_memory: "OOM",
    Status.timeout: "timeout",
    Status.crashed: "crashed",
    Status.diverged: "diverged",
    Status.unsupported: "unsupported",
    Status.skipped: "skipped",
}
"""How a status is printed."""
MISSING = "missing"
"""Status of a `Value` for which no row exists; stored rows never have it."""
AMBIGUOUS = "ambiguous"
"""Status of a `Value` for which several rows exist that must not be merged."""

PROCESSOR, UNCERTAIN = "processor", "uncertain"
"""Marks of a disturbed time. PROCESSOR: the time by the processors' clock replaces it. UNCERTAIN:
it may be far from the true time."""
WIDEST_FACTOR = 2.0
"""A time is uncertain if the upper end of its interval is more than this factor above the lower."""

_NUMBER = re.compile(r"(?<![\w.])\d+(?:\.\d+)?")
"""A number that is no part of a name such as s4."""
_OBJECTS = frozenset({"labels", "options", "departures"})
"""Columns that hold mappings and tuples."""
_LONGEST = 500
"""The most characters of a reason."""
_NO_PEAK = "peak tensor bytes were not recorded"

# Two costs may stand in one table only where all of these agree.
COST_SETTING = (
    "task", "task_version", "source", "causal", "hardware", "device", "precision", "threads",
)  # fmt: skip
FINAL_SETTING = (*COST_SETTING, "regime", "tokenizer")
"""Columns in which all rows of one table of final numbers agree."""


class NoRows(ValueError):
    """There is nothing to report; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """One measured number with its samples, or the reason why there is none."""

    value: float | None = None
    samples: tuple[float, ...] = ()
    status: str = "ok"
    reason: str = ""
    disturbed: str = ""
    """What disturbed the machine during the measurement; "" if nothing did."""
    mark: str = ""
    """PROCESSOR or UNCERTAIN for a disturbed number; "" for any other, and if both clocks agree."""
    other: "Value | None" = None
    """The same quantity by the other clock; None if it is unknown or the number is uncertain."""

    @property
    def both(self) -> "Value | None":
        """The same quantity by the other clock; None unless both numbers are good for a fit."""
        return None if self.mark else self.other

    @property
    def ok(self) -> bool:
        """Whether there is a number."""
        return self.value is not None

    @property
    def uncertain(self) -> bool:
        """Whether the number was disturbed so much that fits exclude it."""
        return self.mark == UNCERTAIN

    def scaled(self, factor: float) -> "Value":
        """Return this value, its samples and its other clock's value, multiplied by a factor."""
        number = None if self.value is None else self.value * factor
        other = self.other and self.other.scaled(factor)
        samples = tuple(s * factor for s in self.samples)
        return replace(self, value=number, samples=samples, other=other)

    def interval(self) -> Interval | None:
        """Return the interval of the median, or None if it has too few samples.

        If a disturbed number has values by two clocks, the interval contains both intervals.
        """
        this_interval = median_interval(self.samples)
        if self.other is None or self.value is None or self.other.value is None:
            return this_interval
        both_values = self.value, self.other.value
        both_intervals = this_interval, median_interval(self.other.samples)
        return beyond_both_ratios(both_values, both_intervals, ONE_LENGTH)

    def or_processor(self, other: "Value | None") -> "Value":
        """Return this time, or `other` if another process disturbed this time too much.

        A disturbed time is returned if its interval is narrow (high / low is at most
        `WIDEST_FACTOR`) and the two clocks differ by at most this factor.

        Args:
            other: the same time by the processors' clock; None if it was not measured.
        """
        if not self.disturbed or other is None or not self.value or not other.value:
            return self
        interval = median_interval(self.samples)
        clock_factor = max(self.value / other.value, other.value / self.value)
        narrow = interval is not None and interval.high <= WIDEST_FACTOR * interval.low
        if narrow and clock_factor <= WIDEST_FACTOR:
            return replace(self, mark="", other=other)
        return replace(other, disturbed=self.disturbed, mark=PROCESSOR, other=self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPoint:
    """Time and memory of one model at one length in one mode, and the ratios to its references."""

    model: str
    mode: str
    length: int
    time: Value
    batch_size: int | None = None
    memory: Value = Value(status=MISSING, reason=_NO_PEAK)
    time_ratio: Mapping[str, Value] = field(default_factory=dict)
    memory_ratio: Mapping[str, Value] = field(default_factory=dict)
    cells: tuple[str, ...] = ()
    """Keys of the runs that measured it."""
    family: str = ""
    """The registered family of the model; "" if options of its mixer were changed."""
    light: LeastTime | None = None
    """The least time that this machine needs for a pass."""

    def per_sequence(self, value: Value) -> Value:
        """Return a value of a batch, divided by the number of sequences in the batch.

        Costs at several lengths compare only so, because longer sequences have smaller batches.
        """
        if not value.ok or value.value is None:
            return value
        if self.batch_size is None:
            return Value(
                status=MISSING,
                reason="the cost per sequence is unknown, because the rows lack batch_size",
            )
        return value.scaled(1 / self.batch_size)


DAGGER = "†"
"""Marks a number that was measured while something disturbed the machine."""
DIAMOND = "◇"
"""Marks a time by the processors' clock."""
WAITING = 0.1
"""A training with a larger `waiting_share` counts as disturbed by other processes."""
TRAINED = ("train_step_time", "train_time", "tokens_per_second")
"""Metrics of the time of a training."""
EQUAL = " with the same positions"
"""Follows the name of a reference with the model's own positions, which score every pair."""


def values(rows: pd.DataFrame, column: str) -> list[Any]:
    """Return a column as a list. A loop over a list is ten times as fast as over Arrow's texts."""
    entries: list[Any] = rows[column].to_numpy(dtype=object).tolist()
    return entries


def with_labels(rows: pd.DataFrame, names: Iterable[str], default: str = "") -> pd.DataFrame:
    """Return rows with the labels `names` as columns; a row without a label gets `default`."""
    return rows.assign(**{n: [labels.get(n, default) for labels in rows["labels"]] for n in names})


def prepare(rows: pd.DataFrame) -> pd.DataFrame:
    """Check the columns of rows, and add the columns that tables and figures read.

    - `name`: the printed name of the model. It has the variant if it is not the paper's, the
      families of the layers if they differ, the protocol, scale and changed options if the rows
      have several, and the run that gave the first weights, if any.
    - `base`: the same name without the run that gave the first weights.
    - `family`, `options`, `departures`: the parts of the name: the registered name, the options
      that distinguish the model (from `lra.sweep.model_names.with_distinct_names`; otherwise the
      column `model` and no options), and words from labels.
    - `baseline`: the name of the baseline; "" if the row is about a model.
    - a column for each of several labels: `split`, `regime`, `start` and others.

    Raises:
        NoRows: the frame is empty.
        ValueError: columns are missing.
    """
    absent = [c for c in COLUMNS if c not in rows.columns]
    if absent:
        raise ValueError(
            f"the rows lack the columns {absent}; pass rows that lra.rows(path) returned"
        )
    if rows.empty:
        raise NoRows(
            "there are no rows to report: start a run first, or name a sweep with finished runs"
        )
    frame = rows.reset_index(drop=True).copy()
    given = {name: values(frame, name) for name in (*READ, "family", "options") if name in frame}
    for name, column in columns_in_words(given).items():
        frame[name] = pd.Series(column, dtype=object) if name in _OBJECTS else column
    waited = frame[(frame["metric"] == "waiting_share") & (frame["value"] > WAITING)]
    shares = dict(zip(waited["cell"], waited["value"], strict=True))
    trained = (frame["runner"] == "train") & frame["metric"].isin(TRAINED)
    for index in frame.index[trained & frame["cell"].isin(shares) & (frame["disturbed"] == "")]:
        share = shares[frame.at[index, "cell"]]
        frame.at[index, "disturbed"] = (
            f"the threads of this run waited {share:.2f} s for a processor in each second"
        )
    return frame.assign(source=frame["source"].map(shown_source))


def names_by_group(rows: pd.DataFrame, groups: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the printed names of the models whose family is in a group, by the group's title."""
    models = rows[["name", "family"]].drop_duplicates()
    return {
        title: [str(name) for name in models["name"][models["family"].isin(list(members))]]
        for title, members in groups.items()
    }


def as_text(value: Any) -> str:
    """Return a value as text: `1` for 1.0, and a dash for None or NaN."""
    if value is None or (isinstance(value, float) and np.isnan(value)) or value is pd.NA:
        return "–"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def in_order(place: Iterable[Any]) -> list[str]:
    """Return texts by which values sort: `length 4` comes before `length 12`."""
    return [_NUMBER.sub(lambda found: f"{float(found[0]):024.9f}", as_text(v)) for v in place]


def without_numbers(place: Iterable[Any]) -> tuple[str, ...]:
    """Return texts that are equal if values differ only in numbers."""
    return tuple(_NUMBER.sub("0", as_text(value)) for value in place)


def _setting_in_words(column: str, value: Any) -> str:
    """Return the value of a column in words, for example "2 threads" for 2 in `threads`."""
    if column == "causal":
        return "causal" if str(value) in {"True", "1", "1.0"} else "bidirectional"
    if column == "threads":
        return f"{as_text(value)} thread{'' if as_text(value) == '1' else 's'}"
    if column == "task_version":
        return f"version {as_text(value)}"
    return as_text(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparableRows:
    """Rows that may be compared with each other."""

    suffix: str
    """The end of file names; "" if all rows have one setting."""
    title: str
    rows: pd.DataFrame
    differences: str = ""
    """How the setting differs from the other settings, in words; "" if there are no others."""


def by_setting(rows: pd.DataFrame, columns: Sequence[str] = COST_SETTING) -> list[ComparableRows]:
    """Split rows into groups of rows that agree in all `columns`, so that they may be compared.

    The title of a group lists the values of all columns. Its suffix lists the values of the columns
    in which the groups differ.
    """
    texts = {}
    for column in columns:
        words = {value: _setting_in_words(column, value) for value in rows[column].unique()}
        texts[column] = [words[value] for value in rows[column]]
    keys = pd.Series(list(zip(*texts.values(), strict=True)), index=rows.index, dtype=object)
    differing = [c for c in columns if len(set(texts[c])) > 1]
    groups = []
    for key in sorted(set(keys)):
        setting = dict(zip(columns, key, strict=True))
        slug = stem(*(setting[c] for c in differing))
        title = ", ".join(dict.fromkeys(v for v in key if v not in {"–", ""}))
        text = ", ".join(setting[c] for c in differing if setting[c])
        suffix = f"-{slug}" if slug else ""
        group = rows[keys == key]
        groups.append(ComparableRows(suffix=suffix, title=title, rows=group, differences=text))
    return groups


def short(reason: str) -> str:
    """Return a reason without the path of a log, so that equal failures share one footnote.

    A very long reason is cut, because a figure has room for a few lines of notes.
    """
    text = reason.partition("; traceback in ")[0]
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


Record = dict[str, Any]


def merge(records: Sequence[Record]) -> Value:
    """Return one value for records of one model, mode and length that differ in their seed.

    It is the median over the samples of all records. If one record is of a failure, the value has
    the status and the reason of the first failure, and no number.
    """
    for record in records:
        if record["status"] != "ok":
            return Value(status=str(record["status"]), reason=short(str(record["reason"])))
    samples = tuple(s for record in records for s in record["samples"])
    # The value of a single record is already the median of its samples.
    numbers = samples if samples and len(records) > 1 else [r["value"] for r in records]
    why = next((reason for record in records if (reason := record.get("disturbed", ""))), "")
    value = float(np.median(numbers))
    return Value(value=value, samples=samples, disturbed=why, mark=UNCERTAIN if why else "")


def ambiguous(sizes: Sequence[int], records: Sequence[Record]) -> Value | None:
    """Return a value without a number if records must not be merged, and None if they may be.

    Args:
        sizes: the batch sizes of the records, each once.
        records: one record of each run of one model, mode and length.
    """
    problem = ""
    if len(sizes) > 1:
        problem = f"it was measured with batch sizes {[*sizes]}, which must not be merged"
    elif len({r["seed"] for r in records}) < len({r["cell"] for r in records}):
        problem = f"{len({r['cell'] for r in records})} configurations of models share this name"
    if not problem:
        return None
    return Value(status=AMBIGUOUS, reason=f"{problem}; report one sweep at a time")


def _values_by_reference(records: Sequence[Record], metric: str) -> dict[str, Value]:
    """Return the merged value of a metric for each reference, by the name of the reference."""
    grouped: dict[str, list[Record]] = {}
    for record in records:
        # A reference that failed has a single row, which gives the reason for all metrics.
        if record["reference"] and (record["metric"] == metric or record["status"] != "ok"):
            grouped.setdefault(record["reference"], []).append(record)
    return {reference: merge(group) for reference, group in grouped.items()}


def cost_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return all rows of the runs that timed a model at a length."""
    timed = rows[(rows["metric"] == "time") & rows["length"].notna()]
    return rows[rows["cell"].isin(set(timed["cell"]))]


def cost_points(rows: pd.DataFrame) -> list[CostPoint]:
    """Return one point for each model, mode and length in rows of one setting.

    A point has status `AMBIGUOUS` if several configurations have the name of its model.
    """
    groups: dict[tuple[str, str, int], list[Record]] = {}
    needed = ["name", "mode", "length", "seed", "cell", "metric", "value", "status", "reason"]
    needed += ["samples", "reference", "disturbed", "family", "options"]
    needed += [column for column in ("scored", "size") if column in rows]
    for record in cost_rows(rows)[needed].to_dict("records"):
        key = (str(record["name"]), str(record["mode"]), int(record["length"]))
        groups.setdefault(key, []).append({str(k): v for k, v in record.items()})
    plain = _plain_references(groups)
    points = (_cost_point(*key, records, plain) for key, records in sorted(groups.items()))
    return [point for point in points if point is not None]


class _PlainReference(NamedTuple):
    """Cost of a reference without position encodings that score every pair of tokens."""

    peak: float
    """Peak of the bytes of tensors in one pass."""
    seconds: float
    """Time of one pass; the median over the models that it was timed with."""


def _numbers_by_reference(records: Sequence[Record], metric: str) -> dict[str, float]:
    """Return the number of a metric for each reference that has one, by name."""
    chosen = [r for r in records if r["metric"] == metric and r["status"] == "ok"]
    return {str(r["reference"]): float(r["value"]) for r in chosen}


def _plain_references(groups: Mapping[Any, Sequence[Record]]) -> dict[Any, _PlainReference]:
    """Return the plain references, by (name, mode, length, size of the backbone).

    Args:
        groups: records by (model, mode, length). Models with positions that score every pair of
            tokens are skipped, because their references have these positions, too.
    """
    costs: dict[Any, list[tuple[float, float]]] = {}
    for (_, mode, length), records in groups.items():
        if records[0].get("scored", ""):
            continue
        peaks = _numbers_by_reference(records, "reference_peak_tensor_bytes")
        for name, seconds in _numbers_by_reference(records, "reference_time").items():
            key = name, mode, length, records[0].get("size")
            costs.setdefault(key, []).append((peaks.get(name, np.nan), seconds))
    return {
        key: _PlainReference(*map(float, np.median(pairs, axis=0))) for key, pairs in costs.items()
    }


def _with_plain_reference(
    point: CostPoint, time: Value, record: Record, plain: Mapping[Any, _PlainReference]
) -> CostPoint:
    """Return a point with ratios to the plain reference, which all other models are compared with.

    It changes a model with positions that score every pair of tokens: its measured reference has
    these positions, too. The measured ratios stay under the name of the reference plus `EQUAL`.

    `time` is the wall time of the model, and `record` has its labels `scored` and `size`.
    """
    times, memories = dict(point.time_ratio), dict(point.memory_ratio)
    for name, ratio in point.time_ratio.items():
        reference = plain.get((name, point.mode, point.length, record.get("size")))
        if not record.get("scored") or reference is None or not (time.value and ratio.ok):
            continue
        times[name + EQUAL] = ratio
        value = Value(
            value=time.value / reference.seconds,
            samples=tuple(sample / reference.seconds for sample in time.samples),
            reason=f"the time is compared with times of {name} from runs of other models",
            disturbed=time.disturbed,
        )
        if ratio.value and ratio.other and ratio.other.value:
            value = replace(value, other=value.scaled(ratio.other.value / ratio.value))
        times[name] = value
        if name in memories and point.memory.value and reference.peak > 0:
            memories[name + EQUAL] = memories[name]
            memories[name] = Value(value=point.memory.value / reference.peak)
    return replace(point, time_ratio=times, memory_ratio=memories)


def _cost_point(
    name: str,
    mode: str,
    length: int,
    records: Sequence[Record],
    plain: Mapping[Any, _PlainReference],
) -> CostPoint | None:
    """Return the point of one model, mode and length; None if its time was not measured.

    `records` are those of this model, mode and length; `plain` is from `_plain_references`.
    """

    def of_metric(metric: str) -> list[Record]:
        """Return the records of a metric of the model itself, not of its references."""
        return [r for r in records if r["metric"] == metric and not r["reference"]]

    times = of_metric("time")
    if not times:
        return None
    sizes = sorted({int(r["value"]) for r in of_metric("batch_size") if r["status"] == "ok"})
    cells = tuple(dict.fromkeys(str(record["cell"]) for record in times))
    changed_mixer = any(option.startswith("mixer.") for option in records[0]["options"])
    family = "" if changed_mixer else str(records[0]["family"])
    point = partial(CostPoint, model=name, mode=mode, length=length, cells=cells, family=family)
    if (value := ambiguous(sizes, times)) is not None:
        return point(time=value, memory=value)
    time, peaks = merge(times), of_metric("peak_tensor_bytes")
    no_peak = Value(status=MISSING, reason=_NO_PEAK) if time.ok else time
    processor_ratios = _values_by_reference(records, "processor_time_ratio")
    ratios = _values_by_reference(records, "time_ratio")
    processor_times = of_metric("processor_time")
    measured = point(
        time=time.or_processor(merge(processor_times) if processor_times else None),
        batch_size=sizes[0] if sizes else None,
        memory=merge(peaks) if peaks and (time.ok or time.status in _TOO_SLOW) else no_peak,
        time_ratio={
            name: value.or_processor(processor_ratios.get(name)) for name, value in ratios.items()
        },
        memory_ratio=_values_by_reference(records, "peak_tensor_bytes_ratio"),
        light=least_time(mode, _numbers_by_run(records)),
    )
    return _with_plain_reference(measured, time, records[0], plain)


def _numbers_by_run(records: Sequence[Record]) -> list[dict[str, float]]:
    """Return the numbers of the model itself for each run, by metric."""
    runs: dict[str, dict[str, float]] = {}
    for record in records:
        if record["status"] == "ok" and not record["reference"]:
            runs.setdefault(str(record["cell"]), {})[str(record["metric"])] = float(record["value"])
    return [*runs.values()]


_TOO_SLOW = (Status.skipped, Status.timeout)
"""Statuses of runs that counted memory, although they measured no time."""
_FIRST = ("softmax", "sdpa")


def model_order(names: Sequence[str]) -> list[str]:
    """Return names of models in the order of tables.

    First come the models that the style in force puts in an order, then exact attention, and then
    all others by alphabet.
    """

    def sort_key(name: str) -> tuple[int, int, str]:
        """Return the rank in the style, the place among `_FIRST` or after them, and the name."""
        plain = current_style().plain(name)
        first = _FIRST.index(plain) if plain in _FIRST else len(_FIRST)
        return current_style().rank(name), first, name

    return sorted(set(names), key=sort_key)
