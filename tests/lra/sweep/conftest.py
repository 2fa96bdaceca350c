"""What the sweeps of these tests share: their data."""

import pytest

from lra.runners.isolation import isolate

isolate.prepare(
    "lra.models.families.linear", "lra.tasks.classification.listops.task"
)  # of most cells


@pytest.fixture(autouse=True)
def own_cache(shared_cache: None) -> None:
    """Keep every test away from the data cache of whoever runs it."""
