"""Scores by group: the table, effective lengths by both rules, and the figure."""

import pytest

from lra.reports.figures.drawing import looks
from lra.reports.rows import prepare
from lra.reports.sections.score_groups import effective_length, part_order, score_groups

FACTS = {"task": "permutations", "length": 96, "causal": True, "runner": "train", "mode": "train"}


def rows_of(make, model, scores, *, seed=0, group="length"):
    for part, value in scores.items():
        labels = {"split": "test", "group": group, "part": str(part), "items": "9"}
        yield make.row("accuracy_by_group", value, **FACTS, model=model, seed=seed, labels=labels)


@pytest.mark.parametrize(
    ("scores", "relative", "absolute"),
    [
        ({8: 1.0, 16: 1.0, 32: 1.0, 64: 0.86, 128: 0.5}, (64, False), (64, False)),
        ({8: 0.5, 16: 0.5, 32: 0.5, 64: 0.43, 128: 0.42}, (64, False), (0, False)),
        ({8: 1.0, 16: 1.0, 32: 1.0}, (32, True), (32, True)),
        # One length below the threshold ends it, whatever follows.
        ({8: 1.0, 16: 1.0, 32: 0.2, 64: 1.0}, (16, False), (16, False)),
        ({128: 0.9, 8: 0.84, 16: 1.0, 32: 1.0}, (128, True), (0, False)),
    ],
)
def test_the_effective_length_ends_below_the_threshold(scores, relative, absolute):
    assert effective_length(scores, relative=True) == relative
    assert effective_length(scores, relative=False) == absolute


def test_parts_are_ordered_as_numbers_before_words():
    assert part_order(["64", "8", "all", "never", "128"]) == ["8", "64", "128", "never"]


def test_a_table_for_each_group_and_a_figure_of_numbers(make):
    frame = prepare(
        make.frame(
            *rows_of(make, "gla", {8: 1.0, 16: 0.9, 32: 0.8, 64: 0.2}),
            *rows_of(make, "gla", {8: 1.0, 16: 1.0, 32: 1.0, 64: 1.0}, seed=1),
            *rows_of(make, "sdpa", {8: 0.5}),
            *rows_of(make, "sdpa", {"near": 0.25, "far": 0.5}, group="distance"),
            make.failed("accuracy", "slstm", "diverged", "the loss is NaN", **FACTS),
        )
    )
    by_length, figure, by_distance = score_groups(frame)
    titles = [column.title for column in by_length.table.columns]
    assert titles == [
        "8", "16", "32", "64", "base", "effective, 85% of base", "effective, 85.6%",
    ]  # fmt: skip
    lines = {row.title: [entry.text for entry in row.entries] for row in by_length.table.rows}
    assert lines["gla"] == [
        "100.0", "95.0", "90.0", "60.0", "95.0", "32 (32 to ≥ 64)", "16 (16 to ≥ 64)",
    ]  # fmt: skip
    assert lines["sdpa"] == ["50.0", "–", "–", "–", "50.0", "–", "< 8"]
    assert lines["slstm"] == ["diverged"] * 7
    assert "fewer than 3 lengths were tested" in " ".join(by_length.table.footnotes())
    drawn = figure.data[figure.data["model"] == "gla"]
    assert drawn["at"].tolist() == [8.0, 16.0, 32.0, 64.0]
    assert drawn["low"].tolist() == [1.0, 0.9, 0.8, 0.2]
    assert len(figure.draw(figure.data, looks(["gla", "sdpa"])).axes) >= 1
    assert [column.title for column in by_distance.table.columns] == ["far", "near"]
    assert "effective" not in by_distance.table.caption


def test_baselines_of_a_group_stand_below_its_models(make):
    labels = {"split": "test", "group": "length", "part": "8", "items": "9"}
    facts = {**FACTS, "runner": "certify", "model": "baseline/last_value", "seed": None}
    floor = make.row("accuracy_by_group", 0.25, **facts, labels=labels)
    other = make.row("accuracy_by_group", 0.5, **facts, labels={**labels, "group": "distance"})
    models = rows_of(make, "gla", {8: 1.0, 16: 0.9})
    table, figure = score_groups(prepare(make.frame(*models, floor, other)))
    first, last = table.table.rows
    assert (first.title, last.title, first.section) == ("gla", "last value", "")
    assert last.section.startswith("baselines")
    assert [entry.text for entry in last.entries][:2] == ["25.0", "–"]
    assert {*figure.data["model"]} == {"gla"}


def test_trainings_without_groups_have_no_part(make):
    row = make.row("accuracy", 0.9, **FACTS, model="gla", labels={"split": "test"})
    assert [*score_groups(prepare(make.frame(row)))] == []


def test_parts_from_zero_on_have_a_linear_axis(make):
    rows = rows_of(make, "gla", {0: 1.0, 10: 0.5, 90: 0.25}, group="depth")
    _, figure = score_groups(prepare(make.frame(*rows)))
    (axes,) = figure.draw(figure.data, looks(["gla"])).axes
    assert axes.get_xscale() == "linear"
    assert axes.lines[0].get_xdata().tolist() == [0, 10, 90]
