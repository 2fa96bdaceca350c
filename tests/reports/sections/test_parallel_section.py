"""Steps on several processes, as data, figures and table."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lra.reports.figures.drawing import looks
from lra.reports.rows import prepare
from lra.reports.sections.parallel import parallel_data, parallel_figure, parallel_rows
from tests.reports.conftest import Report

CROWDED = "3 processes with 3 threads in total share 2 cores"


def cell(make, model, processes, mode="weak", *, bad=None, length=1024, **labels):
    """The rows of one cell; names tell numbers of processes apart, as those of the store do."""
    told = {"processes": str(processes), **labels} if processes > 1 else {}
    options = {f"processes.{k}": told.get(k, "none") for k in ("processes", "sharded")}
    about = {"runner": "parallel", "mode": mode, "model": model, "family": model}
    about |= {"options": options, "labels": told, "length": length}
    about["cell"] = f"{model}-{mode}-{length}-{told}"
    if bad:
        return [make.row("tokens_per_second", None, status=bad, reason="why", **about)]
    rows = [
        make.row("tokens_per_second", 100.0 * processes, **about),
        make.row("bytes_sent_per_step", 4096.0 * (processes - 1), **about),
    ]
    if processes > 2:
        rows[0]["labels"] = told | {"disturbed": CROWDED}
        rows.append(make.row("scaling_efficiency", None, status="skipped", reason=CROWDED, **about))
    elif processes == 2:
        rows.append(make.row("scaling_efficiency", 0.8, samples=[0.7, 0.8, 0.9], **about))
    return rows


@pytest.fixture
def some(make: SimpleNamespace) -> pd.DataFrame:
    cells = [
        *(cell(make, "linear", n, mode) for n in (1, 2, 3) for mode in ("weak", "strong")),
        cell(make, "linear", 2, sharded="true"),
        cell(make, "softmax", 1),
        cell(make, "softmax", 2, bad="crashed"),
    ]
    return prepare(make.frame(*(row for rows in cells for row in rows)))


def test_lines_begin_with_one_process_and_have_each_failure_in_each_panel(some) -> None:
    data = parallel_data(parallel_rows(some)).set_index(["mode", "quantity", "model"])
    shared = "linear (sharded)"
    rates = data.loc[("weak", "tokens_per_second", shared)]
    assert [*rates["processes"]] == [1, 2]
    assert [*rates["value"]] == [100.0, 200.0]
    assert shared not in data.loc["strong"].index.get_level_values("model")
    gains = data.loc[("weak", "scaling_efficiency", "linear")].set_index("processes")
    assert [*gains.index] == [2, 3]  # one process has none
    assert [*gains["status"]] == ["ok", "skipped"]
    assert 0.7 < gains.loc[2, "p20"] < gains.loc[2, "value"] < gains.loc[2, "p80"] < 0.9
    for quantity in ("tokens_per_second", "scaling_efficiency", "bytes_sent_per_step"):
        lost = data.loc[[("weak", quantity, "softmax")]].set_index("processes").loc[2]
        assert (lost["status"], lost["reason"]) == ("crashed", "why")


def test_the_figure_has_loads_side_by_side(some) -> None:
    data = parallel_data(parallel_rows(some))
    figure = parallel_figure(data, looks([*data["model"].unique()]))
    figure.draw_without_rendering()
    assert len(figure.axes) == 6
    assert [axes.get_title(loc="left")[:4] for axes in figure.axes] == 3 * ["weak", "stro"]
    gains = figure.axes[2]
    crosses = [line for line in gains.get_lines() if line.get_marker() == "x"]
    assert sorted(tuple(line.get_xdata()) for line in crosses) == [(2.0,), (3.0,)]
    assert figure.axes[4].get_ylabel() == "bytes sent by one process in a step (KiB)"
    notes = " ".join(" ".join(text.get_text().split()) for text in figure.texts)
    assert "× no number was measured: 1 crashed, 1 skipped" in notes
    assert notes.count("○ too uncertain") == 1


def test_one_process_alone_has_no_empty_panel(make: SimpleNamespace) -> None:
    rows = parallel_rows(prepare(make.frame(*cell(make, "linear", 1, "strong"))))
    data = parallel_data(rows)
    assert [*data["quantity"]] == ["tokens_per_second"]
    assert len(parallel_figure(data, looks(["linear"])).axes) == 1


def test_the_report_has_figure_and_table(some, report: Report) -> None:
    names = report(some)
    assert {"parallel.svg", "parallel.csv", "metrics-parallel.md"} <= names.keys()
    table = names["metrics-parallel.md"].read_text()
    assert "| linear, processes=2, sharded=true |" in table
    assert "processes.processes" not in names["report.md"].read_text()
