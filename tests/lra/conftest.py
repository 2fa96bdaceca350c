"""What the tests of the command line share: reports of one format."""

import pytest


@pytest.fixture(autouse=True)
def drawn(one_format: None) -> None:
    """Draw the figures of every report in one format."""
