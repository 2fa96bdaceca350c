"""Figure 3, the table of deviations, and what a report makes of rows under protocols."""

import re
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

from lra.composition.runner_class import sections
from lra.reports.arena.bubbles import bubble_data
from lra.reports.arena.costs import arena_points
from lra.reports.arena.deviations import CHANGED, UNSTORED, deviation_table
from lra.reports.arena.runs import protocol_runs
from lra.reports.arena.scores import arena_scores
from lra.reports.figures.bubbles import bubble_figure
from lra.reports.figures.drawing import save
from lra.reports.report import write_report
from lra.reports.rows import prepare
from lra.reports.sections.arena import section
from lra.reports.sections.generic import generic_table
from lra.reports.sections.section import PagesPart, TablePart
from lra.reports.tables.latex_tables import to_latex
from lra.reports.tables.scores import CAVEAT, accuracy_table
from lra.results.finish import conclusions
from tests.reports.arena.arena_rows import KINDS, SCORES, labels, refused, score, steps, whole
from tests.reports.awkward_stores import FAMILIES, GROUPS, LONG, ODD
from tests.reports.conftest import accuracy, failed, frame, row
from tests.reports.figures.test_layout import faults
from tests.reports.tables.test_latex import ENGINES, compiled, document, overfull

FIVE = [*SCORES][:5]


def rows_of_both() -> list[dict[str, Any]]:
    rows = [*whole("softmax", tasks=FIVE), *whole("linear", 0.01, tasks=FIVE),
            *whole("local", tasks=FIVE[:4]), refused("local", "pathfinder", "crashed", "signal 9"),
            *whole("performer", tasks=FIVE)]  # fmt: skip
    for n in (1000, 4000):
        rows += [*steps("softmax", n, 1.0, peak=4e9), *steps("linear", n, 0.5, exact=1.0, peak=1e9)]
        rows += [*steps("local", n, 0.4), *steps("linformer", n, 0.3)]
    return rows


def bubbles(*rows: dict[str, Any]) -> pd.DataFrame:
    prepared = prepare(frame(*rows))
    (runs,) = protocol_runs(prepared)
    scores = arena_scores(runs, prepared)
    assert scores is not None
    ((_, points),) = arena_points(runs)
    return bubble_data(scores, points, KINDS)


def test_bubbles_join_score_speed_and_memory_or_say_what_lacks() -> None:
    data = bubbles(*rows_of_both()).set_index("model")
    models = ["softmax", "local", "linformer", "linear", "performer"]
    assert list(data.index) == [*models, *(f"{model}, published" for model in models)]
    printed = data.loc["softmax, published"]  # figure 3 of the paper: 54.39 at 45 examples a second
    assert (printed["examples_per_second"], printed["score"]) == pytest.approx((44.8, 0.5439))
    assert (printed["memory_bytes"], printed["kind"]) == (9.48e9, "exact attention")
    assert data["published"].notna().tolist() == [False] * 5 + [True] * 5
    five = sum(SCORES[task] for task in FIVE) / 5
    linear = data.loc["linear"]
    assert (linear["examples_per_second"], linear["speed_ratio"]) == (64.0, 2.0)
    assert (linear["reference"], linear["memory_bytes"], linear["length"]) == ("softmax", 1e9, 4000)
    assert linear["score"] == pytest.approx(five + 0.01)
    assert (linear["kind"], linear["reason"]) == ("kernels", "")
    assert data["reason"]["local"] == "there is no average, because there is no score on Pathfinder"
    assert data["reason"]["linformer"] == "this model has no scores under the protocol"
    assert data["reason"]["performer"] == "speed and memory were not measured at this length"


@pytest.mark.parametrize("count", [1, 30])
def test_names_of_bubbles_overlap_nowhere(count: int) -> None:
    records = [
        {"model": f"model_{i} (features={i})", "kind": f"kind {i % 5}", "reason": "", "score": 0.5,
         "examples_per_second": 100.0 + i % 4, "memory_bytes": 2.0**30 * (1 + i % 3),
         "published": "a paper" if i % 3 else None}
        for i in range(count)
    ]  # fmt: skip
    records.append({"model": "lost", "kind": "kind 1", "reason": "no scores", "published": None})
    figure = bubble_figure(pd.DataFrame(records), title="t", subtitle="s", notes=[CAVEAT])
    assert faults(figure) == []
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert len(texts) == count
    assert any("lost: no bubble, because no scores" in text.get_text() for text in figure.texts)
    legend = figure.axes[0].get_legend()
    assert legend.get_texts()[0].get_text().endswith("GiB")


def test_deviations_changes_and_shared_settings_are_listed() -> None:
    own = labels(deviations="end, start")
    rows = [*score("linear", "listops", 0.3, marks=own),
            *score("local", "text", 0.6, marks=labels(deviations="start", settings="shared")),
            *score("local", "image", 0.4, marks=labels(changed="optim.steps"))]  # fmt: skip
    sentences = {str(rows[0]["cell"]): {"end": "there an end token; here none", "start": "drawn"}}
    table = deviation_table(protocol_runs(prepare(frame(*rows))), sentences)
    assert {row.section for row in table.rows} == {"protocol lra_code"}
    found = [(row.title, *(entry.text for entry in row.entries)) for row in table.rows]
    assert found[:4] == [
        ("end", "there an end token; here none", "listops", "linear"),
        ("start", "drawn", "listops", "linear"),
        ("start", UNSTORED, "text", "local"),
        ("optim.steps", CHANGED, "image", "local"),
    ]
    assert found[4][0] == "settings=shared"
    plain = protocol_runs(prepare(frame(*score("linear", "listops", 0.3))))
    assert deviation_table(plain, {}) is None


def test_language_models_have_the_table_of_deviations_alone() -> None:
    cell = {
        "task": "text8",
        "model": "transformer_xl",
        "cell": "a",
        "labels": labels(
            "transformer_xl", deviations="last_part", changed="optim.steps", split="test"
        ),
    }
    rows = prepare(frame(*(row(metric, 1.5, **cell) for metric in ("bits_per_character", "loss"))))
    (part,) = section(rows, kinds=KINDS, sentences={"a": {"last_part": "read"}})
    assert isinstance(part, TablePart)
    assert part.name == "lra-deviations"
    table = part.table
    assert [each.title for each in table.rows] == ["last_part", "optim.steps"]
    assert [each.section for each in table.rows] == ["protocol transformer_xl"] * 2


@pytest.mark.usefixtures("undrawn")
def test_a_report_shows_tables_figure_and_deviations(tmp_path: Path) -> None:
    rows = rows_of_both()
    rows += score("linformer", "listops", 0.3, marks=labels(deviations="start"))
    about = {str(rows[-1]["cell"]): {"start": "there drawn | *otherwise*"}}
    paths = write_report(
        frame(*rows), tmp_path, title="x", sections=sections(), groups=KINDS, deviations=about
    )
    names = {path.name for path in paths}
    for stem in ("lra-table1-lra_code", "lra-table2-lra_code", "lra-deviations"):
        assert {f"{stem}.{form}" for form in ("md", "csv", "tex")} <= names
    assert {f"lra-figure3-lra_code.{form}" for form in ("svg", "csv")} <= names
    page = (tmp_path / "report.md").read_text()
    assert r"there drawn \| \*otherwise\*" in page
    order = [page.index(f"## {words}") for words in (
        "Long Range Arena, table 1", "Long Range Arena, table 2", "Long Range Arena, figure 3",
        "Settings that differ", "Accuracy")]  # fmt: skip
    assert order == sorted(order)
    drawn = pd.read_csv(tmp_path / "lra-figure3-lra_code.csv")
    assert drawn["reason"].notna().tolist() == [False, True, True, False, True, *[False] * 5]


def test_published_bubbles_are_hollow_and_named_and_only_of_the_paper_itself() -> None:
    data = bubbles(*rows_of_both())
    figure = bubble_figure(data, title="t", subtitle="s", notes=[])
    drawn = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    hollow = [line for line in drawn if line.get_markerfacecolor() == "none"]
    assert (len(drawn), len(hollow)) == (7, 5)
    names = {text.get_text() for text in figure.axes[0].texts}
    assert {"linear", "linear, published"} <= names
    assert "published" in [text.get_text() for text in figure.legends[0].get_texts()]
    marks = labels("nystrom")
    rows = [*whole("softmax", tasks=FIVE, marks=marks), *steps("softmax", 4000, 1.0, marks=marks)]
    assert bubbles(*rows)["published"].isna().all()


def test_the_terminal_hears_why_figure_3_is_not_drawn() -> None:
    alone = [*steps("softmax", 4000, 1.0)]
    (line,) = [found for found in conclusions(frame(*alone)) if isinstance(found, str)]
    assert re.search(
        "figure 3, .*lra_code.* is missing, because the rows have no scores under .protocol=lra",
        line,
    )
    part = [*alone, *whole("softmax", tasks=FIVE[:3])]
    (line,) = [found for found in conclusions(frame(*part)) if isinstance(found, str)]
    assert "softmax: there is no average, because some of its tasks were not run" in line
    for drawn in (rows_of_both(), whole("softmax", tasks=FIVE)):
        assert not [found for found in conclusions(frame(*drawn)) if isinstance(found, str)]


def awkward() -> list[dict[str, Any]]:
    """Odd names, endless reasons and changes, a store of many models under two protocols."""
    changes = ", ".join(f"model.backbone.an_option_{i}" for i in range(20))
    own = [labels("a & b_c%", changed=changes, deviations="x_y, 50% & more", settings="shared"),
           labels(deviations="start")]  # fmt: skip
    rows: list[dict[str, Any]] = []
    for i, model in enumerate([ODD, "_hidden", *FAMILIES[:4]]):
        marks = own[i % 3 > 0]
        rows += whole(model, i / 100, tasks=FIVE, marks=marks, parameters=1e6 * (1 + i % 2))
        rows += steps(model, 4000, 0.2 + 0.05 * (i % 7), exact=1.0, marks=marks, peak=2.0**25 + i)
        rows += steps(model, 1000, 0.1, marks=marks)
    lost = {"runner": "scaling", "mode": "step", "task": "text", "source": "imdb", "length": 4000}
    rows.append(failed("time", "lost", "out_of_memory", LONG, labels=own[1], **lost))
    rows += whole("lost", tasks=FIVE, marks=own[1])
    return rows


def test_awkward_stores_fit_the_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: dict[str, list[str]] = {}

    def measured(self: Figure, path: Path, **_: Any) -> None:
        path.write_text("<svg></svg>")
        if path.suffix == ".svg" and "figure3" in path.stem:
            wrong[path.stem] = faults(self)

    monkeypatch.setattr(Figure, "savefig", measured)
    prepared = prepare(frame(*awkward()))
    about = {str(cell): {"start": f"{LONG} {ODD}"} for cell in prepared["cell"]}
    parts = [*section(prepared, kinds=GROUPS, sentences=about)]
    for part in parts:
        if isinstance(part, PagesPart):
            save(part.draw(part.data, {}), tmp_path, part.name, part.data)
    found = [part.table for part in parts if isinstance(part, TablePart)]
    assert len(found) == 6
    written = [to_latex(table) for table in found]
    assert all(text.isascii() for text in written)
    for engine in ENGINES[:1]:
        assert overfull(compiled(engine, document(*written), tmp_path)) == []
    assert len(wrong) == 2
    assert {file: lines[:6] for file, lines in wrong.items() if lines} == {}


@pytest.mark.usefixtures("undrawn")
def test_a_figure_without_a_whole_point_is_left_out_with_reasons(tmp_path: Path) -> None:
    rows = [*whole("softmax", tasks=FIVE[:3]), *steps("softmax", 1000, 0.5)]
    write_report(frame(*rows), tmp_path, title="x", sections=sections())
    page = (tmp_path / "report.md").read_text()
    assert "lra-figure3-lra_code: no model has all three numbers" in page
    assert "there is no average, because some of its tasks were not run" in page
    assert not list(tmp_path.glob("lra-figure3*"))


def test_labels_of_runs_split_no_seeds_and_merge_no_protocols() -> None:
    def rows(name: str, value: float, **more: str) -> list[dict[str, Any]]:
        marks = labels(name, settings="shared", deviations=name or "none", **more)
        return [
            accuracy("linear", seed, value, labels=marks, cell=f"{name}{more}{seed}")
            for seed in range(2)
        ]

    one = accuracy_table(prepare(frame(*rows("lra_code", 0.3))))
    assert [line.title for line in one.rows] == ["linear"]
    every = [*rows("lra_code", 0.3), *rows("nystrom", 0.5), *rows("nystrom", 0.6, scale="tiny"),
             *rows("nystrom", 0.7, changed="optim.steps"), *rows("", 0.9)]  # fmt: skip
    several = accuracy_table(prepare(frame(*every)))
    assert {line.title: line.entries[0].value for line in several.rows} == pytest.approx(
        {"linear (lra_code)": 0.3, "linear (nystrom)": 0.5, "linear (nystrom, tiny)": 0.6,
         "linear (nystrom, changed: optim.steps)": 0.7, "linear": 0.9}
    )  # fmt: skip
    cell = {"runner": "mine", "mode": "mine"}
    mine = [
        row("loss", v, seed=s, labels=labels(deviations=d, settings="shared"), **cell)
        for s, v, d in ((0, 1.0, "a"), (1, 3.0, "a, b"))
    ]
    (line,) = generic_table(prepare(frame(*mine)), "here").rows
    assert (line.title, line.entries[0].value) == ("linear", 2.0)


def test_the_csv_holds_measured_and_published_numbers(tmp_path: Path) -> None:
    write_report(frame(*score("linear", "listops", 0.3)), tmp_path, title="x", sections=sections())
    table = pd.read_csv(tmp_path / "lra-table1-lra_code.csv")
    assert list(table["model"]) == ["linear", "linear (published)"]
    assert table["value"].tolist() == pytest.approx([0.3, 0.1613])
