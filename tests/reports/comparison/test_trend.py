"""Speed and memory of one family over revisions."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lra.reports.comparison.trend import (
    NoTrend,
    by_machine,
    trend_figure,
    trend_points,
    trend_table,
)
from lra.reports.rows import prepare

DAYS = {"2026-01-02": "aaaa", "2026-02-03": "bbbb"}


@pytest.fixture
def rows(make: SimpleNamespace) -> pd.DataFrame:
    """Linear is 2 and later 4 times as fast as SDPA; another machine measured it once."""
    lines = []
    for number, (day, revision) in enumerate(DAYS.items()):
        about = {"created": f"{day}T03:04:05+00:00", "fingerprint": revision}
        for length in (512, 1024):
            seconds = 0.02 / (number + 1)
            lines += make.timing("linear", length, seconds, references={"sdpa": 0.04}, **about)
    other = {"device": "another", "created": "2026-01-05T00:00:00+00:00"}
    lines += make.timing("linear", 512, 0.04, references={"sdpa": 0.04}, **other)
    return prepare(make.frame(*lines)).assign(changed_options="")


def test_a_line_for_each_revision_of_a_machine(rows: pd.DataFrame) -> None:
    points = trend_points(rows, "linear")
    table = trend_table(points, "linear")
    speeds = [row for row in table.rows if "speed" in row.section]
    assert [row.title for row in speeds] == [
        "2026-01-02 (aaaa)", "2026-02-03 (bbbb)", "2026-01-05 (f00d)",
    ]  # fmt: skip
    assert [entry.text for entry in speeds[0].entries] == ["2.0", "2.0"]
    assert [entry.text for entry in speeds[1].entries] == ["4.0", "4.0"]
    assert [entry.text for entry in speeds[2].entries] == ["1.0", "–"]
    assert speeds[0].section != speeds[2].section
    (speed, memory) = trend_figure(points, "linear").axes
    assert [[*line.get_ydata()] for line in speed.lines] == [[2.0, 4.0]] * 2
    assert len(memory.lines) == 2


def test_disturbed_and_changed_rows_are_no_trend(rows: pd.DataFrame) -> None:
    for change in ({"disturbed": "load"}, {"status": "timeout"}, {"reference": "softmax"}):
        with pytest.raises(NoTrend, match="no row times linear interleaved with sdpa"):
            trend_points(rows.assign(**change), "linear")
    with pytest.raises(NoTrend, match="runner=scaling model=performer"):
        trend_points(rows, "performer")
    rows.loc[rows["fingerprint"] == "aaaa", "changed_options"] = "feature_map=exp"
    titles = [title for title, _ in by_machine(trend_points(rows, "linear"))]
    assert len(titles) == 3
    assert sum("feature_map=exp" in title for title in titles) == 1
