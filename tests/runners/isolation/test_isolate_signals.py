"""Signals, and the ways in which a parent is started and ended."""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import isolated_jobs as jobs
import pytest
from isolated import done, is_gone

from lra.runners.isolation.isolate import Ending, Job, pool
from lra.runners.records import Status

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
OUTSIDE = (
    signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT, signal.SIGKILL,
)  # fmt: skip
FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGFPE, signal.SIGABRT, signal.SIGILL)


def test_a_child_that_says_interrupted_is_neither_done_nor_failed():
    messages, ending = done(jobs.raise_error, ("Interrupted", "saved at step 7"))
    assert messages == ["before"]
    assert ending == Ending(Status.skipped, "saved at step 7", interrupted=True)


@pytest.mark.parametrize("number", [*OUTSIDE, *FAULTS], ids=lambda number: number.name)
def test_a_signal_from_outside_is_an_interruption_and_a_fault_of_its_own_is_a_crash(number):
    _, ending = done(jobs.kill_self, number)
    assert ending.interrupted is (number in OUTSIDE)
    if number in OUTSIDE:
        assert ending.reason == f"another program stopped the process by {number.name}"
    else:
        assert number.name in ending.reason
        assert ending.status is Status.crashed


def signal_parent_on(message_wanted, number, work, times=1, **options):
    """Run jobs and signal this very process when a message comes."""
    messages, endings = [], []

    def on_message(_, message):
        messages.append(message)
        if message == message_wanted:
            for _ in range(times):
                os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    stopped = pool(
        work,
        on_message=on_message,
        on_end=lambda _, ending: endings.append(ending),
        **options,
    )
    assert signal.getsignal(number) is before
    return stopped, messages, endings


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGUSR1])
def test_a_signal_to_the_parent_lets_children_save_and_starts_no_more(number, tmp_path):
    work = [Job(function=jobs.save_on_sigterm, argument=tmp_path / f"{n}") for n in range(2)]
    stopped, messages, endings = signal_parent_on("ready", number, work)
    assert stopped is number
    assert messages == ["ready", "saved"]
    assert [ending.interrupted for ending in endings] == [True]
    assert (tmp_path / "0").read_text() == "saved"
    assert not (tmp_path / "1").exists()


def test_work_that_returns_early_after_a_signal_is_not_taken_for_done(tmp_path):
    work = [Job(function=jobs.save_and_return, argument=None)]
    _, _, endings = signal_parent_on("ready", signal.SIGTERM, work)
    assert [(ending.interrupted, ending.status) for ending in endings] == [(True, Status.skipped)]


def test_children_are_signalled_once(tmp_path):
    work = [Job(function=jobs.count_sigterm, argument=tmp_path / "count")]
    signal_parent_on("ready", signal.SIGTERM, work)
    assert (tmp_path / "count").read_text() == "1"


def test_children_that_ignore_the_signal_are_killed_after_the_grace():
    work = [Job(function=jobs.hang_deaf, argument=None, grace_seconds=0.2, name="deaf")]
    endings = []

    def on_message(_, message):
        os.kill(os.getpid(), signal.SIGTERM)

    pool(work, on_message=on_message, on_end=lambda _, ending: endings.append(ending))
    assert [ending.interrupted for ending in endings] == [True]


def test_a_signal_that_comes_twice_to_a_group_lets_children_save_all_the_same(tmp_path):
    work = [Job(function=jobs.save_on_sigterm, argument=tmp_path / "saved")]
    _, messages, _ = signal_parent_on("ready", signal.SIGTERM, work, times=2)
    assert messages == ["ready", "saved"]


def test_a_second_ctrl_c_kills_at_once(tmp_path):
    pids, endings = [], []

    def on_message(_, message):
        pids.append(message)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    work = [Job(function=jobs.hang_deaf, argument=None, grace_seconds=600.0)]
    stopped = pool(work, on_message=on_message, on_end=lambda _, ending: endings.append(ending))
    assert stopped is signal.SIGINT
    assert endings[0].interrupted
    assert is_gone(pids[0])


PARENT = """
    import sys
    sys.path[:0] = [{root!r}, {here!r}]
    import isolated_jobs as jobs
    from lra.runners.isolation import isolate
    from lra.runners.isolation.isolate import Job, pool

    isolate._next.modules.clear()  # torch, which takes seconds

    def main():
        def say(*words):
            print(*words, flush=True)
        stopped = pool(
            [Job(function=jobs.{work}, argument={argument!r})],
            on_message=lambda _, message: say("message", message),
            on_end=lambda _, ending: say("end", ending.status, ending.interrupted),
        )
        say("stopped", stopped and stopped.name)

    if __name__ == "__main__":
        main()
"""


def write_parent(path, work, argument):
    text = PARENT.format(root=str(ROOT), here=str(HERE), work=work, argument=argument)
    path.write_text(textwrap.dedent(text))
    return path


@pytest.mark.parametrize("form", ["module", "console"])
def test_it_works_however_the_parent_was_started(form, tmp_path):
    write_parent(tmp_path / "parent.py", "echo", ["hello"])
    command = [sys.executable, "-m", "parent"]
    if form == "console":  # a file without an ending that imports and calls, as pip makes
        (tmp_path / "console").write_text(
            f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
            "from parent import main\nif __name__ == '__main__':\n    sys.exit(main())\n"
        )
        command = [sys.executable, "console"]
    result = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert result.stdout == "message hello\nend ok False\nstopped None\n", result.stderr


def test_a_killed_parent_takes_its_children_with_it(tmp_path):
    path = write_parent(tmp_path / "parent.py", "pid_then_wait", 600)
    with subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        word, pid = parent.stdout.readline().split()
        assert word == "message"
        parent.kill()
    assert is_gone(int(pid))


def test_a_signal_to_the_whole_group_lets_the_child_save(tmp_path):
    target = tmp_path / "saved"
    path = write_parent(tmp_path / "parent.py", "save_on_sigterm", str(target))
    with subprocess.Popen(
        [sys.executable, path],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "message ready\n"
        os.killpg(parent.pid, signal.SIGTERM)
        output = parent.stdout.read()
    assert target.read_text() == "saved"
    assert output == "message saved\nend skipped True\nstopped SIGTERM\n"
