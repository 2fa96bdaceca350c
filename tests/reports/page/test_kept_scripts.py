"""The script of Vega is bundled once for a cache, and the page has the same text afterwards."""

from pathlib import Path

import pytest

from lra.reports.page import scripts

TEXT = "const end = '</script>';\r\n// é <!--\n"


@pytest.fixture
def bundled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """The texts that were bundled, with a cache of the test's own."""
    made: list[str | None] = []
    monkeypatch.setenv("LRA_DATA", str(tmp_path))
    monkeypatch.setattr(scripts, "_bundled", lambda: made.append(TEXT) or TEXT)
    return made


def vega() -> str | None:
    """What the first call of a process returns."""
    return scripts.vega.__wrapped__()


def test_it_is_bundled_once(bundled: list[str | None], tmp_path: Path) -> None:
    assert [vega(), vega()] == [scripts.inline(TEXT)] * 2
    assert len(bundled) == 1
    (file,) = tmp_path.iterdir()
    file.write_bytes(file.read_bytes().replace(b"const", b"fetch"))
    assert vega() == scripts.inline(TEXT)
    assert len(bundled) == 2
    assert vega() == scripts.inline(TEXT)
    assert len(bundled) == 2


def test_a_cache_that_cannot_be_written_does_no_harm(
    bundled: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LRA_DATA", "/dev/null")
    assert [vega(), vega()] == [scripts.inline(TEXT)] * 2
    assert len(bundled) == 2


def test_what_another_user_keeps_there_is_not_taken(
    bundled: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert vega() == scripts.inline(TEXT)
    monkeypatch.setattr("lra.conf.kept.os.geteuid", lambda: -1)
    assert vega() == scripts.inline(TEXT)
    assert len(bundled) == 2


def test_where_there_is_none_nothing_is_kept(
    bundled: list[str | None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scripts, "_bundled", lambda: None)
    assert vega() is None
    assert not [*tmp_path.iterdir()]
