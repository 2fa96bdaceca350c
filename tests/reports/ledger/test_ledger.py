"""Verdicts on planted rows, refused claims, and docs/ledger.md against the published rows."""

from collections.abc import Sequence
from typing import Any

import ledger as site
import pytest
from scipy import stats

from lra.reports.ledger.claims import BadClaim, read_claims
from lra.reports.ledger.ledger import ClaimVerdict, Decision, Row, decide, entry

SOUND = {
    "id": "C1", "claim": "a > b", "source": "paper", "published": "2", "setting": "same",
    "written": "before", "rows": ["file"], "command": "lra run",
}  # fmt: skip
MODELS = {"metric": "accuracy", "left": {"model": "a"}, "right": {"model": "b"}}


def row(model: str, value: float, seed: int = 0, **other: Any) -> Row:
    """Return a planted row; `other` are its labels, or columns of that name."""
    found = {
        "metric": "accuracy", "step": None, "status": "ok", "samples": [], "cell": f"{model}{seed}",
        "task": "t", "reason": "", "model": model,
        "options": {"mixer": {"heads": 2.0}, "task": {"options": {"n": 8}}},
        "value": value, "seed": seed,
    }  # fmt: skip
    columns = {key: value for key, value in other.items() if key in found}
    return {**found, **columns, "labels": {k: v for k, v in other.items() if k not in found}}


def rows(model: str, *values: float, **other: Any) -> list[Row]:
    """Return a planted row for each seed."""
    return [row(model, value, seed, **other) for seed, value in enumerate(values)]


def decided(found: Sequence[Row], *checks: dict[str, Any], **changed: Any) -> Decision:
    """Return the decision on a claim with these checks."""
    (claim,) = read_claims({"theme": [{**SOUND, "checks": [*checks], **changed}]})
    return decide(claim, lambda _: found)


SURE = [*rows("a", 0.9, 0.92, 0.91), *rows("b", 0.5, 0.52, 0.51)]


@pytest.mark.parametrize(
    ("check", "verdict"),
    [
        ({"above": 0.3}, ClaimVerdict.reproduced),
        ({"above": 0.5}, ClaimVerdict.failed),
        ({"below": 0.5}, ClaimVerdict.reproduced),
        ({"below": 0.3}, ClaimVerdict.failed),
        ({"within": 0.5}, ClaimVerdict.reproduced),
        ({"within": 0.1}, ClaimVerdict.failed),
        ({"by": "ratio", "above": 1.7}, ClaimVerdict.reproduced),
        ({"by": "ratio", "within": 0.9}, ClaimVerdict.reproduced),
        ({"by": "ratio", "within": 0.1}, ClaimVerdict.failed),
        ({"right": 0.9, "within": 0.05}, ClaimVerdict.reproduced),
        ({"right": 0.45, "by": "ratio", "below": 1.5}, ClaimVerdict.failed),
        ({"right": None, "above": 0.8}, ClaimVerdict.reproduced),
    ],
)
def test_an_interval_beyond_its_margin_decides(
    check: dict[str, Any], verdict: ClaimVerdict
) -> None:
    assert decided(SURE, MODELS | check).verdict == verdict
    smaller = {
        ClaimVerdict.reproduced: ClaimVerdict.direction,
        ClaimVerdict.failed: ClaimVerdict.opposite,
    }[verdict]
    assert decided(SURE, MODELS | check, setting="smaller").verdict == smaller


def test_pairs_cancel_what_seeds_share_and_other_seeds_are_welchs() -> None:
    paired = [*rows("a", 0.2, 0.5, 0.8), *rows("b", 0.1, 0.4, 0.71)]
    assert decided(paired, MODELS | {"above": 0.0}).verdict == ClaimVerdict.reproduced
    shifted = [
        each if each["model"] == "a" else {**each, "seed": 9 + each["seed"]} for each in paired
    ]
    found = decided(shifted, MODELS | {"above": 0.0})
    assert found.verdict == ClaimVerdict.noise
    numbers = ([each["value"] for each in paired if each["model"] == name] for name in "ab")
    expected = stats.ttest_ind(*numbers, equal_var=False).confidence_interval()
    assert found.figures[0].bounds == pytest.approx((expected.low, expected.high))


def test_one_seed_has_no_interval_unless_it_is_counted_or_sampled() -> None:
    one = [row("a", 0.9), row("b", 0.1)]
    found = decided(one, MODELS | {"above": 0.0})
    assert (found.verdict, found.figures[0].bounds) == (ClaimVerdict.noise, None)
    assert found.reason == "One training has no interval."
    told = decided(one, MODELS | {"above": 0.0}, remark="It is small.")
    assert told.reason == f"{found.reason} It is small."
    assert (
        decided(one, MODELS | {"above": 0.5}, setting="counted").verdict == ClaimVerdict.reproduced
    )
    assert decided(one, MODELS | {"above": 0.8}, setting="counted").verdict == ClaimVerdict.failed
    share = [row("a", 0.37, examples="2000"), row("b", 0.3, examples="2000")]
    published = {**MODELS, "right": 0.3725}
    for margin, verdict in ((0.03, ClaimVerdict.reproduced), (0.01, ClaimVerdict.noise)):
        found = decided(share, published | {"within": margin})
        (figure,) = found.figures
        assert (found.verdict, figure.of, found.reason) == (verdict, "2,000 examples", "")
        least, most = stats.binomtest(740, 2000).proportion_ci(method="wilson")
        assert figure.bounds == pytest.approx((least - 0.3725, most - 0.3725))
    for check in (MODELS | {"above": 0.0}, {**published, "right": None, "above": 0.0}):
        assert decided(share, check).figures[0].bounds is None  # another training may differ
    other = [row("a", 0.37, examples="2000", metric="macro_accuracy")]
    check = published | {"metric": "macro_accuracy", "within": 0.03}
    assert decided(other, check).figures[0].bounds is None  # no share of examples
    for size in (3, 9):  # too few for an interval between two samples, and enough
        samples = [[x + 0.01 * (i - size // 2) for i in range(size)] for x in (0.9, 0.1)]
        timed = [row("a", 0.9, samples=samples[0]), row("b", 0.1, samples=samples[1])]
        for way in ({"above": 0.5}, {"by": "ratio", "above": 5}, {"right": None, "above": 0.8}):
            found = decided(timed, MODELS | way)
            assert (found.verdict, found.figures[0].of) == (
                ClaimVerdict.reproduced,
                f"{size} samples",
            )
    spectrum = [row("a", 0.9, samples=[0.1, 0.2]), row("b", 0.1, samples=[0.1, 0.2])]
    assert decided(spectrum, MODELS | {"above": 0.0}).verdict == ClaimVerdict.noise


def test_deviations_of_the_runs_stand_beside_a_setting_that_is_the_same() -> None:
    found = [*rows("a", 0.9, 0.92, deviations="precision, vocabulary"), *rows("b", 0.5, 0.5)]
    for setting, words in (("same", "same, 2 deviations; before"), ("smaller", "smaller; before")):
        line = site.line(decided(found, MODELS | {"above": 0.0}, setting=setting))
        assert line.split(" | ")[2] == words


def test_any_check_that_fails_decides_and_any_doubt_leaves_noise() -> None:
    wide = [*SURE, *rows("c", 0.1, 0.5, 0.9)]
    sure, doubt, wrong = (
        MODELS | {"above": 0.3},
        MODELS | {"right": {"model": "c"}, "above": 0.0},
        MODELS | {"below": 0.3},
    )
    assert decided(wide, sure, sure).verdict == ClaimVerdict.reproduced
    assert decided(wide, sure, doubt).verdict == ClaimVerdict.noise
    assert decided(wide, sure, doubt, wrong).verdict == ClaimVerdict.failed


def test_claims_without_rows_say_why() -> None:
    bare = {key: SOUND[key] for key in ("id", "claim", "source", "published", "setting")}
    for key, verdict in (
        ("not_attempted", ClaimVerdict.missing),
        ("not_comparable", ClaimVerdict.incomparable),
    ):
        (claim,) = read_claims({"theme": [{**bare, key: "no time"}]})
        assert decide(claim, lambda _: None) == Decision(
            claim=claim, verdict=verdict, reason="no time"
        )
    (claim,) = read_claims({"theme": [SOUND | {"checks": [MODELS | {"above": 0.0}]}]})
    found = decide(claim, lambda _: None)
    assert (found.verdict, found.reason) == (ClaimVerdict.missing, "The rows are not stored yet.")


def test_validation_chooses_the_best_of_a_grid_and_a_mean_averages_it() -> None:
    grid = [
        each
        for rate, test, validation in ((1, 0.4, 0.9), (2, 0.8, 0.5))
        for each in (
            *rows("a", test, test, rate=rate, split="test"),
            *rows("a", validation, validation, rate=rate, split="validation"),
        )
    ]
    check = {"metric": "accuracy", "left": {"model": "a"}, "above": 0.5}
    assert decided(grid, check | {"over": {"rate": "best"}}).figures[0].value == 0.4
    assert decided(grid, check | {"over": {"rate": "mean"}}).figures[0].value == pytest.approx(0.6)
    with pytest.raises(BadClaim, match=r"C1, check 1: 4 rows of 2 seeds .* labels \['rate'\]"):
        decided(grid, check)
    with pytest.raises(BadClaim, match="no validation row"):
        decided(SURE, check | {"over": {"rate": "best"}})


def test_rows_are_found_by_column_label_and_option() -> None:
    one = row("a", 1.0, factor=16, flag=True)
    names = ("model", "factor", "flag", "mixer.heads", "n", "mixer.none", "seed")
    assert [entry(one, name) for name in names] == ["a", "16", "true", "2", "8", "", "0"]


def test_the_cost_is_that_of_the_trainings_behind_the_rows() -> None:
    check = {"metric": "accuracy", "left": {"model": "a"}, "above": 0.5}
    times = [{**each, "metric": "train_time", "value": 60.0} for each in SURE]
    found = decided([*SURE, *times], check)
    assert (found.trainings, found.seconds) == (3, 180.0)
    other = [{**each, "cell": f"trained {each['cell']}"} for each in times]
    assert decided([*SURE, *other], check).trainings == 3


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"id": 3}, "3: id: got 3; wanted a str"),
        ({"setting": "equal"}, "C1, setting: got 'equal'; wanted one of"),
        ({"written": ""}, r"C1, written: got ''; wanted one of \['before', 'after'\]"),
        ({"not_attempted": "no time"}, "wanted one of checks, not_attempted and not_comparable"),
        ({"checks": []}, "wanted one of checks"),
        ({"command": ""}, "needs rows and the command"),
        ({"mood": "good"}, r"unknown keys \['mood'\]"),
    ],
)
def test_a_claim_that_lacks_something_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(BadClaim, match=message):
        decided(SURE, MODELS | {"above": 0.0}, **changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, r"got \[\]; wanted one of \['above', 'below', 'within'\]"),
        ({"above": 0, "below": 1}, "wanted one of"),
        ({"above": "0"}, "above: got '0'"),
        ({"above": 0, "by": "sum"}, "by: got 'sum'"),
        ({"above": 0, "over": {"rate": "worst"}}, "over rate: got 'worst'"),
        ({"within": 0.1, "right": None}, "need `right`"),
        (
            {"above": 0, "where": {"model": "z"}, "left": {}},
            "no row has accuracy and {'model': 'z'}",
        ),
        ({"above": 0, "by": "ratio", "right": 0}, "a ratio needs numbers above 0: got 0.91 and 0"),
    ],
)
def test_a_check_that_decides_nothing_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(BadClaim, match=f"C1, check 1.*{message}"):
        decided(SURE, MODELS | changed)


def test_twice_the_same_id_a_failed_run_and_no_mapping_are_refused() -> None:
    claim = SOUND | {"checks": [MODELS | {"above": 0.0}]}
    with pytest.raises(BadClaim, match="C1: two claims have this id"):
        read_claims({"one": [claim], "two": [claim]})
    with pytest.raises(BadClaim, match="wanted lists of claims by theme"):
        read_claims([claim])
    with pytest.raises(BadClaim, match="has a failed run: out of memory"):
        decided(
            [*SURE, row("a", 0.0, 3, status="crashed", reason="out of memory")], *claim["checks"]
        )


def test_the_page_is_what_the_published_rows_say() -> None:
    text = site.PAGE.read_text(encoding="utf-8")
    decisions = site.decisions()
    assert site.written(text, decisions) == text, "make pages writes it anew"
    assert sum(bool(each.figures) for each in decisions) > 25
    assert {each.verdict for each in decisions} > {
        ClaimVerdict.reproduced,
        ClaimVerdict.opposite,
        ClaimVerdict.noise,
    }
