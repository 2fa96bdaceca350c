"""Leaves out, with a reason, what this machine cannot run, and begins with what takes long.

Tests are kept off the data cache of the machine.
"""

import ctypes
import gc
import os
import shutil
import signal
import sys
from itertools import count

import pytest

from lra.conf import system_errors
from tests import fuzz, lra_process, shape_checks

SHAPES = os.environ.get("LRA_SHAPES") != "0"
if SHAPES:  # before anything imports what is tested
    shape_checks.install()


if sys.platform == "linux":
    # Freed memory goes back to the kernel late: to have it anew, zeroed page by page, takes up to
    # a quarter of the time of tests with large tensors. By the numbers of <malloc.h>; a C library
    # that has no such settings does without.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    for option, size in ((-3, 2**30), (-1, 2**30), (-2, 2**26)) if mallopt else ():
        mallopt(option, size)  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, M_TOP_PAD

# Whoever starts tests in the background may have them ignore what others are sent.
USUAL = {
    signal.SIGINT: signal.default_int_handler, signal.SIGQUIT: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
}  # fmt: skip
for number, handler in USUAL.items():
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

CACHES = count()


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Have the garbage collector leave alone what lives to the end: a million objects.

    Afterwards it looks at new ones by the ten thousand: a tenth of the processor time less.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(10_000)


def pytest_collection_modifyitems(config, items):
    named = config.option.keyword or any("::" in word for word in config.args)
    if not named:  # who names a test or a family wants those
        items[:], left = fuzz.shared_out(items)
        config.hook.pytest_deselected(items=left)
    items.sort(key=lambda item: "slow" not in item.keywords)  # none begins when others have ended

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
def comparisons():
    """Compare the shapes of the first calls of each test."""
    shape_checks.begin()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch):
    """Try again at once what a file system may do a moment later."""
    monkeypatch.setattr(system_errors, "WAITS_S", (0.0,) * len(system_errors.WAITS_S))


@pytest.fixture
def short_counts(monkeypatch):
    """Use short sequences, where something else of the contract kit is tested."""
    lra_process.count_short(monkeypatch.setattr)


@pytest.fixture
def one_format(request, monkeypatch):
    """Draw figures in the one format that a page holds, where no mark wants every format."""
    if request.node.get_closest_marker("every_format") is None:
        monkeypatch.setattr("lra.reports.figures.drawing.FORMATS", ("svg",))


def new_cache(tmp_path_factory):
    """Return a folder that does not exist: to make one for every test takes half a minute."""
    return str(tmp_path_factory.getbasetemp() / "caches" / str(next(CACHES)))


@pytest.fixture(autouse=True, scope="module")
def cache_of_the_module(tmp_path_factory):
    """Keep what a module's fixtures prepare out of the machine's cache.

    A sample of another size has the same name: tests would read the user's, and the user theirs.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LRA_DATA", new_cache(tmp_path_factory))
        yield


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    """Keep every test away from the data cache of whoever runs it."""
    monkeypatch.setenv("LRA_DATA", new_cache(tmp_path_factory))
