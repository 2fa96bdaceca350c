"""The page in a real browser, opened from disk: no error, no request, and everything answers."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.reports.page.awkward_page import PERCENT, SCRIPT

pytestmark = pytest.mark.browser
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
READY = "document.documentElement.dataset.tables === 'ready'"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("needs Chromium: none is on PATH")
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: lra[dev]")
    with playwright.sync_playwright() as running:
        started = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.fixture
def opened(browser: Any, awkward: Path) -> Iterator[Callable[..., Any]]:
    """Open the page; at the end nothing may have been said on the console, or asked for."""
    pages, faults = [], []

    def open_page(width: int, folder: Path = awkward, **options: Any) -> Any:
        address = (folder / "report.html").as_uri()
        page = browser.new_page(viewport={"width": width, "height": 900}, **options)
        pages.append(page)
        page.on("console", lambda message: faults.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", lambda dialog: faults.append(f"a script ran: {dialog.message}"))
        page.on(
            "request",
            lambda request: (
                None
                if request.url.startswith((address, "blob:", "data:"))
                else faults.append(request.url)
            ),
        )
        page.goto(address)
        page.wait_for_function(READY, timeout=30_000)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert faults == []


def column(page: Any, table: str, number: int) -> list[str]:
    script = (
        "([table, number]) => [...document.querySelectorAll(`#${table} tbody tr:not(.dtrg-group)`)]"
        ".map(row => row.cells[number].textContent.trim())"
    )
    found: list[str] = page.evaluate(script, [table, number])
    return found


def test_tables_sort_as_numbers_filter_and_are_saved(opened: Callable[..., Any]) -> None:
    page = opened(1400)
    table = "table-efficiency-step-bidirectional"
    head = page.locator(f"#{table} thead tr:last-child th").nth(3)
    found = [column(page, table, 3)]
    for _ in range(2):
        head.click()
        page.wait_for_function(  # it sorts a little later
            "([table, before]) => document.querySelector(`#${table} tbody tr:not(.dtrg-group)`)"
            ".cells[3].textContent.trim() !== before",
            arg=[table, found[-1][0]],
        )
        found.append(column(page, table, 3))
    _, rising, falling = found
    for shown in (rising, falling):  # within each section: a failed length comes last both times
        assert shown[3] == "OOM"
    numbers = [float(text) for text in rising[:3] if "ref" not in text]
    assert numbers == sorted(numbers)
    assert [float(text) for text in falling[:3] if "ref" not in text] == numbers[::-1]

    bar = page.locator(f"section:has(#{table}) .dt-bar")
    bar.locator("input").fill("50%_$")
    assert set(column(page, table, 0)) == {PERCENT}
    with page.expect_download() as waiting:
        bar.get_by_text("CSV").click()
    lines = Path(waiting.value.path()).read_text().splitlines()
    assert lines[0] == 'of,"model, by length",256,512,"1,024"'
    assert len(lines) == 1 + len(column(page, table, 0))
    assert f",{PERCENT}," in lines[1]


def test_a_point_shows_its_numbers(opened: Callable[..., Any]) -> None:
    page = opened(1400)
    point = page.locator("#s-time-step-causal use:has(title)").first
    point.hover()  # refused where something lies over it
    assert point.text_content().splitlines()[1:] == [
        "sequence length (tokens): 256", "time per sequence: 2.5 ms",
    ]  # fmt: skip


def test_a_configuration_is_one_click_away(opened: Callable[..., Any]) -> None:
    page = opened(1400, color_scheme="dark")
    page.locator("#table-cells tbody tr", has_text=SCRIPT).locator("a").first.click()
    dialog = page.locator("dialog#cell")
    text = dialog.inner_text()
    assert f"lra run model='{SCRIPT}'" in text
    assert "mixer.features" in text
    assert "platform" in text
    assert dialog.locator("tr.own td").first.inner_text() == "mixer.name"  # it differs from others
    dialog.get_by_text("Close").click()
    assert not dialog.is_visible()

    paper = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(paper)
    page.locator("#theme").click()  # from the system's to light
    assert page.evaluate(paper) == "rgb(255, 255, 255)" != dark
    page.emulate_media(media="print", color_scheme="dark")
    page.locator("#theme").evaluate("button => button.click()")  # dark, which paper never is
    assert page.evaluate(paper) == "rgb(255, 255, 255)"


def test_a_phone_never_scrolls_sideways(opened: Callable[..., Any]) -> None:
    page = opened(400)
    assert page.evaluate("document.documentElement.scrollWidth") <= 400
    box = page.locator(".scroll:has(#table-efficiency-step-bidirectional)")
    name = box.locator("tbody th").first
    before = name.bounding_box()["x"]
    box.evaluate("box => { box.scrollLeft = 200; }")
    assert name.bounding_box()["x"] == pytest.approx(before, abs=2)  # the first column stays
    page.locator("#menu").click()
    page.locator("#contents a", has_text="Environment").click()
    assert not page.locator("#contents").is_visible()
