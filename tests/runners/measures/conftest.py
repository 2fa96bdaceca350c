"""Runners collect garbage before they time anything: of what a test made, not of all before it."""

import gc

import pytest


@pytest.fixture(autouse=True)
def known_objects():
    gc.collect()
    gc.freeze()
