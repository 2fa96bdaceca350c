"""Claims of other hosts, other containers, and under clocks that are wrong or are set."""

import json
import os
import socket
import threading
import time

import pytest

from lra.runners.storage import claims
from lra.runners.storage.claims import Observer, ServerClock, living_holders, take_claim
from lra.runners.storage.holders import Holder, alive, process_place, process_start
from lra.runners.store import Store

SERVER = 5_000_000.0
"""What time it is on the file server: weeks from ours."""


class Times:
    """A monotonic clock, a server's clock, and the claim of another host."""

    def __init__(self, folder):
        self.path = folder / "k"
        self.mono, self.server = 100.0, SERVER
        self.path.write_text(json.dumps({"host": "elsewhere", "pid": 1, "place": "other boot"}))
        self.touch()

    def touch(self):
        os.utime(self.path, (self.server, self.server))

    def pass_(self, seconds, touched=False):
        self.mono += seconds
        self.server += seconds
        if touched:
            self.touch()

    def observer(self):
        return Observer(lambda: self.mono, ServerClock(lambda: self.mono, lambda _: self.server))


@pytest.fixture
def times(tmp_path):
    return Times(tmp_path)


def free(observer, times):
    return observer.left_behind(times.path, 300) is not None


def test_the_age_is_the_servers_whatever_time_it_is_here(times):
    times.pass_(299)
    assert not free(times.observer(), times)
    times.pass_(2)
    assert free(times.observer(), times)  # to one who has just come, too


@pytest.mark.parametrize("jump", [3600.0, -3600.0, 1e9])
def test_a_server_whose_clock_is_set_takes_no_claim_from_who_lives(times, jump):
    observer = times.observer()
    assert not free(observer, times)
    times.pass_(11)
    times.server += jump
    for _ in range(60):
        assert not free(observer, times)
        times.pass_(30, touched=True)
    for _ in range(11):  # and its holder dies
        assert not free(observer, times)
        times.pass_(30)
    assert free(observer, times)


def test_what_never_changes_is_left_behind_though_it_is_of_the_future(times):
    os.utime(times.path, (SERVER + 1e6, SERVER + 1e6))
    observer = times.observer()
    assert not free(observer, times)
    times.pass_(299)
    assert not free(observer, times)
    times.pass_(2)
    assert free(observer, times)


def test_a_folder_that_nobody_may_write_has_the_time_of_this_machine(times):
    def refuse(_):
        raise PermissionError

    observer = Observer(server=ServerClock(ask=refuse))
    assert free(observer, times)
    os.utime(times.path)
    assert not free(observer, times)


def me(**changed):
    return Holder(socket.gethostname(), os.getpid(), process_start(), process_place())._replace(
        **changed
    )


@pytest.mark.skipif(not process_place(), reason="the system does not tell processes apart")
@pytest.mark.parametrize(
    ("holder", "lives"),
    [
        (me(), True),
        (me(host="renamed"), True),
        (me(started=1), False),  # the number was given again
        (me(pid=2**22 + 1), False),
        (me(place="another container"), None),  # of the same name
        (me(place="another container", pid=2**22 + 1), None),
        (me(place="", pid=2**22 + 1), False),  # of an older version
        (me(place=""), None),
    ],
)
def test_what_the_kernel_knows_of_a_holder(holder, lives):
    assert alive(holder) is lives


def test_a_process_that_was_killed_and_not_waited_for_holds_nothing(tmp_path):
    child = os.fork()
    if not child:
        claims.take_claim(tmp_path / "k")
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    try:
        assert living_holders(tmp_path) == {}
        with take_claim(tmp_path / "k") as claim:
            assert claim is not None
    finally:
        os.waitpid(child, 0)


@pytest.mark.parametrize("data", [b"", b"{\r\n}", b"\xff\x00\r", b"[" * 100_000])
def test_a_damaged_claim_is_taken_once_it_is_old(data: bytes, tmp_path) -> None:
    (tmp_path / "k").write_bytes(data)
    assert take_claim(tmp_path / "k") is None
    os.utime(tmp_path / "k", (time.time() - 600,) * 2)
    with take_claim(tmp_path / "k") as claim:
        assert claim is not None


@pytest.mark.skipif(not process_place(), reason="the system does not tell processes apart")
def test_what_a_process_put_aside_that_was_killed_over_it_goes_with_the_next(tmp_path):
    def taken(die: bool) -> None:
        child = os.fork()
        if not child:
            if die:
                claims.Path.unlink = lambda *_, **__: os._exit(0)
            claims.take_claim(tmp_path / "k")
            os._exit(0)
        os.waitpid(child, 0)

    taken(die=False)
    taken(die=True)  # between putting the claim of the first aside and removing it
    taken(die=False)
    assert len([*tmp_path.iterdir()]) == 2
    taken(die=False)
    assert [path.name for path in tmp_path.iterdir()] == ["k"]


@pytest.mark.skipif(not process_place(), reason="the system does not tell processes apart")
def test_a_suspended_holder_keeps_its_claim(tmp_path):
    with take_claim(tmp_path / "k"):
        os.utime(tmp_path / "k", (0, 0))
        assert take_claim(tmp_path / "k") is None


def test_a_store_tells_who_works_on_what(tmp_path):
    store = Store(tmp_path)
    assert store.claims() == {}
    with store.claim("k", title="train sdpa on text", worker="gpu-3"), store.claim("l"):
        (tmp_path / "claims" / "half").write_text("")
        (tmp_path / "claims" / ".nfs0000001").write_text("removed while it was open")
        found = store.claims()
        assert list(found) == ["k", "l"]
        assert found["k"].title == "train sdpa on text"
        assert (found["k"].worker, found["l"].worker) == ("gpu-3", "")
        assert (found["k"].host, found["k"].pid) == (socket.gethostname(), os.getpid())
        assert abs(found["k"].at - time.time()) < 60


def test_all_claims_of_a_process_have_one_thread(tmp_path):
    before = threading.active_count()
    held = [take_claim(tmp_path / str(number), touch_s=0.01) for number in range(50)]
    for claim in held:
        os.utime(claim.path, (0, 0))
    assert threading.active_count() <= before + 1
    for _ in range(500):
        if all(claim.path.stat().st_mtime > 0 for claim in held):
            break
        time.sleep(0.01)
    assert all(claim.path.stat().st_mtime > 0 for claim in held)
    for claim in held:
        claim.release()
    assert list(tmp_path.iterdir()) == []


def test_a_forked_process_leaves_its_parents_claims_alone(tmp_path):
    with take_claim(tmp_path / "k") as claim:
        child = os.fork()
        if not child:
            claim.release()
            os._exit(0)
        os.waitpid(child, 0)
        assert claim.path.exists()


def test_a_claim_that_could_not_be_given_back_is_once_the_folder_can_be_written(
    tmp_path, monkeypatch
):
    claim = take_claim(tmp_path / "k", touch_s=0.01)

    def refuse(*_, **__):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(type(claim.path), "unlink", refuse)
        claim.release()
    for _ in range(500):
        if not claim.path.exists():
            break
        time.sleep(0.01)
    assert not claim.path.exists()


def test_who_comes_late_gives_back_what_another_has_taken(tmp_path):
    path = tmp_path / "k"
    path.write_text("of the dead")
    first = Observer()
    left = first.left_behind(path, -1)
    with take_claim(path, stale_s=-1, observer=first) as claim:
        assert claim is not None
        text = path.read_text()
        assert not claims._remove_stale(path, left.text)
        assert path.read_text() == text
    assert list(tmp_path.iterdir()) == []
