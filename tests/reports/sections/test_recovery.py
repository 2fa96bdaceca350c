"""Curves of recovery and their table, through their data."""

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest

from lra.reports.rows import prepare
from lra.reports.sections.recovery import MEASURES, recovery_data, recovery_figure, recovery_table
from lra.reports.tables.table import Table
from tests.reports.conftest import Report

ACCURACY, LOSS = MEASURES
CELL = {"runner": "transfer", "mode": "transfer"}


def curve(make: SimpleNamespace, model: str, start: str, losses: dict[int, float], seed: int = 0) -> list[dict[str, Any]]:  # fmt: skip  # noqa: E501
    """Validation rows along a fine-tuning; an accuracy is 1 / (1 + loss)."""
    found = []
    for step, loss in losses.items():
        labels = {"split": "validation", "start": start}
        told = {"model": model, "seed": seed, "step": step, "labels": labels, **CELL}
        found.append(make.row("loss", loss, cell=f"{model}-{start}-{seed}", **told))
        found.append(make.row("accuracy", 1 / (1 + loss), cell=f"{model}-{start}-{seed}", **told))
    return found


def source(make: SimpleNamespace, model: str, loss: float, seed: int = 0) -> list[dict[str, Any]]:
    told = {"model": model, "seed": seed, "cell": f"{model}-softmax-{seed}", **CELL}
    label = {"split": "validation", "start": "softmax"}
    rows = [
        make.row("source_loss", loss, labels=label, **told),
        make.row("source_accuracy", 1 / (1 + loss), labels=label, **told),
    ]
    for origin, count in (("copied", 90.0), ("started", 5.0), ("extended", 0.0), ("drawn", 5.0)):
        labels = {"start": "softmax", "origin": origin}
        rows.append(make.row("initial_parameters", count, labels=labels, **told))
    return rows


@pytest.fixture
def frame(make: SimpleNamespace) -> pd.DataFrame:
    why = "this model has no place for q_proj"
    labels = {"split": "test", "start": "softmax"}
    return prepare(
        make.frame(
            *curve(make, "performer", "softmax", {0: 3.0, 10: 1.2, 20: 1.0}),
            *curve(make, "performer", "softmax", {0: 5.0, 10: 1.4, 20: 1.2}, seed=1),
            *curve(make, "performer", "scratch", {0: 6.0, 10: 2.0, 20: 1.3}),
            *source(make, "performer", 0.9),
            *curve(make, "linear", "softmax", {0: 4.0, 10: 3.0, 20: 2.5}),
            *curve(make, "linear", "scratch", {0: 6.0, 10: 2.0, 20: 1.5}),
            *source(make, "linear", 0.9),
            make.failed("accuracy", "fnet", "unsupported", why, labels=labels, **CELL),
            make.row("loss", 2.0, step=10, labels={"split": "validation"}),  # of a plain training
        )
    )


def test_a_model_with_foreign_weights_has_a_name_of_its_own(frame: pd.DataFrame) -> None:
    transferred = frame[frame["runner"] == "transfer"]
    assert set(transferred["base"]) == {"performer", "linear", "fnet"}
    assert set(transferred["name"]) == {
        "performer (from softmax)", "performer (from scratch)", "linear (from softmax)",
        "linear (from scratch)", "fnet (from softmax)",
    }  # fmt: skip


def test_curves_are_means_over_seeds(frame: pd.DataFrame) -> None:
    data = recovery_data(frame, LOSS)
    tuned = data[(data["model"] == "performer") & (data["line"] == "fine-tuned")]
    assert list(tuned["step"]) == [0, 10, 20]
    assert list(tuned["value"]) == pytest.approx([4.0, 1.3, 1.1])
    assert list(tuned["low"]) == [3.0, 1.2, 1.0]
    assert list(tuned["high"]) == [5.0, 1.4, 1.2]
    assert set(tuned["seeds"]) == {2}
    (own,) = data[(data["model"] == "performer") & (data["line"] == "source")]["value"]
    assert own == 0.9
    assert set(data["model"]) == {"performer", "linear"}


def entries(table: Table) -> dict[str, list[str]]:
    return {row.title: [entry.text for entry in row.entries] for row in table.rows}


def test_the_table_says_where_curves_begin_and_end(frame: pd.DataFrame) -> None:
    found = entries(recovery_table(frame, recovery_data(frame, LOSS), LOSS))
    assert found == {
        "linear, weights of softmax": ["4.000", "2.500", "1.500", "0.900", "never", "95.0 %"],
        "performer, weights of softmax": [
            "4.000", "1.100", "1.300", "0.900", "10 of 20", "95.0 %",
        ],
        "fnet, weights of softmax": ["unsupported"] * 6,
    }  # fmt: skip
    shares = entries(recovery_table(frame, recovery_data(frame, ACCURACY), ACCURACY))
    assert shares["linear, weights of softmax"] == [
        "20.0", "28.6", "40.0", "52.6", "never", "95.0 %",
    ]  # fmt: skip
    table = recovery_table(frame, recovery_data(frame, LOSS), LOSS)
    assert table.footnotes() == [
        "fine-tuning does not reach this score within 20 steps",
        "this model has no place for q_proj",
    ]  # fmt: skip


def test_without_a_run_from_scratch_the_place_is_marked(make: SimpleNamespace) -> None:
    frame = prepare(make.frame(*curve(make, "linear", "softmax", {5: 4.0, 10: 3.0})))
    table = recovery_table(frame, recovery_data(frame, LOSS), LOSS)
    assert entries(table)["linear, weights of softmax"] == ["–", "3.000", "–", "–", "–", "–"]
    assert table.footnotes() == ["not run", "not recorded"]


def test_the_figure_draws_the_data(frame: pd.DataFrame) -> None:
    data = recovery_data(frame, ACCURACY)
    figure = recovery_figure(data, ACCURACY)
    figure.draw_without_rendering()
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["linear", "performer"]
    scratch, plain, tuned, level = figure.axes[1].get_lines()
    values = list(data[(data["model"] == "performer") & (data["line"] == "fine-tuned")]["value"])
    assert list(tuned.get_ydata()) == pytest.approx([100 * value for value in values])
    assert list(tuned.get_xdata()) == [0, 10, 20]
    assert list(scratch.get_ydata()) == pytest.approx([100 / 7, 100 / 3, 100 / 2.3])
    assert set(plain.get_ydata()) == {tuned.get_ydata()[0]}
    assert list(level.get_ydata()) == pytest.approx([100 / 1.9] * 2)
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [
        "from scratch", "softmax itself", "weights of softmax, before fine-tuning",
        "weights of softmax, fine-tuned",
    ]  # fmt: skip


def test_a_loss_as_drawn_does_not_flatten_the_others(frame: pd.DataFrame) -> None:
    data = recovery_data(frame, LOSS)
    low, high = recovery_figure(data, LOSS).axes[0].get_ylim()
    assert low < 0.9  # the source
    assert 5.0 < high < 6.0  # above the worst seed as it came, below the weights as drawn
    none = recovery_data(frame, ACCURACY)
    low, high = recovery_figure(none, ACCURACY).axes[0].get_ylim()
    assert low < 100 / 7


def test_tasks_have_panels_of_their_own(make: SimpleNamespace) -> None:
    other = [row | {"task": "text"} for row in curve(make, "linear", "softmax", {0: 9.0, 10: 8.0})]
    frame = prepare(make.frame(*curve(make, "linear", "softmax", {0: 4.0, 10: 3.0}), *other))
    data = recovery_data(frame, LOSS)
    titles = [axes.get_title(loc="left") for axes in recovery_figure(data, LOSS).axes]
    facts = [f"{task} (generated, version 1, length 512)" for task in ("listops", "text")]
    assert [" ".join(title.split()) for title in titles] == [f"linear, {fact}" for fact in facts]
    table = recovery_table(frame, data, LOSS)
    assert [row.section for row in table.rows] == facts


def test_figure_and_table_of_one_task_name_its_data(frame: pd.DataFrame) -> None:
    data = recovery_data(frame, LOSS)
    fact = "listops (generated, version 1, length 512)"
    assert fact in recovery_table(frame, data, LOSS).caption
    assert any(fact in text.get_text() for text in recovery_figure(data, LOSS).texts)


def test_the_report_shows_both(frame: pd.DataFrame, make: SimpleNamespace, report: Report) -> None:
    names = report(frame)
    for metric in ("accuracy", "loss"):
        assert {f"recovery-{metric}.md", f"recovery-{metric}-curve.svg"} <= names.keys()
    plain = make.frame(make.accuracy("linear", 0, 0.5))
    assert not any("recovery" in name for name in report(plain))


def test_only_runs_from_scratch_are_drawn_as_well(make: SimpleNamespace, report: Report) -> None:
    rows = make.frame(*curve(make, "linear", "scratch", {0: 4.0, 10: 3.0}))
    names = report(rows)
    assert "recovery-loss-curve.csv" in names
