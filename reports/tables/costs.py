"""Make the tables of cost: speed and memory by length, crossover lengths, and growth with length.

A speed factor comes only from a measurement in which the model and its reference ran interleaved in
one process. It is never computed through a third model.
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
"""The parts of a pass, for the modes whose names do not say them."""
MEBIBYTE = 2**20
Facts = dict[str, float | int | str]
NO_INTERVAL = "there is no interval, because only one pair of passes was timed"
UNRESOLVED_STATUS = "unresolved"
"""Status of an entry with a very wide interval, which is printed instead of a number."""


def modes(points: Sequence[CostPoint]) -> list[str]:
    """Return the modes of these points, training steps first."""
    return sorted({p.mode for p in points}, key=lambda m: (m != "step", m))


def references(points: Sequence[CostPoint]) -> list[str]:
    """Return the names of the references of these points: `REFERENCES` first, then by name."""
    measured = {r for p in points for r in p.time_ratio}
    usual = [r for r in REFERENCES if r in measured]
    return usual + sorted(measured - set(usual))


def reference_name(reference: str, names: Mapping[str, str] = REFERENCE_NAMES) -> str:
    """Return the printed name of a reference: from the style in force, or else from `names`."""
    models = current_style().style.models.items()
    styled = {f"{key}{end}": f"{m.name}{end}" for key, m in models if m.name for end in ("", EQUAL)}
    return styled.get(reference) or names.get(reference, reference)


def describe_pass(mode: str) -> str:
    """Return a mode in words, as in "training step (forward, backward, update)"."""
    name = mode_name(mode)
    return f"{name} ({PARTS[mode]})" if mode in PARTS else name


def mode_name(mode: str) -> str:
    """Return a mode as a short heading, as in "training step"."""
    return PASSES.get(mode, mode)


def significant(value: float, digits: int = 3) -> str:
    """Return a number with `digits` significant digits, without exponent notation."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{round(value, decimals):,.{decimals}f}"


def mark(value: Value, *further: str) -> Entry:
    """Return the table entry of a value without a number, with its reason as the last note."""
    text = {MISSING: "–", AMBIGUOUS: "ambiguous"}.get(value.status) or MARKS[value.status]
    return Entry(text=text, status=value.status, notes=(*further, value.reason))


_BUSY = {
    "": f"{DAGGER} this was measured while another process was running",
    PROCESSOR: f"{DIAMOND} this time is by the processors' clock, which excludes waiting, because "
    f"the time by the wall clock is uncertain by more than a factor of {WIDEST_FACTOR:g}",
    UNCERTAIN: f"{DAGGER} another process disturbed this time, so exponents and crossovers exclude "
    "it",
}
"""The note on a disturbed number, by its mark."""


def dagger(entry: Entry, value: Value) -> Entry:
    """Return an entry, with † or ◇ and a note if its value was disturbed."""
    if not value.disturbed:
        return entry
    note = _BUSY[value.mark]
    symbol = note[0]
    return replace(
        entry,
        text=f"{entry.text} {symbol}",
        notes=(*entry.notes, note),
        facts={**entry.facts, "disturbed": value.disturbed, "clock": value.mark or "wall"},
    )


def busy(points: Sequence[CostPoint]) -> str:
    """Return a sentence about disturbed measurements, which begins a caption; "" if none was."""
    ratios = [ratio for point in points for ratio in point.time_ratio.values()]
    errors = []
    for ratio in ratios:
        interval = ratio.interval() if ratio.value and not ratio.uncertain else None
        if interval is not None and ratio.disturbed and ratio.value:
            errors.append(max(interval.high / ratio.value, ratio.value / interval.low) - 1)
    times = [point.time for point in points if point.time.ok]
    disturbed_times = sum(bool(time.disturbed) for time in times)
    if not errors:
        disturbed = disturbed_times or any(ratio.disturbed for ratio in ratios)
        return "Other processes disturbed these measurements." if disturbed else ""
    return (
        f"Other processes disturbed {disturbed_times} of {len(times)} times (marked {DAGGER} or "
        f"{DIAMOND}). The median uncertainty of the factors computed from these times is "
        f"±{100 * median(errors):.0f} %."
    )


def of_busy(entry: Entry, used: Sequence[Value]) -> Entry:
    """Return an entry computed from several times, with † if some of these were disturbed."""
    if entry.status != "ok" or not any(value.disturbed for value in used if not value.uncertain):
        return entry
    note = (
        f"{DAGGER} another process disturbed some of the times behind this number; the interval "
        "allows for it"
    )
    return replace(entry, text=f"{entry.text} {DAGGER}", notes=(*entry.notes, note))


def without(what: str, lengths: Sequence[int]) -> tuple[str, ...]:
    """Return a note that `what` (for example "the exponent") excludes lengths; () without any."""
    if not lengths:
        return ()
    excluded = " and ".join(f"{n:,}" for n in lengths)
    return (
        f"{what} excludes the time at {excluded} tokens, because another process disturbed it "
        f"{DAGGER}",
    )


def efficiency_table(points: Sequence[CostPoint], mode: str) -> Table | None:
    """Return the table of one mode, from points of one setting; None if no point has this mode.

    It has a section for each quantity, a line for each model and a column for each length.
    """
    of_mode = [p for p in points if p.mode == mode]
    if not of_mode:
        return None
    measured = {(p.model, p.length): p for p in of_mode}
    lengths = sorted({p.length for p in of_mode})
    names = model_order([p.model for p in of_mode])
    sections: list[tuple[str, Callable[[CostPoint], Entry]]] = [
        *((f"speed relative to {reference_name(r)} (×)", partial(_speed_entry, r))
          for r in references(of_mode)),
        ("sequences per second", _rate_entry),
        ("peak tensor memory of a batch (MiB)", _memory_entry),
        *((f"peak tensor memory relative to {reference_name(r)} (×)",
           partial(_memory_ratio, r)) for r in references(of_mode)),
    ]  # fmt: skip
    if any(p.light for p in of_mode):
        sections.append(("fraction of what the machine could do (%)", _light_entry))

    def entry_at(length: int, line: tuple[str, Callable[[CostPoint], Entry]]) -> Entry:
        """Return the entry of a line, a model and the function of its section, at a length."""
        name, make_entry = line
        point = measured.get((name, length))
        return replace(make_entry(point), cells=point.cells) if point else absent("not run")

    caption = (
        f"Columns are sequence lengths in tokens ({_batch_sizes(of_mode)}). Speeds and memory are "
        "relative to a reference that was timed interleaved with the model in one process. ≈: the "
        "95 % interval from timing noise contains 1. [low, high]: the upper end of the interval is "
        f"more than {WIDEST_FACTOR:g} times the lower end, so the table prints the interval "
        "instead of the factor. The CSV has all intervals."
    )
    if any(p.light for p in of_mode):
        caption += (
            " What the machine could do: the least time of a pass, by its operations and the rate "
            "of a large matrix product, or (memory) by the bytes that it cannot avoid and the "
            "bandwidth of a large copy. A value can exceed 100: operations of causal exact "
            "attention count all pairs of tokens, and data in a cache exceed that bandwidth."
        )
    return table_of(
        [(section, name, (name, entry)) for section, entry in sections for name in names],
        [(Column(title=f"{n:,}", key=str(n)), partial(entry_at, n)) for n in lengths],
        title=f"Cost of one {describe_pass(mode)}", caption=f"{busy(of_mode)} {caption}".strip(),
        stub="model, by length",
    )  # fmt: skip


def _batch_sizes(points: Sequence[CostPoint]) -> str:
    """Return the batch sizes in words: "batch size 8 at 512, 4 at 1,024"."""
    by_length: dict[int, set[int]] = {}
    for p in points:
        if p.batch_size is not None:
            by_length.setdefault(p.length, set()).add(p.batch_size)
    sizes = {size for sizes_at_length in by_length.values() for size in sizes_at_length}
    if not sizes:
        return "batch size not recorded"
    if len(sizes) == 1:
        return f"batch size {sizes.pop()} at every length"
    parts = [f"{'/'.join(map(str, sorted(s)))} at {n:,}" for n, s in sorted(by_length.items())]
    return "batch size " + ", ".join(parts)


def _entry_without_pair(point: CostPoint, reference: str) -> Entry:
    """Return the entry of a point without a ratio: "ref." for the reference itself, or a dash."""
    if point.family == reference:
        return Entry(text="ref.", status="reference", notes=("the reference itself",))
    return absent(f"{reference_name(reference, {})} was not timed interleaved with this model")


def invert(interval: Interval | None) -> Interval | None:
    """Return the interval of 1 / x, from the interval of a positive x; None for None."""
    if interval is None:
        return None
    return Interval(1 / interval.high, 1 / interval.low, interval.source, interval.level)


def _speed_entry(reference: str, point: CostPoint) -> Entry:
    """Return how many times as fast the model of a point is as a reference."""
    if not point.time.ok:
        return mark(point.time)
    ratio = point.time_ratio.get(reference)
    if ratio is None:
        return _entry_without_pair(point, reference)
    if ratio.value is None:
        return mark(ratio, f"there is no ratio, because {reference_name(reference, {})} failed")
    interval = invert(ratio.interval())
    facts: Facts = {"pairs": len(ratio.samples), "batch_size": point.batch_size or ""}
    contains_1 = interval is not None and interval.low <= 1.0 <= interval.high
    if contains_1 and interval is not None and interval.high > WIDEST_FACTOR * interval.low:
        text = f"{UNRESOLVED} [{significant(interval.low, 2)}, {significant(interval.high, 2)}]"
        return Entry(text=text, status=UNRESOLVED_STATUS, interval=interval, facts=facts)
    entry = Entry(
        text=("≈ " if contains_1 else "") + significant(1 / ratio.value, 2), value=1 / ratio.value,
        interval=interval, facts=facts,
        notes=tuple(filter(None, [ratio.reason])) if interval else (NO_INTERVAL,),
    )  # fmt: skip
    return dagger(entry, ratio)


def _rate_entry(point: CostPoint) -> Entry:
    """Return the sequences per second of a point."""
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
    """Return the peak memory of a point in MiB."""
    if point.memory.value is None:
        return mark(point.memory)
    size, facts = point.memory.value / MEBIBYTE, {"batch_size": point.batch_size or ""}
    return Entry(text=significant(size), value=size, facts=facts)


def _light_entry(point: CostPoint) -> Entry:
    """Return the least time of a pass on this machine in percent of the measured time."""
    if point.light is None or point.time.value is None:
        return absent("rows lack operations or bandwidth") if point.time.ok else mark(point.time)
    fraction = 100 * point.light.seconds / point.time.value
    limit = point.light.limit
    notes = (f"{limit} set the least time of a pass: {significant(point.light.seconds)} s",)
    text = f"{significant(fraction, 2)}{'' if limit == 'operations' else ' (memory)'}"
    facts: Facts = {"limit": limit, "least_seconds": point.light.seconds}
    return dagger(Entry(text=text, value=fraction, notes=notes, facts=facts), point.time)


def _memory_ratio(reference: str, point: CostPoint) -> Entry:
    """Return the peak memory of a point's model divided by that of a reference."""
    ratio = point.memory_ratio.get(reference)
    if ratio is None:
        return _entry_without_pair(point, reference) if point.time.ok else mark(point.time)
    if ratio.value is None:
        return mark(ratio, f"there is no ratio, because {reference_name(reference, {})} failed")
    return Entry(text=significant(ratio.value, 2), value=ratio.value)


# ---------------------------------------------------------------------- crossover and growth


def measured_crossover(points: Sequence[CostPoint], reference: str) -> Crossover:
    """Return the length from which a model is faster than a reference.

    `points` are those of one model in one mode; uncertain ones are excluded.
    """
    ratios = [
        (p.length, p.time_ratio[reference])
        for p in sorted(points, key=lambda p: p.length)
        if reference in p.time_ratio
    ]
    pairs = [(n, r) for n, r in ratios if r.value is not None and not r.uncertain]
    lengths = [n for n, _ in pairs]
    wall = _crossover_of_ratios(lengths, [r for _, r in pairs])
    if not any(r.both for _, r in pairs):
        return wall
    # Of disturbed times, the other clock gives a second crossover; the interval covers both.
    other = _crossover_of_ratios(lengths, [r.both or r for _, r in pairs])
    both_places, both_intervals = (wall.place, other.place), (wall.interval, other.interval)
    return replace(wall, interval=beyond_both_ratios(both_places, both_intervals, LENGTHS))


def _crossover_of_ratios(lengths: Sequence[int], ratios: Sequence[Value]) -> Crossover:
    """Return the crossover by the ratios of one clock, which all have a value."""
    values = [r.value for r in ratios if r.value is not None]
    return crossover(lengths, values, [r.samples for r in ratios])


def crossover_table(points: Sequence[CostPoint]) -> Table | None:
    """Return the table of crossover lengths by mode and reference; None without any reference."""
    if not references(points):
        return None
    heads = [(m, r) for m in modes(points) for r in references([p for p in points if p.mode == m])]
    caption = (
        f"{busy(points)} A number is the sequence length from which the model is faster than the "
        "reference at all longer lengths that were measured. It is interpolated between lengths on "
        "logarithmic axes [95 % interval from timing noise]. ≤: the model is faster already at the "
        "shortest length. Too uncertain: the interval has an open end, or its upper end is more "
        f"than {WIDEST:g} times its lower end."
    )
    return table_of(
        [("", name, name) for name in model_order([p.model for p in points])],
        [(Column(group=mode_name(m), title=f"faster than {reference_name(r, {})} from"),
          partial(_crossover_entry, points, m, r)) for m, r in heads],
        title="Crossover length", caption=caption.strip(),
    )  # fmt: skip


def _crossover_entry(
    all_points: Sequence[CostPoint], mode: str, reference: str, name: str
) -> Entry:
    """Return the crossover length of the model `name` with a reference in one mode."""
    points = [p for p in all_points if p.model == name and p.mode == mode]
    points = sorted(points, key=lambda p: p.length)
    crossing = measured_crossover(points, reference)
    excluded = [
        p.length for p in points if reference in p.time_ratio and p.time_ratio[reference].uncertain
    ]
    if crossing.reach is Reach.unknown:
        if excluded:
            reason = "another process disturbed the times at all lengths too much"
            return replace(absent(reason), text=f"– {DAGGER}")
        if any(p.family == reference for p in points):
            return Entry(text="ref.", status="reference", notes=("the reference itself",))
        return absent("the reference was not timed in the same run as this model")
    failed_lengths: dict[str, list[str]] = {}
    for p in points:
        ratio = p.time_ratio.get(reference) if p.time.ok else p.time
        if ratio is not None and not ratio.ok:
            failed_lengths.setdefault(ratio.reason, []).append(f"{p.length:,}")
    notes = tuple(
        note
        for reason, lengths in failed_lengths.items()
        for note in (f"the ratio is unknown at {' and '.join(lengths)} tokens", reason)
    )
    notes += without("the crossover", excluded)
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
    """Return the table of fitted exponents of time and memory; None without two lengths."""
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
        caption=f"{busy(points)} The exponent e of cost per sequence = c × length^e is fitted by "
        "least squares to all measured lengths [95 % interval: the wider of those from residuals "
        "and from timing noise]. The second column of each pair uses only the two longest lengths. "
        f"Too uncertain: there are fewer than {FEWEST} lengths, or the interval is wider than "
        f"± {RESOLVED:g}, so it can contain both linear growth and n^1.5.".strip(),
    )  # fmt: skip


def fit_values(measured: Sequence[tuple[int, Value]]) -> PowerLaw:
    """Return the power law that fits (length, positive value) pairs, by rising length.

    If disturbed times have values by two clocks, the interval from noise covers both fits.
    """
    fit = _fit_one_clock(measured)
    if not any(v.both for _, v in measured):
        return fit
    other = _fit_one_clock([(n, v.both or v) for n, v in measured])
    noise = beyond_both((fit.exponent, other.exponent), (fit.noise, other.noise), LENGTHS)
    return replace(fit, noise=noise)


def _fit_one_clock(measured: Sequence[tuple[int, Value]]) -> PowerLaw:
    """Return the power law that fits the values of one clock, which are all known."""
    values = [v.value for _, v in measured if v.value is not None]
    return fit_exponent([n for n, _ in measured], values, [v.samples for _, v in measured])


def _growth_entries(points: Sequence[CostPoint], quantity: str) -> tuple[Entry, Entry]:
    """Return the exponent of a model's `time` or `memory`, over all lengths and the last two."""
    costs = [
        (p.length, p.per_sequence(p.time if quantity == "time" else p.memory))
        for p in sorted(points, key=lambda p: p.length)
    ]
    measured = [(n, v) for n, v in costs if v.value and not v.uncertain]  # log 0 has no slope
    notes = without("the exponent", [n for n, v in costs if v.uncertain])
    used = [v for _, v in costs]
    if len(measured) < 2:
        reason = "an exponent needs at least two lengths with a number"
        return absent(reason, *notes), absent(reason, *notes)
    lengths = [n for n, _ in measured]
    fit = fit_values(measured)
    facts: Facts = {"shortest": lengths[0], "longest": lengths[-1], "points": len(lengths)}
    value = fit.exponent if fit.resolved else None
    status = "ok" if fit.resolved else UNRESOLVED_STATUS
    over_all = Entry(
        text=str(fit), value=value, interval=fit.interval, status=status, notes=notes, facts=facts
    )
    last_two = _last_slope(fit_values(measured[-2:]), exact=quantity == "memory")
    return of_busy(over_all, used), of_busy(replace(last_two, notes=notes), used)


def _last_slope(fit: PowerLaw, *, exact: bool) -> Entry:
    """Return the slope of a fit to two lengths; `exact` numbers are printed without an interval."""
    noise = fit.noise
    facts: Facts = {"shortest": fit.lengths[0], "longest": fit.lengths[1], "points": 2}
    if exact or (noise is not None and noise.high - noise.low <= 2 * RESOLVED):
        text = f"{round(fit.exponent, 2) + 0.0:.2f}"
        return Entry(text=text, value=fit.exponent, interval=noise, facts=facts)
    text = bounds(noise.low, noise.high) if noise else "(no repeated samples)"
    return Entry(text=f"{UNRESOLVED} {text}", status=UNRESOLVED_STATUS, interval=noise, facts=facts)
