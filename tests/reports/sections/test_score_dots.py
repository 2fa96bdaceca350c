"""Figures that every sweep of trainings has: scores with intervals, and against cost."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lra.reports.figures.drawing import looks
from lra.reports.rows import prepare
from lra.reports.sections.score_cost import STEP_TIME, score_cost_figure, score_time_data
from lra.reports.sections.score_dots import dots_data, dots_figure
from lra.reports.statistics.intervals import mean_interval
from lra.reports.style import ReportStyle, Surrounding, using
from tests.reports.conftest import Report
from tests.reports.figures.test_layout import faults


def trainings(make: SimpleNamespace, *models: str) -> list[dict[str, object]]:
    """Three seeds of each model; the one of more letters is slower."""
    return [
        row
        for place, model in enumerate(models)
        for seed in range(3)
        for row in (
            make.accuracy(model, seed, 0.3 + 0.1 * place + 0.02 * seed),
            make.row("train_step_time", 0.01 * (place + 1) + seed * 1e-4, model=model, seed=seed),
        )
    ]


def test_scores_have_the_intervals_of_the_table(make: SimpleNamespace, report: Report) -> None:
    rows = trainings(make, "linear", "sdpa")
    rows.append(make.failed("accuracy", "luna", "out_of_memory", "too large"))
    rows.append(make.baseline("majority", 0.17, "always answers 7"))
    data = dots_data(prepare(make.frame(*rows))).set_index("model")
    interval = mean_interval([0.3, 0.32, 0.34])
    first = data.loc["linear", ["score", "low", "high", "seeds"]].tolist()
    assert first == pytest.approx([0.32, interval.low, interval.high, 3])
    assert data.loc["luna", "status"] == "out_of_memory"
    assert data.loc["baseline/majority", "score"] == 0.17
    paths = report(make.frame(*rows))
    assert {"scores.svg", "score-by-step-time.svg"} <= {*paths}
    assert len(pd.read_csv(paths["scores.csv"])) == 4
    assert "Score against the time of a training step" in paths["report.md"].read_text()


def test_one_model_alone_has_no_figure(make: SimpleNamespace) -> None:
    frame = prepare(make.frame(*trainings(make, "linear")))
    assert dots_data(frame).empty
    assert score_time_data(frame).empty


def test_the_time_of_a_step_is_a_median_on_one_machine(make: SimpleNamespace) -> None:
    rows = trainings(make, "linear", "sdpa")
    other = {"device": "a faster one", "seed": 7}
    rows += [make.row("train_step_time", 0.001, model=m, **other) for m in ("linear", "sdpa")]
    data = score_time_data(prepare(make.frame(*rows)))
    assert data["machine"].unique().tolist() == ["cpu, a faster one, float32", "cpu, float32"]
    here = data[data["machine"] == "cpu, float32"].set_index("model")
    assert here["step_time"].to_dict() == pytest.approx({"linear": 0.0101, "sdpa": 0.0201})


@pytest.mark.parametrize("width", [3.25, 6.75, None])
def test_nothing_overlaps(make: SimpleNamespace, width: float | None) -> None:
    models = ["sdpa", "linear", "zeta", *(f"model_of_a_rather_long_name_{n}" for n in range(6))]
    outside = [Surrounding.title, Surrounding.subtitle, Surrounding.notes]
    with using(ReportStyle(width=width, beside=outside if width else [])):
        frame = prepare(make.frame(*trainings(make, *models)))
        drawn = (
            dots_figure(dots_data(frame), looks(models)),
            score_cost_figure(score_time_data(frame), looks(models), STEP_TIME),
        )
        for figure in drawn:
            assert faults(figure) == []
            (axes,) = figure.axes
            assert axes.get_title(loc="left").startswith("listops")
        named = [label.get_text().replace("\n", "") for label in drawn[0].axes[0].get_yticklabels()]
        assert named == models[::-1]  # the best one first; none gave way to another
