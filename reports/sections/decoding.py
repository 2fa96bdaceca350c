"""What one written token costs against the context: points, the two figures' data, the table."""

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
"""Modes of the runner, and how a line of that mode is called."""
TITLES = {
    "token_time": "Time of one token against the context",
    "state_bytes": "State of one text against the context",
}
PANELS = (
    ("time of one token, median (ms)", "token_time", 1e-3),
    ("time of one token, 95th percentile (ms)", "token_time_percentile", 1e-3),
    ("tokens per second, all texts", "tokens_per_second", 1.0),
    ("time to the first token (ms)", "first_token_time", 1e-3),
    ("state of one text (KiB)", "state_bytes", 2.0**10),
    ("peak tensor memory of one token (MiB)", "peak_tensor_bytes", MEBIBYTE),
)
"""Of the table: heading, metric, and its unit."""
AXES = {"token_time": "time of one token", "state_bytes": "state of one text"}
RECOMPUTED = (0.8, 2.4)
"""Dashes of lines without a state, which have their model's colour and no marker."""
_NEEDED = [
    "name", "family", "options", "departures", "mode", "length", "seed", "cell", "metric", "value",
    "status", "reason", "samples", "disturbed",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodePoint:
    """What one model costs behind one context in one mode."""

    name: str
    """The model's, with its mode where nothing is remembered."""
    model: str
    mode: str
    length: int
    batch_size: int | None = None
    values: Mapping[str, Value] = field(default_factory=dict)
    """By metric; `token_time` is always among them."""

    def value(self, metric: str) -> Value:
        """Return a number, or why there is none: where no token was timed, for that reason."""
        time = self.values["token_time"]
        if not time.ok:
            return time
        absent = f"no {metric} row"
        if metric == "state_bytes" and self.mode == "recompute":
            absent = "only the tokens are stored"
        return self.values.get(metric, Value(status=MISSING, reason=absent))

    def shown(self, metric: str) -> Value:
        """Return the number; a state is that of one text, so it is divided by the batch size."""
        value = self.value(metric)
        if value.value is None or metric != "state_bytes":
            return value
        if self.batch_size is None:
            return Value(
                status=MISSING, reason="the rows lack batch_size, so the cost per text is unknown"
            )
        return Value(value=value.value / self.batch_size)


def line_name(row: Mapping[str, Any]) -> str:
    """Return what the line of a row is called: recomputing is named, in its last brackets."""
    mode = str(row["mode"])
    return str(row["name"]) if mode == "state" else name_with(row, MODES.get(mode, mode))


def decode_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """Select the rows of decoding."""
    return rows[(rows["runner"] == RUNNER) & rows["length"].notna()]


def decode_points(rows: pd.DataFrame) -> list[DecodePoint]:
    """Return one point per model, mode and context of one setting.

    Places with several configurations under one name are marked, not merged.
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
        good = (r for r in by_metric.get("batch_size", []) if r["status"] == "ok")
        sizes = sorted({int(r["value"]) for r in good})
        problem = ambiguous(sizes, times)
        values = {metric: merge(group) for metric, group in by_metric.items()}
        points.append(DecodePoint(
            name=line_name(records[0]), model=model, mode=mode, length=length,
            batch_size=sizes[0] if len(sizes) == 1 else None,
            values=values if problem is None else {"token_time": problem},
        ))  # fmt: skip
    return points


def decode_data(points: Sequence[DecodePoint], quantity: str) -> pd.DataFrame:
    """Return the numbers of one figure: a line per model and mode, failures included.

    Args:
        points: of one setting.
        quantity: `token_time`, of a whole batch; or `state_bytes`, of one text, for the models
            that remember.
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
    """Return name and mode of every line: models in their order, with a state first."""
    order = model_order([p.model for p in points])
    keys = {(order.index(p.model), p.mode != "state", p.name, p.mode) for p in points}
    return [(name, mode) for _, _, name, mode in sorted(keys)]


def decode_looks(points: Sequence[DecodePoint], looks: Mapping[str, Look]) -> dict[str, Look]:
    """Return the look of every line: that of its model, and for recomputing its colour, dotted."""
    line_looks = {}
    for point in points:
        look = looks[point.model]
        line_looks[point.name] = look if point.mode == "state" else Look(look.color, "", RECOMPUTED)
    return line_looks


def batches(points: Sequence[DecodePoint]) -> str:
    """Return how many texts were written side by side, as words for a title."""
    sizes = sorted({p.batch_size for p in points if p.batch_size is not None})
    if not sizes:
        return "batch size not recorded"
    if sizes == [1]:
        return "one text at a time"
    return f"{' or '.join(map(str, sizes))} texts side by side"


def decode_table(points: Sequence[DecodePoint]) -> Table | None:
    """Build the table of one setting: a panel per quantity, contexts as columns; None if empty."""
    if not points:
        return None
    places = {(p.name, p.length): p for p in points}
    shown = [(s, name, (name, metric, unit)) for s, metric, unit in PANELS
             for name, _ in decoding_lines(points)]  # fmt: skip
    columns = [
        (Column(title=f"{n:,}", key=str(n)), partial(_point_entry, places, n))
        for n in sorted({p.length for p in points})
    ]
    return table_of(
        shown, columns, title="Writing token by token", stub="model, by context",
        caption=f"Columns are lengths of the context in tokens; {batches(points)}. Each token is "
        f"chosen from the logits and becomes the next input; the time to the first token is that "
        f"of reading the context. The state has room for the context and the timed tokens. "
        f"Recomputing stores only the tokens and reads all of them for each new one. Intervals of "
        f"medians are in the CSV.",
    )  # fmt: skip


def _point_entry(
    places: Mapping[tuple[str, int], DecodePoint], length: int, line: tuple[str, str, float]
) -> Entry:
    name, metric, unit = line
    if (point := places.get((name, length))) is None:
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
    """Draw what `decode_data` returned; return each page with its figure."""
    lines_of = {kind: [p.name for p in points if p.model in part] for kind, part in groups.items()}
    return line_figures(
        data, decode_looks(points, looks), lines_of, subtitle=f"{batches(points)}; {setting}",
        title=_finding(data, points, quantity) or TITLES[quantity],
        names=("context (tokens)", AXES[quantity]),
    )  # fmt: skip


def _finding(data: pd.DataFrame, points: Sequence[DecodePoint], quantity: str) -> str:
    """Return what a state saves at the longest context, or how many states do not grow."""
    good = data[data["value"].notna()]
    if quantity == "state_bytes":
        sizes = good.groupby("model", sort=False)["value"].agg(["first", "last", "size"])
        sizes = sizes[sizes["size"] > 1]
        same = [str(name) for name in sizes.index[sizes["first"] == sizes["last"]]]
        one, many = "has a state of constant size", "have states of constant size"
        return clause(same, len(sizes), one, many) if len(sizes) else ""
    model = {point.name: point.model for point in points}
    named = good.assign(model=good["model"].map(model))
    times = named.pivot(index=["length", "model"], columns="mode", values="value").dropna()
    if {*times.columns} < {*MODES} or times.empty:
        return ""
    length = max(n for n, _ in times.index)
    gains = times.loc[length]["recompute"].astype(float) / times.loc[length]["state"].astype(float)
    if gains.min() < 1.05:
        return ""
    text = " to ".join(dict.fromkeys(significant(gain, 2) for gain in (gains.min(), gains.max())))
    return f"At {length:,} tokens of context, a state makes a token {text} times faster"


def section(rows: pd.DataFrame) -> Iterator[Part]:
    """Yield table and figures of every setting."""
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
