"""The paper's table 2: speed and memory of a training step on text, relative to exact attention."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from lra.reports.arena.literature import cost_source, published_cost
from lra.reports.arena.rules import BATCH, COSTED, LENGTHS, place
from lra.reports.arena.runs import ProtocolRuns
from lra.reports.rows import ComparableRows, CostPoint, Value, by_setting, cost_points, cost_rows
from lra.reports.statistics.intervals import median_interval
from lra.reports.tables.costs import (
    REFERENCES,
    dagger,
    invert,
    mark,
    reference_name,
    references,
    significant,
)
from lra.reports.tables.marks import absent
from lra.reports.tables.pivot import listed_table
from lra.reports.tables.scores import CAVEAT
from lra.reports.tables.table import Column, Entry, Table

MODE = "step"
GIGABYTE = 1e9
ON_TPU = "published, on TPUs"
_ROUND = ("1K", "2K", "3K", "4K")
"""Titles of the lengths of published numbers, in their order."""


def arena_points(runs: ProtocolRuns) -> Iterator[tuple[ComparableRows, list[CostPoint]]]:
    """Yield each machine setting with its costs of training steps on text.

    Runs of the published size count at the paper's batch size and lengths (a failed run has no
    batch size); runs of another scale count at any.
    """
    rows = runs.rows[(runs.rows["task"] == COSTED) & (runs.rows["mode"] == MODE)]
    timed = cost_rows(rows.assign(name=rows["line"]))
    for part in by_setting(timed) if len(timed) else ():
        points = [
            point
            for point in cost_points(part.rows)
            if runs.scale or (point.length in LENGTHS and point.batch_size in {BATCH, None})
        ]
        if any(point.time.ok for point in points):
            yield part, points


def best_reference(points: Sequence[CostPoint]) -> str:
    """Return the first of `REFERENCES` that was measured with these points; "" if none was."""
    measured = references(points)
    return next((name for name in REFERENCES if name in measured), "")


def cost_table(runs: ProtocolRuns, part: ComparableRows, points: Sequence[CostPoint]) -> Table:
    """Return the table of one machine setting, with speed and memory at each length.

    Args:
        runs: the runs of the points.
        part: the rows of the points, and the machine setting.
        points: the costs that `arena_points` yields.
    """
    reference, lengths = best_reference(points), sorted({p.length for p in points})
    measured = {(p.model, p.length): p for p in points}
    families = dict(zip(part.rows["line"], part.rows["family"], strict=True))
    lines: list[tuple[str, str, list[Entry]]] = []
    published_families = set()
    for name in sorted({p.model for p in points}, key=lambda n: (place(families[n]), n)):
        row_points = [measured.get((name, n)) for n in lengths]
        is_reference = families[name] == reference
        steps = [_steps_entry(p, reference, is_reference) for p in row_points]
        memories = [_memory_entry(p, reference, is_reference) for p in row_points]
        lines.append(("", name, steps + memories))
        published = _published_entries(families[name], lengths)
        if published and families[name] not in published_families:
            lines.append(("", f"{families[name]} ({ON_TPU})", published))
            published_families.add(families[name])
    heads = [
        Column(group=group, title=LENGTHS.get(n, f"{n:,}"), key=f"{key} {n}")
        for group, key in (("steps per second", "steps"), ("peak memory (GB)", "memory"))
        for n in lengths
    ]
    return listed_table(
        lines, heads, title=f"Long Range Arena, table 2, {runs.title}",
        caption=" ".join(_caption(runs, part, points, published=bool(published_families))),
    )  # fmt: skip


def _caption(
    runs: ProtocolRuns, part: ComparableRows, points: Sequence[CostPoint], *, published: bool
) -> list[str]:
    """Return the sentences of the caption; `published` says if lines have published numbers."""
    reference, sentences = best_reference(points), []
    if runs.scale:
        sentences.append(f"These runs have scale {runs.scale}, which is smaller than the paper's.")
    sizes = sorted({p.batch_size for p in points if p.batch_size is not None})
    lengths = ", ".join(f"{n:,}" for n in sorted({p.length for p in points}))
    sentences.append(
        f"Each number is for a training step on the task {COSTED} with batch size "
        f"{', '.join(map(str, sizes))} and lengths {lengths} ({part.title}). Peak memory is the "
        "largest size of all tensors that exist at the same time, in 10^9 bytes."
    )
    if reference:
        sentences.append(
            f"Brackets hold the ratio to {reference_name(reference)}, which was timed interleaved "
            "with the model in the same run."
        )
    if published:
        source, remark = cost_source()
        sentences.append(
            f"Lines with ({ON_TPU}) are from {source} ({remark}). They used another machine and "
            "another model size, so compare only their ratios with ours."
        )
    return [*sentences, CAVEAT]


def _steps_entry(point: CostPoint | None, reference: str, is_reference: bool) -> Entry:
    """Return the steps per second of a point, with the ratio to exact attention."""
    if point is None:
        return absent("not run")
    if point.time.value is None:
        return mark(point.time)
    rate = 1 / point.time.value
    interval, facts = invert(median_interval(point.time.samples)), _batch(point)
    entry = Entry(text=significant(rate), value=rate, interval=interval, facts=facts)
    ratio = point.time_ratio.get(reference)
    if ratio is not None and ratio.value is not None:
        ratio = replace(ratio, value=1 / ratio.value)
    return dagger(_with_ratio(entry, ratio, is_reference), point.time)


def _batch(point: CostPoint) -> dict[str, int | str]:
    """Return the fact about a point's batch size; "" if it is unknown."""
    return {"batch_size": point.batch_size or ""}


def _memory_entry(point: CostPoint | None, reference: str, is_reference: bool) -> Entry:
    """Return the peak memory of a point in GB, with the ratio to exact attention."""
    if point is None:
        return absent("not run")
    if point.memory.value is None:
        return mark(point.memory)
    size = point.memory.value / GIGABYTE
    entry = Entry(text=significant(size), value=size, facts=_batch(point))
    return _with_ratio(entry, point.memory_ratio.get(reference), is_reference)


def _with_ratio(entry: Entry, ratio: Value | None, is_reference: bool) -> Entry:
    """Add the ratio to exact attention after a number, or a note about why it is missing."""
    if is_reference:
        return replace(entry, text=f"{entry.text} (1)", facts={**entry.facts, "ratio": 1.0})
    if ratio is None:
        return replace(
            entry, notes=(*entry.notes, "exact attention was not measured in the same run")
        )
    if ratio.value is None:
        note = f"exact attention: {ratio.reason}"
        return replace(entry, text=f"{entry.text} (–)", notes=(*entry.notes, note))
    text = f"{entry.text} ({significant(ratio.value, 2)})"
    return replace(entry, text=text, facts={**entry.facts, "ratio": ratio.value})


def _published_entries(family: str, lengths: Sequence[int]) -> list[Entry]:
    """Return the paper's speeds and memories at these lengths; [] if the paper has none."""
    cost = published_cost(family)
    if cost is None or not any(n in LENGTHS for n in lengths):
        return []
    indices = [_ROUND.index(LENGTHS[n]) if n in LENGTHS else None for n in lengths]
    return [_published_entry(cost.steps_per_second, cost.ratio, i) for i in indices] + [
        _published_entry(cost.gigabytes, None, i) for i in indices
    ]


def _published_entry(
    values: Sequence[float | None], ratios: Sequence[float | None] | None, index: int | None
) -> Entry:
    """Return a published number and its ratio; a dash if the index or the number is None."""
    if index is None or (value := values[index]) is None:
        return absent()
    ratio = None if ratios is None else ratios[index]
    return Entry(text=f"{value:g}" if ratio is None else f"{value:g} ({ratio:g})", value=value)
