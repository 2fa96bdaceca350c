"""Error rates by distance: counts of all seeds, Wilson's intervals, and a bound without errors."""

import matplotlib.pyplot as plt
import pytest

from lra.reports.figures.drawing import looks
from lra.reports.rows import prepare
from lra.reports.sections.error_rates import error_data, error_rates
from lra.reports.statistics.intervals import wilson_interval

FACTS = {"task": "flip_flop", "length": 512, "causal": True, "runner": "train", "mode": "train"}


def group_row(make, model, seed, part, errors, answers, **labels):  # noqa: PLR0917
    told = {"split": "test", "group": "distance", "part": str(part), "items": str(answers)}
    value = 1 - errors / answers
    return make.row(
        "accuracy_by_group", value, **FACTS, model=model, seed=seed, labels=told | labels
    )


@pytest.fixture
def frame(make):
    rows = [
        group_row(make, "softmax", 0, 1, 0, 30_000),
        group_row(make, "softmax", 1, 1, 0, 70_000),
        group_row(make, "softmax", 0, 128, 3, 1000),
        group_row(make, "softmax", 1, 128, 9, 2000),
        group_row(make, "lstm", 0, 1, 0, 4000),
        # Neither another split nor another group is an error by distance.
        group_row(make, "lstm", 0, 1, 500, 1000, split="validation"),
        group_row(make, "lstm", 0, 64, 500, 1000, group="length"),
    ]
    return prepare(make.frame(*rows))


def test_errors_of_all_seeds_count_together(frame):
    data = error_data(frame).set_index(["model", "distance"])
    far = data.loc[("softmax", 128)]
    interval = wilson_interval(12 / 3000, 3000)
    assert (far["errors"], far["answers"], far["seeds"]) == (12, 3000, 2)
    assert (far["value"], far["low"], far["high"]) == pytest.approx(
        (12 / 3000, interval.low, interval.high)
    )
    assert data.loc[("softmax", 0), "value"] == pytest.approx(12 / 103_000)
    near = data.loc[("softmax", 1)]
    assert near["value"] == near["low"] == near["high"] == 3 / 100_000
    assert len(data) == 5


def test_no_error_is_printed_as_a_bound(frame):
    table, figure = error_rates(frame)
    lines = {(row.section, row.title): row.entries[0] for row in table.table.rows}
    assert lines["softmax", "1"].text == "< 3/100,000"
    assert lines["softmax", "1"].value is None
    assert lines["softmax", "128–255"].text == "4.0e-03 [2.3e-03, 7.0e-03]"
    assert lines["softmax", "128–255"].facts["errors"] == 12
    assert lines["lstm", "all distances"].text == "< 3/4,000"
    assert ("lstm", "64–127") not in lines
    drawn = figure.draw(figure.data, looks(["softmax", "lstm"]))
    (axes,) = (axes for axes in drawn.axes if axes.get_ylabel() == "error rate")
    assert axes.get_yscale() == "log"
    low, high = axes.get_ylim()
    assert 0 < low < 3 / 100_000
    assert high == 1
    plt.close(drawn)


def test_tasks_without_distances_have_no_error_rates(make):
    row = make.row("accuracy", 0.9, **FACTS, model="softmax", seed=0, labels={"split": "test"})
    assert not [*error_rates(prepare(make.frame(row)))]
