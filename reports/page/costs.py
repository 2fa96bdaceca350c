"""Cost against length, for the page: every metric that was measured at several lengths."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pandas as pd

from lra.reports.labels import TIMED
from lra.reports.page.chart import ChartAxis, ChartPanel, ChartPoint, PageChart
from lra.reports.rows import (
    EQUAL,
    MARKS,
    Record,
    Value,
    ambiguous,
    merged,
    model_order,
    settings,
    values,
)
from lra.reports.statistics.intervals import median_interval
from lra.reports.tables.costs import REFERENCES, mode_name
from lra.runners.metrics import METRICS

TITLES = {
    "time": "time per sequence",
    "peak_tensor_bytes": "peak tensor memory per sequence",
    "tokens_per_second": "tokens per second",
    "saved_bytes": "memory kept for backward, per sequence",
    "flops": "operations per sequence",
    "flops_per_second": "operations per second",
    "utilisation": "utilisation of the machine's peak",
    "process_peak_bytes": "peak memory of the process",
    "parameters": "parameters",
    "prefill_time": "time to read the context",
    "first_token_time": "time to the first token",
    "token_time": "time per further token",
    "state_bytes": "state between tokens",
    "prefill_peak_tensor_bytes": "peak tensor memory of reading the context",
    "train_step_time": "time of a training step",
    "train_time": "time of the training",
    "core_time": "time of the core alone",
}
"""Metrics of cost, those looked at first first."""
BY_BATCH = frozenset({"time", "peak_tensor_bytes", "saved_bytes", "flops"})
"""Of a whole batch: divided by its size."""
PAIRED = {"time": "time_ratio", "peak_tensor_bytes": "peak_tensor_bytes_ratio"}
"""Metrics that were measured together with a reference, and that of their ratio."""
COUNTED = frozenset({"flops", "saved_bytes", "parameters", "state_bytes"})
"""Metrics without noise: any two of one length may be divided."""
ABSOLUTE = "absolute"
_NEEDED = ("name", "mode", "length", "seed", "cell", "metric", "value", "status", "reason",
           "samples", "reference", "disturbed")  # fmt: skip
Place = tuple[str, int]
"""Model and length."""


@dataclass(slots=True)
class _Measured:
    """What was measured in one mode of one setting."""

    records: dict[Place, dict[tuple[str, str], list[Record]]] = field(default_factory=dict)
    """By place, then by metric and reference."""


def cost_chart(frame: pd.DataFrame) -> PageChart | None:
    """Return the chart of cost against length; None where nothing was measured at two lengths.

    Args:
        frame: as `lra.reports.rows.prepare` returns it.
    """
    computed = ("processor_time", "processor_time_ratio")
    metrics = {*TITLES, *PAIRED.values(), *TIMED, *computed, "batch_size"}
    rows = frame[
        frame["step"].isna() & frame["length"].notna() & (frame["baseline"] == "")
        & frame["metric"].isin(metrics)
    ]  # fmt: skip
    if "scored" in rows and (rows["scored"] == "").any():  # one reference in one panel
        own = (rows["scored"] != "") & (rows["reference"] != "")
        rows = rows.assign(reference=rows["reference"].mask(own, rows["reference"] + EQUAL))
    panels = [panel for runner in _runners(rows) for panel in _chart_panels(rows, runner)]
    order = list(TITLES.values())
    panels.sort(key=lambda panel: order.index(panel.choice["metric"]))
    panels = [panel for panel in panels if panel.choice["metric"] != TITLES["parameters"]]
    if not panels:
        return None
    return PageChart(
        name="costs",
        kind="lines",
        heading="Cost against length",
        about="Medians; bands are 95 % intervals from timing noise. A cross above the plot is a "
        "length without a number. Ratios to a reference are of paired measurements, "
        "interleaved in one process; of counted metrics, quotients.",
        panels=panels,
    )


def _runners(rows: pd.DataFrame) -> list[str]:
    """Return the runners that measured a model at two lengths; of training alone none."""
    lengths = rows.groupby(["runner", "name"])["length"].nunique()
    runners = {str(runner) for runner in lengths[lengths > 1].reset_index()["runner"]}
    return sorted(runners, key=lambda r: (r != "scaling", r))


def _chart_panels(rows: pd.DataFrame, runner: str) -> Iterator[ChartPanel]:
    runner_rows = rows[rows["runner"] == runner]
    parts = settings(runner_rows)
    for part in parts:
        by_mode: dict[str, _Measured] = {}
        columns = [values(part.rows, column) for column in _NEEDED]
        for row in zip(*columns, strict=True):
            record: Record = dict(zip(_NEEDED, row, strict=True))
            place = (str(record["name"]), int(record["length"]))
            by_place = by_mode.setdefault(str(record["mode"]), _Measured()).records
            kind = (str(record["metric"]), str(record["reference"]))
            by_place.setdefault(place, {}).setdefault(kind, []).append(record)
        for mode in sorted(by_mode, key=lambda m: (m != "step", m)):
            choice = {"of": mode_name(mode), "setting": part.differences or part.title}
            yield from _pass_panels(by_mode[mode], choice)


def _pass_panels(measured: _Measured, choice: Mapping[str, str]) -> Iterator[ChartPanel]:
    """Yield a panel of each metric, absolute and relative to each reference."""
    names = model_order([name for name, _ in measured.records])
    rank = {name: number for number, name in enumerate(names)}
    places = sorted(measured.records, key=lambda place: (rank[place[0]], place[1]))
    kinds = {kind for records in measured.records.values() for kind in records}
    paired = {reference for _, reference in kinds} - {""}
    # SDPA is what is really run; literal softmax attention comes next
    references = [r for r in reversed(REFERENCES) if r in paired]
    references += sorted(paired - {*REFERENCES})
    for metric, title in TITLES.items():
        if (metric, "") not in kinds:
            continue
        at = {place: _point(place, measured.records[place], metric) for place in places}
        panel = ChartPanel(
            choice={"metric": title, **choice, "scale": ABSOLUTE},
            x=ChartAxis(title="sequence length (tokens)", unit="tokens", scale="log"),
            y=ChartAxis(title=title, unit=METRICS[metric].unit, scale="log"),
            points=[point for point in at.values() if point is not None],
            band="95 % interval from timing noise",
            better=_better(metric),
        )
        if not _drawable(panel):
            continue
        yield panel
        for reference in references:
            if metric in PAIRED:
                points = [
                    _ratio(place, measured.records[place], PAIRED[metric], reference)
                    for place in places
                ]
            elif metric in COUNTED:
                points = [_quotient(at[place], at.get((reference, place[1]))) for place in places]
            else:
                continue
            relative = replace(
                panel,
                choice={**panel.choice, "scale": f"÷ {reference}"},
                y=ChartAxis(title=f"{title} ÷ {reference}", unit="×", scale="log"),
                points=[point for point in points if point is not None],
            )
            if _drawable(relative):
                yield relative


def _better(metric: str) -> str:
    higher = METRICS[metric].higher_is_better
    return "" if higher is None else "higher" if higher else "lower"


def _drawable(panel: ChartPanel) -> bool:
    """Tell whether any model has numbers at two lengths."""
    lengths: dict[str, set[float]] = {}
    for point in panel.points:
        if point.y:
            lengths.setdefault(point.model, set()).add(point.x)
    return any(len(numbers) > 1 for numbers in lengths.values())


def _point(
    place: Place, records: Mapping[tuple[str, str], list[Record]], metric: str
) -> ChartPoint | None:
    """Return what a metric is at one place; None where nothing says so."""
    measured = records.get((metric, ""), [])
    timed = [record for name in TIMED for record in records.get((name, ""), [])]
    failed = [record for record in timed if record["status"] != "ok"]
    if not measured and not failed:
        return None
    failed = [] if measured else failed  # what is counted stays where a time failed
    batches = [r for r in records.get(("batch_size", ""), []) if r["status"] == "ok"]
    sizes = sorted({int(record["value"]) for record in batches})
    value = ambiguous(sizes if metric in BY_BATCH else (), measured) or merged(failed or measured)
    if computed := records.get((f"processor_{metric}", "")):
        value = value.or_processor(merged(computed))
    if metric in BY_BATCH and value.value is not None:
        if not sizes:
            value = Value(status="missing", reason="no batch_size row, so no cost per sequence")
        else:
            value = value.scaled(1 / sizes[0])
    return _chart_point(place, value, measured or failed)


def _chart_point(place: Place, value: Value, records: Sequence[Record]) -> ChartPoint:
    interval = median_interval(value.samples) if value.value is not None else None
    if value.value is None:
        text = f"{MARKS.get(value.status, value.status)}: {value.reason}"
    else:
        count = len(value.samples)
        text = f"{count} samples" if count > 1 else ""
        text += f"; disturbed: {value.disturbed}" if value.disturbed else ""
    return ChartPoint(
        model=place[0],
        x=place[1],
        y=value.value,
        low=interval.low if interval else None,
        high=interval.high if interval else None,
        text=text,
        cells=tuple(dict.fromkeys(str(record["cell"]) for record in records)),
        mark=value.mark,
    )


def _ratio(
    place: Place, records: Mapping[tuple[str, str], list[Record]], metric: str, reference: str
) -> ChartPoint | None:
    """Return a paired ratio; the reference itself is 1."""
    paired = records.get((metric, reference), [])
    if not paired:
        # a reference that could not run says so in one row, whatever its metric
        paired = [
            record
            for (_, other), rows in records.items()
            for record in rows
            if other == reference and record["status"] != "ok"
        ]
    if paired:
        value = merged(paired)
        if computed := records.get((f"processor_{metric}", reference)):
            value = value.or_processor(merged(computed))
        return _chart_point(place, value, paired)
    mine = [record for name in TIMED for record in records.get((name, ""), [])]
    failed = [record for record in mine if record["status"] != "ok"]
    if failed:
        return _chart_point(place, merged(failed), failed)
    if place[0] == reference and mine:
        return _chart_point(place, Value(value=1.0), mine)
    return None


def _quotient(point: ChartPoint | None, reference: ChartPoint | None) -> ChartPoint | None:
    """Return how many times the reference a counted number is; None where one is missing."""
    if point is None or point.y is None:
        return point
    if reference is None or not reference.y:
        return None
    return replace(point, y=point.y / reference.y, low=None, high=None)
