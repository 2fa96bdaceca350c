"""A report in a style of the user's: widths, names, subsets, parts beside pictures, tables."""

import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings, strategies as st
from matplotlib.colors import to_rgb

from lra.composition.runner_class import sections
from lra.errors import UnknownName
from lra.reports.figures.direct import spread_apart
from lra.reports.figures.drawing import looks, save
from lra.reports.figures.panels import scaling_figure
from lra.reports.figures.scaling import scaling_data
from lra.reports.report import write_report
from lra.reports.rows import cost_points, model_order, prepare
from lra.reports.style import (
    Captions,
    Font,
    ModelStyle,
    Names,
    ReportStyle,
    Spread,
    StyleError,
    Surrounding,
    TableSpan,
    TableStyle,
    using,
)
from lra.reports.tables.costs import efficiency_table, growth_table
from lra.reports.tables.latex_tables import to_latex
from lra.reports.tables.scores import accuracy_table
from lra.reports.tables.table import Column, Entry, Table, TableRow, to_markdown
from lra.results.style import read_style
from tests.reports.conftest import accuracy, failed, frame, timing
from tests.reports.figures.test_layout import faults
from tests.reports.tables.test_latex import ENGINES, compiled, overfull

ODD = "50%_$x"
PAPER = {
    "font": Font(family=["STIXGeneral", "DejaVu Sans"], labels=8, ticks=7, legend=7, notes=7),
    "beside": [Surrounding.title, Surrounding.subtitle, Surrounding.notes],
    "direct_labels": True,
    "exponents": False,
}


def measured(make: SimpleNamespace, *models: str) -> pd.DataFrame:
    """Each model at three lengths; the lines end near each other, the last has no longest."""
    rows = []
    for place, model in enumerate(models):
        for n in (256, 512, 1024):
            rows += make.timing(model, n, n * 1e-5 * (1 + 0.02 * place), batch=1, noise=0.02)
    cell = {"runner": "scaling", "mode": "step", "length": 2048}
    rows.append(make.failed("time", models[-1], "timeout", "took too long", **cell))
    return make.frame(*rows)


def widths(folder: Path) -> set[float]:
    """Inches of every drawing, as its file says."""
    found = set()
    for file in folder.glob("*.svg"):
        match = re.search(r'<svg[^>]* width="([\d.]+)pt"', file.read_text())
        found.add(round(float(match[1]) / 72, 2))
    return found


@pytest.mark.parametrize("width", [3.25, 6.75])
def test_every_figure_is_as_wide_as_wanted_and_nothing_overlaps(
    width: float, make: SimpleNamespace
) -> None:
    models = ["softmax", "sdpa", "identity", *(f"model_number_{i}" for i in range(9))]
    with using(ReportStyle(width=width, **PAPER)):  # type: ignore[arg-type]
        prepared = prepare(measured(make, *models))
        data = scaling_data(cost_points(prepared), "step", "time")
        for figure in (
            scaling_figure(data, looks(models), subtitle="cpu"),
            scaling_figure(data, looks(models), {"some": models[3:7]}, subtitle="cpu"),
        ):
            assert figure.get_size_inches()[0] == pytest.approx(width)
            assert faults(figure) == []
            assert not figure.legends
            names = [text.get_text() for axes in figure.axes for text in axes.texts]
            assert {*models} <= {*names}


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 0.5)), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_names_at_the_ends_of_lines_keep_apart(wanted: list[tuple[float, float]]) -> None:
    middles, heights = np.array(sorted(wanted)).T
    found = spread_apart(middles, heights)
    assert (np.diff(found) >= (heights[1:] + heights[:-1]) / 2 - 1e-9).all()
    if heights.sum() <= 1:
        assert found[0] - heights[0] / 2 >= -1e-9
        assert found[-1] + heights[-1] / 2 <= 1 + 1e-9


def test_a_report_shows_the_models_that_its_style_chooses_by_their_names(
    make: SimpleNamespace, tmp_path: Path
) -> None:
    style = ReportStyle(
        width="column",
        models={"linear": ModelStyle(name="Ours (naïve)", color="#123456"),
                "sdpa": ModelStyle(name=ODD)},
        order=["linear"], only=["linear", "sdpa", "lineer"], lengths=[256, 512],
        tables=TableStyle(captions=Captions.short, label_prefix="t"),
        **PAPER,  # type: ignore[arg-type]
    )  # fmt: skip
    write_report(
        measured(make, "sdpa", "linear", "other"),
        tmp_path,
        title="t",
        sections=sections(),
        style=style,
    )
    assert widths(tmp_path) == {3.25}
    data = pd.read_csv(tmp_path / "time-step.csv")
    assert [*dict.fromkeys(data["model"])] == ["Ours (naïve)", ODD]
    assert {*data["length"]} == {256, 512}
    assert "#123456" in (tmp_path / "time-step.svg").read_text()
    caption = (tmp_path / "time-step.caption.tex").read_text("ascii")
    assert r"\caption[{At 512 tokens, Ours" in caption
    assert r"\label{fig:time-step}" in caption
    latex = (tmp_path / "efficiency-step.tex").read_text("ascii")
    assert r"\label{t:efficiency-step}" in latex
    assert latex.index(r"Ours (na\"{\i}ve)") < latex.index(r"50\%\_\$x")
    assert (tmp_path / "efficiency-step.caption.txt").read_text().startswith("Columns are")
    page = (tmp_path / "report.md").read_text()
    assert "other" not in page
    for line in (
        "the style hides 1 of 3 models",
        "the style hides the lengths 1024",
        "'lineer', which has no rows here: did you mean 'linear'?",
    ):
        assert line in page


def test_what_fits_no_row_is_refused(make: SimpleNamespace, tmp_path: Path) -> None:
    rows = measured(make, "sdpa", "linear")
    for style, words in (
        (ReportStyle(only=["performer"]), "only: got performer; the rows have none of these"),
        (ReportStyle(lengths=[7]), "the rows have lengths 256, 512"),
        (ReportStyle(models={"sdpa": ModelStyle(name="linear")}), "as 'linear'; give one of them"),
    ):
        with pytest.raises(StyleError, match=words):
            write_report(rows, tmp_path / "r", title="t", sections=sections(), style=style)


def test_a_family_has_its_name_in_headings_and_as_a_layer(
    make: SimpleNamespace, tmp_path: Path
) -> None:
    style = ReportStyle(models={"sdpa": ModelStyle(name="exact")})
    rows = [
        r for n in (256, 512) for r in make.timing("linear", n, n * 1e-5, references={"sdpa": 0.1})
    ]
    rows.append(make.accuracy("linear", 0, 0.5, labels={"layers": "linear + sdpa"}))
    write_report(make.frame(*rows), tmp_path, title="t", sections=sections(), style=style)
    page = (tmp_path / "report.md").read_text()
    for words in ("faster than exact from", "speed relative to exact (×)", "(linear + exact"):
        assert words in page
    assert "faster than sdpa" not in page


def test_trainings_of_a_search_have_the_colour_of_their_family() -> None:
    models = ("linear", "sdpa", "gla")
    rows = frame(*(
        named(family, {"optim.lr": lr}, tuned="s", study="0", trial=trial)
        for family in models for lr, trial in (("0.1", "0"), ("0.2", "3"))
    ))  # fmt: skip
    usual = looks(models)
    for highlight in (None, ["gla"]):
        with using(ReportStyle(highlight=highlight)) as in_use:
            found = looks([*prepare(rows)["name"]])
            led = {in_use.led_to(name): look for name, look in found.items()}
        for family in models:
            untuned, tuned = led[family, False], led[family, True]
            assert (bool(untuned.dashes), tuned.dashes) == (True, ())
            assert (tuned.color == usual[family].color) == (highlight is None)
            assert min(to_rgb(untuned.color)) >= 0.5 > min(to_rgb(tuned.color))
        assert len({look.marker for look in found.values()}) == len(found)
        assert len({look.color for look in found.values()}) == len(found)


def test_a_renamed_reference_is_still_one(make: SimpleNamespace) -> None:
    with using(
        ReportStyle(models={"softmax": ModelStyle(name="zz"), "fnet": ModelStyle(color="r")})
    ):
        prepared = prepare(measured(make, "linear", "softmax", "fnet"))
        names = [str(name) for name in prepared["name"].unique()]
        assert model_order(names) == ["zz", "fnet", "linear"]
        found = looks(names)
    assert found["zz"] == looks(["softmax"])["softmax"]
    assert found["fnet"].color == "r"


def drawn(folder: Path, style: ReportStyle) -> None:
    """Save one figure in a style."""
    folder.mkdir()
    with using(style):
        rows = measured(SimpleNamespace(frame=frame, timing=timing, failed=failed), "sdpa", ODD)
        data = scaling_data(cost_points(prepare(rows)), "step", "time")
        save(scaling_figure(data, looks(["sdpa", ODD]), subtitle="cpu"), folder, "t", data)


@pytest.mark.every_format
@pytest.mark.skipif(not shutil.which("pdffonts"), reason="no pdffonts (poppler) on this machine")
def test_fonts_are_embedded_as_truetype_and_the_legend_is_a_picture(tmp_path: Path) -> None:
    drawn(tmp_path / "f", ReportStyle(beside=[*Surrounding], font=Font(family=["STIXGeneral"])))
    for file in ("t.pdf", "t.legend.pdf"):
        listed = subprocess.run(
            ["pdffonts", tmp_path / "f" / file], capture_output=True, text=True, check=True
        ).stdout.splitlines()[2:]
        assert listed
        assert all("STIXGeneral" in line for line in listed)
        assert all(re.search(r"TrueType +\S+ +yes yes", line) for line in listed), listed


@pytest.mark.every_format
def test_another_process_makes_the_same_bytes(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tests.reports.test_style import PAPER, drawn;"
        "from lra.reports.style import ReportStyle; drawn(Path(sys.argv[1]), ReportStyle(**PAPER))"
    )
    drawn(tmp_path / "here", ReportStyle(**PAPER))  # type: ignore[arg-type]
    subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "there")],
        check=True, env={"PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(sys.path),
                         "OPENBLAS_CORETYPE": "Prescott"},  # as on another processor
    )  # fmt: skip
    files = sorted(file.name for file in (tmp_path / "there").iterdir())
    assert {"t.pdf", "t.png", "t.svg", "t.csv", "t.caption.tex"} <= {*files}
    for name in files:
        assert (tmp_path / "here" / name).read_bytes() == (tmp_path / "there" / name).read_bytes()


PREAMBLE = r"""\documentclass[twocolumn]{article}
\usepackage[letterpaper,textwidth=6.75in,columnsep=0.25in,textheight=9in]{geometry}
\usepackage{array,booktabs,graphicx}
\begin{document}
\listoftables
"""


@pytest.mark.every_format
@pytest.mark.skipif("pdflatex" not in ENGINES, reason="no pdflatex on this machine")
def test_a_paper_of_two_columns_takes_tables_and_figures(
    make: SimpleNamespace, tmp_path: Path
) -> None:
    rows = measured(make, "sdpa", ODD, "<script>", "naïve_中文_" + "long_" * 12)
    points = cost_points(prepare(rows))
    found = {"efficiency": efficiency_table(points, "step"), "growth": growth_table(points)}
    texts = [
        to_latex(table, TableStyle(width=span, label_prefix=f"tab-{span}"), label)
        for span in TableSpan
        for label, table in found.items()
        if table is not None
    ]
    assert r"\begin{table*}" in texts[-1]
    drawn(tmp_path / "f", ReportStyle(width="column", **PAPER))  # type: ignore[arg-type]
    texts.append(
        r"\begin{figure}\includegraphics{f/t.pdf}\input{f/t.caption}"
        r"\end{figure} See table~\ref{tab-column:efficiency-step}, figure~\ref{fig:t}."
    )
    log = compiled("pdflatex", PREAMBLE + "\n".join(texts) + "\n\\end{document}\n", tmp_path)
    assert overfull(log) == []
    assert "multiply defined" not in log


def test_the_best_number_may_stay_plain() -> None:
    entries = (Entry(text="66.0 [63.9, 68.0]", rank=1),)
    table = Table(title="A ] b", caption="How.", stub="model", columns=(Column(title="x"),),
                  rows=(TableRow(title="m", entries=entries),))  # fmt: skip
    assert r"\textbf{66.0}" in to_latex(table)
    plain = to_latex(table, TableStyle(bold_best=False, width=TableSpan.full), "scores")
    assert r"\textbf" not in plain
    assert plain.startswith(r"\begin{table*}")
    assert r"\caption[{A ] b}]{A ] b. How.}" + "\n" + r"\label{tab:scores}" in plain


def wide_table(columns: int, rows: int = 3) -> Table:
    """A table whose columns need eleven letters each."""
    return Table(
        title="Wide", caption="How to read it.", stub="model", brief="Percent.",
        columns=tuple(Column(title=f"task {n}") for n in range(columns)),
        rows=tuple(
            TableRow(title=f"model {r}", entries=(Entry(text="66.0 ± 1.0"),) * columns)
            for r in range(rows)
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "environment", "blocks"), [(2, "table", 1), (6, "table*", 1), (20, "table*", 3)]
)
def test_a_table_is_one_float_across_as_many_columns_as_it_needs(
    columns: int, environment: str, blocks: int
) -> None:
    style = TableStyle(width=TableSpan.column, captions=Captions.short)
    text = to_latex(wide_table(columns), style, "wide")
    assert text.startswith(rf"\begin{{{environment}}}")
    for once in (r"\begin{table", r"\end{table", r"\caption", r"\label{tab:wide}"):
        assert text.count(once) == 1, once
    assert text.count(r"\begin{tabular}") == blocks
    assert all(text.count(f"task {n} ") == 1 for n in range(columns))
    assert r"\caption[{Wide}]{Wide. Percent.}" in text


def test_only_what_is_longer_than_a_page_continues_in_another_float() -> None:
    text = to_latex(wide_table(2, rows=60), TableStyle(width=TableSpan.column), "long")
    assert text.count(r"\begin{table}") == text.count(r"\end{table}") == 2
    assert [line for line in text.splitlines() if "label" in line] == [
        r"\label{tab:long}", r"\label{tab:long-2}"
    ]  # fmt: skip


def test_the_users_models_come_first_in_strong_colours() -> None:
    usual = looks(["linear", "sdpa"])
    rows = frame(*(accuracy(m, 0, v) for m, v in (("linear", 0.5), ("zeta", 0.4), ("sdpa", 0.6))))
    with using(ReportStyle()):
        prepared = prepare(rows)
        assert model_order([*prepared["name"]]) == ["zeta", "sdpa", "linear"]
        found = looks([*prepared["name"]])
        table = accuracy_table(prepared)
        assert [row.title for row in table.rows] == ["zeta", "sdpa", "linear"]
        assert r"\textbf{zeta} &" in to_latex(table)
        assert "| **zeta** |" in to_markdown(table)
        assert r"\textbf{linear}" not in to_latex(table)

    def grey(color: str) -> float:
        return float(np.ptp(to_rgb(color)))

    assert grey(found["zeta"].color) > 0.8
    assert found["zeta"].dashes == ()
    for name in usual:
        assert grey(found[name].color) < 0.4 < grey(usual[name].color)
        assert found[name].marker == usual[name].marker
    with using(ReportStyle(highlight=[])):
        prepared = prepare(rows)
        assert model_order([*prepared["name"]]) == ["sdpa", "linear", "zeta"]
        assert looks([*prepared["name"]])["linear"] == usual["linear"]
    with using(ReportStyle(highlight=["linear"])):
        assert model_order([*prepare(rows)["name"]]) == ["linear", "sdpa", "zeta"]


@pytest.mark.parametrize(
    ("highlight", "words"), [(None, "Bold name: ours."), ([], ""), (["sdpa"], "highlighted.")]
)
def test_a_caption_says_which_names_are_bold(highlight: list[str] | None, words: str) -> None:
    with using(ReportStyle(highlight=highlight)):
        table = accuracy_table(prepare(frame(accuracy("zeta", 0, 0.3), accuracy("sdpa", 0, 0.5))))
        assert table is not None
        text = to_latex(table)
    assert ("Bold name" in text) == bool(words)
    assert words in text


def named(family: str, options: dict[str, str], **labels: str) -> dict[str, object]:
    """A row with what distinguishes its model, as stores give it."""
    cell = "-".join([family, *options.values(), *labels.values()])
    columns = {"family": family, "options": options, "cell": cell, "labels": labels}
    return accuracy(family, 0, 0.5, **columns)


def test_short_names_say_what_differs() -> None:
    rate, width = "optim.peak_learning_rate", "mixer.features"
    rows = frame(
        named("linear", {rate: "0.003"}, layers="light_conv + linear"),
        named("linear", {rate: "0.01"}, layers="light_conv + linear"),
        named("performer", {width: "64"}, variant="lra"),
        named("performer", {width: "64"}),
        named("luna", {"mixer.width": "8"}),
        named("luna", {"optim.width": "8"}),
    )
    with using(ReportStyle(names=Names.short)) as in_use:
        names = [*prepare(rows)["name"]]
        assert names[:4] == [
            "linear (lr 0.003)", "linear (lr 0.01)",
            "performer (features 64) (lra)", "performer (features 64)",
        ]  # fmt: skip
        assert len({*names}) == 6  # two that would share a short name have their options' names
        assert in_use.plain(names[0]) == (
            "linear (optim.peak_learning_rate=0.003) (light_conv + linear)"
        )


def test_short_names_say_which_changes_of_a_protocol_differ() -> None:
    changes = ("task.partial, model.backbone.feed_forward_width", "task.partial")
    rows = frame(
        *(named("linear", {}, protocol="lra", changed=c) for c in changes),
        named("sdpa", {}, protocol="lra", changed="task.partial"),
    )
    with using(ReportStyle(names=Names.short)):
        names = [*prepare(rows)["name"]]
    assert names == ["linear (changed: feed forward width)", "linear", "sdpa"]


@pytest.mark.parametrize(
    ("spread_style", "text", "words"),
    [
        (Spread.long, "52.0 [27.2, 76.8; 3 seeds]", "as means [95 % intervals] over 3 seeds"),
        (Spread.interval, "52.0 [27.2, 76.8]", "as means [95 % intervals] over 3 seeds"),
        (Spread.deviation, "52.0 ± 10.0", "as means ± standard deviations over 3 seeds"),
        (Spread.none, "52.0", "as means over 3 seeds"),
    ],
)
def test_what_stands_behind_a_mean_is_chosen(spread_style: Spread, text: str, words: str) -> None:
    rows = frame(*(accuracy("linear", seed, v) for seed, v in enumerate((0.42, 0.52, 0.62))))
    short = TableStyle(spread=spread_style, captions=Captions.short)
    with using(ReportStyle(tables=short)):
        table = accuracy_table(prepare(rows))
    assert table.rows[0].entries[0].text == text
    assert table.brief.startswith(f"Numbers are in percent, {words}.")
    assert [column.title for column in table.columns] == ["listops"]
    assert "Data: listops: generated" in table.caption


def test_a_style_stands_on_a_shipped_one(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("base: paper_column\ntables: {spread: interval}\n")
    mine, paper = (read_style(n)[0] for n in (str(tmp_path / "mine.yaml"), "paper_column"))
    assert mine.tables == replace(paper.tables, spread=Spread.interval)
    assert replace(mine, tables=paper.tables) == paper
    (tmp_path / "mine.yaml").write_text("base: paper_full\nexponents: true\n")
    full, _ = read_style(str(tmp_path / "mine.yaml"))  # whose base has one, too
    assert full == replace(read_style("paper_full")[0], exponents=True)
    assert full.font == read_style("paper_column")[0].font
    (tmp_path / "mine.yaml").write_text("base: paper_colum\n")
    with pytest.raises(UnknownName, match="paper_column"):
        read_style(str(tmp_path / "mine.yaml"))
