"""Vega-Lite specifications of the page's charts, one for each kind of drawing.

They hold no data: the page's script puts in what was chosen, sizes, and the scales that go with it.
Colours are variables of the page's style: the dark and the printed page need no redrawing.
"""

from functools import cache
from typing import Any

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
CROSS = "M-.7,-.7L.7,.7M.7,-.7L-.7,.7"
RING = 90
"""Area of the ring in the place of a disturbed number, pixels."""


@cache
def specifications() -> dict[str, dict[str, Any]]:
    """Return the specification of each kind of chart: lines, dots, scatter and parallel."""
    import altair as alt

    alt.data_transformers.disable_max_rows()
    charts = {"lines": _band_lines(alt), "dots": _dots(alt), "scatter": _scatter(alt)}
    charts["parallel"] = _parallel(alt)
    return {kind: _chart_json(chart) for kind, chart in charts.items()}


def _chart_json(chart: Any) -> dict[str, Any]:
    spec: dict[str, Any] = chart.to_dict()
    del spec["$schema"]  # an address, which nobody fetches
    return spec


def _finished(alt: Any, *layers: Any) -> Any:
    ink, quiet, grid = "var(--ink)", "var(--quiet)", "var(--grid)"
    return (
        alt.layer(*layers)
        .add_params(alt.param(name="focus", value=""))
        .properties(autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
        .configure(background="transparent", font=FONT, padding=4)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=quiet, titleColor=ink, gridColor=grid, domainColor=quiet, tickColor=quiet,
            labelFontSize=12, titleFontSize=12.5, titleFontWeight=500, titlePadding=8,
            labelOverlap=True,
        )
    )  # fmt: skip


def _color(alt: Any) -> Any:
    return alt.Color("model:N", legend=None, scale=alt.Scale(domain=["model"], range=["#000"]))


def _fill(alt: Any) -> Any:
    return alt.Fill("model:N", legend=None, scale=alt.Scale(domain=["model"], range=["#000"]))


def _shape(alt: Any) -> Any:
    return alt.Shape("model:N", legend=None, scale=alt.Scale(domain=["model"], range=["circle"]))


def _focused(alt: Any, full: float, faded: float) -> Any:
    """Return the opacity of what belongs to the model in focus, or to any where none is."""
    condition = "focus === '' || datum.model === focus"
    return alt.condition(condition, alt.value(full), alt.value(faded))


def _tip(alt: Any) -> Any:
    return alt.Tooltip("i:Q")


def _band_lines(alt: Any) -> Any:
    """Lines with bands and markers; rings on a dotted line: disturbed; crosses: absent."""
    base = alt.Chart(alt.NamedData("points")).encode(
        x=alt.X("x:Q", title="x", axis=alt.Axis(grid=False)), color=_color(alt)
    )
    sound, shaken = "!datum.disturbed", "datum.disturbed"
    y = alt.Y("y:Q", title="y")
    dash = alt.StrokeDash("model:N", legend=None, scale=alt.Scale(domain=["model"], range=[[1, 0]]))
    band = (
        alt.Chart(alt.NamedData("points"))
        .transform_filter(sound)
        .mark_area()
        .encode(
            x=alt.X("x:Q", title="x", axis=alt.Axis(grid=False)),
            y=alt.Y("low:Q", title="y"), y2="high:Q", fill=_fill(alt),
            opacity=_focused(alt, 0.13, 0.01),
        )
    )  # fmt: skip
    through = base.mark_line(strokeWidth=1, strokeDash=[1, 3]).encode(
        y=y, detail="model:N", opacity=_focused(alt, 1, 0.1)
    )
    trusted = base.transform_filter(sound)
    line = trusted.mark_line(strokeWidth=2, strokeJoin="round").encode(
        y=y, strokeDash=dash, opacity=_focused(alt, 1, 0.1)
    )
    mark = trusted.mark_point(filled=True, size=52).encode(
        y=y, shape=_shape(alt), opacity=_focused(alt, 1, 0.1)
    )
    ring = (
        base.transform_filter(shaken)
        .mark_point(size=RING, shape="circle", filled=False, strokeWidth=1.3)
        .encode(y=y)
    )
    hit = base.mark_point(size=380, opacity=0, filled=True, cursor="pointer").encode(
        y=y, tooltip=_tip(alt)
    )
    absent = (
        alt.Chart(alt.NamedData("absent"))
        .mark_point(size=60, shape=CROSS, strokeWidth=2, filled=False, cursor="pointer")
        .encode(
            x=alt.X("x:Q", title="x"),
            y=alt.Y("py:Q", scale=None, axis=None),
            color=_color(alt),
            tooltip=_tip(alt),
        )
    )
    name = (
        alt.Chart(alt.NamedData("names"))
        .mark_text(align="left", baseline="middle", dx=9, fontSize=12, limit=150)
        .encode(
            x=alt.value(alt.expr("width")),
            y=alt.Y("py:Q", scale=None, axis=None),
            text=alt.Text("model:N"),
            color=_color(alt),
            opacity=_focused(alt, 1, 0.15),
        )
    )
    drawn = _finished(alt, band, through, line, mark, ring, hit, absent, name)
    return drawn


def _dots(alt: Any) -> Any:
    """A dot with its interval for each model and baseline, of which dashed lines go across."""
    y = alt.Y("label:N", sort=None, title=None, axis=alt.Axis(
        grid=True, labelLimit=300, domain=False, ticks=False, labelColor="var(--ink)"
    ))  # fmt: skip
    base = alt.Chart(alt.NamedData("points")).encode(y=y, color=_color(alt))
    x = alt.X("x:Q", title="x", axis=alt.Axis(grid=True))
    rules = alt.Chart(alt.NamedData("rules")).encode(x=alt.X("x:Q", title="x"))
    across = rules.mark_rule(strokeDash=[4, 4], stroke="var(--quiet)", strokeWidth=1, opacity=0.4)
    bar = base.mark_rule(strokeWidth=3, opacity=0.4).encode(
        x=alt.X("low:Q", title="x"), x2="high:Q"
    )
    dot = base.mark_point(filled=True, size=74).encode(
        x=x, shape=_shape(alt), opacity=_focused(alt, 1, 0.15)
    )
    hit = base.mark_point(size=400, opacity=0, filled=True, cursor="pointer").encode(
        x=x, tooltip=_tip(alt)
    )
    return _finished(alt, across, bar, dot, hit)


def _scatter(alt: Any) -> Any:
    """A point with its interval for each model, with its name next to it where there is room."""
    base = alt.Chart(alt.NamedData("points")).encode(x=alt.X("x:Q", title="x"), color=_color(alt))
    y = alt.Y("y:Q", title="y")
    bar = base.mark_rule(strokeWidth=2, opacity=0.3).encode(
        y=alt.Y("low:Q", title="y"), y2="high:Q"
    )
    dot = base.mark_point(filled=True, size=110).encode(
        y=y, shape=_shape(alt), opacity=_focused(alt, 1, 0.15)
    )
    hit = base.mark_point(size=500, opacity=0, filled=True, cursor="pointer").encode(
        y=y, tooltip=_tip(alt)
    )
    name = (
        alt.Chart(alt.NamedData("names"))
        .mark_text(align="left", baseline="middle", dx=9, fontSize=12, limit=150)
        .encode(
            x=alt.X("px:Q", scale=None, axis=None),
            y=alt.Y("py:Q", scale=None, axis=None),
            text=alt.Text("model:N"),
            color=_color(alt),
            opacity=_focused(alt, 1, 0.15),
        )
    )
    return _finished(alt, bar, dot, hit, name)


def _parallel(alt: Any) -> Any:
    """A line for each trial across axes; a box over points keeps the lines through it."""
    brush = alt.selection_interval(name="box")
    # what the library writes for a condition, as a number that all points of a line share
    inside = "!length(data('box_store')) || vlSelectionTest('box_store', datum) ? 1 : 0"
    base = (
        alt.Chart(alt.NamedData("points"))
        .transform_calculate(inside=inside)
        .transform_joinaggregate(kept="sum(inside)", groupby=["model", "text"])
        .encode(
            x=alt.X("x:Q", title=None, axis=alt.Axis(grid=True)), y=alt.Y("y:Q", title="y"),
            color=_color(alt), detail="text:N",
            opacity=alt.condition(
                "datum.kept > 0 && (focus === '' || datum.model === focus)", alt.value(0.8),
                alt.value(0.06),
            ),
        )
    )  # fmt: skip
    line = base.mark_line(strokeWidth=1.4, strokeJoin="round")
    hit = (
        alt.Chart(alt.NamedData("points"))
        .mark_point(filled=True, size=40)
        .encode(
            x=alt.X("x:Q", title=None), y=alt.Y("y:Q", title="y"), color=_color(alt),
            tooltip=_tip(alt), opacity=_focused(alt, 0.9, 0.06),
        )
        .add_params(brush)
    )  # fmt: skip
    return _finished(alt, line, hit)
