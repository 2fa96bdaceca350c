"""A fork server of one test."""

import pytest

from tests.runners.isolation.isolated import another_server


@pytest.fixture
def bare_server():
    """Start another fork server for this test, without torch, whose import takes seconds."""
    with another_server():
        yield
