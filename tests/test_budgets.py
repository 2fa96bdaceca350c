"""Every folder has as many lines as pyproject.toml allows it, and no budget is out of date."""

import math
import re
import subprocess
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LRA = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["lra"]
SHIPPED = {"conf", "lra", "models", "reports", "runners", "tasks"}
# Words of pages that people write. Generated ones follow from sources, and each change that a user
# notices adds a line to the changelog.
GENERATED = ("docs/families/", "docs/gallery.md", "reports/published/README.md", "CHANGELOG.md")
TABLES = re.compile(r"<!-- table: .*?<!-- end -->", re.DOTALL)
SLACK = 0.03


@cache
def tracked(pattern: str) -> list[str]:
    """Return the files of a pattern that git tracks."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", pattern]
    found = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return [name for name in found if name and (ROOT / name).exists()]


def budget(file: str) -> str:
    """Return the budget of a file: the one that names the longest of its folders, or ''."""
    fits = {
        folder: name
        for name in LRA["lines"]
        for folder in name.split(" + ")
        if file.startswith(f"{folder}/")
    }
    return fits[max(fits, key=len)] if fits else ""


@cache
def lines() -> Counter[str]:
    """Return the physical lines of Python by budget; of files that have none under ''."""
    seen: Counter[str] = Counter()
    for file in tracked("*.py"):
        seen[budget(file)] += (ROOT / file).read_bytes().count(b"\n")
    return seen


def judge(what: str, seen: int, allowed: int) -> str:
    """Say what is wrong with a number, or nothing."""
    if seen > allowed:
        return (
            f"{what}: {seen}, allowed are {allowed}: take {seen - allowed} out, or raise the "
            "number under [tool.lra] of pyproject.toml in a change of its own, with its reason"
        )
    if seen < math.floor(allowed * (1 - SLACK)):
        return f"{what}: {seen}, allowed are {allowed}: write {seen} under [tool.lra]"
    return ""


def test_every_source_has_a_budget():
    assert lines()[""] == 0, [file for file in tracked("*.py") if not budget(file)]


@pytest.mark.parametrize("name", LRA["lines"])
def test_lines_are_within_their_budget(name):
    said = judge(f"lines of Python in {name}", lines()[name], LRA["lines"][name])
    assert said == ""


def test_shipped_files_and_words_of_pages_are_within_their_budget():
    files = [file for file in tracked("*.py") if file.split("/")[0] in SHIPPED]
    pages = [file for file in tracked("*.md") if not file.startswith(GENERATED)]
    texts = [TABLES.sub("", (ROOT / page).read_text(encoding="utf-8")) for page in pages]
    words = sum(len(text.split()) for text in texts)
    said = [
        judge("shipped files of Python", len(files), LRA["files"]),
        judge("words of pages", words, LRA["words"]),
    ]
    assert not any(said), "\n".join(filter(None, said))


def test_what_is_above_or_far_below_is_told():
    assert (judge("a", 100, 100), judge("a", 97, 100)) == ("", "")
    assert judge("a", 101, 100).startswith("a: 101, allowed are 100: take 1 out, or raise")
    assert judge("a", 96, 100) == "a: 96, allowed are 100: write 96 under [tool.lra]"
    assert budget("models/families/gla.py") == "models/families"
    assert budget("models/mixer.py") == "models"
