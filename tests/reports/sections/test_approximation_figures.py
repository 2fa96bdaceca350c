"""The approximation lab's table and figures, through their data."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from lra.reports.figures.curves import page_names
from lra.reports.figures.drawing import looks
from lra.reports.names import display_name
from lra.reports.rows import prepare
from lra.reports.sections.approximation import (
    approximation_data,
    approximation_table,
    further_words,
    measures,
    of_measure,
    over_layers,
)
from lra.reports.sections.approximation_figures import (
    budget_figure,
    feature_data,
    feature_figure,
    length_figure,
    shared_budgets,
    time_figure,
)
from lra.reports.sections.approximation_lab import section
from lra.reports.sections.section import PagesPart, pages_of
from tests.reports.conftest import Report

OPTION = {"performer": "features", "sliding_window": "window"}


def rows_of(
    make: SimpleNamespace, model: str = "performer", *, length: int = 256, mode: str = "random",
    layers: tuple[str | None, ...] = (None,), error: float = 1.0,
    further: dict[str, str] | None = None, **columns: Any,
) -> list[dict[str, Any]]:  # fmt: skip
    """One cell: the error falls as the root of the budget, time grows with it."""
    cell = {"runner": "approximation", "mode": mode, "length": length, "model": model} | columns
    told = {"option": OPTION[model], "target": "softmax"} | (further or {})
    rows = []
    for budget in (16, 64):
        labels = {**told, "budget": str(budget)}
        for layer in layers:
            place = labels if layer is None else {**labels, "layer": layer}
            middle = error * (1 + int(layer or 0)) / budget**0.5
            samples = [0.5 * middle, 1.5 * middle]
            for metric in ("output_error", "matrix_error"):
                rows.append(make.row(metric, middle, samples=samples, labels=place, **cell))
            for k in ("1", "16"):
                recall = {**place, "k": k}
                rows.append(
                    make.row("topk_mass_recall", 0.5, samples=[0.4, 0.6], labels=recall, **cell)
                )
        times = [1e-4 * budget, 1.1e-4 * budget, 3e-4 * budget]
        rows.append(make.row("core_time", times[1], samples=times, labels=labels, **cell))
        paired = {**labels, "reference": "sdpa"}
        ratios = [budget / 32, budget / 32, budget / 16]
        rows.append(make.row("core_time_ratio", ratios[1], samples=ratios, labels=paired, **cell))
    alone = {"reference": "sdpa"}
    rows.append(make.row("core_time", 2e-3, samples=[2e-3] * 3, labels=alone, **cell))
    return rows


@pytest.fixture
def data(make: SimpleNamespace) -> pd.DataFrame:
    rows = []
    for length in (256, 1024):
        rows += rows_of(make, length=length)
        rows += rows_of(make, "sliding_window", length=length, error=1e-12)
        rows += rows_of(make, length=length, mode="trained", layers=("0", "1"))
    return approximation_data(prepare(make.frame(*rows)))


def lines(figure: Figure, panel: int) -> dict[str, Any]:
    figure.draw_without_rendering()
    return {str(line.get_label()): line for line in figure.axes[panel].get_lines()}


def test_data_are_means_over_draws_with_extremes_and_times(data: pd.DataFrame) -> None:
    own = data[(data["mode"] == "random") & (data["model"] == "performer")]
    line = of_measure(own, "output_error", "").iloc[0]
    assert (line["budget"], line["length"], line["draws"]) == (16, 256, 2)
    assert (line["value"], line["low"], line["high"]) == (0.25, 0.125, 0.375)
    assert line["core_time"] == pytest.approx(1.1e-4 * 16)
    assert line["time_ratio"] == 0.5
    assert line["reference_time"] == 2e-3
    assert measures(own) == [
        ("output_error", ""), ("matrix_error", ""), ("topk_mass_recall", "1"),
        ("topk_mass_recall", "16"),
    ]  # fmt: skip


def test_seeds_are_pooled(make: SimpleNamespace) -> None:
    rows = [*rows_of(make, error=1.0, seed=0), *rows_of(make, error=3.0, seed=1)]
    found = approximation_data(prepare(make.frame(*rows)))
    line = of_measure(found, "output_error", "").iloc[0]
    assert (line["value"], line["draws"]) == (0.5, 4)
    assert (line["low"], line["high"]) == (0.125, 1.125)


def test_layers_are_averaged_for_figures_alone(data: pd.DataFrame) -> None:
    own = of_measure(data[data["mode"] == "trained"], "output_error", "")
    assert set(own["layer"]) == {"0", "1"}
    line = over_layers(own).iloc[0]
    assert line["value"] == pytest.approx((0.25 + 0.5) / 2)
    assert (line["low"], line["high"], line["layers"]) == (0.125, 0.75, 2)


def test_a_panel_for_each_measure_against_the_budget(data: pd.DataFrame) -> None:
    figure = budget_figure(data, looks(list(OPTION)), mode="random", length=256)
    assert [" ".join(axes.get_title(loc="left").split()) for axes in figure.axes] == [
        "output error", "matrix error", "mass of the heaviest key",
        "mass of the heaviest 16 keys",
    ]  # fmt: skip
    drawn = lines(figure, 0)
    assert list(drawn["performer: features"].get_xdata()) == [16, 64]
    assert list(drawn["performer: features"].get_ydata()) == pytest.approx([0.25, 0.125])
    # an error that is rounding has no place on a logarithmic axis; its share of mass has
    assert list(drawn["sliding_window: window"].get_xdata()) == []
    assert list(lines(figure, 2)["sliding_window: window"].get_ydata()) == [0.5, 0.5]
    assert "points without error are left out" in " ".join(t.get_text() for t in figure.texts)


def test_error_against_time_in_units_of_exact_attention(data: pd.DataFrame) -> None:
    figure = time_figure(data, looks(list(OPTION)), mode="random")
    assert [" ".join(axes.get_title(loc="left").split()) for axes in figure.axes] == [
        "256 tokens",
        "1,024 tokens",
    ]
    drawn = lines(figure, 1)
    assert list(drawn["performer: features"].get_xdata()) == [0.5, 2.0]
    assert list(drawn["performer: features"].get_ydata()) == pytest.approx([0.25, 0.125])
    assert set(drawn["exact attention (SDPA)"].get_xdata()) == {1.0}


def test_error_against_length_at_the_budgets_of_several_families(data: pd.DataFrame) -> None:
    figure = length_figure(data, looks(list(OPTION)), mode="random")
    assert [" ".join(axes.get_title(loc="left").split()) for axes in figure.axes] == [
        "budget 16",
        "budget 64",
    ]
    assert list(lines(figure, 1)["performer: features"].get_xdata()) == [256, 1024]
    odd = data.assign(budget=np.where(data["model"] == "performer", data["budget"], 5))
    assert shared_budgets(odd) == [5, 16, 64]
    one = data[data["model"] == "performer"].assign(model="other")
    assert shared_budgets(pd.concat([data, one, odd])) == [16, 64]


@pytest.fixture
def variants(make: SimpleNamespace) -> pd.DataFrame:
    rows = []
    for kernel, draw, error in (
        ("softmax", "true", 1.0), ("softmax", "false", 2.0), ("trigonometric", "true", 9.0),
    ):  # fmt: skip
        further = {"mixer.kernel": kernel, "mixer.orthogonal": draw}
        rows += told_apart(
            rows_of(make, further=further, error=error), {**further, "runner.deviation": "0.5"}
        )
    return make.frame(*rows)


def told_apart(rows: list[dict[str, Any]], options: dict[str, str]) -> list[dict[str, Any]]:
    """Rows of a Performer as `lra.sweep.model_names.with_distinct_names` names them."""
    name = display_name("performer", options)
    own = {"model": name, "cell": name, "family": "performer", "options": options}
    return [{**row, **own} for row in rows]


def test_kernels_and_draws_of_random_features(variants: pd.DataFrame) -> None:
    rows = prepare(variants)
    found = feature_data(approximation_data(rows))
    assert set(found["model"]) == {
        f"performer (kernel={kernel}, orthogonal={draw}, runner.deviation=0.5)"
        for kernel, draw in (("softmax", "true"), ("softmax", "false"), ("trigonometric", "true"))
    }
    figure = feature_figure(found, further_words(rows), mode="random")
    (axes,) = figure.axes
    assert axes.get_title(loc="left") == "256 tokens, deviation=0.5"
    drawn = lines(figure, 0)
    assert {"positive, orthogonal", "positive, independent", "trigonometric, orthogonal"} <= set(
        drawn
    )
    assert list(drawn["positive, independent"].get_ydata()) == pytest.approx([0.5, 0.25])
    assert list(drawn["1 / √features"].get_ydata()) == pytest.approx([0.25, 0.125])


def test_one_kind_of_features_is_no_comparison(data: pd.DataFrame) -> None:
    assert feature_data(data).empty


def test_the_table_has_a_row_for_each_budget_and_layer(make: SimpleNamespace) -> None:
    cell = {"runner": "approximation", "mode": "trained", "length": 256}
    lost = {"option": "features", "target": "softmax", "budget": "128", "layer": "0"}
    rows = rows_of(make, mode="trained", layers=("0", "1"))
    why = "features must be small"
    rows.append(make.failed("output_error", "performer", "unsupported", why, labels=lost, **cell))
    table = approximation_table(approximation_data(prepare(make.frame(*rows))), "trained")
    assert table is not None
    assert [row.title for row in table.rows] == [
        "performer, features = 16, layer 0", "performer, features = 16, layer 1",
        "performer, features = 64, layer 0", "performer, features = 64, layer 1",
        "performer, features = 128, layer 0",
    ]  # fmt: skip
    error, _, _, recall, milliseconds, speed = table.rows[1].entries
    assert (error.text, error.value) == ("0.500", 0.5)
    assert error.facts == {"low": 0.25, "high": 0.75, "draws": 2}
    assert recall.text == "0.500"
    assert milliseconds.value == pytest.approx(1.76)
    assert speed.value == 2.0
    assert table.rows[-1].entries[0].notes == (why,)
    assert approximation_table(approximation_data(prepare(make.frame(*rows))), "random") is None


def test_a_figure_holds_twelve_models_and_the_next_goes_on(make: SimpleNamespace) -> None:
    names = [f"performer (own={i})" for i in range(13)]
    rows = [
        {**row, "model": n, "cell": f"{n}{length}"}
        for length in (256, 512) for row in rows_of(make, length=length) for n in names
    ]  # fmt: skip
    parts = {part.name: part for part in pages(make.frame(*rows))}
    assert pages_of(parts.pop("approximation-features-random")) == []
    for part in parts.values():
        assert len(pages_of(part)) == 2
        twelve = part.data[part.data["model"] != names[-1]]
        assert len(pages_of(part._replace(data=twelve))) == 1
    legends = [
        [text.get_text().partition(":")[0] for text in figure.legends[0].get_texts()]
        for figure in drawings(parts["approximation-time-random"], names).values()
    ]
    assert len(parts) == 4
    assert len(legends) == 2
    assert sorted(n for legend in legends for n in legend if "own=" in n) == sorted(names)


def test_features_have_twelve_panels_at_most(make: SimpleNamespace) -> None:
    rows = []
    for i in range(13):
        for kernel in ("softmax", "trigonometric"):
            further = {"mixer.kernel": kernel, "mixer.orthogonal": "true"}
            own = {"mixer.kernel": kernel, "runner.deviation": str(i)}
            rows += told_apart(rows_of(make, further=further), own)
    names = sorted({row["model"] for row in rows})
    (part,) = pages(make.frame(*rows), "features")
    shown = drawings(part, names)
    assert [len(figure.axes) for figure in shown.values()] == [6, 7]
    titles = {axes.get_title(loc="left") for figure in shown.values() for axes in figure.axes}
    assert len(titles) == 13


def pages(rows: pd.DataFrame, name: str = "") -> list[PagesPart]:
    parts = section(prepare(rows))
    return [part for part in parts if isinstance(part, PagesPart) and name in part.name]


def drawings(part: PagesPart, names: list[str]) -> dict[str, Figure]:
    """The figures of a part, by stem; no file is written."""
    shown = pages_of(part)
    titles = page_names(part.name, part.heading, len(shown))
    found = {
        stem: part.draw(page, looks(names)) for page, (stem, _) in zip(shown, titles, strict=True)
    }
    assert len(found) == len(shown)
    return found


def test_a_report_shows_it_and_no_cost_table(
    make: SimpleNamespace, variants: pd.DataFrame, report: Report
) -> None:
    rows = [*rows_of(make), *rows_of(make, length=512)]
    labels = {"option": "features", "target": "softmax", "budget": "99"}
    why = "got features=99"
    cell = {"runner": "approximation", "mode": "random", "length": 512}
    rows.append(make.failed("output_error", "performer", "unsupported", why, labels=labels, **cell))
    names = report(make.frame(*rows))
    stems = {"approximation-budget-256-random", "approximation-budget-512-random",
             "approximation-time-random", "approximation-length-random"}  # fmt: skip
    wanted = {f"{stem}.{form}" for stem in stems for form in ("svg", "csv")}
    wanted |= {f"approximation-random.{form}" for form in ("md", "csv", "tex")}
    assert names.keys() == wanted | {"report.md", "report.html"}
    assert f"unsupported: {why} (length 512)" in names["report.md"].read_text()
    (part,) = pages(variants, "features")
    assert len(pages_of(part)) == 1


def test_a_variant_is_titled_in_full(make: SimpleNamespace) -> None:
    rows = told_apart(rows_of(make), {"mixer.kernel": "softmax", "mixer.note": "a, kernel=b (c)"})
    labelled = [{**row, "labels": {**row["labels"], "variant": "lra"}} for row in rows]
    (words,) = further_words(prepare(make.frame(*labelled))).values()
    assert words == ", note=a, kernel=b (c), lra"
