"""The heat map of scores by length and depth."""

import pytest

from lra.reports.figures.drawing import looks
from lra.reports.rows import prepare
from lra.reports.sections import needles
from lra.reports.sections.score_groups import score_groups

FACTS = {"task": "needle", "length": 64, "causal": True, "runner": "train", "mode": "train"}


def rows_of(make, model, scores, seed=0):
    for part, value in scores.items():
        labels = {"split": "test", "group": "length_and_depth", "part": str(part), "items": "9"}
        yield make.row("accuracy_by_group", value, **FACTS, model=model, seed=seed, labels=labels)


def test_squares_are_means_over_seeds_at_their_length_and_depth(make):
    frame = prepare(
        make.frame(
            *rows_of(make, "gla", {6400: 1.0, 6490: 0.5, 102400: 0.25}),
            *rows_of(make, "gla", {6400: 0.5, 6490: 0.5, 102400: 0.25}, seed=1),
            *rows_of(make, "sdpa", {6400: 1.0}),
        )
    )
    (part,) = score_groups(frame)  # no table: the parts are no lengths
    assert part.name == "accuracy-by-length-and-depth"
    drawn = {(row.model, row.at, row.depth): row.value for row in part.data.itertuples()}
    assert drawn == {
        ("gla", 64, 0): 0.75, ("gla", 64, 90): 0.5, ("gla", 1024, 0): 0.25, ("sdpa", 64, 0): 1.0,
    }  # fmt: skip
    figure = part.draw(part.data, looks(["gla", "sdpa"]))
    by_title = {axes.get_title(loc="left"): axes for axes in figure.axes}
    (image,) = by_title["gla"].images
    assert image.get_array()[:, 0].tolist() == pytest.approx([0.75, 0.5])
    assert image.get_array()[0, 1] == pytest.approx(0.25)
    assert [text.get_text() for text in by_title["gla"].texts] == ["75", "25", "50"]
    assert [text.get_text() for text in by_title["gla"].get_xticklabels()] == ["64", "1,024"]
    assert len(by_title["sdpa"].images) == 1


def test_reports_without_depths_have_no_map(make):
    labels = {"split": "test", "group": "length", "part": "8", "items": "9"}
    row = make.row("accuracy_by_group", 0.5, **FACTS, model="gla", labels=labels)
    assert [part.name for part in score_groups(prepare(make.frame(row)))] == ["accuracy-by-length"]


def test_needles_of_a_language_model_have_a_table_and_a_map(make):
    facts = {"model": "gla", "task": "enwik8", "length": 64, "runner": "needles", "mode": "needles"}
    labels = {"split": "test", "candidates": "100"}
    rows = [make.row("answer_rank", 12.5, labels=labels, **facts)]
    for part, value in {25610: 0.5, 25690: 1.0}.items():
        group = {"group": "length_and_depth", "part": str(part), "items": "9"}
        rows.append(make.row("accuracy_by_group", value, labels=labels | group, **facts))
    table, drawn = needles.section(prepare(make.frame(*rows)))
    assert [row.entries[0].text for row in table.table.rows] == ["12.5"]
    assert [*drawn.data["depth"]] == [10, 90]
