"""Leaves out, with a reason, what this machine cannot run."""

import os
import shutil

import pytest

from tests import shape_checks

SHAPES = os.environ.get("LRA_SHAPES") != "0"
if SHAPES:  # before anything imports what is tested
    shape_checks.install()


def pytest_collection_modifyitems(items):
    def leave_out(marker, reason):
        for item in items:
            if marker in item.keywords:
                item.add_marker(pytest.mark.skip(reason=reason))

    if any("gpu" in item.keywords for item in items):
        import torch

        if not torch.cuda.is_available():
            leave_out("gpu", "needs a CUDA device: none is seen")
    compiler = os.environ.get("CXX") or "g++"
    if not shutil.which(compiler):
        leave_out("compile", f"needs a C++ compiler: no {compiler} on PATH")
    elif SHAPES:
        leave_out(
            "compile", "torch.compile cannot trace through the comparison of shapes: make test"
        )


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Keep every test away from the data cache of whoever runs it."""
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "lra_data"))
