"""What the tests of the command line share: reports of one format."""

import pytest

from lra.models.contract import costs
from tests.lra_process import count_short


@pytest.fixture(autouse=True)
def drawn(one_format: None) -> None:
    """Draw the figures of every report in one format."""


@pytest.fixture
def short_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count growth at short lengths, in this process."""
    for name in ("LENGTHS", "FURTHER_LENGTHS"):
        monkeypatch.setattr(costs, name, getattr(costs, name))
    count_short()
