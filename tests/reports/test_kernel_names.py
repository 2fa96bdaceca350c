"""Runs with public kernels have their line, and its name says so."""

from typing import Any

import pandas as pd
import pytest

from lra.reports.rows import cost_points, prepare
from lra.results.evidence import evidence_of
from tests.reports.conftest import frame, row

AUTO = {"hardware.kernels": "auto"}


def timed(
    labels: dict[str, str], *, forms: str = "", length: int = 64, seconds: float | None = 1.0,
    model: str = "gla",
) -> list[dict[str, Any]]:  # fmt: skip
    """Return the rows of one run, with `forms` on its time."""
    key = f"{model} {sorted(labels.items())} {forms} {length}"
    run = {"runner": "scaling", "mode": "step", "model": model, "length": length, "cell": key}
    ran = {"forms": forms, "kernels": "decayed_product: …"} if forms else {}
    ended = {} if seconds else {"status": "out_of_memory", "reason": "no memory left"}
    time = row("time", seconds, labels={**labels, **ran}, **run, **ended)
    ratio = row("time_ratio", 0.5, labels={**labels, "reference": "sdpa"}, **run)
    return [time, row("batch_size", 1.0, labels=labels, **run), *([ratio] if seconds else [])]


def names(*runs: list[dict[str, Any]]) -> list[str]:
    table = prepare(frame(*(each for run in runs for each in run)))
    return [str(name) for name in table["name"].unique()]


@pytest.mark.parametrize(
    ("labels", "forms", "name"),
    [
        ({}, "", "gla"),
        (AUTO, "public", "gla (public kernels)"),
        (AUTO, "mixed", "gla (some public kernels)"),
        (AUTO, "own", "gla"),
        (AUTO, "", "gla"),
    ],
)
def test_a_name_says_what_computed(labels: dict[str, str], forms: str, name: str) -> None:
    assert names(timed(labels, forms=forms)) == [name]


def test_both_forms_are_lines_of_their_own() -> None:
    table = prepare(frame(*timed({}), *timed(AUTO, forms="public", seconds=3.0)))
    points = {point.model: point.time.value for point in cost_points(table)}
    assert points == {"gla": 1.0, "gla (public kernels)": 3.0}


def test_runs_whose_kernels_were_refused_stay_apart_from_those_that_asked_for_none() -> None:
    assert names(timed({}), timed(AUTO, forms="own")) == ["gla", "gla (kernels=auto)"]


def test_a_run_that_failed_stays_on_the_line_of_its_model() -> None:
    longer = timed(AUTO, length=128, seconds=None)
    assert names(timed(AUTO, forms="public"), longer) == ["gla (public kernels)"]
    mixed = timed(AUTO, forms="own", length=256)
    assert names(timed(AUTO, forms="public"), longer, mixed) == ["gla (some public kernels)"]


def test_models_are_named_each_by_its_kernels() -> None:
    other = timed(AUTO, forms="own", model="hyena")
    assert names(timed(AUTO, forms="public"), other) == ["gla (public kernels)", "hyena"]


def test_what_is_known_of_families_is_of_our_forms_alone() -> None:
    def known(table: pd.DataFrame) -> list[tuple[str, float]]:
        return [(each.family, each.value) for each in evidence_of("here", prepare(table), {}, {})]

    assert known(frame(*timed({}))) == [("gla", 0.5)]
    assert known(frame(*timed(AUTO, forms="public"))) == []
