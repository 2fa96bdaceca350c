"""A report of awkward rows, written once for all tests of its page."""

from pathlib import Path

import pytest

from tests.reports.page.awkward_page import write_awkward


@pytest.fixture(scope="session")
def awkward(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("page")
    write_awkward(folder)
    return folder
