"""The tables of docs/published.md: what was checked in published tables, and what is wrong."""

from collections.abc import Iterator

from lra.reports.literature.findings import (
    FAILURES,
    CheckKind,
    arena_means,
    disagreements,
    lint,
    mixed_tables,
)
from lra.reports.literature.record import FigureOrigin, published_record

SHOWN = 12
"""Lines of the table of disagreements."""


def published_checks() -> Iterator[str]:
    """Yield the lines of the table of checks."""
    record = published_record()
    checks = lint(record)
    yield "| check | figures | wrong |"
    yield "|---|---:|---:|"
    figures, tables = len(record.figures), len(record.tables)
    yield f"| range, unit, task and source of each figure, in {tables} tables | {figures:,} | 0 |"
    for kind in CheckKind:
        of_kind = [check for check in checks if check.kind is kind]
        yield f"| {kind} | {len(of_kind)} | {sum(bool(check.finding) for check in of_kind)} |"


def published_wrong() -> Iterator[str]:
    """Yield the lines of the table of figures that do not add up."""
    yield "| system | figure | printed | what we find | table |"
    yield "|---|---|---:|---|---|"
    for check in lint(published_record()):
        if check.finding:
            f = check.figure
            yield f"| {f.system} | {f.task} | {f.text} | {check.finding} | {f.table.place} |"


def published_mixed() -> Iterator[str]:
    """Yield a line for each table with means over different tasks in one column."""
    for place, systems in mixed_tables(published_record()).items():
        means = "; ".join(f"`{mean}`: {', '.join(names)}" for mean, names in systems.items())
        yield f"- {place}. {means}"


def published_means() -> Iterator[str]:
    """Yield the lines of the table of the three means of the Long Range Arena."""
    record, used = published_record(), set()
    yield "| system | " + " | ".join(f"`{name}`" for name in FAILURES) + " | printed | table |"
    yield "|---|---:|---:|---:|---:|---|"
    for f in record.figures:
        means = arena_means(f, record) if f.task in ("five_tasks", "six_tasks") else {}
        if (f.table.place, f.system) in used or not means or f.origin is FigureOrigin.quoted:
            continue
        if len(means) == len(FAILURES):
            used.add((f.table.place, f.system))
            cells = " | ".join(f"{mean:.2f}" for mean in means.values())
            yield f"| {f.system} | {cells} | {f.text} | {f.table.place} |"


def published_disagreements() -> Iterator[str]:
    """Yield the lines of the table of sources that differ most."""
    yield "| system | task | printed accuracies in percent |"
    yield "|---|---|---|"
    for group in disagreements(published_record())[:SHOWN]:
        texts = "; ".join(f"{f.text} ({f.table.place})" for f in group)
        yield f"| {group[0].system} | {group[0].task} | {texts} |"
