"""What the sweeps of these tests share: their data."""

from pathlib import Path

import pytest

from lra.runners.isolation import isolate

isolate.prepare(
    "lra.models.families.linear", "lra.tasks.classification.listops.task"
)  # of most cells


@pytest.fixture(scope="session")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the data cache of all sweeps: their tasks are samples, the same in each."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(autouse=True)
def own_cache(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep every test away from the data cache of whoever runs it."""
    monkeypatch.setenv("LRA_DATA", str(data))
