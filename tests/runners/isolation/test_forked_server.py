"""A fork server that is a fork of the process that asks for it, and where it is a new Python."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CODE = """
import os, signal, sys, threading, types
from multiprocessing import forkserver
import isolated_jobs as jobs
from lra.runners.isolation import isolate

sys.modules["only_here"] = types.ModuleType("only_here")
isolate._next.modules.clear()
isolate.prepare("json.tool", fork={fork})
again = threading.Event()
if {thread}:
    threading.Thread(target=again.wait).start()
for _ in range(2):
    for name in ("only_here", "json.tool"):
        ending = isolate.run(jobs.imported, name, on_message=print)
        assert ending.status == "ok", ending
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
again.set()
"""

SELDOM = """
import gc
import isolated_jobs as jobs
from lra.conf import garbage
from lra.runners.isolation import isolate

usual = gc.get_threshold()
garbage.seldom()
isolate._next.modules.clear()
isolate.prepare(fork=True)
found = []
isolate.run(jobs.garbage_thresholds, None, on_message=found.append)
print(gc.get_threshold()[0] > usual[0], found == [usual])
"""


@pytest.mark.parametrize(
    ("fork", "thread", "seen"),
    [
        (True, False, ["True", "True", "False", "True"]),
        (True, True, ["False", "True"] * 2),
        (False, False, ["False", "True"] * 2),
    ],
)
def test_it_has_what_this_process_imported_and_one_after_it_is_a_new_python(fork, thread, seen):
    assert printed(CODE.format(fork=fork, thread=thread)) == seen


def test_a_cell_looks_for_garbage_as_often_as_any_program():
    assert printed(SELDOM) == ["True", "True"]


def printed(code):
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
