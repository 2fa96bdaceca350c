"""Sections that are data: of each, a few rows, and what its table and figure hold of them."""

from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from lra.reports.figures.drawing import looks
from lra.reports.rows import prepare
from lra.reports.sections import attention_maps, attention_mass, patterns, spans
from lra.reports.sections.learned_spans import learned_spans
from lra.reports.sections.section import PagesPart, SectionOf, TablePart
from tests.reports.conftest import Report

Rows = Iterator[dict[str, Any]]


def labelled(
    make: SimpleNamespace,
    metric: str,
    names: str,
    found: Mapping[Any, float],
    *,
    scale: float = 1.0,
    more: float = 0.0,
    **cell: Any,
) -> Rows:
    """A row for each tuple of labels, whose names are words; "" is a label that is not there."""
    for values, value in found.items():
        pairs = zip(names.split(), values, strict=True)
        labels = {name: label for name, label in pairs if label}
        yield make.row(metric, scale * value + more, **(cell | {"labels": labels}))


def of_spans(make: SimpleNamespace) -> Rows:
    cell = {"runner": "span", "mode": "span"}
    names = "measure layer head"
    found = {
        ("attention", "0", "0"): 3.0, ("attention", "0", "1"): 5.0, ("attention", "1", "0"): 10.0,
        ("attention", "1", "1"): 30.0, ("attention", "all", "all"): 12.0,
        ("gradient", "all", "all"): 4.0, ("occlusion", "all", "all"): 64.0,
    }  # fmt: skip
    for seed in (0, 1):
        yield from labelled(
            make, "span", names, found, scale=1.0 + seed, model="softmax", seed=seed, **cell
        )
    gradient = {("gradient", "all", "all"): 0.0}
    yield from labelled(make, "span", names, gradient, model="identity", **cell)
    refused = {"measure": "attention", "layer": "all", "head": "all"}
    yield make.failed("span", "identity", "unsupported", "no core", labels=refused, **cell)
    yield make.failed("span", "performer", "skipped", "its training diverged", **cell)


def of_learned_spans(make: SimpleNamespace) -> Rows:
    cell = {"task": "text8", "source": "files", "causal": True, "model": "adaptive_span"}
    heads = {("0", "0"): 2.0, ("0", "1"): 8.0, ("1", "0"): 100.0, ("1", "1"): 30.0,
             ("all", "all"): 35.0}  # fmt: skip
    for seed in (0, 1):
        yield from labelled(
            make, "learned_span", "layer head", heads, more=10.0 * seed, seed=seed, **cell
        )
        for metric, share in (("span_flops", 1.0), ("span_flops_per_token", 0.5)):
            flops = {("learned",): 2.5e6, ("full",): 1e7}
            yield from labelled(make, metric, "spans", flops, scale=share, seed=seed, **cell)


def of_patterns(make: SimpleNamespace) -> Rows:
    cell = {"runner": "pattern", "mode": "pattern", "task": "listops", "length": 2}
    names = "layer head row"
    local = {("0", "0", "0"): 1.0, ("0", "0", "1"): 1.0}
    yield from labelled(make, "keys_seen", names, local, model="local", **cell)
    two = {("0", "0", "0"): 2.0, ("0", "0", "1"): 4.0, ("0", "1", "0"): 1.0, ("0", "1", "1"): 3.0}
    yield from labelled(make, "keys_seen", names, two, model="h_transformer", **cell)
    why = "a stack of its own"
    yield make.failed("keys_seen", "tlb", "unsupported", why, labels={}, **cell)


def of_masses(make: SimpleNamespace) -> Rows:
    cell = {"runner": "attention_mass", "mode": "attention_mass", "task": "text8",
            "source": "files", "causal": True, "length": 64}  # fmt: skip
    masses = {("memory", "1"): 0.11, ("memory", "2"): 0.31, ("segment", "1"): 0.19,
              ("segment", "2"): 0.39, ("memory", "all"): 0.41,
              ("segment", "all"): 0.59}  # fmt: skip
    for seed in (0, 1):
        for layer, more in (("0", 0.05), ("all", 0.0)):
            shift = more + 0.02 * seed - 0.01
            found = {
                (layer, region, bucket): mass + shift * (1 if region == "memory" else -1)
                for (region, bucket), mass in masses.items()
            }
            place = cell | {"model": "transformer_xl", "seed": seed}
            names = "layer region bucket"
            yield from labelled(make, "attention_mass", names, found, **place)
            errors = dict.fromkeys(found, 0.01)
            yield from labelled(make, "attention_mass_error", names, errors, **place)
    why = "softmax: no memory of segments"
    yield make.failed("attention_mass", "softmax", "unsupported", why, labels={}, **cell)


def of_maps(make: SimpleNamespace) -> Rows:
    cell = {"runner": "attention_maps", "mode": "attention_maps", "task": "text",
            "source": "files", "length": 8}  # fmt: skip
    layers = [(layer, head) for layer in "01" for head in "01"]
    found: dict[tuple[str, str], dict[tuple[str, ...], float]] = {
        ("attention_distance", "layer head"): {place: 2.0 + int(place[1]) for place in layers},
        ("attention_within", "layer head within"): {(*p, "1"): 0.5 for p in layers},
        ("singular_value_share", "layer head"): dict.fromkeys(layers, 0.6),
        ("kernel_weight", "layer head left"): {(*p, "1"): 0.4 for p in layers},
        ("projection_energy", "layer head"): {
            **{(layer, "0"): 0.3 for layer in "01"}, **{(layer, "all"): 0.8 for layer in "01"},
        },
        ("kernel_deviation", "layer head left"): {("0", "0", "1"): 0.1},
        ("attention_similarity", "token other score"): {("C", "A", "-4"): -0.2},
    }  # fmt: skip
    for seed in (0, 1):
        for (metric, names), values in found.items():
            place = cell | {"model": "convbert", "seed": seed}
            yield from labelled(make, metric, names, values, more=0.02 * seed, **place)
    bad = cell | {"labels": {"measure": "locality"}}
    why = "the outputs of LightConv are no weighted means of values"
    yield make.failed("attention_distance", "light_conv", "unsupported", why, **bad)


class Case(NamedTuple):
    """A section with some rows, and what it has to show of them."""

    section: SectionOf
    rows: Callable[[SimpleNamespace], Rows]
    table: str
    lines: Mapping[tuple[str, str], list[str]]
    """Texts by section and title."""
    figure: str = ""
    numbers: Mapping[tuple[str, ...], float] = {}
    """Some that the figure is drawn from, by model and the three columns behind it."""
    note: str = ""


CASES = {
    "spans": Case(
        spans.section, of_spans, "spans",
        {("", "softmax"): ["18.0", "4.50", "45.0", "6.00", "96.0"],
         ("", "identity"): ["unsupported"] * 3 + ["0", "–"], ("", "performer"): ["skipped"] * 5},
        "span", {("softmax", "attention", "1", "1"): 45.0}, "its training diverged",
    ),
    "learned spans": Case(
        learned_spans, of_learned_spans, "learned-spans",
        {("", "adaptive_span"): ["40.0", "105.0", "2,500,000", "0.25", "1,250,000", "0.25"]},
        "learned-spans-by-layer",
        {("adaptive_span", "all", "0", "0"): 7.0, ("adaptive_span", "all", "1", "0"): 105.0},
    ),
    "patterns": Case(
        patterns.section, of_patterns, "patterns",
        {("h_transformer", "head 0"): ["3.00", "2.00", "4.00"],
         ("h_transformer", "head 1"): ["2.00", "1.00", "3.00"],
         ("local", "every layer and head"): ["1.00"] * 3,
         ("tlb", "every layer and head"): ["unsupported"] * 3}, note="a stack of its own",
    ),
    "masses": Case(
        attention_mass.section, of_masses, "attention-mass",
        {("softmax", "all layers"): ["unsupported"] * 3,
         ("transformer_xl", "layer 0"): ["–", "0.460", "0.540"],
         ("transformer_xl", "all layers"): ["–", "0.410", "0.590"]},
        "attention-mass-by-age", {("transformer_xl", "all", "memory", "2"): 0.31},
        "softmax: no memory of segments",
    ),
    "maps": Case(
        attention_maps.section, of_maps, "attention-maps",
        {**{("convbert", f"layer {layer}"): ["2.51", "0.510", "0.610", "0.310", "0.810"]
            for layer in "01"}, ("light_conv", "all"): ["unsupported"] * 5},
        "attention-distance", {("convbert", "all", "0", "1"): 3.01},
        "the outputs of LightConv are no weighted means of values",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_section_shows_its_rows(name: str, make: SimpleNamespace) -> None:
    case = CASES[name]
    frame = prepare(make.frame(*case.rows(make)))
    parts = {part.name: part for part in case.section(frame)}
    part = parts[case.table]
    assert isinstance(part, TablePart)
    rows = part.table.rows
    found = {(row.section, row.title): [entry.text for entry in row.entries] for row in rows}
    assert found == case.lines
    assert case.note in " ".join(part.table.footnotes())
    if case.figure:
        drawn = parts[case.figure]
        assert isinstance(drawn, PagesPart)
        first = drawn.data.columns.get_loc("model")
        texts = [*drawn.data.columns[first : first + 4]]
        numbers = drawn.data.set_index(texts)[drawn.number]
        assert {key: numbers[key] for key in case.numbers} == pytest.approx(dict(case.numbers))
        drawn.draw(drawn.data, looks([*frame["name"].unique()])).draw_without_rendering()


def test_trainings_that_learned_no_spans_have_no_section(make: SimpleNamespace) -> None:
    assert not [*learned_spans(prepare(make.frame(make.accuracy("linear", 0, 0.5))))]


def test_the_report_has_them_all(make: SimpleNamespace, report: Report) -> None:
    paths = report(make.frame(*(row for case in CASES.values() for row in case.rows(make))))
    names = {f"{case.table}.md" for case in CASES.values()}
    assert names | {f"{c.figure}.svg" for c in CASES.values() if c.figure} <= {*paths}
    others = paths["metrics-attention_maps.md"].read_text()
    assert "convbert, other=A, score=-4, token=C" in others
    assert "convbert, head=0, layer=0, left=1" in others


def test_a_span_is_a_point_in_the_column_of_its_layer(make: SimpleNamespace) -> None:
    data = spans.span_data(prepare(make.frame(*of_spans(make))))
    (axes,) = spans.span_figure(data, looks(["softmax", "identity", "performer"])).axes
    titles = [label.get_text() for label in axes.get_xticklabels()]
    assert titles == ["layer 0", "layer 1", "gradient", "occlusion"]
    lines = {line.get_label(): line for line in axes.get_lines()}
    points = [(round(x), y) for x, y in lines["softmax"].get_xydata()]
    assert points == [(0, 4.5), (0, 7.5), (1, 15.0), (1, 45.0), (2, 6.0), (3, 96.0)]
    assert list(lines["identity"].get_ydata()) == [0.0]
    ticks = [float(tick) for tick in axes.get_yticks()]
    assert (ticks[0], ticks[-1] >= 96.0) == (0.0, True)


def test_a_mass_is_a_bar_for_each_bucket(make: SimpleNamespace) -> None:
    data = attention_mass.mass_data(prepare(make.frame(*of_masses(make))))
    (axes,) = attention_mass.mass_figure(data).axes
    heights = [bar.get_height() for bar in axes.patches]  # type: ignore[attr-defined]
    assert heights == pytest.approx([0.11, 0.31, 0.19, 0.39])
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["memory", "segment"]
