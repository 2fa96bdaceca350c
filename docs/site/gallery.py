"""Writes docs/gallery.md, every kind of figure from the published rows: `make gallery`."""

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from PIL import Image

from lra.composition.class_path import name_plugins, see
from lra.composition.runner_class import sections
from lra.composition.selection import kinds
from lra.reports.report import write_parts
from lra.reports.style import Format, ReportStyle, Surrounding
from lra.results.rows import deviations, published_cells, published_with_names
from lra.results.style import read_style

ROOT = Path(__file__).resolve().parents[2]
PEERS = "tests/parity"
"""Where the plug-in `peers` lies."""
DPI, COLOURS = 260, 64
"""Of its pictures, which are looked at on a screen, and with these keep small files."""
INTRODUCTION = """# Gallery

This page shows every kind of figure that a report draws. To draw a figure yourself, run the command
below the figure in a clone of the repository. For example, the first command of this page writes
`figures/time-step.pdf`, the same figure as SVG and PNG, its numbers as CSV and its caption as text.
All figures come from the rows (measured numbers) in `reports/published`, in one of the
[styles](figures-for-papers.md). The command `make gallery` writes this page.
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
            "How does time grow with length?"),
    Exhibit("reports.figures.panels.scaling_figure", "quickstart", "paper_column", "memory-step",
            "How does memory grow with length?"),
    Exhibit("reports.figures.panels.scaling_figure", "families", "paper_full", "time-step",
            "How does time grow with length, for many models?"),
    Exhibit("reports.sections.score_dots.dots_figure", "recall", "paper_column", "scores",
            "Which model has the best score?"),
    Exhibit("reports.sections.score_cost.score_cost_figure", "recall", "paper_column",
            "score-by-step-time", "How does the score depend on the time of a training step?"),
    Exhibit("reports.sections.losses.loss_figure", "quickstart", "paper_column", "training-loss",
            "How does the training loss fall?"),
    Exhibit("reports.sections.losses.class_figures", "transformer_xl", "paper_full",
            "loss-by-place", "How does the loss depend on the position in the window?"),
    Exhibit("reports.sections.losses.class_figures", "adaptive_span", "paper_column",
            "loss-by-frequency", "How does the loss depend on the frequency of a token?"),
    Exhibit("reports.sections.score_cost.score_cost_figure", "lite_transformer", "paper_full",
            "score-by-multiply-adds", "How does the score depend on the operations of a model?"),
    Exhibit("reports.figures.panels.line_figures", "decode", "paper_column", "decoding-token-time",
            "How long does one new token take?"),
    Exhibit("reports.figures.panels.line_figures", "decode", "paper_column",
            "decoding-state-bytes", "How much memory does the state need?"),
    Exhibit("peers.section.speed_figure", "peers_linear", "paper_full",
            "peers-speed-step", "How fast are other implementations?"),
    Exhibit("reports.sections.extrapolation.extrapolation_figure", "extrapolate", "paper_full",
            "extrapolation", "How good are scores beyond the training length?"),
    Exhibit("reports.sections.context.context_figure", "context", "paper_full", "context",
            "How much context does a model use?"),
    Exhibit("reports.sections.spans.span_figure", "span_text8", "paper_full", "span",
            "How far does attention reach?"),
    Exhibit("reports.sections.spans.span_figure", "adaptive_span", "paper_column",
            "learned-spans-by-layer", "Which spans does a model learn?"),
    Exhibit("reports.sections.recovery.recovery_figure", "transfer", "paper_full",
            "recovery-accuracy-curve", "How fast does a model recover from a change of attention?"),
    Exhibit("reports.sections.tuning_points.point_figure", "tuned_recall", "paper_column",
            "tuning-options-accuracy", "How sensitive is a model to the learning rate?"),
    Exhibit("reports.sections.tuning_curves.curve_figure", "tuned_recall", "paper_full",
            "tuning-curve-accuracy", "How many trials does tuning need?"),
    Exhibit("reports.sections.parallel.parallel_figure", "parallel", "paper_full", "parallel",
            "How much faster are several processes?"),
    Exhibit("reports.sections.width_curves.width_figure", "mqar_width", "paper_column",
            "width-accuracy", "How wide must a model be?"),
    Exhibit("reports.sections.width_curves.width_figure", "mqar_width", "paper_column",
            "state-accuracy", "How large must the state be?"),
    Exhibit("reports.sections.score_groups.group_figure", "formal", "paper_full",
            "accuracy-by-length", "How good is a model at each length?"),
    Exhibit("reports.sections.compression.compression_figure", "compress", "paper_full",
            "compression-trade-off", "How much can a model be compressed?"),
)  # fmt: skip
WITHOUT_ROWS = {
    "reports.comparison.trend.trend_figure": "the times of a family, by day",
    "reports.figures.bubbles.bubble_figure": "speed, score and memory of models that were trained "
    "and timed under a protocol of the Long Range Arena",
    "reports.sections.attention_mass.mass_figure": "measurements of the runner `attention_mass`",
    "reports.sections.error_rates.error_figure": "scores of the task `flip_flop`",
    "reports.sections.index_recall.recall_figure": "measurements of the runner `index_recall`",
    "reports.sections.loops.loop_figure": "scores of the runner `loops`",
    "reports.sections.recall.copy_figure": "copy advantages of the runner `recall`",
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
                picture_file = Image.open(drawn / f"{exhibit.stem}.png").convert("RGB")
                picture_file.quantize(COLOURS, dither=Image.Dither.NONE).save(
                    folder / picture(exhibit), optimize=True
                )
    for file in {*folder.glob("*.png")} - {folder / picture(e) for e in exhibits}:
        file.unlink()
    page = docs / "gallery.md"
    page.write_text("\n".join(_page(exhibits)) + "\n", encoding="utf-8")
    return [page, *(folder / picture(exhibit) for exhibit in exhibits)]


def for_a_screen(style: ReportStyle) -> ReportStyle:
    """Return a style whose figures are PNG files of `DPI`, with their titles."""
    settings = {**style.matplotlib, "savefig.dpi": DPI}
    beside: list[Surrounding] = [part for part in style.beside if part is not Surrounding.title]
    return replace(style, formats=[Format.png], beside=beside, matplotlib=settings)


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
        yield f"This command draws `figures/{exhibit.stem}.pdf`:\n"
        yield f"```\n{command(exhibit)}\n```\n"
    yield "## Which figures need rows of your own?\n"
    for function, what in WITHOUT_ROWS.items():
        yield f"- `{function}` draws {what}."


if __name__ == "__main__":
    for path in write_gallery(ROOT / "docs"):
        print(path)
