"""Small multiples: every model once, references in all, absent numbers explained."""

from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from lra.composition.runner_class import sections
from lra.reports.figures.drawing import looks
from lra.reports.figures.panels import AT_ENDS, OTHERS, panels, scaling_figure
from lra.reports.figures.scaling import scaling_data
from lra.reports.report import write_report
from lra.reports.rows import cost_points, names_by_group, prepare

GROUPS = {"kernels": ["linear", "performer"], "windows": ["local"], "unused": ["nobody"]}


def many(make: SimpleNamespace) -> pd.DataFrame:
    """Twelve models at three lengths; one of them fails at the last."""
    rows = []
    others = [f"other_{i}" for i in range(6)]
    for place, name in enumerate(["softmax", "sdpa", "identity", "linear", "performer", *others]):
        for n in (256, 512, 1024):
            rows += make.timing(name, n, n * 1e-5 * (place + 1), batch=1, noise=0.02, peak=n * 1e3)
    rows += make.timing("local", 256, 1e-2, batch=1, noise=0.02, peak=1e6)
    cell = {"runner": "scaling", "mode": "step", "length": 1024}
    rows.append(make.failed("time", "local", "timeout", "took too long", **cell))
    return make.frame(*rows)


def test_every_model_has_one_panel_and_references_none() -> None:
    names = ["softmax", "linear", "performer", "local", "stray"]
    assert panels(names, GROUPS) == {
        "kernels": ["linear", "performer"],
        "windows": ["local"],
        OTHERS: ["stray"],
    }


def test_the_figure_draws_each_model_once_and_says_what_is_absent(make: SimpleNamespace) -> None:
    data = scaling_data(cost_points(prepare(many(make))), "step", "time")
    names = [str(name) for name in data["model"].unique()]
    figure = scaling_figure(data, looks(names), GROUPS, subtitle="cpu")
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["kernels", "windows", OTHERS]
    drawn = [str(line.get_label()).split("  ")[0] for ax in figure.axes for line in ax.get_lines()]
    for name in names:
        wanted = len(figure.axes) if name in {"softmax", "sdpa", "identity"} else 1
        assert drawn.count(name) == wanted, name
    limits = {axes.get_ylim() for axes in figure.axes}
    assert len(limits) == 1  # so that lines can be compared across panels
    kernels = figure.axes[0]
    (line,) = [x for x in kernels.get_lines() if str(x.get_label()).startswith("linear  ")]
    own = data[data["model"] == "linear"]
    assert list(line.get_ydata()) == pytest.approx(list(own["value"]))
    crosses = [x for x in figure.axes[1].get_lines() if x.get_marker() == "x"]
    assert [list(cross.get_xdata()) for cross in crosses] == [[1024]]
    assert any("took too long" in text.get_text() for text in figure.texts)


def test_a_report_of_many_models_uses_panels(make: SimpleNamespace, tmp_path: Path) -> None:
    rows = many(make)
    assert rows["model"].nunique() > AT_ENDS
    write_report(rows, tmp_path, title="many", sections=sections(), groups=GROUPS)
    drawing = (tmp_path / "time-step.svg").read_text()
    assert all(title in drawing for title in ("kernels", "windows"))


def test_a_model_goes_with_its_family_whatever_its_name(make: SimpleNamespace) -> None:
    rows = many(make)
    family = rows["model"]
    told = rows.assign(
        model=[f"{name} (features=8)" if name == "performer" else name for name in family],
        family=family,
        options=[{"mixer.features": "8"} if name == "performer" else {} for name in family],
    )
    found = names_by_group(prepare(told), GROUPS)
    assert found == {
        "kernels": ["linear", "performer (features=8)"], "windows": ["local"], "unused": [],
    }  # fmt: skip
