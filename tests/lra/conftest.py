"""What the tests of the command line share: reports of one format, one data cache."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from lra.cli import main


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data cache of all sweeps: their tasks are samples, the same in each."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture
def shared_cache(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LRA_DATA", str(data))


@pytest.fixture
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Take away what the environment and the home say of W&B."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def lra(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """Run a command; return how it ended and all that it said, none of which is a traceback."""

    def run(*words: object) -> tuple[int, str]:
        capsys.readouterr()
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        assert "this is a bug" not in err
        assert code != 2 or len(err.splitlines()) <= 4
        return code, out + err

    return run


@pytest.fixture(autouse=True)
def drawn(one_format: None) -> None:
    """Draw the figures of every report in one format."""
