"""The section of a search: its tables, curves and points, from invented rows with a known truth."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lra.reports.dashboard.keys import SEARCHED
from lra.reports.dashboard.plan import plan_runs
from lra.reports.report import write_parts, write_report
from lra.reports.rows import prepare
from lra.reports.sections import tuning
from lra.reports.sections.section import LeftOut, PagesPart, TablePart
from lra.reports.sections.tuning_curves import arm_curves, curve_data
from lra.reports.sections.tuning_points import point_data
from lra.reports.sections.tuning_tables import comparison_tables, tuned_table, window_table
from lra.reports.style import ReportStyle, using
from lra.reports.tables.searches import Searches
from lra.reports.tables.table import Entry, Table
from lra.runners.measures.search import SearchResult
from tests.reports.conftest import frame, row
from tests.reports.rows_of_tables import rows_in
from tests.reports.sections.search_rows import RATES, chosen_rows, ended, search

RATE = "optim.peak_learning_rate"
EDGE = ("at_the_edge", "the chosen rate is the highest of its range; widen it")


def searches(*rows: dict[str, Any], **options: Any) -> Searches:
    return Searches(prepare(frame(*(rows or search(**options)))))


def line(table: Table, title: str) -> dict[str, Entry]:
    (found,) = [row for row in table.rows if row.title == title]
    return {c.title: entry for c, entry in zip(table.columns, found.entries, strict=True)}


def finals(rows: Sequence[dict[str, Any]], family: str, *, untuned: bool) -> list[float]:
    return [
        float(each["value"])
        for each in rows
        if each["family"] == family and each["labels"].get("split") == "test"
        and (each["labels"]["trial"] == "0") == untuned
    ]  # fmt: skip


def test_the_table_has_the_finals_of_the_choice_and_what_it_cost() -> None:
    rows = search(marks=[EDGE])
    table = tuned_table(searches(*rows), "accuracy")
    # without the searched options; behind them what needs no model
    assert [row.title for row in table.rows] == [*sorted(RATES), "best baseline: chance"]
    assert [row.entries[0].rank for row in table.rows[:-1]].count(1) == 1
    lstm = line(table, "lstm")
    tuned, untuned = (finals(rows, "lstm", untuned=each) for each in (False, True))
    assert lstm["tuned"].value == pytest.approx(np.mean(tuned))
    assert lstm["untuned"].value == pytest.approx(np.mean(untuned))
    assert lstm["gain"].value == pytest.approx(np.mean(tuned) - np.mean(untuned))
    assert lstm["gain"].interval is not None
    best = max(r["value"] for r in rows if r["family"] == "lstm" and r["metric"] == "trial_score"
               and r["value"] is not None)  # fmt: skip
    assert lstm["best trial (SD)"].value == pytest.approx(best)
    again, optimism = lstm["its options again"].value, lstm["optimism"].value
    assert again is not None
    assert optimism == pytest.approx(best - again)
    assert lstm["trials (failed)"].text == "16 (1)"
    assert lstm["steps"].value == 17 * 400
    assert lstm["hours"].value == pytest.approx(17 * 60 / 3600)
    assert EDGE[1] in lstm["tuned"].notes
    assert lstm["tuned"].facts["marks"] == "at_the_edge"
    assert "trial" in lstm["chosen options"].text
    assert RATE in str(lstm["chosen options"].facts["words 0"])
    assert "exclude the variance of the search" in table.caption


@pytest.mark.parametrize("studies", [1, 3])
def test_the_best_trial_has_the_deviation_of_its_options(studies: int) -> None:
    rows = search(("lstm",), studies=studies)
    lstm = line(tuned_table(searches(*rows), "accuracy"), "lstm")
    again = [
        [r["value"] for r in rows if r["labels"].get("split") == "validation"
         and r["labels"]["trial"] != "0" and r["labels"]["study"] == str(study)]
        for study in range(studies)
    ]  # fmt: skip
    deviation = np.sqrt(np.mean([np.var(each, ddof=1) for each in again]))
    found = lstm["best trial (SD)"]
    assert found.facts["standard_deviation"] == pytest.approx(deviation)
    assert found.text == f"{100 * (found.value or 0):.1f} ({100 * deviation:.1f})"
    scores = sorted(r["value"] for r in rows if r["metric"] == "trial_score" and r["value"])
    assert studies > 1 or lstm["fourth"].value == pytest.approx(scores[-4])
    few = search(("lstm",), trials=2, final_seeds=[1])
    alone = line(tuned_table(searches(*few), "accuracy"), "lstm")
    assert alone["fourth"].value is None
    assert "(" not in alone["best trial (SD)"].text


def fail(each: dict[str, Any]) -> None:
    """Make a row one of a training that diverged."""
    each |= {"value": None, "status": "diverged", "reason": "loss was nan"}


@pytest.mark.parametrize("studies", [1, 3])
def test_a_training_that_failed_after_the_choice_is_the_worst(studies: int) -> None:
    rows = search(("lstm", "sdpa"), studies=studies)
    cells = {r["cell"] for r in rows if r["family"] == "lstm" and r["labels"].get("split")
             and r["labels"]["trial"] != "0" and r["seed"] % 1000 == 2}  # fmt: skip
    for each in rows:
        if each["cell"] in cells:
            fail(each)
    found = searches(*rows)
    tuned = line(tuned_table(found, "accuracy"), "lstm")["tuned"]
    values = [r["value"] or 0.0 for r in rows if r["family"] == "lstm"
              and r["labels"].get("split") == "test" and r["labels"]["trial"] != "0"]  # fmt: skip
    assert tuned.value == pytest.approx(np.mean(values))
    failed = f"{studies} of {3 * studies} trainings failed (diverged: loss was nan)"
    told = f"{failed} and count as a score of 0"
    assert told in tuned.notes
    assert " of " not in tuned.text
    ((_, table),) = comparison_tables(found, "accuracy")
    assert table.rows[0].entries[1].facts["pairs"] == 3
    for each in rows:
        if each["family"] == "lstm" and each["labels"].get("split"):
            fail(each)  # all of them
    tuned = line(tuned_table(searches(*rows), "accuracy"), "lstm")["tuned"]
    assert (tuned.value, tuned.text) == (None, "diverged")


def test_a_loss_with_a_training_that_failed_has_no_mean() -> None:
    rows = search(("lstm",), metric="loss")
    cells = {r["cell"] for r in rows if r["labels"].get("trial") != "0" and r["seed"] == 2}
    for each in rows:
        if each["cell"] in cells:
            fail(each)
    lstm = line(tuned_table(searches(*rows), "loss"), "lstm")
    assert lstm["tuned"].text == "diverged"
    assert lstm["optimism"].value is None
    assert lstm["untuned"].value is not None


def test_data_that_were_not_there_are_no_failure() -> None:
    rows = search(("lstm",))
    for each in rows:
        if each["labels"].get("split") and each["seed"] == 2:
            fail(each)
            each["labels"]["missing"] = "data"
    tuned = line(tuned_table(searches(*rows), "accuracy"), "lstm")["tuned"]
    assert not tuned.notes
    assert len(tuned.by_seed) == 2


def test_a_search_that_has_not_ended_says_over_how_many_studies() -> None:
    rows = [r for r in search(("lstm", "sdpa"), studies=3)
            if r["family"] == "lstm" or not r["cell"].startswith("final-sdpa-2")]  # fmt: skip
    table = tuned_table(searches(*rows), "accuracy")
    assert line(table, "sdpa")["tuned"].text.endswith("; 2 studies]")
    assert "studies" not in line(table, "lstm")["tuned"].text


def test_repeated_trials_count_once() -> None:
    rates = [0.001, 0.01, 0.1, 0.01, 0.1, 0.001]  # the first is the untuned one
    scores = [0.5, 0.8, 0.6, 0.8, 0.6, 0.5]
    trials = [ended(n, {RATE: rate}, score) for n, (rate, score) in
              enumerate(zip(rates, scores, strict=True))]  # fmt: skip
    costs = [{"steps": 8.0, "time": 1.0, "multiply_adds": 1.0}] * 6
    result = SearchResult(sampler="halton", trials=trials, costs=costs, chosen=1)
    found = searches(*chosen_rows("lstm", result))
    tuned = line(tuned_table(found, "accuracy"), "lstm")
    assert tuned["trials (failed)"].text == "3 (0)"
    assert tuned["steps"].value == 3 * 8
    assert "among 3 trials" in tuned_table(found, "accuracy").caption
    (curve,) = arm_curves(found, "accuracy")
    assert list(curve.curve.best) == [0.6, 0.8, 0.8]
    window = window_table(found, "accuracy")
    assert window.rows[0].entries[0].facts == {"trials": 3, "near": 1}


@pytest.mark.parametrize("decay", [0.0, 0])
def test_a_trial_of_the_untuned_options_counts_as_one(decay: float) -> None:
    """They fill one place among the four best, as they are one training; curves leave out one."""
    scores = {0: 0.9, 1: 0.5, 2: 0.9, 3: 0.8, 4: 0.7}
    points = {n: {RATE: 0.1 * n, "optim.weight_decay": 0.0} for n in scores}
    points[0], points[2] = points[2], {RATE: 0.2, "optim.weight_decay": decay}
    trials = [ended(n, points[n], score) for n, score in scores.items()]
    costs = [{"steps": 8.0, "time": 1.0, "multiply_adds": 1.0}] * 5
    result = SearchResult(sampler="halton", trials=trials, costs=costs, chosen=0)
    found = searches(*chosen_rows("lstm", result))
    table = tuned_table(found, "accuracy")
    tuned = line(table, "lstm")
    assert tuned["fourth"].value == 0.5
    assert tuned["best trial (SD)"].value == 0.9
    assert (tuned["trials (failed)"].text, tuned["steps"].value) == ("4 (0)", 4 * 8)
    assert "the curves and the windows do not count them as a trial" in table.caption
    (curve,) = arm_curves(found, "accuracy")
    assert len(curve.curve.best) == 4


def test_budgets_are_judged_by_finished_trials() -> None:
    rows = search(("sdpa", "linear"))
    alike = tuned_table(searches(*rows), "accuracy")
    for each in rows:
        if (each["family"], each["metric"], each["step"]) == ("linear", "trial_score", 3):
            each |= {"value": None, "status": "diverged", "reason": "loss was nan"}
    diverged = tuned_table(searches(*rows), "accuracy")  # which is a result
    for table in (alike, diverged):
        assert not any(line(table, name)["tuned"].facts["marks"] for name in ("sdpa", "linear"))
    for each in rows:
        if each["status"] == "diverged":
            each |= {"status": "timeout", "reason": "stopped"}
    for name in ("sdpa", "linear"):
        tuned = line(tuned_table(searches(*rows), "accuracy"), name)["tuned"]
        assert tuned.facts["marks"] == "unequal_budgets"
        assert any("finished trials (15, 16)" in note for note in tuned.notes)


def test_from_three_studies_on_intervals_include_tuning() -> None:
    rows = search(studies=3)
    table = tuned_table(searches(*rows), "accuracy")
    sdpa = line(table, "sdpa")["tuned"]
    assert str(sdpa.interval.source) == "studies"
    means = [np.mean([r["value"] for r in rows if r["family"] == "sdpa"
                      and r["labels"].get("split") == "test" and r["labels"]["trial"] != "0"
                      and r["labels"]["study"] == str(study)]) for study in range(3)]  # fmt: skip
    assert sdpa.value == pytest.approx(np.mean(means))
    middle = (sdpa.interval.low + sdpa.interval.high) / 2
    assert middle == pytest.approx(sdpa.value)
    half = 4.302652729749464 * np.std(means, ddof=1) / np.sqrt(3)
    assert sdpa.interval.high == pytest.approx(np.mean(means) + half)
    assert "which include the variance of the search" in table.caption
    two = tuned_table(searches(studies=2), "accuracy")
    found = line(two, "sdpa")["tuned"].interval
    assert str(found.source) == "seeds"


def test_a_larger_search_of_the_same_name_takes_the_place_of_the_smaller() -> None:
    small, large = (search(("linear",), trials=n, cell=f"choice-{n}") for n in (4, 16))
    both = searches(*small, *large)
    assert both.trials["trial"].max() == 16
    assert len(both.choices) == 1
    ((choice,),) = both.choices.values()
    ((wanted,),) = searches(*large).choices.values()
    assert choice == wanted


def test_two_searches_of_one_arm_keep_their_trainings_apart() -> None:
    rows = search(("linear",))
    other = search(("linear",), name="other", trials=15, cell="choice-other")
    for each in other:
        if each["labels"].get("split"):
            each["value"] = 0.0
    alone, both = searches(*rows), searches(*other, *rows)
    (one,), (two,) = (c for found in (alone, both) for c in found.choices.values())
    assert (one.search, one.study, one.trial) == (two.search, two.study, two.trial)
    ((smaller,),) = searches(*other).choices.values()
    assert (one.study, one.trial) == (smaller.study, smaller.trial)  # only the name differs
    for column in ("tuned", "untuned", "its options again"):
        found = [line(tuned_table(each, "accuracy"), "linear")[column] for each in (alone, both)]
        assert found[0] == found[1]
    for tuned in (True, False):
        assert both.led_to(tuned=tuned) == alone.led_to(tuned=tuned)
    unnamed = [r for r in rows if r["labels"].pop("search_name", "")]  # of an earlier lra
    assert unnamed
    assert searches(*rows).led_to(tuned=True) == alone.led_to(tuned=True)


def test_an_arm_without_a_choice_is_a_line_of_the_table() -> None:
    trials = [ended(number, {RATE: 0.1 + number}, None) for number in range(3)]
    none = SearchResult(sampler="halton", trials=trials, costs=[{}] * 3)
    found = searches(*search(("linear",)), *chosen_rows("lstm", none))
    table = tuned_table(found, "accuracy")
    lost = line(table, "lstm")
    assert lost["trials (failed)"].text == "2 (2)"
    assert lost["chosen options"].text == "–"
    assert "no trial has a score: loss was nan" in lost["tuned"].notes
    window = window_table(found, "accuracy")
    assert [row.title for row in window.rows] == ["linear"]


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_the_curve_leaves_out_the_untuned_trial_and_pools_studies(metric: str) -> None:
    found = searches(studies=3, metric=metric)
    data = curve_data(found, metric)
    assert set(data["against"]) == {"trials", "hours", "multiply-adds"}
    for _, part in data.groupby(["model", "against"]):
        assert list(part["k"]) == [*range(1, 49)]
        assert (part["low"] <= part["value"]).all()
        assert (part["value"] <= part["high"]).all()
    trials = found.trials[(found.trials["trial"] > 0) & (found.trials["model"] == "sdpa")]
    last = data[(data["model"] == "sdpa") & (data["k"] == 48) & (data["against"] == "trials")]
    best = trials["score"].max() if metric == "accuracy" else trials["score"].min()
    assert float(last["value"].iloc[0]) == best
    cost = data[(data["model"] == "sdpa") & (data["against"] == "hours")]["x"].iloc[-1]
    assert cost == pytest.approx(48 * 60 / 3600)


def test_searches_whose_trials_depend_on_each_other_have_no_band() -> None:
    for options, why in (({"sampler": "tpe"}, "search=tpe"), ({"rungs": ("0.25",)}, "rungs"),
                         ({"sampler": "grid"}, "search=grid")):  # fmt: skip
        (curve,) = arm_curves(searches(families=("linear",), **options), "accuracy")
        assert not curve.banded
        assert why in curve.note
        assert np.isnan(curve.curve.low).all()
    (three,) = arm_curves(searches(families=("linear",), sampler="tpe", studies=3), "accuracy")
    assert not three.banded
    assert "t interval" in three.note
    assert np.isfinite(three.curve.low).all()
    assert [c.banded for c in arm_curves(searches(families=("linear",)), "accuracy")] == [True]


def test_hours_are_compared_on_one_quiet_machine_alone() -> None:
    rows = search(("linear",))
    for number, each in enumerate(rows):
        if each["metric"] == "trial_score" and number % 8:
            each["device"] = "another"
    assert set(curve_data(searches(*rows), "accuracy")["against"]) == {"trials", "multiply-adds"}


def test_the_window_is_the_share_near_the_best_and_its_decades() -> None:
    scores = {1e-4: 0.1, 1e-3: 0.86, 2e-3: 0.9, 1e-2: 0.851, 3e-2: None}
    trials = [ended(n, {RATE: rate}, score) for n, (rate, score) in enumerate(scores.items(), 1)]
    result = SearchResult(sampler="halton", trials=trials, costs=[{}] * 5, chosen=3)
    rows = [*chosen_rows("lstm", result)]
    table = window_table(searches(*rows), "accuracy")
    share, ends, beyond, decades = table.rows[0].entries
    assert (share.value, share.text, share.interval) == (3 / 5, "60", None)
    assert (ends.text, beyond.text) == ("0.001–0.01", "0.0001, 0.03")
    assert decades.value == pytest.approx(1.0)
    assert decades.text == "1.00–2.48"
    with using(ReportStyle(near_best=0.02)):
        narrow = window_table(searches(*rows), "accuracy")
    assert narrow.rows[0].entries[0].value == 1 / 5
    with using(ReportStyle(good_score=0.86)):
        good = window_table(searches(*rows), "accuracy")
        adaptive = window_table(searches(families=("lstm",), sampler="tpe"), "accuracy")
    share, ends, beyond, decades = good.rows[0].entries
    assert (share.text, ends.text, beyond.text) == ("40 [5, 85]", "0.001–0.002", "0.0001, 0.01")
    assert share.interval is not None
    assert "A trial is good if its validation score is 86.0 or better" in good.caption
    assert adaptive.rows[0].entries[0].interval is None
    with using(ReportStyle(good_score=0.05)):  # the lowest score is that of chance
        shorter = replace(result, trials=trials[:4], costs=[{}] * 4)
        every = window_table(searches(*chosen_rows("lstm", shorter)), "accuracy")
    _, *window = [entry.text for entry in every.rows[0].entries]
    assert window == ["0.001–0.01", "0.0001, –", "≥ 1.00"]


def test_who_is_ahead_by_bands_and_by_studies() -> None:
    rows = search(("sdpa", "lstm"), trials=48)
    for each in rows:
        if each["family"] == "lstm" and each["metric"] == "trial_score" and each["value"]:
            each["value"] *= 0.2
    ((_, table),) = comparison_tables(searches(*rows), "accuracy")
    by_row = {(row.section, row.title): row.entries for row in table.rows}
    tuned = by_row["tuned test score, row minus column", "sdpa"][0]
    seeds = {(r["family"], r["seed"]): r["value"] for r in rows
             if r["labels"].get("split") == "test" and r["labels"]["trial"] != "0"}  # fmt: skip
    apart = [seeds["sdpa", seed] - seeds["lstm", seed] for seed in (1, 2, 3)]
    assert tuned.value == pytest.approx(np.mean(apart))
    half = 4.302652729749464 * np.std(apart, ddof=1) / np.sqrt(3)
    assert tuned.interval.high == pytest.approx(np.mean(apart) + half)
    lstm, sdpa = (by_row["bands at equal numbers of trials", n] for n in ("lstm", "sdpa"))
    assert sdpa[0].text.startswith("ahead at ")
    assert lstm[1].text == sdpa[0].text.replace("ahead", "behind")
    assert sdpa[1].text == ""
    assert by_row["bands at equal multiply-adds", "sdpa"][0].text.startswith("ahead at ")
    assert by_row["bands at equal hours", "lstm"][1].text.startswith("behind at 0.")
    few = [*comparison_tables(searches(families=("sdpa", "linear"), trials=4), "accuracy")]
    assert few[0][1].rows[0].entries[1].facts["pairs"] == 3
    assert few[0][1].rows[2].entries[1].text == "not significant by 4"
    assert "usually overlap below 32 trials" in few[0][1].caption
    ((_, three),) = comparison_tables(searches(families=("sdpa", "linear"), studies=3), "accuracy")
    difference = three.rows[0].entries[1]
    assert str(difference.interval.source) == "studies"
    assert difference.facts["pairs"] == 3
    assert difference.value == -(three.rows[1].entries[0].value or 0.0)


def test_pairs_of_tuned_scores_are_tested_with_holms_correction() -> None:
    rows = search(("sdpa", "lstm", "linear"))
    ((_, table),) = comparison_tables(searches(*rows), "accuracy")
    lines = [row for row in table.rows if row.section.startswith("tuned")]
    above = [lines[i].entries[j] for i in range(3) for j in range(i + 1, 3)]
    levels = sorted(round(e.interval.level, 4) for e in above if e.interval)
    assert levels[-1] == pytest.approx(1 - 0.05 / 3, abs=1e-4)
    for each in above:
        outside = not each.interval.low <= 0 <= each.interval.high
        assert each.text.endswith("*") == outside
    assert "Holm's correction for 3 pairs" in table.caption
    assert "The best baseline is chance, with " in table.caption


def test_what_a_search_left_out_is_no_column() -> None:
    rows = [r for r in search() if r["labels"].get("trial") != "0"]
    table = tuned_table(searches(*rows), "accuracy")
    assert not {"untuned", "gain"} & {column.title for column in table.columns}
    assert "and the untuned options" not in table.caption
    assert all(len(row.entries) == len(table.columns) for row in table.rows)


def test_a_model_that_learned_nothing_has_no_window() -> None:
    trials = [ended(n, {RATE: 10.0**-n}, 0.05) for n in range(1, 5)]
    result = SearchResult(sampler="halton", trials=trials, costs=[{}] * 4, chosen=1)
    table = window_table(searches(*chosen_rows("lstm", result)), "accuracy")
    share = table.rows[0].entries[0]
    assert share.value is None
    assert share.notes == (
        "no trial is better than the baseline chance, 10.0, so no trial is good",
    )


def test_a_trial_that_no_baseline_is_worse_than_is_not_near_the_best() -> None:
    scores = {1e-4: 0.45, 1e-3: 0.49, 1e-2: 0.52}
    trials = [ended(n, {RATE: rate}, score) for n, (rate, score) in enumerate(scores.items(), 1)]
    result = SearchResult(sampler="halton", trials=trials, costs=[{}] * 3, chosen=3)
    about = {"model": "baseline/majority", "family": "baseline/majority", "options": {}}
    baseline = row("accuracy", 0.5, labels={"split": "validation"}, **about)
    for rows, near in (([], 2), ([baseline], 1)):
        table = window_table(searches(*chosen_rows("lstm", result), *rows), "accuracy")
        assert table is not None
        assert table.rows[0].entries[0].facts == {"trials": 3, "near": near}
    assert "are no better than the best baseline" in table.caption


def test_points_show_failures_and_the_choice_and_know_their_axis() -> None:
    data = point_data(searches(), "accuracy")
    assert set(data["option"]) == {RATE, "optim.weight_decay"}
    assert data[data["option"] == RATE]["log"].all()
    assert not data[data["option"] == "optim.weight_decay"]["log"].any()
    assert (data.groupby(["model", "option"])["chosen"].sum() == 1).all()
    assert set(data[data["status"] != "ok"]["model"]) == {"lstm"}


def test_rungs_say_how_far_they_agree_and_what_they_saved() -> None:
    parts = [*tuning.section(prepare(frame(*search(("linear",), rungs=("0.25",)))))]
    (table,) = [p.table for p in parts if isinstance(p, TablePart) and "rungs" in p.name]
    trials, full, _, _, saved = table.rows[0].entries
    assert (trials.text, full.text) == ("16", "4")
    assert saved.value == pytest.approx(1 - (5 + 12 * 0.25) / 17)


def test_a_report_without_a_search_has_no_such_section(realistic: pd.DataFrame) -> None:
    assert not [*tuning.section(prepare(realistic))]
    bare = [each for each in search(("linear",)) if each["metric"] == "chosen_trial"]
    (part,) = tuning.section(prepare(frame(*bare)))
    assert isinstance(part, LeftOut)


@pytest.mark.parametrize("options", [{}, {"metric": "loss"}, {"sampler": "tpe", "studies": 3}])
def test_every_part_is_written_and_drawn(
    tmp_path_factory: pytest.TempPathFactory, options: dict[str, Any]
) -> None:
    rows = frame(*search(("linear", "lstm"), trials=6, **options))
    folder = tmp_path_factory.mktemp("report")
    if options:
        write_parts(rows, folder / "parts", sections={"search": tuning.section})
        folder = folder / "parts"
    else:
        write_report(rows, folder, title="a search", sections={"search": tuning.section})
        assert "(untuned)" in (folder / "report.md").read_text()
    names = {path.name for path in folder.iterdir()}
    parts = [*tuning.section(prepare(rows))]
    assert {p.name for p in parts if isinstance(p, PagesPart)}
    for part in parts:
        assert not isinstance(part, LeftOut)
        ending = "svg" if isinstance(part, PagesPart) else "tex"
        assert f"{part.name}.{ending}" in names


def test_a_dashboard_gets_trials_under_their_own_keys() -> None:
    rows = frame(*search(("linear",), trials=2))
    plans = plan_runs(rows_in(rows), sweep="demo", cells={})
    (choice,) = [plan for plan in plans if plan.config["runner"] == "search"]
    keys = {key for line in choice.history for key in line}
    assert "search/trial_score" in keys
    assert "search/chosen_trial" in choice.summary
    assert not [key for key in (*keys, *choice.summary) if "options" in key or "words" in key]
    places = {
        "final-linear-0-0-1": {"about": {"trial": "demo/0/7/0.25"}},
        "final-linear-0-0-2": {"runner": {"tuned": "a/b/1/5"}},
    }
    known = plan_runs(
        rows_in(rows),
        sweep="demo",
        cells={cell: {"config": config} for cell, config in places.items()},
    )
    told = {plan.config["cells"][0]: [plan.config.get(key) for key in SEARCHED] for plan in known}
    assert [told[cell] for cell in places] == [["demo", 0, 7, 0.25], ["a/b", 1, 5, 1.0]]
    assert told["final-linear-0-0-3"] == [None] * 4
    (final,) = [p for p in plans if p.name.startswith("linear") and "final-linear-0-0-1" in
                p.config["cells"]]  # fmt: skip
    assert "quality/test_accuracy" in final.summary
