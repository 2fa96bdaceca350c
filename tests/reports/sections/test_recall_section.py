"""Copy advantages by distance, and the gap between models on recalled and other tokens."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from matplotlib.collections import PolyCollection

from lra.reports.figures.drawing import looks
from lra.reports.rows import prepare
from lra.reports.sections.recall import copy_data, gap, section, token_data
from lra.reports.sections.section import PagesPart
from lra.reports.statistics.intervals import bootstrap_interval, mean_interval
from tests.reports.conftest import Report

FACTS = {"task": "text8", "source": "files", "length": 256, "causal": True, "runner": "recall",
         "mode": "recall"}  # fmt: skip
GAINS = {16: [0.5, 0.7, 0.9, 0.7], 128: [0.2, 0.1, 0.4, 0.3]}


def copies(make, model, gains, *, seed=0, control="native"):
    """Rows of copy advantages, by distance."""
    for distance, samples in gains.items():
        labels = {
            "split": "test", "control": control, "copied": "exact", "segment": "64",
            "segments": "4", "drawn": "aa", "distance": str(distance),
        }  # fmt: skip
        told = {**FACTS, "model": model, "seed": seed, "labels": labels}
        yield make.row("copy_advantage", float(np.mean(samples)), samples=samples, **told)
        yield make.row("copied_loss", 1.0, **told)


def tokens(make, model, parts, *, seed=0, drawn="bb"):
    """Rows of classes of tokens: by class, their fraction and the parts of blocks."""
    for kind, (share, samples) in parts.items():
        labels = {"split": "test", "kind": kind, "items": "9", "rare": "0.5", "drawn": drawn}
        told = {**FACTS, "model": model, "seed": seed, "labels": labels}
        part = float(np.mean(samples))
        yield make.row("recalled_share", share, **told)
        yield make.row("recalled_loss", part / share, **told)
        yield make.row("loss_part", part, samples=samples, **told)


GOOD = {
    "all": (1.0, [1.0, 1.2, 1.4]), "recalled": (0.5, [0.2, 0.3, 0.4]),
    "rare": (0.25, [0.1, 0.2, 0.3]), "frequent": (0.25, [0.1, 0.1, 0.1]),
    "other": (0.5, [0.8, 0.9, 1.0]),
}  # fmt: skip
BAD = {
    "all": (1.0, [1.5, 1.6, 1.9]), "recalled": (0.5, [0.6, 0.6, 0.7]),
    "rare": (0.25, [0.4, 0.4, 0.5]), "frequent": (0.25, [0.2, 0.2, 0.2]),
    "other": (0.5, [0.9, 1.0, 1.2]),
}  # fmt: skip


@pytest.fixture
def frame(make: SimpleNamespace) -> pd.DataFrame:
    shifted = {distance: [gain - 0.2 for gain in gains] for distance, gains in GAINS.items()}
    return make.frame(
        *copies(make, "softmax", GAINS),
        *copies(make, "linear", shifted),
        *copies(make, "linear", GAINS, seed=1),
        *copies(make, "softmax", shifted, control="foreign"),
        make.failed("copy_advantage", "performer", "skipped", "its training diverged", **FACTS),
        *tokens(make, "softmax", GOOD),
        *tokens(make, "linear", BAD),
        *tokens(make, "linear", BAD, seed=1, drawn="bb"),
    )


def texts_of(figure):
    return [" ".join(text.get_text().split()) for text in figure.texts]


def parts_of(rows):
    return {part.name: part for part in section(prepare(rows))}


def test_intervals_are_over_segments_or_seeds(frame):
    data = copy_data(prepare(frame)).set_index(["control", "model", "distance"])
    one = data.loc[("native", "softmax", "16")]
    interval = bootstrap_interval(GAINS[16])
    assert one["value"] == pytest.approx(0.7)
    assert (one["low"], one["high"]) == (interval.low, interval.high)
    assert interval.low < 0.7 < interval.high
    assert one["interval"] == "examples"
    both = data.loc[("native", "linear", "16")]
    interval = mean_interval([0.5, 0.7])
    assert both["value"] == pytest.approx(0.6)
    assert (both["low"], both["high"]) == pytest.approx((interval.low, interval.high))
    assert both["interval"] == "seeds"


def test_the_bootstrap_of_a_mean_is_near_its_t_interval():
    values = [float(v) for v in np.random.default_rng(1).normal(3, 2, 400)]
    bootstrap, exact = bootstrap_interval(values), mean_interval(values)
    assert bootstrap.low == pytest.approx(exact.low, abs=0.03)
    assert bootstrap.high == pytest.approx(exact.high, abs=0.03)
    assert bootstrap_interval(values) == bootstrap
    assert bootstrap_interval([1.0]) is None
    equal = bootstrap_interval([2.0, 2.0, 2.0])
    assert (equal.low, equal.high) == (2.0, 2.0)


def test_the_table_has_a_column_for_each_control_and_distance(frame):
    table = parts_of(frame)["copy-advantage"].table
    assert [column.title for column in table.columns] == ["16", "128"] * 2
    assert {column.group.partition(" (")[0] for column in table.columns[:2]} == {
        "text8, exact copy, foreign control, files, length 256, segments of 64 tokens"
    }
    texts = {row.title: [entry.text for entry in row.entries] for row in table.rows}
    assert texts["softmax"] == ["0.500", "0.050", "0.700", "0.250"]
    assert texts["linear"] == ["–", "–", "0.600", "0.150"]
    assert texts["performer"] == ["skipped"] * 4
    assert "its training diverged" in " ".join(table.footnotes())


def test_the_figure_has_bands_and_a_line_at_zero(frame):
    part = parts_of(frame)["copy-advantage-by-distance"]
    assert isinstance(part, PagesPart)
    figure = part.draw(part.data, looks(["softmax", "linear"]))
    foreign, native = figure.axes
    words = "A copy 128 tokens before lowers the loss"
    assert any(
        f"{words} by at most 0.250 nats a token (softmax)" in text for text in texts_of(figure)
    )
    near = part.data.assign(low=part.data["value"] - 1)
    unsure = part.draw(near, looks(["softmax", "linear"]))
    assert any(f"{words} of no model significantly" in text for text in texts_of(unsure))
    assert "exact copy, foreign control" in foreign.get_title(loc="left").replace("\n", " ")
    (line,) = [line for line in native.get_lines() if line.get_label() == "softmax"]
    assert [tuple(point) for point in line.get_xydata()] == [
        (16, pytest.approx(0.7)), (128, pytest.approx(0.25)),
    ]  # fmt: skip
    assert sum(isinstance(drawn, PolyCollection) for drawn in native.collections) == 2
    for axes in (foreign, native):
        assert any(set(line.get_ydata()) == {0} for line in axes.get_lines())
        assert axes.get_ylim()[0] < 0 < axes.get_ylim()[1]
        assert axes.get_ylabel() == "copy advantage (nat/token)"


def test_the_gap_to_the_best_model_splits_into_both_classes(frame):
    table = parts_of(frame)["recalled-tokens"].table
    titles = [column.title for column in table.columns]
    texts = {row.title: [entry.text for entry in row.entries] for row in table.rows}
    of = {name: dict(zip(titles, entries, strict=True)) for name, entries in texts.items()}
    assert of["linear"]["loss"] == "1.667"
    assert of["linear"]["recalled (%)"] == "50.0"
    assert of["linear"]["loss, recalled"] == "1.267"
    assert of["softmax"]["loss, rare"] == "0.800"
    assert of["softmax"]["gap"] == "best"
    assert of["linear"]["gap"] == "0.467"
    assert of["linear"]["gap, recalled"] == "0.333"
    assert of["linear"]["gap, other"] == "0.133"
    assert of["linear"]["gap, recalled (%)"] == "71"


def test_the_interval_of_a_gap_is_over_paired_blocks(frame):
    data = token_data(prepare(frame))
    linear, softmax = (data[data["name"] == name] for name in ("linear", "softmax"))
    found = gap(linear, softmax, "recalled")
    interval = bootstrap_interval([0.4, 0.3, 0.3])
    assert found["seeds"] == 1
    assert (found["low"], found["high"]) == pytest.approx((interval.low, interval.high))


def test_models_on_other_tokens_have_no_gap(make: SimpleNamespace):
    rows = [*tokens(make, "softmax", GOOD), *tokens(make, "linear", BAD, drawn="cc")]
    table = parts_of(make.frame(*rows))["recalled-tokens"].table
    entries = {row.title: [entry.text for entry in row.entries] for row in table.rows}
    assert entries["linear"][-4:] == ["–"] * 4
    assert "share no seed with the same tokens" in " ".join(table.footnotes())


def test_a_gap_that_may_be_zero_has_no_percentages(make: SimpleNamespace):
    near = {kind: (share, samples[::-1]) for kind, (share, samples) in GOOD.items()}
    near["all"] = (1.0, [1.45, 1.2, 1.0])
    rows = [*tokens(make, "softmax", GOOD), *tokens(make, "linear", near)]
    table = parts_of(make.frame(*rows))["recalled-tokens"].table
    entries = {row.title: [entry.text for entry in row.entries] for row in table.rows}
    assert entries["linear"][-4:] == ["0.017", "0.000", "0.000", "–"]
    assert "the interval of the whole gap includes 0" in " ".join(table.footnotes())


def test_a_report_has_both_and_no_other_table_has_their_numbers(frame, report: Report):
    paths = report(frame)
    assert {"copy-advantage.md", "copy-advantage-by-distance.svg", "recalled-tokens.md"} <= {*paths}
    assert not [name for name in paths if name.startswith("metrics-")]


def test_a_report_without_a_number_says_why(make: SimpleNamespace, report: Report):
    paths = report(
        make.frame(make.failed("copy_advantage", "softmax", "unsupported", "no text", **FACTS))
    )
    assert "no text" in paths["copy-advantage.md"].read_text()
