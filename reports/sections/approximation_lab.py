"""Show errors and times of approximations of attention, by family, budget and layer."""

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from statistics import median
from typing import Any

import pandas as pd

from lra.reports.rows import COST_SETTING, Value, by_setting, model_order, short
from lra.reports.sections.section import TablePart
from lra.reports.statistics.intervals import median_interval
from lra.reports.stems import stem
from lra.reports.tables.costs import dagger, invert, significant
from lra.reports.tables.marks import absent, failure_entry
from lra.reports.tables.pivot import table_of
from lra.reports.tables.table import Column, Entry, Table

RUNNER = "approximation"
ROUNDING = 1e-9
"""A smaller relative error is rounding error."""
MEASURES = {
    "output_error": "output error",
    "matrix_error": "matrix error",
    "topk_mass_recall": "mass of the heaviest",
}
"""Metrics of a budget, and their titles; a number of keys follows that of mass."""
POINT = ("mode", "length", "model", "option", "budget")
COLUMNS = (
    *POINT, "layer", "measure", "k", "value", "low", "high", "draws", "status", "reason",
    "core_times", "time_ratios", "disturbed",
)  # fmt: skip


def approximation_data(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a line for each mode, length, model, budget, layer and measure of one setting.

    `value` is the mean over draws and seeds, and `low` and `high` are the extremes. `core_times`
    and `time_ratios` (divided by exact attention, paired) are samples that all lines of a budget
    share.
    """
    measured = rows[rows["runner"] == RUNNER]
    labels = pd.DataFrame(list(measured["labels"]), index=measured.index)
    for name in ("budget", "option", "layer", "k"):
        measured = measured.assign(**{name: labels.get(name)})
    measured = measured.assign(model=measured["name"])
    measured = measured[measured["budget"].notna()].assign(budget=lambda t: t["budget"].astype(int))
    times = _samples(measured[measured["reference"] == ""], "core_time")
    ratios = _samples(measured, "core_time_ratio")
    disturbances = _disturbances(measured)
    records = []
    errors = measured[measured["metric"].isin(MEASURES)]
    for key, part in errors.groupby([*POINT, "layer", "metric", "k"], dropna=False, sort=True):
        *point, layer, metric, k = key
        place = tuple(point)
        records.append({
            **dict(zip(POINT, point, strict=True)), "layer": layer, "measure": metric, "k": k,
            **_mean_or_reason(part), "core_times": times.get(place, ()),
            "time_ratios": ratios.get(place, ()), "disturbed": disturbances.get(place, ""),
        })  # fmt: skip
    return pd.DataFrame(records, columns=list(COLUMNS))


def _samples(rows: pd.DataFrame, metric: str) -> dict[tuple[Any, ...], list[float]]:
    """Return the samples of a metric over all seeds, by the columns `POINT`."""
    samples: dict[tuple[Any, ...], list[float]] = {}
    measured = rows[(rows["metric"] == metric) & (rows["status"] == "ok")]
    for record in measured.to_dict("records"):
        samples.setdefault(tuple(record[name] for name in POINT), []).extend(record["samples"])
    return samples


def _mean_or_reason(part: pd.DataFrame) -> dict[str, Any]:
    """Return the mean and the extremes of a measure over draws, or the reason of a failure."""
    failed = part[part["status"] != "ok"]
    if len(failed):
        status, reason = str(failed["status"].iloc[0]), short(str(failed["reason"].iloc[0]))
        return {"status": status, "reason": reason, "draws": 0}
    samples = [sample for draws in part["samples"] for sample in draws]
    samples = samples or [float(value) for value in part["value"]]
    return {
        "value": sum(samples) / len(samples), "low": min(samples), "high": max(samples),
        "draws": len(samples), "status": "ok", "reason": "",
    }  # fmt: skip


def _disturbances(rows: pd.DataFrame) -> dict[tuple[Any, ...], str]:
    """Return what disturbed the times of a budget, by the columns `POINT`."""
    timed = rows[rows["metric"].isin(("core_time", "core_time_ratio")) & (rows["disturbed"] != "")]
    return {tuple(r[name] for name in POINT): r["disturbed"] for r in timed.to_dict("records")}


def measures(data: pd.DataFrame) -> list[tuple[str, str]]:
    """Return (metric, k) for each measure of the data, in the order of `MEASURES`."""
    pairs = {
        (m, "" if pd.isna(k) else str(k)) for m, k in zip(data["measure"], data["k"], strict=True)
    }
    return sorted(pairs, key=lambda p: (list(MEASURES).index(p[0]), int(p[1] or 0)))


def measure_title(metric: str, k: str) -> str:
    """Return a measure as a heading, as in "mass of the heaviest 8 keys"."""
    if not k:
        return MEASURES[metric]
    return f"{MEASURES[metric]} {'key' if k == '1' else f'{k} keys'}"


def of_measure(data: pd.DataFrame, metric: str, k: str) -> pd.DataFrame:
    """Return the lines of one measure."""
    same = data["k"].isna() if not k else data["k"].astype(str) == k
    return data[(data["measure"] == metric) & same]


def approximation_table(data: pd.DataFrame, mode: str) -> Table:
    """Return the table of one mode: measures and times by model, budget and layer."""
    of_mode = data[data["mode"] == mode]
    order = model_order([str(model) for model in of_mode["model"]])
    keys = ["length", "place", "model", "budget", "layer"]
    placed = of_mode.assign(place=of_mode["model"].map(order.index))
    lines = []
    groups: Iterable[tuple[tuple[Any, ...], pd.DataFrame]] = placed.groupby(keys, dropna=False)
    for (length, _, model, budget, layer), part in groups:
        title = f"{model}, {part['option'].iloc[0]} = {budget}"
        title += "" if pd.isna(layer) else f", layer {layer}"
        lines.append((f"{length:,} tokens", title, part))
    columns: list[tuple[Column, Callable[[pd.DataFrame], Entry]]] = [
        (Column(title=measure_title(*head), key="_".join(filter(None, head))),
         partial(_value_entry, head))
        for head in measures(of_mode)
    ]  # fmt: skip
    columns += [
        (Column(title="core (ms)", key="core_time_ms"), partial(_time_entry, speed=False)),
        (Column(title="speed relative to SDPA (×)", key="speed"), partial(_time_entry, speed=True)),
    ]
    return table_of(
        lines, columns, title=f"Approximations of attention, {mode_sentence(mode)}",
        caption="An error is the Frobenius norm of (approximate − exact) divided by that of the "
        "exact output or matrix, as a mean over draws; 0 is exact. Mass is the attention that the "
        "approximation gives to the heaviest keys of exact attention, divided by the attention "
        "that exact attention gives to them; 1 is exact. Skyformer, YOSO and Reformer are compared "
        "with the functions that they approximate, and all other families with softmax attention. "
        "The CSV has extremes, and intervals of times.",
        stub="family, budget",
    )  # fmt: skip


def mode_sentence(mode: str) -> str:
    """Return the source of queries and keys in words."""
    words = {"random": "random queries and keys", "trained": "queries and keys of a trained model"}
    return words.get(mode, mode)


def _value_entry(measure: tuple[str, str], lines: pd.DataFrame) -> Entry:
    """Return the entry of a measure (metric, k) from the data of one line of the table."""
    lines = of_measure(lines, *measure)
    if lines.empty:
        return absent("not measured: matrices are computed up to runner.matrix_max_length tokens")
    line = lines.iloc[0]
    if line["status"] != "ok":
        return failure_entry(line)
    value = float(line["value"])
    text = f"{value:.3f}" if line["measure"] == "topk_mass_recall" else significant(value)
    if line["measure"] != "topk_mass_recall" and value < ROUNDING:
        text = "0"
    facts = {"low": line["low"], "high": line["high"], "draws": int(line["draws"])}
    return Entry(text=text, value=value, facts=facts)


def _time_entry(lines: pd.DataFrame, *, speed: bool) -> Entry:
    """Return the median time in ms; if `speed`, how many times as fast as exact attention."""
    line = lines.iloc[0]
    times, ratios = line["core_times"], line["time_ratios"]
    if not (times and ratios):
        return absent("not timed")
    if speed:
        value, interval = 1 / median(ratios), invert(median_interval(ratios))
    else:
        value, interval = 1e3 * median(times), median_interval([1e3 * time for time in times])
    entry = Entry(text=significant(value, 2 if speed else 3), value=value, interval=interval)
    return dagger(entry, Value(disturbed=line["disturbed"]))


def section(rows: pd.DataFrame) -> Iterator[TablePart]:
    """Yield a table for each setting and mode."""
    measured = rows[rows["runner"] == RUNNER]
    parts = by_setting(measured, COST_SETTING) if len(measured) else []
    for part in parts:
        data = approximation_data(part.rows)
        where = f" ({part.title})" if len(parts) > 1 else ""
        for mode in sorted(set(data["mode"])):
            name = f"approximation-{stem(mode)}{part.suffix}"
            heading = f"Approximations, {mode_sentence(mode)}{where}"
            yield TablePart(name, heading, approximation_table(data, mode))
