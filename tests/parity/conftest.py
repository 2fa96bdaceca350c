import os
import warnings
from collections.abc import Iterator

import pytest

from peers.peer import WAY_OUT, Missing
from tests.reports.conftest import make

__all__ = ["make"]  # the fixture


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Skip a test whose package is absent.

    Under LRA_PARITY, which `make parity` sets, fail where the extra should have brought it.
    """
    outcome = yield
    error = outcome.excinfo[1] if outcome.excinfo else None
    wanted = bool(os.environ.get("LRA_PARITY")) and WAY_OUT in str(error)
    if isinstance(error, Missing) and not wanted:
        outcome.force_exception(pytest.skip.Exception(str(error), _use_item_location=True))


@pytest.fixture(autouse=True)
def their_warnings() -> Iterator[None]:
    """What other people's packages warn of is theirs to mend."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
