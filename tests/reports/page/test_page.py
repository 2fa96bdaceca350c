"""The page as text: what it holds, how large it is, that nothing in it is live."""

import json
import re
from html import escape
from html.parser import HTMLParser
from pathlib import Path

import pytest

from lra.composition.runner_class import sections
from lra.reports.page.configurations import CellAccount, cells_json, flat_pairs
from lra.reports.page.markup import script_json
from lra.reports.page.scripts import inline
from lra.reports.report import write_report
from lra.reports.rows import prepare
from tests.reports.conftest import frame, timing
from tests.reports.page.awkward_page import (
    CLOSING,
    REASON,
    SCRIPT,
    accounts_of,
    awkward_rows,
    write_awkward,
)

LIMIT = 5_000_000
"""Bytes of a page of 30 models, 10 lengths and 4 metrics."""


class Elements(HTMLParser):
    """Collects elements with their attributes, and what the page's script reads."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.data = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][1].get("id") == "data":
            self.data += data


@pytest.fixture
def page(awkward: Path) -> str:
    return (awkward / "report.html").read_text(encoding="utf-8")


def test_nothing_is_fetched_and_no_name_is_live(page: str) -> None:
    elements = Elements(page)
    for tag, attributes in elements.found:
        for name in ("src", "href", "action", "poster", "srcset"):
            address = attributes.get(name) or ""
            assert not re.match(r"\s*(https?:|//)", address), (tag, attributes)
        assert not [name for name in attributes if name.startswith("on")], (tag, attributes)
    assert [tag for tag, _ in elements.found].count("script") == 4  # the page's own, and no other
    assert "url(http" not in page
    for hostile in (SCRIPT, CLOSING, "<b>more</b>"):
        assert hostile not in page


def test_ids_are_unique_and_contents_lead_somewhere(page: str) -> None:
    elements = Elements(page).found
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    anchors = [str(a["href"])[1:] for _, a in elements if str(a.get("href", "")).startswith("#")]
    assert {"s-time-step-causal", "s-training-loss", "failed", "cells"} <= set(anchors)
    assert {a for a in anchors if not a.startswith("cell-")} <= set(ids)
    drawings = re.findall(r"url\(#([^)]+)\)", re.sub(r"<script.*", "", page, flags=re.DOTALL))
    assert set(drawings) <= set(ids)


def test_a_failed_cell_stands_once_with_its_reason(page: str) -> None:
    shown = re.sub(r"<script.*?</script>|<!--.*?-->", "", page, flags=re.DOTALL)
    assert shown.count("needs 5 GiB &amp; &lt;/script&gt;&lt;b&gt;more&lt;/b&gt;") == 1
    data = Elements(page).data
    assert json.loads(data)["words"].count(REASON) == 1


def test_the_data_give_back_configuration_and_command(page: str) -> None:
    text = Elements(page).data
    cells, rows = json.loads(text), awkward_rows()
    for key, account in accounts_of(rows).items():
        place = cells["keys"].index(key)
        own, lacking = cells["unlike"][place]
        options = dict(cells["pairs"][pair] for pair in [*cells["base"], *own])
        for pair in lacking:
            if tuple(cells["pairs"][pair]) not in {tuple(cells["pairs"][p]) for p in own}:
                options.pop(cells["pairs"][pair][0])
        assert options == dict(flat_pairs(account.config))
        assert " ".join(cells["words"][w] for w in cells["commands"][place]) == account.command


def test_points_say_their_numbers(page: str) -> None:
    titles = re.findall(r"<use [^>]*><title>([^<]+)</title></use>", page)
    assert f"{escape(SCRIPT)}\noptimiser step: 200" in {t.rpartition("\n")[0] for t in titles}


def test_the_same_rows_give_the_same_bytes(awkward: Path, tmp_path: Path) -> None:
    write_awkward(tmp_path)
    first, again = ({file.name: file.read_bytes() for file in folder.iterdir()}
                    for folder in (awkward, tmp_path))  # fmt: skip
    assert first.keys() == again.keys() > {"report.md", "report.html"}
    assert [name for name in first if first[name] != again[name]] == []


def test_thirty_models_at_ten_lengths_stay_small(tmp_path: Path) -> None:
    lengths = [2**power for power in range(6, 16)]
    rows = frame(
        *(
            row
            for number in range(30)
            for length in lengths
            for row in timing(
                f"model_{number:02}", length, 1e-6 * length * (1 + number), references={"sdpa": 1.0}
            )
        )
    )
    account = CellAccount(
        config={f"option_{n}": n for n in range(150)}, command="lra run " + 12 * "some.option=text "
    )
    write_report(
        rows,
        tmp_path,
        title="x",
        sections=sections(),
        cells=dict.fromkeys(map(str, rows["cell"].unique()), account),
    )
    size = (tmp_path / "report.html").stat().st_size
    assert 1_500_000 < size < LIMIT


def test_scripts_inside_a_page_cannot_end_early() -> None:
    assert script_json({"a": "</script><!-- &"}) == r'{"a":"\u003c/script\u003e\u003c!-- \u0026"}'
    assert inline("x = '</SCRIPT>' + '<!--'") == r"x = '<\/SCRIPT>' + '\x3c!--'"


def test_a_cell_without_an_account_is_listed() -> None:
    rows = prepare(awkward_rows())
    keys = [str(key) for key in rows["cell"].unique()]
    made = cells_json(rows, keys, {})
    assert made["keys"] == keys
    assert made["unlike"] == [None] * len(keys)
    assert all(len(facts) == 8 for facts in made["facts"])
