"""Every fault is real: processes are killed, hang, run out of memory and disagree."""

import os
import signal
import threading
import time
from multiprocessing import forkserver

import isolated_jobs as jobs
import pytest
from isolated import done, is_gone, judged

from lra.runners.isolation import isolate, process
from lra.runners.isolation.isolate import Ending, Job, pool, prepare, start
from lra.runners.isolation.places import Places, seats
from lra.runners.records import Status


def test_messages_come_in_order_and_all_of_them():
    messages, ending = done(jobs.many, 5000)
    assert [number for number, _ in messages] == list(range(5000))
    assert ending == Ending(Status.ok, "", interrupted=False)


def test_an_exception_is_a_crash_with_type_message_and_place(tmp_path):
    log = tmp_path / "log"
    messages, ending = done(jobs.raise_error, ("ValueError", "landmarks must divide"), log=log)
    assert messages == ["before"]
    assert ending.status is Status.crashed
    assert ending.reason.startswith("ValueError: landmarks must divide (at ")
    assert "isolated_jobs.py:" in ending.reason
    assert "in raise_error" in ending.reason
    assert ending.reason.endswith(f"; traceback in {log}")
    assert "Traceback (most recent call last)" in log.read_text()


def test_the_place_is_ours_where_a_library_raises():
    reason = judged(jobs.invert_zeros, (2, 2)).reason
    assert reason.startswith("LinAlgError: Singular matrix (at ")
    assert "isolated_jobs.py:" in reason


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("Unsupported", Status.unsupported),
        ("CannotEven", Status.unsupported),  # a subclass
        ("Diverged", Status.diverged),
        ("FloatingPointError", Status.diverged),
        ("MemoryError", Status.out_of_memory),
    ],
)
def test_exceptions_with_a_meaning(kind, status):
    ending = judged(jobs.raise_error, (kind, "the reason"))
    assert ending.status is status
    assert "the reason" in ending.reason
    assert not ending.interrupted


def test_the_caller_may_give_exceptions_a_meaning():
    _, ending = done(
        jobs.raise_error, ("ValueError", "too dear"), statuses={"ValueError": Status.skipped}
    )
    assert ending == Ending(Status.skipped, "too dear")


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ("CUDA error: out of memory", Status.out_of_memory),
        ("[enforce fail] DefaultCPUAllocator: can't allocate memory", Status.out_of_memory),
        ("std::bad_alloc", Status.out_of_memory),
        ("could not create a primitive descriptor", Status.out_of_memory),  # oneDNN
        ("libfoo.so: failed to map segment from shared object", Status.out_of_memory),
        ("CUDA error: an illegal memory access was encountered", Status.crashed),
        ("expected scalar type Float", Status.crashed),
    ],
)
def test_memory_errors_are_told_from_others(said, status):
    assert judged(jobs.raise_error, ("RuntimeError", said)).status is status


@pytest.mark.parametrize(
    ("limit", "status"), [(2**33, Status.out_of_memory), (None, Status.crashed)]
)
def test_c_code_that_fails_without_a_word_under_a_limit_got_no_memory(limit, status):
    call = ("SystemError", "error return without exception set")
    _, ending = done(jobs.raise_error, call, memory_bytes=limit)
    assert ending.status is status
    assert "without exception set" in ending.reason


@pytest.mark.parametrize("kind", ["SystemExit", "KeyboardInterrupt"])
def test_leaving_by_exception_is_a_crash(kind):
    _, ending = done(jobs.raise_error, (kind, "3"))
    assert ending.status is Status.crashed
    assert kind in ending.reason


def test_sigkill_is_a_crash_where_the_kernel_has_killed_for_want_of_memory(monkeypatch):
    counts = iter((4, 5))
    monkeypatch.setattr(process, "oom_kills", lambda: next(counts))
    messages, ending = done(jobs.kill_self, signal.SIGKILL)
    assert messages == ["before"]
    assert (ending.status, ending.interrupted) == (Status.crashed, False)
    assert "SIGKILL" in ending.reason
    assert "the kernel killed processes" in ending.reason


def test_segmentation_fault(tmp_path):
    log = tmp_path / "log"
    messages, ending = done(jobs.segfault, log=log)
    assert messages == ["before"]
    assert ending.status is Status.crashed
    assert "SIGSEGV" in ending.reason
    assert "in segfault" in log.read_text()  # where it happened


@pytest.mark.parametrize("code", [0, 7])
def test_leaving_without_a_word_is_a_crash(code):
    messages, ending = done(jobs.leave, code)
    assert messages == ["before"]
    assert ending.status is Status.crashed
    assert f"exit code {code}" in ending.reason


@pytest.mark.parametrize("take", [jobs.take_numpy, jobs.take_torch])
def test_memory_exhaustion_under_the_limit(take):
    messages, ending = done(take, 2_000_000_000, memory_bytes=300_000_000)
    assert messages == ["before"]
    assert ending.status is Status.out_of_memory
    assert "limit 300,000,000 bytes" in ending.reason


def test_the_memory_limit_counts_from_what_imports_have_mapped():
    messages, ending = done(jobs.take_numpy, 50_000_000, memory_bytes=300_000_000)
    assert ending.status is Status.ok
    assert messages == ["before", 50_000_000.0]


def test_siblings_go_on_and_those_that_hang_end_with_their_rows():
    faults = [
        (jobs.kill_self, signal.SIGKILL, Status.skipped),
        (jobs.echo, ["a", "b"], Status.ok),
        (jobs.leave, 3, Status.crashed),
        (jobs.take_numpy, 2_000_000_000, Status.out_of_memory),
        (jobs.hang, None, Status.timeout),
        (jobs.hang_deaf, None, Status.timeout),  # to SIGTERM: it is killed
        (jobs.echo, ["c"], Status.ok),
    ]
    limits = {"seconds": 1.0, "grace_seconds": 0.2, "memory_bytes": 300_000_000}
    work = [
        Job(function=f, argument=a, name=str(n), **limits) for n, (f, a, _) in enumerate(faults)
    ]
    messages, endings = {}, {}
    stopped = pool(
        work,
        places=Places(seats(3)),
        on_message=lambda job, message: messages.setdefault(job.name, []).append(message),
        on_end=lambda job, ending: endings.update({job.name: ending}),
    )
    assert stopped is None
    assert {n: ending.status for n, ending in endings.items()} == {
        str(n): status for n, (_, _, status) in enumerate(faults)
    }
    assert endings["4"].reason == "the run took longer than 1 s"
    assert (messages["1"], messages["4"], messages["6"]) == (["a", "b"], ["before"], ["c"])
    assert is_gone(messages["5"][0])


def test_work_that_falls_silent_ends_before_its_time():
    endings = []
    job = Job(function=jobs.hang, argument=None, seconds=1e5, silent_s=1.0, grace_seconds=0.2)
    pool([job], on_message=lambda *_: None, on_end=lambda _, ending: endings.append(ending.status))
    assert endings == [Status.timeout]


def test_side_by_side_is_kept_and_jobs_are_taken_late():
    running, most, taken = set(), 0, []

    def work():
        for number in range(6):
            assert len(running) < 2
            running.add(str(number))
            taken.append(number)
            yield Job(function=jobs.random_work, argument=number, name=str(number))

    ended = []

    def on_end(job, ending):
        nonlocal most
        most = max(most, len(running))
        running.remove(job.name)
        ended.append((job.name, ending.status))

    pool(work(), places=Places(seats(2)), on_message=lambda *_: None, on_end=on_end)
    assert sorted(ended) == [(str(n), Status.ok) for n in range(6)]
    assert taken == list(range(6))
    assert most == 2


def test_an_exception_of_the_caller_kills_what_runs():
    pids = []

    def on_message(_, message):
        pids.append(message)
        if len(pids) == 2:
            raise OSError("disk full")

    work = [Job(function=jobs.pid_then_wait, argument=600) for _ in range(2)]
    with pytest.raises(OSError, match="disk full"):
        pool(work, places=Places(seats(2)), on_message=on_message, on_end=lambda *_: None)
    assert all(is_gone(pid) for pid in pids)


def test_what_a_child_leaves_behind_is_ended_with_it():
    for how in ("die", "return"):
        messages, ending = done(jobs.leave_orphan, how)
        assert ending.status is (Status.skipped if how == "die" else Status.ok)
        assert is_gone(messages[0])


def test_an_orphan_that_holds_the_pipe_does_not_hold_the_parent():
    messages, ending = done(jobs.leave_orphan_with_pipe)
    assert ending.status is Status.skipped
    assert is_gone(messages[0])


def test_an_unreadable_message_is_a_crash():
    _, ending = done(jobs.send_unreadable)
    assert ending.status is Status.crashed
    assert "that lra cannot read" in ending.reason


def test_a_child_that_lingers_is_killed_and_its_result_stands(monkeypatch):
    monkeypatch.setattr("lra.runners.isolation.process._LINGER_S", 0.2)
    assert done(jobs.linger) == (["done"], Ending(Status.ok))


def test_a_child_that_dies_between_two_looks_is_noticed_at_once():
    child = start(Job(function=jobs.go_slowly, argument=0.5))
    (rank,) = child._ranks
    while rank.open:  # its last word has come, and its pipe is closed
        child.poll()
        time.sleep(0.001)
    assert child.ending is None
    while rank.process.exitcode is None:
        time.sleep(0.01)
    assert child.waitables() == []
    assert child.due() <= time.monotonic()
    child.poll()
    assert child.ending == Ending(Status.ok)


def test_work_that_cannot_be_imported_is_a_crash_with_its_reason(tmp_path, monkeypatch):
    module = tmp_path / "soon_gone.py"
    module.write_text("def work(argument, send):\n    send(1)\n")
    monkeypatch.syspath_prepend(tmp_path)
    import soon_gone  # type: ignore[import-not-found]

    module.unlink()
    _, ending = done(soon_gone.work)
    assert ending.status is Status.crashed
    assert "ModuleNotFoundError: No module named 'soon_gone'" in ending.reason


def test_threads_are_set_though_torch_was_loaded_before():
    for threads in (1, 2):
        assert done(jobs.threads, threads=threads)[0] == [(threads, str(threads))]


def test_torch_is_there_before_the_work_begins():
    assert done(jobs.torch_is_loaded)[0] == [True]
    prepare("torch")  # naming a module twice is harmless


def test_children_see_the_parents_environment_of_now(monkeypatch):
    assert done(jobs.variable, "LRA_TEST_VARIABLE")[0] == [None]
    monkeypatch.setenv("LRA_TEST_VARIABLE", "seen")
    assert done(jobs.variable, "LRA_TEST_VARIABLE")[0] == ["seen"]


def test_children_draw_alike_unless_they_seed():
    same = [done(jobs.draw)[0] for _ in range(2)]
    assert same[0] == same[1]
    assert done(jobs.draw, 1)[0] != done(jobs.draw, 2)[0]


def test_output_goes_to_the_log_and_its_last_line_into_the_reason(tmp_path):
    log = tmp_path / "logs" / "cell.log"
    _, ending = done(jobs.talk, 4, log=log)
    assert "exit code 4" in ending.reason
    assert "the last line of" in ending.reason
    assert sorted(log.read_text().split("\n")[:2]) == ["on the error output", "on the output"]


def test_the_log_of_an_earlier_attempt_is_not_this_ones_last_word(tmp_path):
    log = tmp_path / "log"
    log.write_text("std::bad_alloc\n")
    _, ending = done(jobs.leave, 3, log=log, memory_bytes=10**9)
    assert ending == Ending(
        Status.crashed, "the process ended with exit code 3 before the run was finished"
    )
    _, ending = done(jobs.talk_of_memory, 3, log=log, memory_bytes=10**9)
    assert ending.status is Status.out_of_memory
    assert "a library ended the process for lack of memory" in ending.reason
    assert "Thread creation failed" in ending.reason


def test_an_abort_for_lack_of_memory_is_told_by_its_cause_above_the_stacks(tmp_path):
    log = tmp_path / "log"
    _, ending = done(jobs.abort, "what():  std::bad_alloc", log=log, memory_bytes=10**9)
    assert "Fatal Python error: Aborted" in log.read_text()
    assert ending.status is Status.out_of_memory
    assert ending.reason.endswith("what(): std::bad_alloc")
    _, ending = done(jobs.abort, "another cause", log=tmp_path / "other", memory_bytes=10**9)
    assert (ending.status, "SIGABRT" in ending.reason) == (Status.crashed, True)


def test_silent_work_leaves_no_log(tmp_path):
    done(jobs.echo, [1], log=tmp_path / "log")
    assert not (tmp_path / "log").exists()


def test_long_reasons_are_shortened_at_both_ends():
    reason = judged(jobs.raise_error, ("Unsupported", "begin " + "x" * 5000 + " end")).reason
    assert len(reason) < 700
    assert reason.startswith("begin")
    assert reason.endswith("end")


def test_processes_of_one_job_meet_and_rank_zero_speaks():
    assert done(jobs.rank_sum, processes=2) == ([("0", "2", 3.0)], Ending(Status.ok))


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        ("kill", Status.skipped, ("process 1 of 2", "SIGKILL")),
        ("raise", Status.unsupported, ("process 1 of 2", "rank 1 cannot")),
    ],
)
def test_the_rank_that_failed_first_ends_all_and_is_named(how, status, words):
    messages, ending = done(jobs.rank_fails, how, processes=2, seconds=60.0)
    assert messages == ["before"]
    assert ending.status is status
    assert all(word in ending.reason for word in words)


def test_a_fork_server_that_dies_as_a_job_begins_is_followed_by_another(monkeypatch, bare_server):
    real, killed = isolate.start_server, []

    def starting():
        real()
        server = forkserver._forkserver._forkserver_pid
        if len(killed) < 2:  # it takes the request, and never answers
            os.kill(server, signal.SIGSTOP)
            threading.Timer(0.2, os.kill, (server, signal.SIGKILL)).start()
        killed.append(server)

    monkeypatch.setattr(isolate, "start_server", starting)
    assert done(jobs.variable, "WORLD_SIZE", processes=2) == (["2"], Ending(Status.ok))
    assert len(killed) >= 3
    assert all(is_gone(pid) for pid in killed[:2])


def test_a_fork_server_that_always_dies_is_an_error_that_says_so(monkeypatch):
    monkeypatch.setattr(isolate, "Child", lambda *_: (_ for _ in ()).throw(EOFError))
    monkeypatch.setattr(isolate, "ATTEMPTS", 2)
    with pytest.raises(isolate.LostServer, match="died 2 times at its start"):
        done(jobs.rank_sum)


def test_wrong_counts_are_refused():
    with pytest.raises(ValueError, match="processes must be at least 1: got 0"):
        done(jobs.echo, [], processes=0)
    quiet = {"on_message": lambda *_: None, "on_end": lambda *_: None}
    with pytest.raises(ValueError, match="processes: got 3; wanted at most 2"):
        pool({3: []}, places=Places(seats(2)), **quiet)
    with pytest.raises(ValueError, match="a job of 2 processes needs 2 places, but got 1"):
        pool([Job(function=jobs.echo, argument=[], processes=2)], **quiet)
