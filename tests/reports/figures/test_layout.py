"""Every figure of ten awkward stores, measured: nothing overlaps, is cut, or is tiny."""

import re
from collections.abc import Callable, Iterator
from functools import cache
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from lra.composition.class_path import name_plugins
from lra.composition.runner_class import sections
from lra.reports.figures.drawing import style
from lra.reports.figures.layout import arrange, chunks, sheet
from lra.reports.figures.words import drawable, wrap
from lra.reports.report import write_report
from tests.fuzz import cases
from tests.reports.awkward_stores import GROUPS, STORES
from tests.reports.tables.test_latex import ENGINES, compiled, document, overfull

PEERS = Path(__file__).parents[2] / "parity/peers"
CENTIMETRE = 1 / 2.54
LARGEST = {"whole_store", "many_models", "many_settings"}
LONG = (
    pytest.mark.fuzz,
    pytest.mark.skipif(cases(1) < 2, reason="takes minutes: make campaign, or LRA_FUZZ=2"),
)
LEAST = (4 * CENTIMETRE, 3 * CENTIMETRE)
"""Inches of the smallest plot."""


def ticks(axis: Axis) -> list[Text]:
    low, high = sorted(axis.get_view_interval())
    found = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=False)
    return [text for place, text in found if low <= place <= high]


def texts(figure: Figure) -> Iterator[Text]:
    """Every text that is drawn."""
    yield from figure.texts
    for legend in [*figure.legends, *(a.get_legend() for a in figure.axes)]:
        if legend is not None:
            yield from [*legend.get_texts(), legend.get_title()]
    for axes in figure.axes:
        yield from [*axes.texts, axes.title, axes._left_title, axes._right_title]  # type: ignore[attr-defined]
        for axis in (axes.xaxis, axes.yaxis):
            yield from [*ticks(axis), axis.label, axis.get_offset_text()]


def faults(figure: Figure) -> list[str]:
    """Say everything that is wrong with where things stand."""
    figure.draw_without_rendering()
    page, found = figure.bbox, []
    drawn = [t for t in texts(figure) if t.get_visible() and t.get_text().strip()]
    boxes = [(t.get_text()[:40], t.get_window_extent()) for t in drawn]
    for name, box in boxes:
        if box.x0 < -1 or box.y0 < -1 or box.x1 > page.x1 + 1 or box.y1 > page.y1 + 1:
            found.append(f"cut: {name!r} {box.bounds} of {page.bounds}")
    corners = [inner(box).extents for _, box in boxes]
    for (i, p), (j, q) in combinations(enumerate(corners), 2):
        if p[0] < q[2] and q[0] < p[2] and p[1] < q[3] and q[1] < p[3]:
            found.append(f"texts overlap: {boxes[i][0]!r} and {boxes[j][0]!r}")
    for axes in figure.axes:
        width, height = axes.bbox.width / figure.dpi, axes.bbox.height / figure.dpi
        if width < LEAST[0] - 0.01 or height < LEAST[1] - 0.01:
            found.append(f"a plot of {width:.2f} x {height:.2f} inches")
        for other in figure.axes:
            if other is not axes and inner(other.bbox).overlaps(axes.bbox):
                found.append("plots overlap")
        for legend in [*figure.legends, *(a.get_legend() for a in figure.axes)]:
            if legend is not None and inner(legend.get_window_extent()).overlaps(axes.bbox):
                found.append("a legend over a plot")
        for name, box in boxes:
            outside = name not in {t.get_text()[:40] for t in axes.texts}
            if outside and inner(box).overlaps(inner(axes.bbox)):
                found.append(f"a text over a plot: {name!r}")
    return found


def inner(box: Bbox) -> Bbox:
    return box.padded(-0.75)


class Reported(NamedTuple):
    folder: Path
    faults: dict[str, list[str]]
    """Of each figure, whose files hold no drawing."""


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Reported]:
    """Write the report of a store once."""

    @cache
    def write(name: str) -> Reported:
        report = Reported(tmp_path_factory.mktemp(name), {})
        name_plugins(["peers"])

        def measured(self: Figure, path: Path, **options: Any) -> None:
            Path(path).write_text("<svg></svg>")
            if Path(path).suffix == ".svg":
                report.faults[Path(path).stem] = faults(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Figure, "savefig", measured)
            write_report(
                STORES[name](), report.folder, title=name, groups=GROUPS,
                sections=sections(config_dirs=[PEERS / "conf"], plugins=["peers"]),
            )  # fmt: skip
        return report

    return write


@pytest.mark.share(3)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=LONG if n in LARGEST else ()) for n in STORES]
)
def test_figures_of_awkward_stores(name: str, reported: Callable[[str], Reported]) -> None:
    report = reported(name)
    assert {file: wrong[:6] for file, wrong in report.faults.items() if wrong} == {}
    for table in report.folder.glob("*.md"):
        notes = re.findall(r"^[⁰¹²³⁴⁵⁶⁷⁸⁹]+ (.*?)\s*$", table.read_text(), re.MULTILINE)
        assert len(notes) == len(set(notes)) or table.name == "report.md"


def test_all_kinds_of_figures_are_among_them(reported: Callable[[str], Reported]) -> None:
    kinds = {
        "time-step", "memory-step", "training-loss", "loss-by-place", "decoding-token-time",
        "decoding-state-bytes", "peers-speed-step", "recovery-accuracy-curve", "extrapolation",
        "recovery-loss-curve", "span",
    }  # fmt: skip
    assert not kinds - reported("odd_name").faults.keys()


@pytest.mark.skipif(not ENGINES, reason="no pdflatex or lualatex on this machine")
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "names",
    [
        pytest.param(sorted(STORES.keys() - LARGEST), id="small"),
        *[pytest.param([name], marks=LONG, id=name) for name in sorted(LARGEST)],
    ],
)
def test_tables_of_awkward_stores_compile(
    names: list[str], engine: str, reported: Callable[[str], Reported], tmp_path: Path
) -> None:
    found = []
    for name in names:
        tables = sorted(reported(name).folder.glob("*.tex"))
        assert tables
        found += [file.read_text(encoding="ascii") for file in tables]
    log = compiled(engine, document(*found), tmp_path)
    assert overfull(log) == []


@pytest.mark.parametrize("inverted", [False, True])
@pytest.mark.parametrize(("count", "fewest", "most"), [(8, 8, 8), (100, 8, 40)])
def test_labels_that_do_not_touch_stay(inverted: bool, count: int, fewest: int, most: int) -> None:
    with style():
        made = sheet(1, plot=(3.0, 3.0), across=1)
        (axes,) = made.axes
        axes.set_yticks(range(count), [f"name {i}" for i in range(count)])
        axes.set_ylim(*((count - 0.5, -0.5) if inverted else (-0.5, count - 0.5)))
        arrange(made, title="t")
        assert fewest <= len(ticks(axes.yaxis)) <= most
    assert faults(made.figure) == []


def test_lines_fit_and_nothing_is_lost() -> None:
    with style():
        for text in ("one two three " * 20, "x" * 300, "a,b/c=d_e-" * 30, "", "中文" * 40):
            for width in (0.5, 2.0, 5.0):
                lines = wrap(text, width, 8.0, most=1000)
                assert "".join(lines).replace(" ", "") == drawable(text).replace(" ", "")
        assert len(wrap("word " * 500, 1.0, 8.0, most=6)) <= 6
    assert drawable("λ e\u0301\n注") == "λ e\u0301 \\u6ce8"
    assert [len(part) for part in chunks(range(25), 12)] == [8, 9, 8]
    assert chunks([], 3) == []
