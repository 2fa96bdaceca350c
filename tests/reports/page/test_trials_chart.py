"""Parallel coordinates of trials, as the page gets them."""

import pandas as pd
import pytest

from lra.reports.page.tuning import BETWEEN, tuning_chart
from lra.reports.rows import prepare
from tests.reports.conftest import frame
from tests.reports.sections.search_rows import search


def test_a_trial_is_a_line_across_its_options_to_its_score() -> None:
    chart = tuning_chart(prepare(frame(*search(("sdpa", "lstm")))))
    assert chart is not None
    (panel,) = chart.panels
    assert panel.x.title.split(BETWEEN) == [
        "optim.peak_learning_rate", "optim.weight_decay", "accuracy",
    ]  # fmt: skip
    lines: dict[tuple[str, str], list[float]] = {}
    for point in panel.points:
        lines.setdefault((point.model, point.text), []).append(float(point.y or 0.0))
    assert len(lines) == 2 * 17
    assert all(len(line) == 3 and 0 <= min(line) <= max(line) <= 1 for line in lines.values())
    (best,) = [text for (_, text), line in lines.items() if line[-1] == 1.0]
    scores = {float(text.rpartition(" ")[2]) for _, text in lines if "diverged" not in text}
    assert float(best.rpartition(" ")[2]) == max(scores)
    (failed,) = [line for (_, text), line in lines.items() if text.endswith("diverged")]
    assert failed[-1] == 0.0
    rates = sorted(
        (float(text.partition("rate=")[2].partition(",")[0]), line[0])
        for (model, text), line in lines.items()
        if model == "sdpa"
    )
    assert rates[0][1] == 0.0
    places = [place for _, place in rates]
    assert places == sorted(places)
    middle = next(place for rate, place in rates if rate > 0.0015)
    assert middle == pytest.approx(0.5, abs=0.1)  # logarithmic


def test_losses_stand_with_the_best_above_too() -> None:
    chart = tuning_chart(prepare(frame(*search(("sdpa",), metric="loss"))))
    assert chart is not None
    best = max((p for p in chart.panels[0].points if p.x == 2), key=lambda p: p.y or 0.0)
    lowest = min(float(p.text.rpartition(" ")[2]) for p in chart.panels[0].points)
    assert float(best.text.rpartition(" ")[2]) == lowest


def test_there_is_none_without_a_search(realistic: pd.DataFrame) -> None:
    assert tuning_chart(prepare(realistic)) is None
