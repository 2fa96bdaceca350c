"""A fork server of one test."""

import os
from multiprocessing import forkserver

import pytest

from lra.runners.isolation import isolate


@pytest.fixture
def bare_server(monkeypatch):
    """Start another fork server for this test, without torch, whose import takes seconds."""
    server = forkserver._forkserver
    monkeypatch.setattr(isolate._next, "modules", [])
    for name in ("address", "alive_fd", "pid"):
        monkeypatch.setattr(server, f"_forkserver_{name}", None)
    yield
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)  # at which it ends
        os.waitpid(server._forkserver_pid, 0)
