"""What a reader of the repository is told of it holds: links, citation, licence, templates."""

import importlib.util
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob(".github/**/*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)#\s]+)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def project() -> dict[str, Any]:
    """Return the project's own description."""
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"])


def places(entry: Any) -> Iterator[str]:
    """Yield every page that a part of the navigation leads to."""
    if isinstance(entry, str):
        yield entry
    else:
        for part in entry.values() if isinstance(entry, dict) else entry:
            yield from places(part)


def test_every_page_has_a_place_in_the_navigation() -> None:
    found = list(places(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert len(found) == len(set(found))
    docs = ROOT / "docs"
    assert "families/" in found  # which becomes a list of all pages in it: docs/site/hooks.py
    pages = {page.relative_to(docs).as_posix() for page in docs.rglob("*.md")}
    assert {page for page in pages if not page.startswith("families/")} - set(found) == set()


def test_every_relative_link_leads_to_a_file() -> None:
    assert len(PAGES) > 70
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in PAGES
        for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
        if not (page.parent / unquote(link)).exists()
    ]
    assert broken == []


def test_what_pages_try_again_is_a_status() -> None:
    from lra.runners.records import DISTURBED, Status

    asked = {
        word
        for page in PAGES
        for words in re.findall(r"runner\.retry=\[([^\]]*)\]", page.read_text(encoding="utf-8"))
        for word in words.split(",")
        if word
    }
    assert "timeout" in asked
    assert asked <= {*map(str, Status), DISTURBED}


def test_pages_hold_nothing_that_no_reader_sees() -> None:
    hidden = [
        page.name
        for page in PAGES
        if set(page.read_text("utf-8")) & {*map(chr, range(32))} - {"\n"}
    ]
    assert hidden == []


def test_the_citation_is_of_this_version_under_this_licence() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    described = project()
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    releases = re.findall(r"^## (?!Unreleased$)(.*)$", changes, re.MULTILINE)
    assert releases[0] == f"{citation['version']} ({citation['date-released']})"
    assert citation["license"] == described["license"] == "Apache-2.0"
    (author,) = described["authors"]
    assert citation["authors"] == [author]
    licence = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert "Apache License\n                           Version 2.0, January 2004" in licence
    assert "END OF TERMS AND CONDITIONS" in licence


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    """Load what the build of the site does beside MkDocs' own."""
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs/site/hooks.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "element",
    [
        '<script src="https://cdn.example/a.js">',
        "<link rel=stylesheet href=//fonts.example/a.css>",
        '<img alt="x" src="http://host.example/a.png" />',
    ],
)
def test_a_page_of_the_site_that_needs_a_network_is_refused(
    hooks: ModuleType, element: str
) -> None:
    page = SimpleNamespace(file=SimpleNamespace(src_uri="a.md"))
    plain = '<a href="https://arxiv.org/abs/2009.14794">paper</a><script src="assets/a.js">'
    assert hooks.on_post_page(plain, page=page) == plain
    with pytest.raises(Exception, match="needs a network"):
        hooks.on_post_page(plain + element, page=page)


def test_a_link_to_the_repository_leads_to_where_the_site_has_it(hooks: ModuleType) -> None:
    config = SimpleNamespace(docs_dir=str(ROOT / "docs"))
    page = SimpleNamespace(file=SimpleNamespace(src_uri="api/mixer.md"))
    links = {
        "../../CONTRIBUTING.md#what-lies-where": "../contributing.md#what-lies-where",
        "../families/README.md": "../families/README.md",
        "../../models/idle.py": "../files/models/idle.py",
        "../../reports/published": "../files/reports/published/index.md",
        "../nowhere.md": "../nowhere.md",
    }
    written = "".join(f"[x]({link}) " for link in links) + "`[x](../../README.md)`"
    wanted = "".join(f"[x]({link}) " for link in links.values()) + "`[x](../../README.md)`"
    assert hooks.on_page_markdown(written, page=page, config=config) == wanted


@pytest.mark.parametrize("name", ["bug", "new_family", "not_reproduced"])
def test_an_issue_form_can_be_filled_in(name: str) -> None:
    form = yaml.safe_load((ROOT / f".github/ISSUE_TEMPLATE/{name}.yml").read_text(encoding="utf-8"))
    assert {"name", "description", "body"} <= set(form)
    fields = form["body"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["attributes"]["label"] for field in fields)
    assert {field["type"] for field in fields} <= {"input", "textarea", "dropdown", "checkboxes"}
    asked = any("lra doctor" in field["attributes"]["label"] for field in fields)
    assert asked is (name != "new_family")


def test_the_readme_begins_with_two_commands_that_need_nothing() -> None:
    first = FENCE.findall((ROOT / "README.md").read_text(encoding="utf-8"))[0]
    assert first.splitlines()[1:-1] == ["make quickstart", "make test"]


def test_contributors_are_told_the_quick_test_and_what_ci_adds() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    ran = re.findall(r"^make .*?(\w+) VENV", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    (further,) = re.findall(r"CI runs\s+`make test` and `make (\w+)`", text)
    assert ran == ["test", further]
    assert "- `make test FAMILY=gla`: linter and the tests of one family" in text
    words = ("make", "-n", "test", "FAMILY=gla", "VENV=/nowhere")
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    commands = [line for line in done.stdout.splitlines() if line.count("/nowhere/bin/")]
    (tests,) = [line for line in commands if "pytest" in line]
    assert '-k "gla"' in tests
    places = "tests/models/families tests/literal tests/models/initial_values tests/contracts"
    assert tests.endswith(places)
    assert not any(word in done.stdout for word in ("mypy", "mkdocs", "lint-imports"))


def test_what_is_shipped_names_pages_by_their_titles() -> None:
    """A wheel has no `docs/`."""
    files = [
        file
        for folder in ("conf", "lra", "models", "reports", "runners", "tasks")
        for file in (ROOT / folder).rglob("*")
        if file.suffix in (".py", ".yaml", ".j2", ".js") and "published" not in file.parts
    ]
    texts = {file: file.read_text(encoding="utf-8") for file in files}
    assert [file for file, text in texts.items() if re.search(r"\bdocs/[\w-]+\.md", text)] == []
    titles = re.findall(r"- ([^:]+): [\w/-]+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    named = [name for text in texts.values() for name in re.findall(r'\bpage\s+"([^"]+)"', text)]
    assert len(named) > 3
    assert {" ".join(name.split()) for name in named} <= {*titles}
