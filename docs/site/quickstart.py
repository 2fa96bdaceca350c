"""Writes tables and figures of the quickstart into pages, from its published rows: `make pages`.

A table stands between `<!-- quickstart: NAME -->` and `<!-- end -->`.
"""

import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd

from gallery import for_a_screen, published_file
from lra.composition.runner_class import sections
from lra.reports.report import write_parts
from lra.reports.rows import CostPoint, cost_points, cost_rows, prepare
from lra.reports.style import DEFAULT, Spread, TableStyle, using
from lra.reports.tables.costs import efficiency_table, growth_table
from lra.reports.tables.scores import accuracy_table
from lra.reports.tables.table import Entry, Table
from lra.results.rows import published_with_names

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("README.md", "docs/quickstart.md", "docs/why-linear.md", "docs/findings.md")
FIGURES = {
    "quickstart-recall": "score-by-long-step-time",
    "quickstart-time": "time-step",
    "quickstart-memory": "memory-step",
}
"""Our names of the report's figures."""
TITLES = {
    "sdpa": "SDPA, exact attention",
    "linear": "linear attention",
    "performer": "Performer, 64 features",
    "sliding_window": "sliding window, 8 tokens",
    "gated_delta_net": "Gated DeltaNet",
    "mamba2": "Mamba-2, 16 states",
    "identity": "identity (no mixing)",
}
"""Our names of the models, in the order of the table."""
SHORT, LONG = 1024, 8192
PART = re.compile(r"(<!-- quickstart: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def entries(table: Table | None) -> dict[tuple[str, str, str], Entry]:
    """Return the places of a table by section, row and column."""
    assert table is not None
    return {
        (row.section, row.title.partition(",")[0], column.title): entry
        for row in table.rows
        for column, entry in zip(table.columns, row.entries, strict=True)
    }


def scores(rows: pd.DataFrame) -> dict[str, Entry]:
    """Return the accuracy of each model and each baseline."""
    with using(replace(DEFAULT, tables=TableStyle(spread=Spread.interval))):
        table = accuracy_table(rows, "test")
    assert table is not None
    return {row.title.partition(",")[0]: row.entries[0] for row in table.rows}


def main_table(rows: pd.DataFrame) -> Iterator[str]:
    """Yield a line for each model: recall, speed, memory; then one for the best baseline."""
    costs = entries(efficiency_table(points(rows), "step"))
    speed, memory = (
        next(section for section, *_ in costs if section.startswith(start))
        for start in ("speed relative", "peak tensor memory relative")
    )
    head = ["", "recall, %", *(f"speed at {n:,} tokens" for n in (SHORT, LONG))]
    head.append(f"memory at {LONG:,} tokens")
    yield f"| {' | '.join(head)} |".replace("|  |", "| |")
    yield "|---|" + "---:|" * (len(head) - 1)
    lines = scores(rows)
    recall = {name: entry.text.replace("*", "") for name, entry in lines.items()}
    for name, title in TITLES.items():
        places = ((speed, SHORT), (speed, LONG), (memory, LONG))
        found = [costs[section, name, f"{n:,}"].text for section, n in places]
        found = ["1" if each == "ref." else each for each in found]
        yield f"| {title} | {' | '.join([recall[name], *found])} |"
    baselines = {name: entry for name, entry in lines.items() if name not in TITLES}
    best = max(baselines, key=lambda name: baselines[name].value or 0)
    yield f"| *best baseline: {best}* | *{recall[best]}* | | | |"


def growth(rows: pd.DataFrame) -> Iterator[str]:
    """Yield the exponents of time and memory of each model."""
    table = growth_table(points(rows))
    assert table is not None
    yield "| | exponent of time | exponent of memory |"
    yield "|---|---:|---:|"
    lines = {row.title: row.entries for row in table.rows}
    for name, title in TITLES.items():
        time, _, memory, _ = (entry.text for entry in lines[name])
        yield f"| {title} | {time} | {memory} |"


def speeds(rows: pd.DataFrame) -> dict[str, float]:
    """Return how many times as fast as SDPA each model is at the longest length."""
    return {
        name: entry.value
        for (section, name, column), entry in entries(
            efficiency_table(points(rows), "step")
        ).items()
        if section.startswith("speed relative") and column == f"{LONG:,}" and entry.value
    }


def fastest(rows: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence on the speed of linear attention, Performer and the window."""
    factors = [speeds(rows)[name] for name in ("linear", "performer", "sliding_window")]
    yield (
        f"At {LONG:,} tokens a training step of the whole 2-layer model is {min(factors):.1f} to "
        f"{max(factors):.1f} times faster with linear attention, Performer or the window than with "
        "SDPA on this CPU."
    )


def finding(rows: pd.DataFrame) -> Iterator[str]:
    """Yield the result in two sentences: what is faster, and how well it recalls."""
    faster, recall = speeds(rows), scores(rows)
    percent = [
        100 * (recall[name].value or 0) for name in ("linear", "gated_delta_net", "mamba2", "sdpa")
    ]
    yield (
        f"**At {LONG:,} tokens, a training step is {faster['linear']:.1f} times faster with linear "
        "attention** than with exact attention (PyTorch's SDPA) on two CPU cores, "
        f"{faster['mamba2']:.1f} times faster with Mamba-2 and {faster['gated_delta_net']:.1f} "
        "times faster with Gated DeltaNet. On a small recall task, linear attention, Mamba-2 and "
        f"Gated DeltaNet answer {min(percent[:3]):.1f} to {max(percent[:3]):.1f} % of the queries "
        f"correctly; exact attention answers {percent[3]:.1f} %."
    )


PARTS: Mapping[str, Callable[[pd.DataFrame], Iterable[str]]] = {
    "table": main_table,
    "growth": growth,
    "speed": fastest,
    "finding": finding,
}


def points(rows: pd.DataFrame) -> list[CostPoint]:
    """Return what one model costs at each length."""
    return cost_points(cost_rows(rows))


def written(text: str, rows: pd.DataFrame) -> str:
    """Return a page with its parts as the rows say."""
    return PART.sub(lambda part: part[1] + "\n".join(PARTS[part[2]](rows)) + "\n" + part[3], text)


def draw(rows: pd.DataFrame, folder: Path) -> list[Path]:
    """Draw the figures into a folder; return their paths."""
    with tempfile.TemporaryDirectory() as temporary:
        report = Path(temporary) / "report"
        write_parts(rows, report, sections=sections(), style=for_a_screen(DEFAULT))
        drawn = {folder / f"{ours}.png": f"{stem}.png" for ours, stem in FIGURES.items()}
        for path, file in drawn.items():
            shutil.copyfile(report / file, path)
    return [*drawn]


if __name__ == "__main__":
    published = published_with_names(published_file("quickstart"))
    for path in draw(published, ROOT / "docs/figures"):
        print(path)
    for page in PAGES:
        path = ROOT / page
        path.write_text(written(path.read_text("utf-8"), prepare(published)), encoding="utf-8")
        print(path)
