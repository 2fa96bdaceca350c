from pathlib import Path
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from lra.reports.figures.drawing import looks, save
from lra.reports.figures.panels import scaling_figure
from lra.reports.figures.scaling import scaling_data
from lra.reports.rows import cost_points, prepare
from lra.reports.sections.losses import class_data, class_figures, loss_data, loss_figure


def drawn(figure: Figure) -> Axes:
    figure.draw_without_rendering()
    return figure.axes[0]


def failing(make: SimpleNamespace) -> pd.DataFrame:
    """Linear is whole; SDPA ran out of memory at the longest of four lengths."""
    rows = []
    for n in (256, 512, 1024, 2048):
        rows += make.timing("linear", n, n * 1e-5, batch=2, noise=0.03, peak=n * 1e3)
        if n < 2048:
            rows += make.timing("sdpa", n, n * n * 1e-8, batch=1, noise=0.03, peak=n * n * 1.0)
    cell = {"runner": "scaling", "mode": "step", "length": 2048}
    rows.append(make.failed("time", "sdpa", "out_of_memory", "needs 5 GiB of 4", **cell))
    return make.frame(*rows)


def test_data_are_per_sequence_with_percentiles_and_exponent(make: SimpleNamespace) -> None:
    data = scaling_data(cost_points(prepare(failing(make))), "step", "time")
    first = data[(data["model"] == "linear") & (data["length"] == 256)].iloc[0]
    assert first["value"] == pytest.approx(256e-5 / 2, rel=0.05)
    assert first["p20"] < first["value"] < first["p80"]
    assert first["exponent"] == pytest.approx(1.0, abs=0.1)
    assert first["exponent_low"] < first["exponent"] < first["exponent_high"]
    assert first["exponent_interval_source"] in {"residuals", "timing noise"}
    lost = data[data["value"].isna()]
    assert [tuple(r) for r in lost[["model", "length", "status", "reason"]].to_numpy()] == [
        ("sdpa", 2048, "out_of_memory", "needs 5 GiB of 4")
    ]


def test_figure_draws_the_data_and_marks_what_is_absent(make: SimpleNamespace) -> None:
    data = scaling_data(cost_points(prepare(failing(make))), "step", "time")
    figure = scaling_figure(data, looks(["linear", "sdpa"]), subtitle="cpu")
    axes = drawn(figure)
    lines = {str(line.get_label()).split("  ")[0]: line for line in axes.get_lines()}
    own = data[data["model"] == "linear"]
    assert list(lines["linear"].get_xdata()) == list(own["length"])
    assert list(lines["linear"].get_ydata()) == pytest.approx(list(own["value"]))
    assert list(lines["sdpa"].get_xdata()) == [256, 512, 1024]
    crosses = [line for line in axes.get_lines() if line.get_marker() == "x"]
    assert [list(line.get_xdata()) for line in crosses] == [[2048]]
    assert crosses[0].get_color() == lines["sdpa"].get_color()
    top = max(float(np.max(lines[name].get_ydata())) for name in ("linear", "sdpa"))
    height = axes.transAxes.inverted().transform(axes.transData.transform((1024.0, top)))[1]
    assert height < float(np.min(crosses[0].get_ydata()))  # it stands above every line
    texts = [t.get_text() for t in figure.texts]
    assert any("OOM, needs 5 GiB of 4: sdpa at 2,048" in t for t in texts)
    assert axes.get_xscale() == axes.get_yscale() == "log"
    assert [t.get_text() for t in axes.get_xticklabels()] == ["256", "512", "1,024", "2,048"]


def test_two_lengths_are_named_as_the_reason_for_no_exponent(make: SimpleNamespace) -> None:
    rows = [r for n in (1024, 2048)
            for r in make.timing("sdpa", n, n * n / 1e9, noise=0.01)]  # fmt: skip
    data = scaling_data(cost_points(prepare(make.frame(*rows))), "step", "time")
    axes = drawn(scaling_figure(data, looks(["sdpa"])))
    labels = [str(line.get_label()) for line in axes.get_lines()]
    assert "sdpa  too uncertain (2 lengths)" in labels


def test_a_model_that_always_failed_is_named_without_a_value(make: SimpleNamespace) -> None:
    cell = {"runner": "scaling", "mode": "step", "length": 256}
    rows = make.frame(
        *make.timing("linear", 256, 0.1),
        make.failed("time", "sdpa", "crashed", "signal 11", **cell),
    )
    data = scaling_data(cost_points(prepare(rows)), "step", "memory")
    axes = drawn(scaling_figure(data, looks(["linear", "sdpa"])))
    assert "sdpa  no value" in [line.get_label() for line in axes.get_lines()]


def test_looks_do_not_depend_on_what_else_is_drawn() -> None:
    alone = looks(["performer"])["performer"]
    among = looks(["softmax", "performer", "hyena", "linear"])
    assert among["performer"] == alone
    assert looks(["hyena"])["hyena"] == among["hyena"]


def test_twelve_models_differ_in_colour_marker_and_dashes() -> None:
    names = ["softmax", "sdpa", "linear", *(f"model_{i}" for i in range(9))]
    found = list(looks(names).values())
    assert len({look.color for look in found}) == 12
    assert len({look.marker for look in found}) == 12
    assert len({look.dashes for look in found}) == 12
    assert len(set(looks([f"m{i}" for i in range(40)]).values())) == 40


def test_the_foundations_colours_differ_in_grey_or_in_marker_and_dashes() -> None:
    found = looks(["softmax", "sdpa", "linear", "performer", "sliding_window", "identity"])
    grey = {n: float(np.dot(to_rgb(k.color), (0.299, 0.587, 0.114))) for n, k in found.items()}
    assert max(grey.values()) < 0.75  # nothing too pale for paper
    assert len({(k.marker, k.dashes) for k in found.values()}) == 6


@pytest.mark.every_format
def test_files_hold_no_dates_and_every_number(make: SimpleNamespace, tmp_path: Path) -> None:
    """That their bytes are the same each time: `test_style`, over two processes."""
    data = scaling_data(cost_points(prepare(failing(make))), "step", "time")
    paths = save(scaling_figure(data, looks(["linear", "sdpa"])), tmp_path, "time", data)
    assert [p.suffix for p in paths] == [".pdf", ".svg", ".png", ".csv"]
    assert b"CreationDate" not in (tmp_path / "time.pdf").read_bytes()
    assert "<dc:date>" not in (tmp_path / "time.svg").read_text()
    again = pd.read_csv(tmp_path / "time.csv")
    assert list(again["value"].dropna()) == list(data["value"].dropna())


def test_the_users_own_settings_neither_matter_nor_change(make: SimpleNamespace) -> None:
    data = scaling_data(cost_points(prepare(failing(make))), "step", "time")
    with mpl.rc_context({"font.size": 30.0, "axes.grid": False, "text.usetex": True}):
        before = dict(mpl.rcParams)
        figure = scaling_figure(data, looks(["linear", "sdpa"]))
        assert dict(mpl.rcParams) == before
    assert drawn(figure).xaxis.label.get_fontsize() == 9


def test_loss_curves_are_means_with_extremes(make: SimpleNamespace) -> None:
    rows = make.frame(*(
        make.row("train_loss", value, seed=seed, step=step)
        for seed, step, value in (
            (0, 10, 2.0), (0, 20, 1.0), (1, 10, 1.0), (1, 20, 0.5), (2, 10, 3.0),
        )
    ))  # fmt: skip
    data = loss_data(prepare(rows))
    assert data[["step", "loss", "low", "high", "seeds"]].to_numpy().tolist() == [
        [10, 2.0, 1.0, 3.0, 3], [20, 0.75, 0.5, 1.0, 2],
    ]  # fmt: skip
    axes = drawn(loss_figure(data, looks(["linear"])))
    assert list(axes.get_lines()[0].get_ydata()) == [2.0, 0.75]


def test_trainings_at_several_lengths_have_a_panel_each(make: SimpleNamespace) -> None:
    def lengths(*trained: int) -> list[str]:
        rows = [make.row("train_loss", 2.0, step=10, length=length) for length in trained]
        data = loss_data(prepare(make.frame(*rows)))
        assert list(data["loss"]) == [2.0] * len({*trained})
        return list(data["length"])

    assert lengths(64, 256) == ["256", "64"]
    assert lengths(64, 64) == ["–"]


def test_losses_by_frequency_have_a_place_for_tokens_that_train_lacks(
    make: SimpleNamespace,
) -> None:
    rows = make.frame(*(
        make.row("loss_by_frequency", value, task="text8", labels={"split": "test", "part": part})
        for part, value in (("0", 9.0), ("1–9", 7.0), ("10–99", 4.0), ("100,000–999,999", 2.0))
    ))  # fmt: skip
    data = class_data(prepare(rows), "test", "frequency")
    assert data[["place", "loss"]].to_numpy().tolist() == [
        [0, 9.0], [1, 7.0], [10, 4.0], [100_000, 2.0],
    ]  # fmt: skip
    (line,) = drawn(class_figures["frequency"](data, looks(["linear"]))).get_lines()
    assert list(line.get_xdata()) == [0, 1, 10, 100_000]


def test_losses_by_place_have_doubling_places(make: SimpleNamespace) -> None:
    def row(part: str, value: float, **more: object) -> dict[str, object]:
        labels = {"split": "test", "part": part, "items": "9", "regime": "non-overlapping"}
        return make.row("loss_by_position", value, task="text8", labels=labels, **more)

    rows = make.frame(
        *(row("1,024–2,047", value, seed=seed) for seed, value in enumerate((1.0, 3.0))),
        row("1", 5.0),
        row("2–3", 4.0),
        row("2–3", 9.0, model="baseline/unigram"),
        make.row("loss_by_frequency", 7.0, task="text8", labels={"split": "test", "part": "0"}),
    )
    data = class_data(prepare(rows), "test", "position")
    assert data[["place", "loss", "low", "high", "seeds"]].to_numpy().tolist() == [
        [1, 5.0, 5.0, 5.0, 1], [2, 4.0, 4.0, 4.0, 1], [1024, 2.0, 1.0, 3.0, 2],
    ]  # fmt: skip
    axes = drawn(class_figures["position"](data, looks(["linear"])))
    assert axes.get_xscale() == "symlog"
    assert "non-overlapping" in axes.get_title(loc="left").replace("\n", "")
    assert class_data(prepare(rows), "validation", "position").empty
