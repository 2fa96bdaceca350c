"""Scores of language models beside what they cost."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lra.reports.figures.drawing import looks
from lra.reports.rows import prepare
from lra.reports.sections.score_cost import (
    LONG_STEP_TIME,
    score_cost_data,
    score_cost_figure,
    score_long_time_data,
    score_time_data,
    untimed_trainings,
)
from lra.reports.statistics.intervals import mean_interval
from tests.reports.conftest import Report

TEXT = {"task": "wikitext2", "source": "files", "length": 64}


def test_scores_meet_the_operations_of_one_example_at_their_length(
    make: SimpleNamespace, report: Report
) -> None:
    rows = []
    for model, flops in (("softmax", 8e6), ("light_conv", 2e6)):
        for seed, value in ((0, 90.0), (1, 110.0)):
            test = {"model": model, "seed": seed, "labels": {"split": "test"}, **TEXT}
            rows.append(make.row("perplexity", value + (model == "softmax"), **test))
        for length in (64, 128):
            place = {**TEXT, "model": model, "length": length, "runner": "scaling"}
            for mode in ("forward", "step"):
                more = 1 if mode == "forward" else 3
                cost = place | {"mode": mode}
                rows += [make.row("time", 0.1, **cost), make.row("batch_size", 4.0, **cost)]
                rows.append(make.row("flops", flops * more * length / 64, **cost))
    rows.append(make.row("perplexity", 5.0, model="linear", labels={"split": "test"}, **TEXT))
    frame = prepare(make.frame(*rows))
    data = score_cost_data(frame).set_index("model")
    assert data["multiply_adds"].to_dict() == {"light_conv": 2.5e5, "softmax": 1e6}
    assert data["score"].to_dict() == {"light_conv": 100.0, "softmax": 101.0}
    interval = mean_interval([91.0, 111.0])
    assert data.loc["softmax", ["low", "high"]].tolist() == [interval.low, interval.high]
    paths = report(frame)
    drawn = pd.read_csv(paths["score-by-multiply-adds.csv"])
    assert drawn["model"].tolist() == ["light_conv", "softmax"]
    assert "Score against multiply-adds" in paths["report.md"].read_text()


@pytest.mark.parametrize("kept", ["train", "scaling"])
def test_without_one_of_both_there_is_no_point(make: SimpleNamespace, kept: str) -> None:
    place = TEXT | {"runner": "scaling", "mode": "forward"}
    rows = [
        make.row("perplexity", 5.0, labels={"split": "test"}, **TEXT),
        make.row("flops", 8e6, **place), make.row("batch_size", 4.0, **place),
    ]  # fmt: skip
    frame = prepare(make.frame(*(row for row in rows if row["runner"] == kept)))
    assert score_cost_data(frame).empty


def test_steps_of_a_training_that_waited_for_a_processor_are_no_cost(make: SimpleNamespace) -> None:
    rows = []
    for model, seed, step_s, waiting in (
        ("softmax", 0, 0.2, 0.0), ("softmax", 1, 0.9, 0.5), ("linear", 0, 0.1, 0.1),
        ("light_conv", 0, 0.7, 0.2), ("fnet", 0, 0.3, None),
    ):  # fmt: skip
        place = {**TEXT, "model": model, "seed": seed, "cell": f"{model} {seed}"}
        rows.append(make.row("perplexity", 90.0, labels={"split": "test"}, **place))
        rows.append(make.row("train_step_time", step_s, **place))
        if waiting is not None:
            rows.append(make.row("waiting_share", waiting, **place))
    frame = prepare(make.frame(*rows))
    data = score_time_data(frame).set_index("model")
    assert data["step_time"].to_dict() == {"linear": 0.1, "softmax": 0.2, "fnet": 0.3}
    (left_out,) = untimed_trainings(frame)
    assert left_out.reason == (
        "other processes disturbed 2 of 5 trainings, for example: the threads of this run waited "
        "0.50 s for a processor in each second"
    )
    assert not [*untimed_trainings(frame[frame["model"] != "light_conv"])]  # each model has a time


def test_scores_meet_the_time_of_a_step_at_the_length_that_most_models_reach(
    make: SimpleNamespace, report: Report
) -> None:
    rows = []
    for model, step_s, disturbed in (("sdpa", 3.0, {}), ("linear", 1.0, {"disturbed": "load"})):
        rows.append(make.row("perplexity", 90.0, model=model, labels={"split": "test"}, **TEXT))
        for length in (512, 8192, 16384):
            cell = f"{model} {length}"
            place = {"task": "wikitext2", "source": "files", "runner": "scaling", "mode": "step"}
            place |= {"model": model, "length": length, "cell": cell}
            time = make.row("time", step_s * length / 512, labels=disturbed, **place)
            if (model, length) == ("sdpa", 16384):
                time |= {"value": None, "status": "skipped", "reason": "too long"}
            rows += [time, make.row("batch_size", 2.0, **place)]
    frame = prepare(make.frame(*rows))
    data = score_long_time_data(frame).set_index("model")
    assert data["long_step_time"].to_dict() == {"linear": 8.0, "sdpa": 24.0}
    assert set(data["tokens"]) == {8192}
    assert data["disturbed"].to_dict() == {"linear": "load", "sdpa": ""}
    assert "score-by-long-step-time.csv" in report(frame)
    figure = score_cost_figure(data.reset_index(), looks([*data.index]), LONG_STEP_TIME)
    assert figure.axes[0].get_xlabel() == "time of a training step at 8,192 tokens"
