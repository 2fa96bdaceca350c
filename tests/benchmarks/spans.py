"""Step time of an adaptive-span layer against the span that its heads have.

    PYTHONPATH=. python tests/benchmarks/spans.py --json ROWS

One training step (forward and backward) of the layer on a segment of 512 behind a memory of 1,024,
width 512, 8 heads, every head of one span, beside the same layer with the full span of 1,024. All
samples are interleaved; the operations are counted.
"""

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.contract.counting import count_operations
from models.families.adaptive_span import AdaptiveSpan
from models.mixer import Flow, Layout, Site
from reports.figures.drawing import style
from reports.figures.layout import arrange, sheet

ROWS, LENGTH, LIMIT, WIDTH, HEADS, RAMP = 2, 512, 1024, 512, 8, 32
SPANS = (0, 64, 128, 256, 512, 1024)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=9)
    parser.add_argument("--json", type=Path, help="append rows, one JSON object a line")
    parser.add_argument("--figure", type=Path, help="draw the times into this file")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    steps = {span: Step(span) for span in SPANS}
    taken: dict[int, list[float]] = {span: [] for span in SPANS}
    for number in range(arguments.samples + 1):
        for span, step in steps.items():
            begun = time.perf_counter()
            step()
            if number:  # the first round warms up
                taken[span].append(time.perf_counter() - begun)
    full = taken[LIMIT]
    rows: list[dict[str, Any]] = []
    for span, samples in taken.items():
        ratios = [own / whole for own, whole in zip(samples, full, strict=True)]
        rows.append(
            {
                "what": f"step at span {span}, of a step at span {LIMIT}",
                "span": span,
                "seconds": samples,
                "ratios": ratios,
                "operations": count_operations(steps[span]),
                "threads": torch.get_num_threads(),
                "torch": torch.__version__,
            }
        )
        low, middle, high = statistics.quantiles(ratios, n=4)
        share = rows[-1]["operations"]
        print(
            f"span {span:>5}: {1e3 * statistics.median(samples):7.1f} ms, "
            f"{middle:.3f} [{low:.3f}, {high:.3f}] of the full span, {share:.3e} operations"
        )
    if arguments.figure:
        draw(rows, arguments.figure)
    if arguments.json:
        with arguments.json.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def draw(rows: list[dict[str, Any]], file: Path) -> None:
    """Draw time and operations, as shares of those at the full span."""
    spans = [row["span"] for row in rows]
    quartiles = np.array([statistics.quantiles(row["ratios"], n=4) for row in rows])
    operations = np.array([row["operations"] for row in rows])
    with style():
        made = sheet(1, plot=(3.2, 2.2))
        (axes,) = made.axes
        (time_line,) = axes.plot(spans, quartiles[:, 1], marker="o", label="time of a step")
        axes.fill_between(spans, quartiles[:, 0], quartiles[:, 2], alpha=0.18, linewidth=0)
        (count_line,) = axes.plot(
            spans, operations / operations[-1], marker="s", linestyle="--", label="operations"
        )
        axes.set_xlabel("span of every head (tokens)")
        axes.set_ylabel("of the full span")
        axes.set_ylim(bottom=0)
        axes.set_xticks(spans[:1] + spans[3:])
        figure = arrange(
            made,
            title="Step time of adaptive spans",
            subtitle="medians and quartiles of interleaved samples",
            handles=[time_line, count_line],
        )
        figure.savefig(file, dpi=150, metadata={"Software": None})


class Step:
    """A layer whose heads all have one span, and what it reads."""

    def __init__(self, span: int) -> None:
        site = Site(width=WIDTH, heads=HEADS, max_length=LENGTH, causal=True)
        self.layer = AdaptiveSpan(site, span=LIMIT, ramp=RAMP, initial=span / LIMIT).train()
        self.x = torch.randn(ROWS, LENGTH, WIDTH, requires_grad=True)
        state = self.layer.initial_state(ROWS, LIMIT)
        with torch.no_grad():
            for _ in range(LIMIT // LENGTH):
                x = torch.randn(ROWS, LENGTH, WIDTH)
                state = self.layer.extend(Flow(x, state), Layout()).state
        self.state = state

    def __call__(self) -> None:
        """Read the segment, and back."""
        self.layer.extend(Flow(self.x, self.state), Layout()).x.sum().backward()


if __name__ == "__main__":
    main()
