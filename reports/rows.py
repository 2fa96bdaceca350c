"""From stored rows to what tables and figures need: names, labels, settings, cost points."""

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
"""Status of a place for which no row exists; the store has no such status."""
AMBIGUOUS = "ambiguous"
"""Status of a place for which rows exist that must not be merged."""

PROCESSOR, UNCERTAIN = "processor", "uncertain"
"""Marks of a time that was disturbed: PROCESSOR, the time of the processors' clock is shown in its
place; UNCERTAIN, it may be far from the true time."""
WIDEST_FACTOR = 2.0
"""A time is uncertain if the upper end of its interval is more than this factor above the lower."""

_OBJECTS = frozenset({"labels", "options", "departures"})
"""Columns of mappings and tuples."""
_LONGEST = 500
"""Characters of a reason."""
_NO_PEAK = "peak tensor bytes were not recorded"

# Two costs may stand in one table only where all of these agree.
COST_SETTING = (
    "task", "task_version", "source", "causal", "hardware", "device", "precision", "threads",
)  # fmt: skip
FINAL_SETTING = (*COST_SETTING, "regime", "tokenizer")
"""Columns in which final numbers of one table agree."""


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
    """What disturbed the machine; "" for nothing."""
    mark: str = ""
    """Of a disturbed number: PROCESSOR, UNCERTAIN, or "" where both clocks show it to be sound."""
    other: "Value | None" = None
    """The same by the other clock, of a disturbed number that is not uncertain."""

    @property
    def both(self) -> "Value | None":
        """The same by the other clock, where both are sound enough for a fit."""
        return None if self.mark else self.other

    @property
    def ok(self) -> bool:
        """Whether there is a number."""
        return self.value is not None

    @property
    def uncertain(self) -> bool:
        """Whether it was disturbed so much that it enters no fit."""
        return self.mark == UNCERTAIN

    def scaled(self, factor: float) -> "Value":
        """Return a multiple, samples included."""
        number = None if self.value is None else self.value * factor
        other = self.other and self.other.scaled(factor)
        samples = tuple(s * factor for s in self.samples)
        return replace(self, value=number, samples=samples, other=other)

    def interval(self) -> Interval | None:
        """Return the interval of the median; of a disturbed one, beyond those of both clocks."""
        own = median_interval(self.samples)
        if self.other is None or self.value is None or self.other.value is None:
            return own
        values = self.value, self.other.value
        return beyond_both_ratios(values, (own, median_interval(self.other.samples)), ONE_LENGTH)

    def or_processor(self, other: "Value | None") -> "Value":
        """Return this number, or if it was disturbed too much, that of the processors' clock.

        A disturbed number stays if the ends of its interval, and the two clocks, differ by at most
        the factor `WIDEST_FACTOR`.

        Args:
            other: The same time by the processors' clock; None: not measured.
        """
        if not self.disturbed or other is None or not self.value or not other.value:
            return self
        interval = median_interval(self.samples)
        apart = max(self.value / other.value, other.value / self.value)
        narrow = interval is not None and interval.high <= WIDEST_FACTOR * interval.low
        if narrow and apart <= WIDEST_FACTOR:
            return replace(self, mark="", other=other)
        return replace(other, disturbed=self.disturbed, mark=PROCESSOR, other=self)


@dataclass(frozen=True, slots=True, kw_only=True)
class CostPoint:
    """What one model costs at one length in one mode, and its ratios to the references."""

    model: str
    mode: str
    length: int
    time: Value
    batch_size: int | None = None
    memory: Value = Value(status=MISSING, reason=_NO_PEAK)
    time_ratio: Mapping[str, Value] = field(default_factory=dict)
    memory_ratio: Mapping[str, Value] = field(default_factory=dict)
    cells: tuple[str, ...] = ()
    """Keys of the cells that were measured."""
    family: str = ""
    """Its registered name, whatever it is called; "" of one with options of its own mixer."""

    def per_sequence(self, value: Value) -> Value:
        """Divide by the batch size: under a token budget the batch shrinks as length grows."""
        if not value.ok or value.value is None:
            return value
        if self.batch_size is None:
            return Value(
                status=MISSING,
                reason="the rows lack batch_size, so the cost per sequence is unknown",
            )
        return value.scaled(1 / self.batch_size)


DAGGER = "†"
"""Stands behind a number that was measured while something disturbed the machine."""
DIAMOND = "◇"
"""Stands behind one of the processors' clock."""
WAITING = 0.1
"""`waiting_share` above which the time of a training is that of other processes, too."""
TRAINED = ("train_step_time", "train_time", "tokens_per_second")
"""Times of a training."""
EQUAL = " with the same positions"
"""Stands behind a reference that has positions which score every pair, as the model has them."""


def values(rows: pd.DataFrame, column: str) -> list[Any]:
    """Return a column as a list: a loop over it is ten times as fast as over Arrow's texts."""
    entries: list[Any] = rows[column].to_numpy(dtype=object).tolist()
    return entries


def with_labels(rows: pd.DataFrame, names: Iterable[str], default: str = "") -> pd.DataFrame:
    """Return rows with some of their labels as columns."""
    return rows.assign(**{n: [each.get(n, default) for each in rows["labels"]] for n in names})


def prepare(rows: pd.DataFrame) -> pd.DataFrame:
    """Check the columns and add `name` and what labels say: `split`, `regime`, `start` and others.

    A name is the model's, with its variant where that is not the paper's, the families of its
    layers where they differ, where the rows hold several: its protocol, its scale and what was
    changed of the protocol, and what its weights come from where it was not simply trained; `base`
    is the name without the last. Its parts have columns too: `family`, the registered
    name; `options`, a mapping of those that tell it from others (both as
    `lra.sweep.model_names.with_distinct_names` leaves them, or the model column and none);
    `departures`, the words of its labels. `baseline` is the name of the baseline that a row is
    about, "" for a model.

    Raises:
        NoRows: the frame is empty.
        ValueError: columns are missing.
    """
    absent = [c for c in COLUMNS if c not in rows.columns]
    if absent:
        raise ValueError(
            f"rows lack the columns {absent}; wanted those that lra.rows(path) returns"
        )
    if rows.empty:
        raise NoRows("no rows to report: run something first, or name a sweep that has finished")
    frame = rows.reset_index(drop=True).copy()
    given = {name: values(frame, name) for name in (*READ, "family", "options") if name in frame}
    for name, column in columns_in_words(given).items():
        frame[name] = pd.Series(column, dtype=object) if name in _OBJECTS else column
    waited = frame[(frame["metric"] == "waiting_share") & (frame["value"] > WAITING)]
    shares = dict(zip(waited["cell"], waited["value"], strict=True))
    trained = (frame["runner"] == "train") & frame["metric"].isin(TRAINED)
    for at in frame.index[trained & frame["cell"].isin(shares) & (frame["disturbed"] == "")]:
        share = shares[frame.at[at, "cell"]]
        frame.at[at, "disturbed"] = f"its threads waited {share:.2f} s for a processor each second"
    return frame.assign(source=frame["source"].map(shown_source))


def names_by_group(rows: pd.DataFrame, groups: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return the names of models in each group of families.

    Args:
        rows: with the columns `name` and `family`.
        groups: families by the title of their group.
    """
    models = rows[["name", "family"]].drop_duplicates()
    return {
        title: [str(name) for name in models["name"][models["family"].isin(list(members))]]
        for title, members in groups.items()
    }


def as_text(value: Any) -> str:
    """Return a value as text; 1.0 as 1, nothing as a dash."""
    if value is None or (isinstance(value, float) and np.isnan(value)) or value is pd.NA:
        return "–"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def _sentence(column: str, value: Any) -> str:
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
    """Ends file names; empty where there is only one setting."""
    title: str
    rows: pd.DataFrame
    differences: str = ""
    """How the setting differs from the others, in words; empty where there is only one."""


def by_setting(rows: pd.DataFrame, columns: Sequence[str] = COST_SETTING) -> list[ComparableRows]:
    """Split rows into groups in which all `columns` agree, which may be compared with each other.

    Titles of groups have all values, and suffixes of file names only those that differ.
    """
    texts = {}
    for column in columns:
        words = {value: _sentence(column, value) for value in rows[column].unique()}
        texts[column] = [words[value] for value in rows[column]]
    keys = pd.Series(list(zip(*texts.values(), strict=True)), index=rows.index, dtype=object)
    differing = [c for c in columns if len(set(texts[c])) > 1]
    groups = []
    for key in sorted(set(keys)):
        part = dict(zip(columns, key, strict=True))
        slug = stem(*(part[c] for c in differing))
        title = ", ".join(dict.fromkeys(v for v in key if v not in {"–", ""}))
        text = ", ".join(part[c] for c in differing if part[c])
        suffix = f"-{slug}" if slug else ""
        group = rows[keys == key]
        groups.append(ComparableRows(suffix=suffix, title=title, rows=group, differences=text))
    return groups


def short(reason: str) -> str:
    """Return a reason without the place of its log, so that equal failures share one footnote.

    The end of a very long one is left to the rows: figures have notes of a few lines.
    """
    text = reason.partition("; traceback in ")[0]
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} …"


Record = dict[str, Any]


def merge(records: Sequence[Record]) -> Value:
    """Return one value for the rows of one model, mode and length, which differ in seed.

    It is the median over the samples of all seeds, or the first failure if one has failed.
    """
    for record in records:
        if record["status"] != "ok":
            return Value(status=str(record["status"]), reason=short(str(record["reason"])))
    pooled = tuple(s for record in records for s in record["samples"])
    several = pooled if pooled and len(records) > 1 else [r["value"] for r in records]
    why = next((reason for record in records if (reason := record.get("disturbed", ""))), "")
    value = float(np.median(several))
    return Value(value=value, samples=pooled, disturbed=why, mark=UNCERTAIN if why else "")


def ambiguous(sizes: Sequence[int], records: Sequence[Record]) -> Value | None:
    """Return a value without a number if the rows of one place must not be merged, and None else.

    Args:
        sizes: the different batch sizes at the place.
        records: one row of each cell.
    """
    problem = ""
    if len(sizes) > 1:
        problem = f"measured with batch sizes {[*sizes]}, which must not be merged"
    elif len({r["seed"] for r in records}) < len({r["cell"] for r in records}):
        problem = f"{len({r['cell'] for r in records})} configurations share this name"
    if not problem:
        return None
    return Value(status=AMBIGUOUS, reason=f"{problem}; report one sweep at a time")


def _by_reference(records: Sequence[Record], metric: str) -> dict[str, Value]:
    grouped: dict[str, list[Record]] = {}
    for record in records:
        # a reference that could not run says so in one row, whatever its metric
        if record["reference"] and (record["metric"] == metric or record["status"] != "ok"):
            grouped.setdefault(record["reference"], []).append(record)
    return {reference: merge(group) for reference, group in grouped.items()}


def cost_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Select the rows of timing cells: those with a length, in a mode that is timed."""
    timed = rows[(rows["metric"] == "time") & rows["length"].notna()]
    return rows[rows["cell"].isin(set(timed["cell"]))]


def cost_points(rows: pd.DataFrame) -> list[CostPoint]:
    """Return one point per model, mode and length of one setting.

    Places with several configurations under one name are marked, not merged.
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
    """A reference as most models have it: without positions that score every pair of tokens."""

    peak: float
    """Tensor bytes of one pass."""
    seconds: float
    """Of one pass; the median over the models that it was measured with."""


def _of_references(records: Sequence[Record], metric: str) -> dict[str, float]:
    """Return a number of each reference at one place."""
    chosen = [r for r in records if r["metric"] == metric and r["status"] == "ok"]
    return {str(r["reference"]): float(r["value"]) for r in chosen}


def _plain_references(groups: Mapping[Any, Sequence[Record]]) -> dict[Any, _PlainReference]:
    """Return references without scored positions by name, mode, length and size of backbone."""
    found: dict[Any, list[tuple[float, float]]] = {}
    for (_, mode, length), records in groups.items():
        if records[0].get("scored", ""):
            continue
        peaks = _of_references(records, "reference_peak_tensor_bytes")
        for name, seconds in _of_references(records, "reference_time").items():
            place = name, mode, length, records[0].get("size")
            found.setdefault(place, []).append((peaks.get(name, np.nan), seconds))
    return {
        place: _PlainReference(*map(float, np.median(pairs, axis=0)))
        for place, pairs in found.items()
    }


def _with_one_reference(
    point: CostPoint, time: Value, record: Record, plain: Mapping[Any, _PlainReference]
) -> CostPoint:
    """Return a point whose ratios of wall time are to the reference that the other models have.

    Those to a reference with the positions of this model stay with them, as `EQUAL`.
    """
    times, memories = dict(point.time_ratio), dict(point.memory_ratio)
    for name, ratio in point.time_ratio.items():
        one = plain.get((name, point.mode, point.length, record.get("size")))
        if not record.get("scored") or one is None or not (time.value and ratio.ok):
            continue
        times[name + EQUAL] = ratio
        value = Value(
            value=time.value / one.seconds,
            samples=tuple(sample / one.seconds for sample in time.samples),
            reason=f"compared with times of {name} that were measured with other models",
            disturbed=time.disturbed,
        )
        if ratio.value and ratio.other and ratio.other.value:
            value = replace(value, other=value.scaled(ratio.other.value / ratio.value))
        times[name] = value
        if name in memories and point.memory.value and one.peak > 0:
            memories[name + EQUAL] = memories[name]
            memories[name] = Value(value=point.memory.value / one.peak)
    return replace(point, time_ratio=times, memory_ratio=memories)


def _cost_point(
    name: str,
    mode: str,
    length: int,
    records: Sequence[Record],
    plain: Mapping[Any, _PlainReference],
) -> CostPoint | None:
    def of_metric(metric: str) -> list[Record]:
        return [r for r in records if r["metric"] == metric and not r["reference"]]

    times = of_metric("time")
    if not times:
        return None
    sizes = sorted({int(r["value"]) for r in of_metric("batch_size") if r["status"] == "ok"})
    cells = tuple(dict.fromkeys(str(record["cell"]) for record in times))
    own = any(option.startswith("mixer.") for option in records[0]["options"])
    family = "" if own else str(records[0]["family"])
    point = partial(CostPoint, model=name, mode=mode, length=length, cells=cells, family=family)
    if (value := ambiguous(sizes, times)) is not None:
        return point(time=value, memory=value)
    time, peaks = merge(times), of_metric("peak_tensor_bytes")
    unknown = Value(status=MISSING, reason=_NO_PEAK) if time.ok else time
    paired = _by_reference(records, "processor_time_ratio")
    ratios = _by_reference(records, "time_ratio")
    whole = point(
        time=time.or_processor(
            merge(computed) if (computed := of_metric("processor_time")) else None
        ),
        batch_size=sizes[0] if sizes else None,
        memory=merge(peaks) if peaks and (time.ok or time.status in _TOO_SLOW) else unknown,
        time_ratio={name: value.or_processor(paired.get(name)) for name, value in ratios.items()},
        memory_ratio=_by_reference(records, "peak_tensor_bytes_ratio"),
    )
    return _with_one_reference(whole, time, records[0], plain)


_TOO_SLOW = (Status.skipped, Status.timeout)
"""Endings of cells whose counted numbers stay."""
_FIRST = ("softmax", "sdpa")


def model_order(names: Sequence[str]) -> list[str]:
    """Return names as tables list them: exact attention first, then by alphabet.

    Before these come the ones that the style in force puts in an order.
    """

    def place(name: str) -> tuple[int, int, str]:
        plain = current_style().plain(name)
        first = _FIRST.index(plain) if plain in _FIRST else len(_FIRST)
        return current_style().rank(name), first, name

    return sorted(set(names), key=place)
