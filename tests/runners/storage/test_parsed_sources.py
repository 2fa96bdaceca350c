"""What is kept of sources between commands: the same answer, and nothing parsed twice."""

import ast
import json
import os
from pathlib import Path

import pytest

from lra.conf.cached_texts import data_root, read_kept
from lra.runners.storage import parsed_sources
from lra.runners.storage.fingerprint import digests

MODULES = ("models.mixer",)


@pytest.fixture
def parses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that are parsed, with a cache of the test's own."""
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "cache"))
    seen: list[str] = []
    parse = ast.parse
    monkeypatch.setattr(
        ast, "parse", lambda *args, **options: seen.append(options["filename"]) or parse(*args)
    )
    return seen


def again() -> dict[str, str]:
    """What a new process would find."""
    parsed_sources._parse_cached.cache_clear()
    parsed_sources._parse_bytes.cache_clear()
    parsed_sources._shelves.clear()
    return digests(MODULES)


def test_no_source_is_parsed_by_a_second_command(parses: list[str]) -> None:
    first, count = again(), len(parses)
    assert count == len(first) > 5
    assert again() == first
    assert len(parses) == count


def test_a_source_that_changed_is_parsed_whatever_its_time_says(
    parses: list[str], tmp_path: Path
) -> None:
    source = tmp_path / "source.py"

    def read() -> parsed_sources.ParsedSource:
        parsed_sources._parse_cached.cache_clear()
        return parsed_sources.parse_source(source)

    source.write_text("import a  # one\n")
    before, status = read(), source.stat()
    source.write_text("import b  # one\n")
    os.utime(source, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert [s.module for s in before.statements] == ["a"]
    assert [s.module for s in read().statements] == ["b"]
    source.write_text("import b\r\n# two\r\n")
    assert read().digest == parsed_sources._sha256(b"import b\n")


@pytest.mark.parametrize("damage", ["torn", "altered", "maker"])
def test_a_damaged_file_counts_for_nothing_and_is_written_anew(
    damage: str, parses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, count = again(), len(parses)
    file = data_root() / "hashes" / "sources.json"
    whole = file.read_text()
    digest = next(iter(first.values()))
    if damage == "torn":
        file.write_text(whole[:-9])
    elif damage == "altered":
        file.write_text(whole.replace(digest, digest[::-1]))
    else:
        monkeypatch.setattr(parsed_sources, "_version_text", lambda: "another")
    assert again() == first
    assert len(parses) == 2 * count
    assert again() == first
    assert len(parses) == 2 * count
    assert json.loads(read_kept(file) or "")[0] == parsed_sources._version_text()


def test_a_cache_that_cannot_be_written_does_no_harm(
    parses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = again()
    monkeypatch.setenv("LRA_DATA", os.devnull)
    assert again() == first
