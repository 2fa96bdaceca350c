"""Writes docs/gallery.md, every kind of figure from the published rows: `make gallery`."""

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from lra.composition.class_path import name_plugins, see
from lra.composition.runner_class import sections
from lra.composition.selection import kinds
from lra.reports.report import write_parts
from lra.reports.style import Format, ReportStyle
from lra.results.rows import deviations, published_cells, published_with_names
from lra.results.style import read_style

ROOT = Path(__file__).resolve().parents[2]
PEERS = "tests/parity"
"""Where the plug-in `peers` lies."""
DPI = 130
"""Of its pictures, which are looked at on a screen."""
INTRODUCTION = """# Gallery

Every kind of figure that a report draws, from the rows in `reports/published` of a clone. The
command below draws it again there, as PDF, SVG and PNG, with its numbers as CSV and its caption as
text, in one of the [styles](figures-for-papers.md). `make gallery` writes this page.
"""


class Exhibit(NamedTuple):
    """One figure of the gallery."""

    function: str
    """What draws it, by its dotted path."""
    rows: str
    """The sweep whose published rows it shows."""
    style: str
    stem: str
    """Name of its files, without the ending."""
    heading: str


EXHIBITS = (
    Exhibit("reports.figures.panels.scaling_figure", "quickstart", "paper_column", "time-step",
            "Time against length"),
    Exhibit("reports.figures.panels.scaling_figure", "quickstart", "paper_column", "memory-step",
            "Memory against length"),
    Exhibit("reports.figures.panels.scaling_figure", "families", "paper_full", "time-step",
            "Time against length, of many models"),
    Exhibit("reports.sections.score_dots.dots_figure", "recall", "paper_column", "scores",
            "Scores with intervals"),
    Exhibit("reports.sections.score_cost.score_cost_figure", "recall", "paper_column",
            "score-by-step-time", "Score against time of a step"),
    Exhibit("reports.sections.losses.loss_figure", "quickstart", "paper_column", "training-loss",
            "Training loss"),
    Exhibit("reports.sections.losses.class_figures", "transformer_xl", "paper_full",
            "loss-by-place", "Loss by position in the window"),
    Exhibit("reports.sections.losses.class_figures", "adaptive_span", "paper_column",
            "loss-by-frequency", "Loss by token frequency"),
    Exhibit("reports.sections.score_cost.score_cost_figure", "lite_transformer", "paper_full",
            "score-by-multiply-adds", "Score against operations"),
    Exhibit("reports.figures.panels.line_figures", "decode", "paper_column", "decoding-token-time",
            "Time of one token while writing"),
    Exhibit("reports.figures.panels.line_figures", "decode", "paper_column",
            "decoding-state-bytes", "Memory of a state while writing"),
    Exhibit("peers.section.speed_figure", "peers_linear", "paper_full",
            "peers-speed-step", "Speed beside other implementations"),
    Exhibit("reports.sections.extrapolation.extrapolation_figure", "extrapolate", "paper_full",
            "extrapolation", "Beyond the trained length"),
    Exhibit("reports.sections.context.context_figure", "context", "paper_full", "context",
            "Use of context"),
    Exhibit("reports.sections.spans.span_figure", "span_text8", "paper_full", "span",
            "Attention span"),
    Exhibit("reports.sections.spans.span_figure", "adaptive_span", "paper_column",
            "learned-spans-by-layer", "Learned spans"),
    Exhibit("reports.sections.recovery.recovery_figure", "transfer", "paper_full",
            "recovery-accuracy-curve", "Recovery after a change of attention"),
    Exhibit("reports.sections.tuning_points.point_figure", "tuned_recall", "paper_column",
            "tuning-options-accuracy", "Sensitivity to the rate of learning"),
    Exhibit("reports.sections.tuning_curves.curve_figure", "tuned_recall", "paper_full",
            "tuning-curve-accuracy", "Tuning curves"),
    Exhibit("reports.sections.parallel.parallel_figure", "parallel", "paper_full", "parallel",
            "Steps on several processes"),
    Exhibit("reports.sections.compression.compression_figure", "compress", "paper_full",
            "compression-trade-off", "Compression"),
)  # fmt: skip
WITHOUT_ROWS = {
    "reports.figures.bubbles.bubble_figure": "speed, score and memory of models that were trained "
    "and timed under a protocol of the Long Range Arena",
    "reports.sections.attention_mass.mass_figure": "what the runner `attention_mass` measured",
}
"""What draws a kind of figure of which no rows are published, and what its rows are."""


def published_file(rows: str) -> Path:
    """Return the newest published rows of a sweep: SWEEP-MACHINE-DATE.jsonl."""
    files = (ROOT / "reports/published").glob(f"{rows}-*-*-*-*.jsonl")
    return max(files, key=lambda file: file.stem[-len("2026-01-01") :])


def command(exhibit: Exhibit) -> str:
    """Return the line that makes a figure, in a clone of lra."""
    file = published_file(exhibit.rows).name
    line = f"lra report --rows reports/published/{file} --style {exhibit.style} --out figures"
    if exhibit.function.startswith("peers."):
        return f"PYTHONPATH={PEERS} {line} --config-dir {PEERS}/peers/conf --plugin peers"
    return line


def picture(exhibit: Exhibit) -> str:
    """Return the name of the file with its picture."""
    return f"{exhibit.rows}-{exhibit.stem}-{exhibit.style.removeprefix('paper_')}.png"


def write_gallery(docs: Path, exhibits: Sequence[Exhibit] = EXHIBITS) -> list[Path]:
    """Write `gallery.md` and the folder `gallery` of its pictures; return the paths."""
    folder = docs / "gallery"
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        order = sorted(exhibits, key=lambda e: (e.rows, e.style))
        for (rows, style), group in groupby(order, key=lambda e: (e.rows, e.style)):
            drawn = Path(temporary) / f"{rows}-{style}"
            _draw(rows, style, drawn)
            for exhibit in group:
                shutil.copyfile(drawn / f"{exhibit.stem}.png", folder / picture(exhibit))
    for file in {*folder.glob("*.png")} - {folder / picture(e) for e in exhibits}:
        file.unlink()
    page = docs / "gallery.md"
    page.write_text("\n".join(_page(exhibits)) + "\n", encoding="utf-8")
    return [page, *(folder / picture(exhibit) for exhibit in exhibits)]


def for_a_screen(style: ReportStyle) -> ReportStyle:
    """Return a style whose figures are PNG files of `DPI`."""
    settings = {**style.matplotlib, "savefig.dpi": DPI}
    return replace(style, formats=[Format.png], matplotlib=settings)


def _draw(rows: str, style: str, folder: Path) -> None:
    wanted, _ = read_style(style)
    file = published_file(rows)
    see(str(ROOT / PEERS))
    name_plugins(["peers"])
    write_parts(
        published_with_names(file), folder, groups=kinds(),
        sections=sections(config_dirs=[ROOT / PEERS / "peers/conf"], plugins=["peers"]),
        deviations={key: deviations(node) for key, node in published_cells(file).items()},
        style=for_a_screen(wanted),
    )  # fmt: skip


def _page(exhibits: Sequence[Exhibit]) -> Iterator[str]:
    yield INTRODUCTION
    for exhibit in exhibits:
        yield f"## {exhibit.heading}\n"
        yield f"![{exhibit.heading}](gallery/{picture(exhibit)})\n"
        yield f"`figures/{exhibit.stem}.pdf`:\n"
        yield f"```\n{command(exhibit)}\n```\n"
    yield "## Kinds without published rows\n"
    for function, what in WITHOUT_ROWS.items():
        yield f"- `{function}` draws {what}."


if __name__ == "__main__":
    for path in write_gallery(ROOT / "docs"):
        print(path)
