"""Show time and memory of generating one token against the length of the context."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from lra.reports.figures.drawing import Look
from lra.reports.figures.findings import clause
from lra.reports.figures.panels import line_figures
from lra.reports.figures.scaling import COLUMNS, line_records
from lra.reports.labels import name_with
from lra.reports.rows import MISSING, Record, Value, ambiguous, by_setting, merge, model_order
from lra.reports.sections.section import Groups, LinesPart, Looks, Part, TablePart
from lra.reports.statistics.intervals import median_interval
from lra.reports.tables.costs import MEBIBYTE, dagger, mark, significant
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import table_of
from lra.reports.tables.table import Column, Entry, Table

RUNNER = "decode"
MODES = {"state": "with a state", "recompute": "recomputed"}
"""Modes of the runner, and the words for them in names of lines."""
TITLES = {
    "token_time": "Time to generate one token against context length",
    "state_bytes": "State of one text against context length",
}
PANELS = (
    ("time to generate one token, median (ms)", "token_time", 1e-3),
    ("time to generate one token, 95th percentile (ms)", "token_time_percentile", 1e-3),
    ("generated tokens per second, all texts of a batch", "tokens_per_second", 1.0),
    ("time to the first generated token (ms)", "first_token_time", 1e-3),
    ("size of the state of one text (KiB)", "state_bytes", 2.0**10),
    ("peak tensor memory while generating one token (MiB)", "peak_tensor_bytes", MEBIBYTE),
)
"""Sections of the table: heading, metric, and the factor of its unit."""
AXES = {"token_time": "time of one token", "state_bytes": "state of one text"}
RECOMPUTED = (0.8, 2.4)
"""Dashes of lines of recomputed models, which have the colour of their model and no marker."""
_NEEDED = [
    "name", "family", "options", "departures", "mode", "length", "seed", "cell", "metric", "value",
    "status", "reason", "samples", "disturbed",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePoint:
    """Time and memory of one model in one mode, after one length of context."""

    name: str
    """The name of the line: the model, and the mode unless it is `state`."""
    model: str
    mode: str
    length: int
    batch_size: int | None = None
    values: Mapping[str, Value] = field(default_factory=dict)
    """The value of each metric; `token_time` is always one of them."""

    def value(self, metric: str) -> Value:
        """Return the value of a metric, or the reason why it is missing."""
        time = self.values["token_time"]
        if not time.ok:
            return time
        reason = f"the rows lack {metric}"
        if metric == "state_bytes" and self.mode == "recompute":
            reason = "recomputing has no state; it stores only the tokens"
        return self.values.get(metric, Value(status=MISSING, reason=reason))

    def shown(self, metric: str) -> Value:
        """Return the value of a metric; the size of the state is divided by the batch size."""
        value = self.value(metric)
        if value.value is None or metric != "state_bytes":
            return value
        if self.batch_size is None:
            reason = "the size per text is unknown, because the rows lack batch_size"
            return Value(status=MISSING, reason=reason)
        return Value(value=value.value / self.batch_size)


def line_name(row: Mapping[str, Any]) -> str:
    """Return the name of a row's line: the model's name, and "recomputed" in that mode."""
    mode = str(row["mode"])
    return str(row["name"]) if mode == "state" else name_with(row, MODES.get(mode, mode))


def decode_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of decoding with a length."""
    return rows[(rows["runner"] == RUNNER) & rows["length"].notna()]


def decode_points(rows: pd.DataFrame) -> list[DecodePoint]:
    """Return a point for each model, mode and context length in rows of one setting.

    A point has a failed `token_time` if several configurations share the name of its model.
    """
    positions: dict[tuple[str, str, int], list[Record]] = {}
    for record in decode_rows(rows)[_NEEDED].to_dict("records"):
        position = (str(record["name"]), str(record["mode"]), int(record["length"]))
        positions.setdefault(position, []).append({str(k): v for k, v in record.items()})
    points = []
    for (model, mode, length), records in sorted(positions.items()):
        by_metric: dict[str, list[Record]] = {}
        for row in records:
            by_metric.setdefault(row["metric"], []).append(row)
        times = by_metric.get("token_time")
        if not times:
            continue
        ok = (r for r in by_metric.get("batch_size", []) if r["status"] == "ok")
        sizes = sorted({int(r["value"]) for r in ok})
        problem = ambiguous(sizes, times)
        values = {metric: merge(group) for metric, group in by_metric.items()}
        points.append(DecodePoint(
            name=line_name(records[0]), model=model, mode=mode, length=length,
            batch_size=sizes[0] if len(sizes) == 1 else None,
            values=values if problem is None else {"token_time": problem},
        ))  # fmt: skip
    return points


def decode_data(points: Sequence[DecodePoint], quantity: str) -> pd.DataFrame:
    """Return the data of one figure: a record for each point, also for failures.

    Args:
        points: the points of one setting.
        quantity: `token_time` of a whole batch, or `state_bytes` of one text, for models with a
            state.
    """
    records: list[dict[str, Any]] = []
    for name, mode in decoding_lines(points):
        line_points = sorted((p for p in points if p.name == name), key=lambda p: p.length)
        if quantity == "state_bytes" and mode != "state":
            continue
        costs = [p.shown(quantity) for p in line_points]
        positions = [(p.length, p.batch_size) for p in line_points]
        records += line_records(name, mode, quantity, positions, costs)
    return pd.DataFrame(records, columns=list(COLUMNS))


def decoding_lines(points: Sequence[DecodePoint]) -> list[tuple[str, str]]:
    """Return (name, mode) of each line in the order of models; the mode `state` comes first."""
    order = model_order([p.model for p in points])
    keys = {(order.index(p.model), p.mode != "state", p.name, p.mode) for p in points}
    return [(name, mode) for _, _, name, mode in sorted(keys)]


def decode_looks(points: Sequence[DecodePoint], looks: Mapping[str, Look]) -> dict[str, Look]:
    """Return the look of each line: that of its model; recomputed models have dotted lines."""
    line_looks = {}
    for point in points:
        look = looks[point.model]
        line_looks[point.name] = look if point.mode == "state" else Look(look.color, "", RECOMPUTED)
    return line_looks


def batches(points: Sequence[DecodePoint]) -> str:
    """Return the number of texts that were generated together, in words for a title."""
    sizes = sorted({p.batch_size for p in points if p.batch_size is not None})
    if not sizes:
        return "batch size not recorded"
    if sizes == [1]:
        return "one text is generated at a time"
    return f"{' or '.join(map(str, sizes))} texts are generated together in a batch"


def decode_table(points: Sequence[DecodePoint]) -> Table | None:
    """Return the table of one setting: a section for each quantity, a column for each context."""
    if not points:
        return None
    by_place = {(p.name, p.length): p for p in points}
    lines = [(s, name, (name, metric, unit)) for s, metric, unit in PANELS
             for name, _ in decoding_lines(points)]  # fmt: skip
    columns = [
        (Column(title=f"{n:,}", key=str(n)), partial(_point_entry, by_place, n))
        for n in sorted({p.length for p in points})
    ]
    return table_of(
        lines, columns, title="Generating text token by token", stub="model, by context",
        caption=f"Columns are lengths of the context in tokens; {batches(points)}. Each new token "
        "is chosen from the logits and becomes the next input. The time to the first token is the "
        "time to read the context. The state has room for the context and the timed tokens. A "
        "recomputed model stores only the tokens and reads all of them for each new token. The CSV "
        "has intervals of medians.",
    )  # fmt: skip


def _point_entry(
    by_place: Mapping[tuple[str, int], DecodePoint], length: int, line: tuple[str, str, float]
) -> Entry:
    """Return the entry of a line (name, metric, unit) at one context length."""
    name, metric, unit = line
    if (point := by_place.get((name, length))) is None:
        return absent("not run")
    value = point.shown(metric)
    if value.value is None:
        return mark(value)
    interval = median_interval([s / unit for s in value.samples]) if value.samples else None
    facts = {"batch_size": point.batch_size or "", "samples": len(value.samples)}
    size = value.value / unit
    return dagger(Entry(text=significant(size), value=size, interval=interval, facts=facts), value)


def decode_figures(
    data: pd.DataFrame,
    looks: Looks,
    groups: Groups,
    *,
    points: Sequence[DecodePoint],
    quantity: str,
    setting: str,
) -> list[tuple[pd.DataFrame, Figure]]:
    """Return (data, figure) for each page of data from `decode_data`."""
    lines_of = {kind: [p.name for p in points if p.model in part] for kind, part in groups.items()}
    return line_figures(
        data, decode_looks(points, looks), lines_of, subtitle=f"{batches(points)}; {setting}",
        title=_finding(data, points, quantity) or TITLES[quantity],
        names=("context (tokens)", AXES[quantity]),
    )  # fmt: skip


def _finding(data: pd.DataFrame, points: Sequence[DecodePoint], quantity: str) -> str:
    """Return a title: how much faster a state is, or how many models have constant states."""
    measured = data[data["value"].notna()]
    if quantity == "state_bytes":
        sizes = measured.groupby("model", sort=False)["value"].agg(["first", "last", "size"])
        sizes = sizes[sizes["size"] > 1]
        constant = [str(name) for name in sizes.index[sizes["first"] == sizes["last"]]]
        one = "has a state whose size is the same at all lengths"
        many = "have states whose size is the same at all lengths"
        return clause(constant, len(sizes), one, many) if len(sizes) else ""
    model_of_line = {point.name: point.model for point in points}
    by_model = measured.assign(model=measured["model"].map(model_of_line))
    times = by_model.pivot(index=["length", "model"], columns="mode", values="value").dropna()
    if {*times.columns} < {*MODES} or times.empty:
        return ""
    length = max(n for n, _ in times.index)
    gains = times.loc[length]["recompute"].astype(float) / times.loc[length]["state"].astype(float)
    if gains.min() < 1.05:  # too small to be a finding
        return ""
    text = " to ".join(dict.fromkeys(significant(gain, 2) for gain in (gains.min(), gains.max())))
    return (
        f"At {length:,} tokens of context, models with a state generate a token {text} times "
        "faster than without"
    )


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield the table and the figures of each setting."""
    parts = by_setting(decode_rows(rows))
    for part in parts:
        points = decode_points(part.rows)
        table = decode_table(points)
        if table is None:
            continue
        where = f" ({part.title})" if len(parts) > 1 else ""
        yield TablePart(f"decoding{part.suffix}", f"Decoding{where}", table)
        for quantity, title in TITLES.items():
            yield LinesPart(
                f"decoding-{quantity.replace('_', '-')}{part.suffix}", f"{title}{where}",
                title[0].lower() + title[1:], decode_data(points, quantity),
                partial(decode_figures, points=points, quantity=quantity, setting=part.title),
            )  # fmt: skip
