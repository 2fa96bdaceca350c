"""A storage that refuses is nobody's result: every number of the error, at every place."""

import errno
import os
import socket
from dataclasses import replace
from pathlib import Path

import pytest
from stored_cells import ENVIRONMENT, make_cell, measurements, outcomes

from lra.conf.system_errors import WAYS_OUT
from lra.runners.isolation.child import ProcessSettings, judge
from lra.runners.isolation.isolate import Job, pool
from lra.runners.isolation.places import Places, seats
from lra.runners.records import Measurement, Status
from lra.runners.storage import atomic
from lra.runners.storage.atomic import fault_of
from lra.runners.store import Store, read_rows
from lra.runners.training.checkpoint import Checkpoints
from tests.faulty_calls import PASSING
from tests.runners.isolation import isolated_jobs as jobs
from tests.runners.isolation.isolated import done
from tests.runners.tiny_task import OPTIM, TIMES, model, training

REFUSALS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO,
    errno.ESTALE,
)  # fmt: skip
SETTING = ProcessSettings(
    environment={}, memory_bytes=None, threads=None, cores=(), statuses={}, log=None, speaks=True
)


def refusal(number, path="/somewhere/file"):
    return OSError(number, os.strerror(number), path)


def raised(error, cause=None, context=None):
    error.__cause__, error.__context__ = cause, context
    return error


WRAPS = {
    "itself": lambda error: error,
    "cause": lambda error: raised(ValueError("outer"), cause=error),
    "context": lambda error: raised(RuntimeError("outer"), context=error),
    "hidden": lambda error: raised(ValueError("from None"), context=error),
    "deep": lambda error: raised(KeyError(1), raised(OSError(2, "x"), context=raised(error))),
    "group": lambda error: ExceptionGroup("several", [ValueError("other"), error]),
    "unsupported": lambda error: raised(type("Unsupported", (ValueError,), {})("no"), error),
}


@pytest.mark.parametrize(
    ("number", "wrap"),
    [*((number, "itself") for number in REFUSALS), *((errno.ENOSPC, wrap) for wrap in WRAPS)],
)
def test_every_refusal_interrupts_and_names_path_reason_and_way_out(number, wrap):
    ending = judge(WRAPS[wrap](refusal(number)), SETTING)
    assert (ending.interrupted, ending.storage) == (True, True)
    for word in (
        "/somewhere/file", os.strerror(number), WAYS_OUT[number],
        "Rerun the same command to resume",
    ):  # fmt: skip
        assert word in ending.reason


@pytest.mark.parametrize("number", [*PASSING, errno.EREMOTEIO, errno.EUCLEAN, 523, 4711])
@pytest.mark.parametrize("call", ["listing", "reading", "reading unnamed"])
def test_any_error_of_the_system_at_a_path_is_no_result(number, call, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("content")

    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number), *([] if "unnamed" in call else [str(tmp_path)]))

    monkeypatch.setattr(os, "listdir" if call == "listing" else "read", refuse)
    try:
        os.listdir(tmp_path) if call == "listing" else os.read(0, 1)  # noqa: PTH208
    except OSError as error:
        ending = judge(error, SETTING)
    if number == errno.ENOMEM and "unnamed" in call:
        assert ending.status is Status.out_of_memory
    else:
        assert (ending.interrupted, ending.storage, ending.may_pass) == (True, True, True)
        assert os.strerror(number) in ending.reason


@pytest.mark.parametrize(
    ("number", "passes"), [(errno.ENOSPC, False), (errno.EROFS, False), (errno.EIO, True)]
)
def test_what_may_pass_is_said(number, passes):
    assert judge(refusal(number), SETTING).may_pass is passes
    assert judge(RuntimeError(os.strerror(number)), SETTING).may_pass is passes


def test_errors_of_networks_and_of_the_kernel_are_not_of_storage():
    with pytest.raises(OSError, match=r"refused") as caught:
        socket.create_connection(("127.0.0.1", 1), 1)
    assert fault_of(caught.value) is None
    for path in ("/proc/1/mem", "/sys/x", "/dev/nvidia0"):
        assert fault_of(refusal(errno.EBUSY, path)) is None
    assert fault_of(refusal(errno.EBUSY, "/dev/shm/x")) is not None


@pytest.mark.parametrize("number", sorted(set(REFUSALS) - {errno.EACCES, errno.EPERM}))
def test_libraries_that_only_say_it(number):
    said = f"unable to write to file </torch_1_2>: {os.strerror(number)} ({number})"
    for kind in (RuntimeError, OSError, SystemError):
        assert judge(raised(ValueError("outer"), kind(said)), SETTING).storage


@pytest.mark.parametrize(
    "error",
    [
        FileNotFoundError(errno.ENOENT, "No such file or directory", "/somewhere/file"),
        IsADirectoryError(errno.EISDIR, "Is a directory", "/somewhere"),
        ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"),
        TimeoutError(errno.ETIMEDOUT, "timed out"),
        PermissionError(errno.EPERM, "Operation not permitted"),  # of a signal, say: no file
        PermissionError(errno.EACCES, "Permission denied"),  # of a socket
        FileExistsError(errno.EEXIST, "File exists", "/somewhere"),
        OSError("no number at all"),
        ValueError("space"),
    ],
)
def test_other_errors_are_crashes(error):
    assert fault_of(error) is None
    ending = judge(error, SETTING)
    assert (ending.status, ending.interrupted) == (Status.crashed, False)


def test_errors_that_go_round_in_circles_end():
    one, other = ValueError("one"), ValueError("other")
    one.__context__, other.__context__ = other, one
    assert fault_of(one) is None


def test_a_temporary_folder_that_cannot_be_had():
    error = FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")
    assert judge(error, SETTING).storage


# -- every place at which we write ----------------------------------------------------------------


CALLS = {
    "write": (os, "fsync"), "replace": (Path, "replace"), "folder": (Path, "mkdir"),
    "create": (Path, "open"),
}  # fmt: skip
TRIED = (errno.ENOSPC, errno.EACCES, errno.ESTALE)
"""Of the refusals those that some place could take for something else."""
UNUSED = {("claim", "replace"), ("sweep", "replace"), ("probe", "replace"), ("sweep", "create")}


def acts(root):
    """Everything that writes, each in a store of its own, and how to see that it worked."""
    store, kept = Store(root), Checkpoints(root / "checkpoint")

    def claimed():
        with store.claim("k") as claim:
            assert claim is not None

    return {
        "rows": lambda: store.write(make_cell(), measurements(), [], ENVIRONMENT),
        "outcomes": lambda: store.write(make_cell(), measurements(), [outcomes()], ENVIRONMENT),
        "claim": claimed,
        "sweep": lambda: store.record_in_sweep("name", "key"),
        "probe": store.check_writable,
        "checkpoint": lambda: kept.save({"step": 1}),
        "second checkpoint": lambda: (kept.save({"step": 1}), kept.save({"step": 2})),
        "weights": lambda: kept.finish({}),
    }


@pytest.mark.share(4)
@pytest.mark.parametrize("place", acts(Path()))
@pytest.mark.parametrize("call", CALLS)
def test_every_place_refuses_alike_and_works_afterwards(place, call, tmp_path, monkeypatch):
    owner, name = CALLS[call]
    real = getattr(owner, name)
    refused = 0
    for number in TRIED:
        for works in range(6):
            root = tmp_path / f"{number}-{works}"
            left, before = works, refused

            def refuse(*given, number=number, **options):
                nonlocal left
                writes = name != "open" or (options.get("mode") or given[1:2] or "r") != "r"
                left -= writes
                if left < 0:
                    raise refusal(number, str(tmp_path))
                return real(*given, **options)

            with monkeypatch.context() as patch:
                patch.setattr(owner, name, refuse)
                try:
                    acts(root)[place]()
                except OSError as error:
                    refused += 1
                    fault = fault_of(error)
                    assert fault is not None
                    assert str(tmp_path) in fault.words
                    assert os.strerror(number) in fault.words
                    assert not list(root.rglob("*.tmp"))
                    assert not Store(root).complete(make_cell())
            acts(root)[place]()
            if place in ("rows", "outcomes"):
                assert len(read_rows(root)) == 3
            if refused == before:  # more calls work than there are
                break
    assert bool(refused) == ((place, call) not in UNUSED)


def test_a_claim_that_cannot_be_written_keeps_nobody_away(tmp_path, monkeypatch):
    store = Store(tmp_path)
    (tmp_path / "claims").mkdir()
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("needs /dev/full")
    real = Path.open

    def open_full(self, *given, **options):
        if self.parent.name == "claims":
            real(self, *given, **options).close()
            return real(full, "w")
        return real(self, *given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", open_full)
        with pytest.raises(atomic.Unwritable, match="No space left"):
            store.claim("k")
    with store.claim("k") as claim:
        assert claim is not None


def test_a_claim_that_cannot_be_given_back_ends_no_sweep(tmp_path, monkeypatch):
    claim = Store(tmp_path).claim("k")

    def refuse(*_, **__):
        raise refusal(errno.EACCES)

    monkeypatch.setattr(Path, "unlink", refuse)
    claim.release()


# -- in a training, and in a process of its own ---------------------------------------------------


def trained(folder):
    optim = replace(OPTIM, steps=6)
    often = {"log_every_steps": 2, "checkpoint_every_s": 1e-9}
    stream = training(model(dropout=0.2), folder=folder, optim=optim, **often)
    rows = [item for item in stream if isinstance(item, Measurement)]
    return [row for row in rows if row.metric not in TIMES]


@pytest.fixture(scope="module")
def whole():
    return trained(None)


@pytest.mark.parametrize(
    "place", ["resume.pt-0", "resume.pt-3", "resume-previous.pt-2", "weights.pt-0"]
)
def test_a_training_goes_on_after_a_refusal_to_the_same_bits(place, whole, tmp_path, monkeypatch):
    file, _, works = place.rpartition("-")
    real, left = Path.replace, int(works)

    def refuse(self, target):
        nonlocal left
        left -= Path(target).name == file
        if left < 0:
            raise refusal(errno.ENOSPC, str(target))
        return real(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        with pytest.raises(atomic.Unwritable) as caught:
            trained(tmp_path)
    assert judge(caught.value, SETTING).storage
    assert trained(tmp_path) == whole


@pytest.mark.parametrize("in_the_way", ["folder", "log"])
def test_a_log_that_cannot_be_opened(in_the_way, tmp_path):
    log = tmp_path / "folder" / "log"
    if in_the_way == "folder":
        log.parent.write_text("a file")
    else:
        log.mkdir(parents=True)
    messages, ending = done(jobs.echo, [1], log=log)
    assert messages == []
    assert ending.storage
    assert str(log.parent) in ending.reason


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize("how", ["print", "native"])
def test_a_log_that_takes_nothing(how, tmp_path):
    log = tmp_path / "log"
    log.symlink_to("/dev/full")
    _, ending = done(jobs.write_and_fail, how, log=log)
    assert ending.storage == (how == "print")
    assert ending.interrupted == (how == "print")


def test_a_process_that_dies_with_a_word_about_the_disk(tmp_path):
    _, ending = done(jobs.die_of_a_full_disk, log=tmp_path / "log")
    assert (ending.interrupted, ending.storage) == (True, True)
    assert "No space left on device" in ending.reason


def test_the_first_refusal_lets_the_others_save_themselves_and_starts_no_more(tmp_path):
    reasons, endings = [], {}
    work = [
        Job(function=jobs.save_on_sigterm, argument=tmp_path / "saved", name="beside"),
        Job(function=jobs.refuse_when, argument=tmp_path / "go", name="refused"),
        Job(function=jobs.echo, argument=[1], name="never"),
    ]

    def on_message(_, message):
        if message == "ready":
            (tmp_path / "go").touch()

    def on_end(job, ending):
        endings[job.name] = ending
        if ending.storage:
            reasons.append(ending.reason)

    stopped = pool(
        work, places=Places(seats(2)), on_message=on_message, on_end=on_end,
        stop=lambda: "the storage" if reasons else None,
    )  # fmt: skip
    assert stopped is None
    assert endings["refused"].storage
    assert endings["beside"].reason == "interrupted by the storage"
    assert endings["beside"].interrupted
    assert (tmp_path / "saved").read_text() == "saved"
    assert "never" not in endings


def test_a_stop_that_cannot_save_says_why(tmp_path):
    (tmp_path / "file").write_text("in the way")
    endings = []
    ready = []
    pool(
        [Job(function=jobs.fail_to_save, argument=tmp_path / "file" / "saved")],
        on_message=lambda _, message: ready.append(message),
        on_end=lambda _, ending: endings.append(ending),
        stop=lambda: "somebody" if ready else None,
    )
    (ending,) = endings
    assert (ending.interrupted, ending.storage) == (True, True)
    assert "Not a directory" in ending.reason
