"""Drawings of lines: a panel for each place, what a line is, and what stands for absent numbers."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes

from lra.reports.figures.drawing import looks
from lra.reports.figures.lines import LineDrawing
from lra.reports.figures.ticks import class_axis, step_axis
from lra.reports.tables.places import place_words

MODELS = ("softmax", "linear", "performer")
PLACE = {"task_version": 1, "source": "files", "length": 128}
DATA = pd.DataFrame(
    [
        {**PLACE, "task": task, "metric": metric, "model": model, "tokens": tokens, "trained": 128,
         "value": value, "low": value - spread, "high": value + spread, "status": "ok",
         "reason": ""}
        for task, metric, model, tokens, value, spread in (
            ("text8", "bits_per_character", "linear", 64, 2.5, 0.1),
            ("text8", "bits_per_character", "linear", 512, 2.7, 0.2),
            ("text8", "bits_per_character", "softmax", 64, 2.2, 0.0),
            ("induction", "accuracy", "linear", 64, 0.9, 0.0),
            ("induction", "accuracy", "linear", 128, 0.7, 0.0),
        )
    ]
    + [
        {**PLACE, "task": "text8", "metric": "bits_per_character", "model": model,
         "tokens": tokens, "trained": 128, "status": status, "reason": reason}
        for model, tokens, status, reason in (
            ("softmax", 512, "unsupported", "no place"), ("performer", 64, "skipped", "diverged"),
            ("performer", 512, "skipped", "diverged"),
        )
    ]
)  # fmt: skip


def trained(axes: Axes, data: pd.DataFrame) -> None:
    axes.axvline(data["trained"].iloc[0])


DRAWING = LineDrawing(
    title="Beyond", panel=("task", "task_version", "source", "length"), x="tokens",
    across="evaluation length (tokens)", words=partial(place_words, untold=["length"]),
    guide=trained,
    subtitle=lambda data: f"{len(data)} points",
)  # fmt: skip


def test_a_panel_has_the_lines_of_its_place_and_crosses_for_what_is_absent() -> None:
    figure = DRAWING(DATA, looks(MODELS))
    figure.draw_without_rendering()
    by_title = {axes.get_title(loc="left"): axes for axes in figure.axes}
    text = by_title["text8 (files, version 1)"]
    recall = by_title["induction (files, version 1)"]
    lines = {line.get_label(): line for line in text.get_lines()}
    assert [*lines["linear"].get_xdata()] == [64, 512]
    assert [*lines["linear"].get_ydata()] == [2.5, 2.7]
    assert [*lines["softmax"].get_xdata()] == [64]
    crosses = [line for line in text.get_lines() if line.get_marker() == "x"]
    assert sorted(tuple(line.get_xdata()) for line in crosses) == [(64, 512), (512,)]
    low, high = (text.transData.transform((64, y))[1] for y in (2.2, 2.9))
    heights = [text.get_xaxis_transform().transform((64, *c.get_ydata()[:1]))[1] for c in crosses]
    assert low < high < min(heights)
    bands = [band.get_paths() for band in text.collections]
    ends = [paths[0].vertices[:, 1].max() for paths in bands if paths]
    assert ends == pytest.approx([2.2, 2.9])  # softmax has one seed, and a band of no height
    assert [t.get_text() for t in text.texts] == ["softmax"]  # beside its cross
    assert (text.get_xlabel(), text.get_xscale()) == ("evaluation length (tokens)", "log")
    assert text.get_ylabel() == "bits per character (bit)"
    assert recall.get_ylabel() == "accuracy (%)"
    assert [*recall.get_lines()[0].get_ydata()] == [90.0, 70.0]
    assert [[*line.get_xdata()] for line in recall.get_lines()][-1] == [128.0, 128.0]
    words = " ".join(" ".join(text.get_text().split()) for text in figure.texts)
    assert "8 points" in words
    assert "× unsupported, no place: softmax, text8 at 512" in words
    assert "× skipped, diverged: performer, text8 at every length" in words
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == ["softmax", "linear", "performer"]


def test_one_panel_needs_no_task_in_its_notes() -> None:
    figure = DRAWING(DATA[DATA["task"] == "text8"], looks(MODELS))
    words = " ".join(" ".join(text.get_text().split()) for text in figure.texts)
    assert "× unsupported, no place: softmax at 512" in words


def test_numbers_may_stand_at_steps_or_classes() -> None:
    data = DATA.drop(columns=["metric", "status", "reason"]).dropna()
    data = data[data["task"] == "induction"].assign(tokens=[0, 1], loss=[9.0, 7.0])
    data = pd.concat([data, data.iloc[-1:].assign(tokens=10, loss=4.0, low=3.0, high=5.0)])
    by_class = LineDrawing(
        title="By class", panel=("task", "source"), x="tokens", across="from", y="loss",
        along=lambda _: ("loss (nat)", 1.0), scale=partial(class_axis, base=10),
    )  # fmt: skip
    (axes,) = by_class(data, looks(MODELS)).axes
    assert (axes.get_xscale(), axes.get_ylabel()) == ("symlog", "loss (nat)")
    assert axes.get_title(loc="left") == "induction (files)"
    (line,) = axes.get_lines()
    assert [*line.get_ydata()] == [9.0, 7.0, 4.0]
    apart = np.diff(axes.transData.transform(line.get_xydata())[:, 0])
    assert apart[1] == pytest.approx(apart[0], rel=0.05)  # 0 is a class, one before 1
    by_step = LineDrawing(
        title="By step", panel=("task", "source"), x="tokens", across="step", y="loss",
        along=lambda _: ("loss (nat)", 1.0), scale=step_axis,
    )  # fmt: skip
    (axes,) = by_step(data, looks(MODELS)).axes
    assert axes.get_xscale() == "linear"
