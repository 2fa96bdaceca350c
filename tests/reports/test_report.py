import re
import xml.dom.minidom
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

from lra.composition.runner_class import sections
from lra.reports.install import MANIFEST, ForeignFile
from lra.reports.report import write_report
from lra.reports.rows import NoRows


def written(rows: pd.DataFrame, folder: Path, title: str = "x") -> list[Path]:
    return write_report(rows, folder, title=title, sections=sections())


@pytest.fixture
def small(make: SimpleNamespace) -> pd.DataFrame:
    cell = {"runner": "scaling", "mode": "step", "length": 512}
    return make.frame(
        make.accuracy("linear", 0, 0.3),
        make.baseline("majority", 0.18, "The commonest class."),
        *make.timing("linear", 256, 0.01, references={"sdpa": 0.02}),
        make.failed("time", "linear", "out_of_memory", "needs 5 GiB | of 4", **cell),
    )


@pytest.mark.every_format  # to which the page has links; one is drawn
def test_everything_that_the_rows_allow(
    realistic: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    savefig = Figure.savefig

    def svg_alone(figure: Figure, path: Path, **options: Any) -> None:
        savefig(figure, path, **options) if path.suffix == ".svg" else path.write_bytes(bytes(200))

    monkeypatch.setattr(Figure, "savefig", svg_alone)
    paths = written(realistic, tmp_path / "out", "Six models")
    names = {p.name for p in paths}
    wanted = {"report.md", "report.html"}
    for stem in ("accuracy", "accuracy-validation", "efficiency-step", "efficiency-forward",
                 "crossover", "growth", "better-than"):  # fmt: skip
        wanted |= {f"{stem}.{form}" for form in ("md", "csv", "tex")}
    for stem in ("scores", "time-step", "time-forward", "memory-step", "memory-forward",
                 "training-loss", "score-by-long-step-time"):  # fmt: skip
        wanted |= {f"{stem}.{form}" for form in ("pdf", "svg", "png", "csv")}
    assert names == wanted
    assert all(p.is_file() and p.stat().st_size > 100 for p in paths)
    assert {p.name for p in (tmp_path / "out").iterdir()} == wanted | {MANIFEST}

    page = (tmp_path / "out" / "report.md").read_text()
    linked = {*re.findall(r"\]\(([^)]+)\)", page)}
    assert linked == {name for name in names if not name.endswith((".md", ".html"))}
    assert "Tasks: listops version 1 (data: generated)" in page
    assert "performer, listops, train: diverged: loss was nan at step 210 (seed 2)" in page

    for path in paths:
        if path.suffix == ".svg":
            xml.dom.minidom.parse(str(path))


def test_an_empty_frame_is_refused(make: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(NoRows, match="start a run first"):
        written(make.frame(), tmp_path)
    with pytest.raises(ValueError, match="lack the columns"):
        written(pd.DataFrame({"metric": ["time"]}), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_what_is_left_out_is_said(small: pd.DataFrame, tmp_path: Path) -> None:
    written(small, tmp_path, "T * [x](y)")
    page = (tmp_path / "report.md").read_text()
    assert page.startswith("# T \\* \\[x](y)\n")
    assert "- training loss: the rows contain no loss curve of a training" in page
    assert "- growth: no model was measured at two or more lengths" in page
    assert "- linear, listops, step: OOM: needs 5 GiB \\| of 4 (length 512)" in page
    assert "¹ The commonest class." in page


def test_only_training_or_only_timing(make: SimpleNamespace, tmp_path: Path) -> None:
    names = {p.name for p in written(make.frame(make.accuracy("a", 0, 0.3)), tmp_path)}
    assert names == {"report.md", "report.html", "accuracy.md", "accuracy.csv", "accuracy.tex"}
    page = (tmp_path / "report.md").read_text()
    assert "the rows have no times of passes against length" in page
    written(make.frame(*make.timing("a", 256, 0.1)), tmp_path / "b")
    assert "no final accuracy on the test split" in (tmp_path / "b" / "report.md").read_text()


@pytest.mark.usefixtures("undrawn")
def test_a_line_of_one_point_is_no_figure(make: SimpleNamespace, tmp_path: Path) -> None:
    def losses(task: str, *steps: int) -> list[dict[str, Any]]:
        return [make.row("train_loss", 2.0, task=task, step=step) for step in steps]

    def names(rows: list[dict[str, Any]], folder: Path) -> set[str]:
        return {p.name for p in written(make.frame(*rows), folder) if p.suffix in (".svg", ".csv")}

    one = [*make.timing("linear", 256, 0.01), *losses("listops", 5)]
    points = {"memory-step-points.csv", "time-step-points.csv", "training-loss-points.csv"}
    assert names(one, tmp_path) == {"efficiency-step.csv", *points}
    page = (tmp_path / "report.md").read_text()
    said = "a single point on each line are not drawn; their numbers are in time-step-points.csv"
    assert said in page
    assert "loss" in (tmp_path / "training-loss-points.csv").read_text()

    several = [*make.timing("linear", 256, 0.01), *make.timing("linear", 512, 0.01)]
    several += [*losses("listops", 5), *losses("text", 5, 10)]
    found = names(several, tmp_path)
    assert {"time-step.svg", "memory-step.svg", "training-loss.svg"} <= found
    assert {name for name in found if "points" in name} == {"training-loss-points.csv"}
    assert "listops" not in (tmp_path / "training-loss.csv").read_text()
    assert "listops" in (tmp_path / "training-loss-points.csv").read_text()


def test_a_length_without_a_number_is_a_place_of_its_own(
    small: pd.DataFrame, tmp_path: Path
) -> None:
    names = {p.name for p in written(small, tmp_path)}
    assert "time-step.svg" in names  # a point, and a cross where memory was short
    assert not any("points" in name for name in names)


@pytest.mark.usefixtures("undrawn")
def test_an_earlier_reports_files_go_and_foreign_files_stay(
    make: SimpleNamespace, tmp_path: Path
) -> None:
    lengths = [*make.timing("linear", 256, 0.01), *make.timing("linear", 512, 0.02)]
    written(make.frame(*lengths), tmp_path, "first")
    assert (tmp_path / "time-step.svg").exists()
    (tmp_path / "notes.txt").write_text("mine")
    written(make.frame(make.accuracy("linear", 0, 0.3)), tmp_path, "second")
    assert not (tmp_path / "time-step.svg").exists()
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert "second" in (tmp_path / "report.md").read_text()


def test_a_file_that_no_report_wrote_is_not_overwritten(
    make: SimpleNamespace, tmp_path: Path
) -> None:
    (tmp_path / "report.md").write_text("mine")
    with pytest.raises(ForeignFile, match=r"`lra report` did not write: report\.md"):
        written(make.frame(make.accuracy("linear", 0, 0.3)), tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["report.md"]
    assert (tmp_path / "report.md").read_text() == "mine"


def test_a_damaged_manifest_is_named(make: SimpleNamespace, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_text("{torn")
    with pytest.raises(ForeignFile, match="cannot read this list of the old report's files"):
        written(make.frame(make.accuracy("linear", 0, 0.3)), tmp_path)


def test_a_manifest_cannot_reach_outside_its_folder(make: SimpleNamespace, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / MANIFEST).write_text('{"files": ["../precious"]}')
    written(make.frame(make.accuracy("linear", 0, 0.3)), folder)
    assert precious.read_text() == "mine"


@pytest.mark.usefixtures("undrawn")
def test_settings_that_differ_get_files_of_their_own(make: SimpleNamespace, tmp_path: Path) -> None:
    rows = make.frame(
        *make.timing("linear", 256, 0.01), *make.timing("linear", 256, 0.02, causal=True)
    )
    names = {p.name for p in written(rows, tmp_path)}
    assert {"efficiency-step-causal.csv", "efficiency-step-bidirectional.csv"} <= names
    assert {"time-step-causal-points.csv", "time-step-bidirectional-points.csv"} <= names
    assert not {"efficiency-step.csv", "time-step-points.csv"} & names


@pytest.mark.usefixtures("undrawn")
def test_settings_whose_names_are_long_are_written_under_short_names(
    make: SimpleNamespace, tmp_path: Path
) -> None:
    long = {name: f"{name} " + "x" * 90 for name in ("task", "hardware", "device", "precision")}
    rows = make.frame(
        *(
            row
            for setting in (long, {k: v + "y" for k, v in long.items()})
            for source in ("sample", "s" * 80)
            for length in (512, 1024)
            for row in make.timing("linear", length, 0.1, source=source, **setting)
        )
    )
    paths = written(rows, tmp_path / "report", "long names")
    names = [path.name for path in paths]
    assert max(len(name.encode()) for name in names) < 255
    assert sum(name.startswith("time-") and name.endswith(".svg") for name in names) == 4
    shown = (tmp_path / "report" / "report.md").read_text()
    assert all(name in shown for name in names if name.endswith(".csv"))
