"""Lines about what lasts."""

import re
import sys
import time

import pytest

from lra.terminal import progress
from lra.terminal.progress import still_running


def test_what_lasts_is_told_more_and_more_seldom(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with still_running("counting", first_s=0.1):
        time.sleep(0.55)
    with still_running("soon over", first_s=5):
        pass
    with still_running("planning", first_s=0.01, piped=False):
        time.sleep(0.1)
    lines = capsys.readouterr().err.splitlines()
    assert 1 <= len(lines) <= 2, lines
    assert all(re.fullmatch(r"counting: \d\.\d s so far", line) for line in lines)
    with monkeypatch.context() as patch:
        patch.setattr(sys.stderr, "isatty", lambda: True)
        with still_running("planning", first_s=0.05, piped=False):
            time.sleep(0.2)
    assert "planning: " in capsys.readouterr().err
    monkeypatch.setattr(progress, "speaking", False)
    with still_running("quiet", first_s=0.01):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""
