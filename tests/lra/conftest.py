"""What the tests of the command line share: reports of one format, and Vega bundled once."""

import pytest

from tests import lra_process


@pytest.fixture(autouse=True, scope="session")
def bundled() -> None:
    """Know the script of Vega, as every report needs it."""
    lra_process.bundle()


@pytest.fixture(autouse=True)
def drawn(one_format: None) -> None:
    """Draw the figures of every report in one format."""
