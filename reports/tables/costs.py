"""The efficiency table in the form of LRA's Table 2, and tables of crossover and of growth.

Speed factors come only from paired measurements, where candidate and reference ran interleaved in
one process; a factor is never chained through a third model.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

from lra.reports.rows import (
    AMBIGUOUS,
    DAGGER,
    DIAMOND,
    EQUAL,
    MARKS,
    MISSING,
    PROCESSOR,
    UNCERTAIN,
    WIDEST_FACTOR,
    CostPoint,
    Value,
    model_order,
)
from lra.reports.statistics.intervals import (
    LENGTHS,
    Interval,
    beyond_both,
    beyond_both_ratios,
    median_interval,
)
from lra.reports.statistics.power_law import (
    FEWEST,
    RESOLVED,
    UNRESOLVED,
    WIDEST,
    Crossover,
    PowerLaw,
    Reach,
    bounds,
    crossover,
    fit_exponent,
)
from lra.reports.style import current_style
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import listed_table, table_of
from lra.reports.tables.table import Column, Entry, Table

REFERENCES = ("softmax", "sdpa")
REFERENCE_NAMES = {"softmax": "literal softmax attention", "sdpa": "exact attention through SDPA"}
PASSES = {"step": "training step", "forward": "forward pass"}
PARTS = {"step": "forward, backward, update"}
"""What a pass consists of, where that needs saying."""
MEBIBYTE = 2**20
Facts = dict[str, float | int | str]
NO_INTERVAL = "no interval, because there is a single pair"
UNRESOLVED_STATUS = "unresolved"
"""Status of an entry whose interval says nothing: it is printed in place of a number."""


def modes(points: Sequence[CostPoint]) -> list[str]:
    """Return the modes present, training first."""
    return sorted({p.mode for p in points}, key=lambda m: (m != "step", m))


def references(points: Sequence[CostPoint]) -> list[str]:
    """Return the references that any point was paired with, the usual two first."""
    measured = {r for p in points for r in p.time_ratio}
    usual = [r for r in REFERENCES if r in measured]
    return usual + sorted(measured - set(usual))


def reference_name(reference: str, names: Mapping[str, str] = REFERENCE_NAMES) -> str:
    """Return what a reference is called: by the style in force, or one of `names`."""
    models = current_style().style.models.items()
    styled = {f"{key}{end}": f"{m.name}{end}" for key, m in models if m.name for end in ("", EQUAL)}
    return styled.get(reference) or names.get(reference, reference)


def describe_pass(mode: str) -> str:
    """Return what one timed pass of this mode is."""
    name = mode_name(mode)
    return f"{name} ({PARTS[mode]})" if mode in PARTS else name


def mode_name(mode: str) -> str:
    """Return a mode as a short heading."""
    return PASSES.get(mode, mode)


def significant(value: float, digits: int = 3) -> str:
    """Return a number with so many significant digits, without exponent notation."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{round(value, decimals):,.{decimals}f}"


def mark(value: Value, *further: str) -> Entry:
    """Turn an absent value into a table entry with its reason, after further notes."""
    text = {MISSING: "–", AMBIGUOUS: "ambiguous"}.get(value.status) or MARKS[value.status]
    return Entry(text=text, status=value.status, notes=(*further, value.reason))


_BUSY = {
    "": f"{DAGGER} measured while another process was running",
    PROCESSOR: f"{DIAMOND} time by the processors' clock, which excludes waiting: by the wall "
    f"clock it is uncertain by more than a factor of {WIDEST_FACTOR:g}",
    UNCERTAIN: f"{DAGGER} another process disturbed this time, so it is excluded from exponents "
    "and crossovers",
}
"""The note of a disturbed number, by its mark."""


def dagger(entry: Entry, value: Value) -> Entry:
    """Return an entry as it is, or with a dagger and a note where its value was disturbed."""
    if not value.disturbed:
        return entry
    note = _BUSY[value.mark]
    return replace(
        entry,
        text=f"{entry.text} {note[0]}",
        notes=(*entry.notes, note),
        facts={**entry.facts, "disturbed": value.disturbed, "clock": value.mark or "wall"},
    )


def busy(points: Sequence[CostPoint]) -> str:
    """Return the sentence for the top of what a busy machine measured; "" of a quiet one."""
    ratios = [ratio for point in points for ratio in point.time_ratio.values()]
    errors = []
    for ratio in ratios:
        interval = ratio.interval() if ratio.value and not ratio.uncertain else None
        if interval is not None and ratio.disturbed and ratio.value:
            errors.append(max(interval.high / ratio.value, ratio.value / interval.low) - 1)
    times = [point.time for point in points if point.time.ok]
    marked = sum(bool(time.disturbed) for time in times)
    if not errors:
        disturbed = marked or any(ratio.disturbed for ratio in ratios)
        return "Other processes disturbed these measurements." if disturbed else ""
    return (
        f"Other processes disturbed {marked} of {len(times)} times ({DAGGER}, {DIAMOND}): the "
        f"factors computed from them are uncertain by ±{100 * median(errors):.0f} % in the median."
    )


def of_busy(entry: Entry, used: Sequence[Value]) -> Entry:
    """Return what several times give, marked where some of them were disturbed."""
    if entry.status != "ok" or not any(value.disturbed for value in used if not value.uncertain):
        return entry
    note = f"{DAGGER} includes times that another process disturbed; the interval allows for it"
    return replace(entry, text=f"{entry.text} {DAGGER}", notes=(*entry.notes, note))


def without(what: str, lengths: Sequence[int]) -> tuple[str, ...]:
    """Return the note that a fit leaves out uncertain lengths; none where there are none."""
    if not lengths:
        return ()
    at = " and ".join(f"{n:,}" for n in lengths)
    return (f"{what} excludes {at} tokens, which another process disturbed {DAGGER}",)


def efficiency_table(points: Sequence[CostPoint], mode: str) -> Table | None:
    """Build the table of one mode from the points of one setting; None where none exists.

    One panel per quantity, lengths as columns: the paper's two header groups, stacked, so that any
    number of lengths fits a page.
    """
    part = [p for p in points if p.mode == mode]
    if not part:
        return None
    measured = {(p.model, p.length): p for p in part}
    lengths = sorted({p.length for p in part})
    names = model_order([p.model for p in part])
    panels: list[tuple[str, Callable[[CostPoint], Entry]]] = [
        *((f"speed relative to {reference_name(r)} (×)", partial(_speed, r))
          for r in references(part)),
        ("sequences per second", _rate),
        ("peak tensor memory of a batch (MiB)", _memory_entry),
        *((f"peak tensor memory relative to {reference_name(r)} (×)",
           partial(_memory_ratio, r)) for r in references(part)),
    ]  # fmt: skip

    def at(length: int, line: tuple[str, Callable[[CostPoint], Entry]]) -> Entry:
        name, entry = line
        point = measured.get((name, length))
        return replace(entry(point), cells=point.cells) if point else absent("not run")

    caption = (
        f"Columns are sequence lengths ({_batches(part)}). Speeds and memory are relative to a "
        "reference that was measured interleaved with the model in one process. ≈: the 95 % "
        "interval from timing noise contains 1. [low, high]: the interval is wider than a factor "
        f"of {WIDEST_FACTOR:g} and replaces the factor. The CSV has all intervals."
    )
    return table_of(
        [(section, name, (name, entry)) for section, entry in panels for name in names],
        [(Column(title=f"{n:,}", key=str(n)), partial(at, n)) for n in lengths],
        title=f"Cost of one {describe_pass(mode)}", caption=f"{busy(part)} {caption}".strip(),
        stub="model, by length",
    )  # fmt: skip


def _batches(points: Sequence[CostPoint]) -> str:
    by_length: dict[int, set[int]] = {}
    for p in points:
        if p.batch_size is not None:
            by_length.setdefault(p.length, set()).add(p.batch_size)
    sizes = {s for batch in by_length.values() for s in batch}
    if not sizes:
        return "batch size not recorded"
    if len(sizes) == 1:
        return f"batch size {sizes.pop()} at every length"
    parts = [
        f"{'/'.join(map(str, sorted(batch)))} at {n:,}" for n, batch in sorted(by_length.items())
    ]
    return "batch size " + ", ".join(parts)


def _no_pair(point: CostPoint, reference: str) -> Entry:
    if point.family == reference:
        return Entry(text="ref.", status="reference", notes=("the reference itself",))
    return absent(f"{reference_name(reference, {})} was not measured interleaved with it")


def invert(interval: Interval | None) -> Interval | None:
    """Turn the interval of a ratio into that of its inverse."""
    if interval is None:
        return None
    return Interval(1 / interval.high, 1 / interval.low, interval.source, interval.level)


def _speed(reference: str, point: CostPoint) -> Entry:
    if not point.time.ok:
        return mark(point.time)
    ratio = point.time_ratio.get(reference)
    if ratio is None:
        return _no_pair(point, reference)
    if ratio.value is None:
        return mark(ratio, f"of {reference_name(reference, {})}")
    interval = invert(ratio.interval())
    facts: Facts = {"pairs": len(ratio.samples), "batch_size": point.batch_size or ""}
    unsure = interval is not None and interval.low <= 1.0 <= interval.high
    if unsure and interval is not None and interval.high > WIDEST_FACTOR * interval.low:
        text = f"{UNRESOLVED} [{significant(interval.low, 2)}, {significant(interval.high, 2)}]"
        return Entry(text=text, status=UNRESOLVED_STATUS, interval=interval, facts=facts)
    entry = Entry(
        text=("≈ " if unsure else "") + significant(1 / ratio.value, 2), value=1 / ratio.value,
        interval=interval, facts=facts,
        notes=tuple(filter(None, [ratio.reason])) if interval else (NO_INTERVAL,),
    )  # fmt: skip
    return dagger(entry, ratio)


def _rate(point: CostPoint) -> Entry:
    if not point.time.ok:
        return mark(point.time)
    per_sequence = point.per_sequence(point.time)
    if per_sequence.value is None:
        return mark(per_sequence)
    entry = Entry(
        text=significant(1 / per_sequence.value),
        value=1 / per_sequence.value,
        interval=invert(median_interval(per_sequence.samples)),
        facts={"batch_size": point.batch_size or "", "seconds_per_pass": point.time.value or ""},
    )
    return dagger(entry, per_sequence)


def _memory_entry(point: CostPoint) -> Entry:
    if point.memory.value is None:
        return mark(point.memory)
    size, facts = point.memory.value / MEBIBYTE, {"batch_size": point.batch_size or ""}
    return Entry(text=significant(size), value=size, facts=facts)


def _memory_ratio(reference: str, point: CostPoint) -> Entry:
    ratio = point.memory_ratio.get(reference)
    if ratio is None:
        return _no_pair(point, reference) if point.time.ok else mark(point.time)
    if ratio.value is None:
        return mark(ratio, f"of {reference_name(reference, {})}")
    return Entry(text=significant(ratio.value, 2), value=ratio.value)


# ---------------------------------------------------------------------- crossover and growth


def measured_crossover(points: Sequence[CostPoint], reference: str) -> Crossover:
    """Find where one model overtakes the reference, from its points in one mode.

    Uncertain ones are left out.
    """
    ratios = [
        (p.length, p.time_ratio[reference])
        for p in sorted(points, key=lambda p: p.length)
        if reference in p.time_ratio
    ]
    pairs = [(n, r) for n, r in ratios if r.value is not None and not r.uncertain]
    lengths = [n for n, _ in pairs]
    found = _crossover(lengths, [r for _, r in pairs])
    if not any(r.both for _, r in pairs):
        return found
    other = _crossover(lengths, [r.both or r for _, r in pairs])
    intervals = found.interval, other.interval
    return replace(
        found, interval=beyond_both_ratios((found.place, other.place), intervals, LENGTHS)
    )


def _crossover(lengths: Sequence[int], ratios: Sequence[Value]) -> Crossover:
    values = [r.value for r in ratios if r.value is not None]
    return crossover(lengths, values, [r.samples for r in ratios])


def crossover_table(points: Sequence[CostPoint]) -> Table | None:
    """Build the table of crossover lengths by mode and reference; None without any pair."""
    if not references(points):
        return None
    heads = [(m, r) for m in modes(points) for r in references([p for p in points if p.mode == m])]
    caption = (
        f"{busy(points)} The sequence length from which the model stays faster than the reference "
        "as far as measured, interpolated between lengths on logarithmic axes [95 % interval from "
        "timing noise]. ≤: faster from the shortest length measured. Too uncertain: an end of the "
        f"interval is open, or its ends lie more than a factor of {WIDEST:g} apart."
    )
    return table_of(
        [("", name, name) for name in model_order([p.model for p in points])],
        [(Column(group=mode_name(m), title=f"faster than {reference_name(r, {})} from"),
          partial(_crossover_entry, points, m, r)) for m, r in heads],
        title="Crossover length", caption=caption.strip(),
    )  # fmt: skip


def _crossover_entry(every: Sequence[CostPoint], mode: str, reference: str, name: str) -> Entry:
    points = [p for p in every if p.model == name and p.mode == mode]
    crossing = measured_crossover(points, reference)
    left_out = [
        p.length
        for p in sorted(points, key=lambda p: p.length)
        if reference in p.time_ratio and p.time_ratio[reference].uncertain
    ]
    if crossing.reach is Reach.unknown:
        if left_out:
            return replace(absent("every length is too uncertain"), text=f"– {DAGGER}")
        if any(p.family == reference for p in points):
            return Entry(text="ref.", status="reference", notes=("the reference itself",))
        return absent("the reference was not measured in the same run")
    lost: dict[str, list[str]] = {}
    for p in sorted(points, key=lambda p: p.length):
        ratio = p.time_ratio.get(reference) if p.time.ok else p.time
        if ratio is not None and not ratio.ok:
            lost.setdefault(ratio.reason, []).append(f"{p.length:,}")
    notes = tuple(
        note for reason, n in lost.items() for note in (f"unknown at {' and '.join(n)}", reason)
    )
    notes += without("the crossover", left_out)
    used = [p.time_ratio[reference] for p in points if reference in p.time_ratio]
    facts: Facts = {"reach": str(crossing.reach), "shortest": crossing.shortest or "",
                    "longest": crossing.longest or ""}  # fmt: skip
    value = crossing.length if crossing.resolved else None
    status = "ok" if crossing.resolved else UNRESOLVED_STATUS
    entry = Entry(
        text=str(crossing), value=value, interval=crossing.interval, status=status, notes=notes,
        facts=facts,
    )  # fmt: skip
    return of_busy(entry, used)


def growth_table(points: Sequence[CostPoint]) -> Table | None:
    """Build the table of fitted exponents of time and memory; None without two lengths."""
    heads = [(m, q) for m in modes(points) for q in ("time", "memory")]
    lines = []
    for name in model_order([p.model for p in points]):
        of_model = [p for p in points if p.model == name]
        pairs = (_growth_entries([p for p in of_model if p.mode == m], q) for m, q in heads)
        lines.append(("", name, [entry for pair in pairs for entry in pair]))
    if not any(e.status != MISSING for *_, entries in lines for e in entries):
        return None
    return listed_table(
        lines,
        [Column(group=f"{mode_name(mode)}, {quantity}", title=title) for mode, quantity in heads
         for title in ("exponent", "last two lengths")],
        title="Growth with sequence length",
        caption=f"{busy(points)} Exponent e of cost per sequence = c × length^e, least squares "
        "over all measured lengths [95 % interval, the wider of residuals and timing noise], and "
        "the slope between the two longest lengths alone. Too uncertain: fewer than "
        f"{FEWEST} lengths, or an interval wider than ± {RESOLVED:g}, which includes both linear "
        "growth and n^1.5.".strip(),
    )  # fmt: skip


def fit_values(measured: Sequence[tuple[int, Value]]) -> PowerLaw:
    """Fit an exponent to positive numbers by length, rising, at least two; both clocks count."""
    fit = _fit(measured)
    if not any(v.both for _, v in measured):
        return fit
    other = _fit([(n, v.both or v) for n, v in measured])
    noise = beyond_both((fit.exponent, other.exponent), (fit.noise, other.noise), LENGTHS)
    return replace(fit, noise=noise)


def _fit(measured: Sequence[tuple[int, Value]]) -> PowerLaw:
    values = [v.value for _, v in measured if v.value is not None]
    return fit_exponent([n for n, _ in measured], values, [v.samples for _, v in measured])


def _growth_entries(points: Sequence[CostPoint], quantity: str) -> tuple[Entry, Entry]:
    costs = [
        (p.length, p.per_sequence(p.time if quantity == "time" else p.memory))
        for p in sorted(points, key=lambda p: p.length)
    ]
    measured = [(n, v) for n, v in costs if v.value and not v.uncertain]  # nothing grows from zero
    notes = without("the exponent", [n for n, v in costs if v.uncertain])
    used = [v for _, v in costs]
    if len(measured) < 2:
        few = "fewer than two lengths measured" + (" that are certain enough" if notes else "")
        return absent(few, *notes), absent(few, *notes)
    lengths = [n for n, _ in measured]
    fit = fit_values(measured)
    facts: Facts = {"shortest": lengths[0], "longest": lengths[-1], "points": len(lengths)}
    value = fit.exponent if fit.resolved else None
    status = "ok" if fit.resolved else UNRESOLVED_STATUS
    whole = Entry(
        text=str(fit), value=value, interval=fit.interval, status=status, notes=notes, facts=facts
    )
    last = fit_values(measured[-2:])
    whole = of_busy(whole, used)
    return whole, of_busy(replace(_last_slope(last, exact=quantity == "memory"), notes=notes), used)


def _last_slope(fit: PowerLaw, *, exact: bool) -> Entry:
    noise = fit.noise
    facts: Facts = {"shortest": fit.lengths[0], "longest": fit.lengths[1], "points": 2}
    if exact or (noise is not None and noise.high - noise.low <= 2 * RESOLVED):
        text = f"{round(fit.exponent, 2) + 0.0:.2f}"
        return Entry(text=text, value=fit.exponent, interval=noise, facts=facts)
    text = bounds(noise.low, noise.high) if noise else "(no repeated samples)"
    return Entry(text=f"{UNRESOLVED} {text}", status=UNRESOLVED_STATUS, interval=noise, facts=facts)
