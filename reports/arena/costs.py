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


def arena_points(runs: ProtocolRuns) -> Iterator[tuple[ComparableRows, list[CostPoint]]]:
    """Yield each machine setting with its training steps on text, at the paper's batch and lengths.

    A point without a batch size has failed. At another scale than the published, any batch and
    length counts.
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
    """Return the exact attention among the references: the literal one first, as published."""
    measured = references(points)
    return next((name for name in REFERENCES if name in measured), "")


def cost_table(runs: ProtocolRuns, part: ComparableRows, points: Sequence[CostPoint]) -> Table:
    """Build the table of one setting: groups of speed and memory, lengths side by side.

    Args:
        runs: what the points belong to.
        part: their rows and the machine.
        points: as `arena_points` yields them.
    """
    reference, lengths = best_reference(points), sorted({p.length for p in points})
    measured = {(p.model, p.length): p for p in points}
    families = dict(zip(part.rows["line"], part.rows["family"], strict=True))
    lines: list[tuple[str, str, list[Entry]]] = []
    printed = set()
    for name in sorted({p.model for p in points}, key=lambda n: (place(families[n]), n)):
        row_points = [measured.get((name, n)) for n in lengths]
        itself = families[name] == reference
        entries = [_steps(p, reference, itself) for p in row_points]
        lines.append(("", name, entries + [_memory(p, reference, itself) for p in row_points]))
        published = _paper_costs(families[name], lengths)
        if published and families[name] not in printed:
            lines.append(("", f"{families[name]} ({ON_TPU})", published))
            printed.add(families[name])
    heads = [
        Column(group=group, title=LENGTHS.get(n, f"{n:,}"), key=f"{key} {n}")
        for group, key in (("steps per second", "steps"), ("peak memory (GB)", "memory"))
        for n in lengths
    ]
    return listed_table(
        lines, heads, title=f"Long Range Arena, table 2, {runs.title}",
        caption=" ".join(_caption(runs, part, points, printed=bool(printed))),
    )  # fmt: skip


def _caption(
    runs: ProtocolRuns, part: ComparableRows, points: Sequence[CostPoint], *, printed: bool
) -> list[str]:
    reference, sentences = best_reference(points), []
    if runs.scale:
        sentences.append(f"Scale {runs.scale}: smaller than what the paper measured.")
    sizes = sorted({p.batch_size for p in points if p.batch_size is not None})
    lengths = ", ".join(f"{n:,}" for n in sorted({p.length for p in points}))
    sentences.append(
        f"One training step on {COSTED}, batch {', '.join(map(str, sizes))}, lengths {lengths} "
        f"({part.title}). Peak memory: tensors alive at once, 10^9 bytes."
    )
    if reference:
        sentences.append(
            f"In brackets: the ratio to {reference_name(reference)}, which was measured "
            "interleaved with the model in the same run."
        )
    if printed:
        source, remark = cost_source()
        sentences.append(
            f"Lines ({ON_TPU}): {source} ({remark}); another machine and another model size, so "
            "compare only the ratios with ours."
        )
    return [*sentences, CAVEAT]


def _steps(point: CostPoint | None, reference: str, itself: bool) -> Entry:
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
    return dagger(_with_ratio(entry, ratio, itself), point.time)


def _batch(point: CostPoint) -> dict[str, int | str]:
    return {"batch_size": point.batch_size or ""}


def _memory(point: CostPoint | None, reference: str, itself: bool) -> Entry:
    if point is None:
        return absent("not run")
    if point.memory.value is None:
        return mark(point.memory)
    size = point.memory.value / GIGABYTE
    entry = Entry(text=significant(size), value=size, facts=_batch(point))
    return _with_ratio(entry, point.memory_ratio.get(reference), itself)


def _with_ratio(entry: Entry, ratio: Value | None, itself: bool) -> Entry:
    """Put the ratio to exact attention behind a number, or say why there is none."""
    if itself:
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


def _paper_costs(family: str, lengths: Sequence[int]) -> list[Entry]:
    """Return the paper's numbers at these lengths; nothing where it has none."""
    cost = published_cost(family)
    if cost is None or not any(n in LENGTHS for n in lengths):
        return []
    at = [_ROUND.index(LENGTHS[n]) if n in LENGTHS else None for n in lengths]
    return [_printed(cost.steps_per_second, cost.ratio, i) for i in at] + [
        _printed(cost.gigabytes, None, i) for i in at
    ]


def _printed(
    values: Sequence[float | None], ratios: Sequence[float | None] | None, at: int | None
) -> Entry:
    if at is None or (value := values[at]) is None:
        return absent()
    ratio = None if ratios is None else ratios[at]
    return Entry(text=f"{value:g}" if ratio is None else f"{value:g} ({ratio:g})", value=value)
