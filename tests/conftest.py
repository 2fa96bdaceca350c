"""Leaves out, with a reason, what this machine cannot run."""

import os
import shutil

import pytest


def pytest_collection_modifyitems(config, items):
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
    elif config.getoption("--jaxtyping-packages"):
        leave_out("compile", "torch.compile cannot trace through the type-checking hook: make test")


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    """Keep every test away from the data cache of whoever runs it."""
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "lra_data"))
