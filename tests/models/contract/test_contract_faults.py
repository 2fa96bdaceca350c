"""The contract kit against planted faults: each is named by its check, honest mixers pass."""

import re
from pathlib import Path

import pytest

from lra.models.contract import CHECKS, Case, check_mixer, relations, suite, verify
from lra.models.contract.form import EXERCISED
from lra.models.mixer import FACTS
from tests.models.contract import sound_mixers
from tests.models.contract.planted_faults import PLANTED, RAISED, UNSEEN, Fault
from tests.models.contract.spoilt_layouts import Reader, WideReader
from tests.models.contract.spoilt_mixers import Honest, with_core
from tests.models.contract.spoilt_numbers import straight_through
from tests.models.contract.spoilt_passes import Dropping

SMALL = {"max_length": 128, "width": 16}
"""Of most faults; some show beyond."""
PAGE = Path(__file__).parents[3] / "docs" / "contract.md"


def case_of(fault: Fault) -> Case:
    return Case(make=fault.make, causal=fault.causal, **{**SMALL, **fault.options})


@pytest.mark.share(6)
@pytest.mark.parametrize("fault", PLANTED, ids=lambda f: f"{f.check}-{f.name}")
def test_a_planted_fault_is_named(fault, monkeypatch):
    """Few failing calls are made plain at first, which takes most of the time."""
    usual = relations.FAILURES
    for failures in (2, usual):
        monkeypatch.setattr(relations, "FAILURES", failures)
        passed, detail, _ = CHECKS[fault.check](case_of(fault))
        assert not passed, detail
        if fault.says in detail:
            return
    assert fault.says in detail


@pytest.mark.parametrize("fault", RAISED, ids=lambda f: f"{f.check}-{f.name}")
def test_a_fault_that_raises_is_reported(fault, monkeypatch):
    monkeypatch.setattr(suite, "CHECKS", {fault.check: CHECKS[fault.check]})
    _, finding = check_mixer(fault.make, causal=fault.causal, width=16)
    assert finding.check.endswith(f".{fault.check}")
    assert not finding.passed
    assert finding.detail.startswith("raised ")
    assert fault.says in finding.detail


@pytest.mark.share(4)
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize(
    "make",
    [
        with_core(Reader),
        with_core(WideReader),
        with_core(Dropping),
        straight_through(declared=True),
    ],
    ids=["Reader", "WideReader", "Dropping", "surrogate"],
)
@pytest.mark.usefixtures("short_counts")
def test_honest_mixers_raise_no_alarm(make, causal):
    found = check_mixer(make, causal=causal, max_length=48, width=16)
    assert [f"{finding.check}: {finding.detail}" for finding in found if not finding.passed] == []
    assert len(found) == len(CHECKS) + 1


@pytest.mark.share(2)
@pytest.mark.parametrize("make", [sound_mixers.HardAttention, sound_mixers.SpatialGating])
@pytest.mark.usefixtures("short_counts")
def test_sound_mixers_of_other_kinds_raise_no_alarm(make):
    found = verify(make, max_length=48, width=8)
    assert [f"{finding.check}: {finding.detail}" for finding in found if not finding.passed] == []


@pytest.mark.share(4)
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize(("width", "heads", "max_length"), [(15, 3, 100), (9, 1, 7), (20, 4, 1)])
@pytest.mark.usefixtures("short_counts")
def test_odd_sites_raise_no_alarm(width, heads, max_length, causal):
    found = check_mixer(Honest, causal=causal, width=width, heads=heads, max_length=max_length)
    assert [f"{finding.check}: {finding.detail}" for finding in found if not finding.passed] == []


@pytest.mark.share(3)
@pytest.mark.parametrize("fault", UNSEEN, ids=lambda f: f.name)
@pytest.mark.usefixtures("short_counts")
def test_what_the_page_says_is_not_caught_is_not(fault):
    found = check_mixer(fault.make, causal=fault.causal, max_length=64, width=16)
    assert [f"{finding.check}: {finding.detail}" for finding in found if not finding.passed] == []


def test_every_field_of_a_layout_has_a_check():
    assert set(EXERCISED) == set(FACTS)
    assert set(EXERCISED.values()) <= set(CHECKS)


def test_a_claim_that_nothing_exercises_is_refused(monkeypatch):
    monkeypatch.setattr("lra.models.contract.form.EXERCISED", {"keep": "padding"})
    passed, detail, _ = CHECKS["traits"](Case(make=with_core(Reader), causal=False))
    assert not passed
    assert "supports names ['document', 'is_global', 'order', 'prefix', 'start']" in detail


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading of the page."""
    part = PAGE.read_text().split(f"## {heading}\n")[1].split("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in part.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line] for line in lines[2:]]


def test_the_page_names_every_check_and_each_has_a_planted_fault():
    part = PAGE.read_text().split("## Every check\n")[1].split("\n## ")[0]
    named = re.findall(r"^- ((?:`\w+`(?:, )?)+):", part, re.MULTILINE)
    assert re.findall(r"`(\w+)`", " ".join(named)) == list(CHECKS)
    assert {fault.check for fault in (*PLANTED, *RAISED)} == set(CHECKS)


def test_the_page_names_what_passes():
    assert {
        name for row in rows_of("What it cannot catch") for name in re.findall(r"`([^`]+)`", row[1])
    } == {fault.name for fault in UNSEEN}
