"""What an installed package tells of published rows is what the rows tell."""

import pytest

from lra.results.evidence import DIGEST
from tests.lra.results.published_digest import PUBLISHED, digest_of


@pytest.mark.slow
def test_the_digest_is_that_of_the_published_rows() -> None:
    """Where this fails: `python tests/lra/results/published_digest.py`."""
    assert DIGEST.read_text(encoding="utf-8") == digest_of(PUBLISHED)
