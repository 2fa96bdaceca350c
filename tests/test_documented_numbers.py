"""Numbers in the pages are those of the published rows beside them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from quickstart import PAGES, written

from gallery import published_file
from lra.reports.rows import prepare
from lra.reports.sections.tuning_tables import comparison_tables, window_table
from lra.reports.tables.searches import Searches
from lra.results.rows import published_with_names

ROOT = Path(__file__).resolve().parents[1]
PUBLISHED = ROOT / "reports" / "published"
ROWS = re.compile(r"\(\.\./reports/published/([\w-]+\.jsonl)\)")
SECTION = re.compile(r"^## .*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
TABLE = re.compile(r"^\|(.*)\|\n\|[-:| ]+\n((?:\|.*\n)+)", re.MULTILINE)
SCORE = re.compile(r"^(?!seconds).*(perplexity|bits per|test)")
"""Heads of columns of scores."""
DECIMAL = re.compile(r"\d+\.\d+")
FINDING = re.compile(r"^- \*\*.*?(?=^- |^#|^\S|\Z)", re.MULTILINE | re.DOTALL)
PAGE = re.compile(r"\]\(([\w-]+\.md)")


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (PUBLISHED / name).read_text().splitlines()]


@pytest.mark.parametrize("page", PAGES)
def test_tables_of_the_quickstart(page: str) -> None:
    text = (ROOT / page).read_text()
    assert "<!-- quickstart: " in text
    rows = prepare(published_with_names(published_file("quickstart")))
    assert written(text, rows) == text, "make pages writes these tables"


def test_windows_of_the_tuned_families() -> None:
    searches = Searches(
        prepare(published_with_names(PUBLISHED / "tuned_recall-xeon-2026-11-27.jsonl"))
    )
    table = window_table(searches, "accuracy")
    order = ("delta_net", "linear", "sdpa")
    windows = {line.title.partition(" ")[0]: line.entries for line in table.rows}
    shares = [f"{100 * (windows[name][0].value or 0):.0f}" for name in order]
    recurrent, linear, attention = (windows[name][3].text for name in order)
    text = " ".join((ROOT / "docs/tuning.md").read_text().split())
    assert f"span {recurrent} decades, those of linear attention {linear}, those of" in text
    assert f"those of attention {attention}. In this order, " in text
    assert f"the good trials are {shares[0]}, {shares[1]} and" in text
    assert f" and {shares[2]} % of {windows['sdpa'][0].facts['trials']} trials" in text
    ((_, comparison),) = comparison_tables(searches, "accuracy")
    assert comparison.rows[2].entries[1].text == "+4.4 [-10.1, +18.9]"
    assert "4.4 points above linear attention, with an interval from 10.1 below to 18.9" in text


def scored() -> list[tuple[str, str, list[str]]]:
    """Return the scores of each table of language models, with its heading and its file of rows."""
    found = []
    for section in SECTION.findall((ROOT / "docs/language-models.md").read_text()):
        for table in TABLE.finditer(section):
            columns = [
                at for at, head in enumerate(table[1].split("|")) if SCORE.match(head.strip())
            ]
            lines = [line.strip("|").split("|") for line in table[2].splitlines()]
            numbers = [n for line in lines for at in columns for n in DECIMAL.findall(line[at])]
            if numbers:
                (file, *_) = ROWS.findall(section, table.end())
                found.append((section.splitlines()[0], file, numbers))
    return found


SCORES = scored()


def test_every_table_of_scores_is_compared() -> None:
    assert len(SCORES) >= 8
    assert sum(len(numbers) for *_, numbers in SCORES) >= 30


@pytest.mark.parametrize(("heading", "file", "numbers"), SCORES)
def test_scores_of_language_models(heading: str, file: str, numbers: list[str]) -> None:
    values = [row["value"] for row in rows_of(file) if row["value"] is not None]
    for number in numbers:
        digits = len(number.partition(".")[2])
        assert number in {f"{value:.{digits}f}" for value in values}, heading


FINDINGS = FINDING.findall((ROOT / "docs/findings.md").read_text())


def decimals(finding: str) -> list[str]:
    """Return the decimal numbers of a finding, without those of commands and links."""
    return DECIMAL.findall(re.sub(r"`[^`]*`|\]\([^)]*\)", "", finding))


def test_there_are_findings() -> None:
    assert len(FINDINGS) >= 15
    assert sum(bool(ROWS.search(finding)) for finding in FINDINGS) >= 12


@pytest.mark.parametrize("finding", FINDINGS, ids=lambda finding: finding[4:30])
def test_numbers_of_a_finding_stand_in_the_page_that_it_names(finding: str) -> None:
    pages = PAGE.findall(finding)
    assert pages
    text = "".join((ROOT / "docs" / page).read_text() for page in pages)
    assert [number for number in decimals(finding) if number not in text] == []


@pytest.mark.parametrize("name", ["recall", "selection_longer", "extrapolate", "transformer_xl"])
def test_scores_of_a_finding_are_those_of_its_rows(name: str) -> None:
    (finding,) = (finding for finding in FINDINGS if f"/{name}-" in finding)
    (file,) = ROWS.findall(finding)
    values = [row["value"] for row in rows_of(file) if row["value"] is not None]
    percent = {f"{100 * value:.1f}" for value in values}
    assert set(decimals(finding)) <= percent | {f"{value:.3f}" for value in values}


def test_faster_families_are_those_of_the_table() -> None:
    text = " ".join((ROOT / "docs/efficiency.md").read_text().split())
    ((both, causal),) = re.findall(
        r"(\d+ of \d+) families train faster .*? and (\d+ of \d+) causal", text
    )
    said = "".join(FINDINGS)
    assert f"{both} families train faster" in said
    assert f"of causal models, {causal}." in said
