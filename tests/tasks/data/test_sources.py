import errno
import hashlib
import os
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from lra.tasks.data.sources import data_root, download, lock, place_folder
from lra.tasks.errors import BadData, NotPrepared

CONTENT = bytes(range(256)) * 400
SHA256 = hashlib.sha256(CONTENT).hexdigest()
REPOSITORY = Path(__file__).parents[3]


class Server(ThreadingHTTPServer):
    """Serves CONTENT; may cut an answer short or ignore ranges."""

    daemon_threads = True
    cut: int | None = None
    honours_range = True
    ranges: list


class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        wanted = self.headers.get("Range")
        self.server.ranges.append(wanted)
        first = int(wanted[6:-1]) if wanted and self.server.honours_range else 0
        body = CONTENT[first:]
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.cut])


@pytest.fixture
def server():
    with Server(("127.0.0.1", 0), Handler) as made:
        made.ranges = []
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def get(server, final, **changes):
    url = f"http://127.0.0.1:{server.server_address[1]}/data.tar.gz"
    facts = {"size": len(CONTENT), "sha256": SHA256, "instructions": "put it there by hand"}
    return download(url, final, **{**facts, **changes})


def test_download_resumes_after_a_cut(server, tmp_path):
    final = tmp_path / "data.tar.gz"
    server.cut = 1000
    said = r"tar\.gz: the connection ended after 1000 of 102400 bytes; rerun the same .*\.part, or"
    with pytest.raises(NotPrepared, match=said):
        get(server, final)
    assert not final.exists()
    server.cut = None
    assert get(server, final).read_bytes() == CONTENT
    assert server.ranges == [None, "bytes=1000-"]
    get(server, final)
    assert len(server.ranges) == 2


def test_a_file_of_another_size_is_not_fetched(server, tmp_path):
    with pytest.raises(
        BadData, match=r"/data\.tar\.gz offers 102400 bytes; wanted 5 bytes; .*by hand"
    ):
        get(server, tmp_path / "data.tar.gz", size=5)
    assert (tmp_path / "data.tar.gz.part").stat().st_size == 0


def test_an_answer_that_breaks_off_in_a_chunk_is_named(tmp_path):
    """`http.client` raises an error of its own there, which no socket knows."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]

        def answer():
            connection, _ = listening.accept()
            with connection:
                connection.recv(9999)
                head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
                connection.sendall(head + b"64\r\n" + bytes(100) + b"\r\nff\r\n" + bytes(7))

        thread = threading.Thread(target=answer)
        thread.start()
        url = f"http://127.0.0.1:{port}/a.gz"
        with pytest.raises(NotPrepared, match=rf"{url}: .*after 100 of 900 bytes.*by hand"):
            download(url, tmp_path / "a.gz", size=900, sha256="", instructions="by hand")
        thread.join()


def test_download_starts_over_where_ranges_are_ignored(server, tmp_path):
    final = tmp_path / "data.tar.gz"
    final.with_name("data.tar.gz.part").write_bytes(b"rubbish")
    server.honours_range = False
    assert get(server, final).read_bytes() == CONTENT


def test_wrong_hash_is_refused_and_removed(server, tmp_path):
    final = tmp_path / "data.tar.gz"
    with pytest.raises(
        BadData, match=r"delivered another file than the wanted one .*SHA-256.*by hand"
    ):
        get(server, final, sha256="0" * 64)
    assert list(tmp_path.glob("data*")) == []
    final.write_bytes(CONTENT[:-1])
    with pytest.raises(BadData, match="102399 bytes; wanted 102400"):
        get(server, final)


def test_unreachable_server_says_what_to_do(tmp_path):
    with pytest.raises(NotPrepared, match=r"cannot be reached.*put it there by hand"):
        download(
            "http://127.0.0.1:9/data",
            tmp_path / "data",
            size=1,
            sha256="",
            instructions="put it there by hand",
        )


def test_a_mirror_is_asked_where_the_first_place_fails(server, tmp_path, caplog):
    mirror = f"http://127.0.0.1:{server.server_address[1]}/data.tar.gz"
    facts = {"size": len(CONTENT), "sha256": SHA256, "instructions": "put it there by hand"}
    final = tmp_path / "data.tar.gz"
    download("http://127.0.0.1:9/data.tar.gz", final, **facts, mirrors=[mirror])
    assert final.read_bytes() == CONTENT
    assert f"trying {mirror}" in caplog.text
    final.write_bytes(CONTENT[:-1])
    with pytest.raises(BadData, match="102399 bytes"):
        download(mirror, final, **facts, mirrors=[mirror])
    final.unlink()
    with pytest.raises(NotPrepared, match=r"127.0.0.1:8/.*by hand"):
        download("http://127.0.0.1:9/", final, **facts, mirrors=["http://127.0.0.1:8/"])


def test_placing_is_all_or_nothing(tmp_path):
    def fail_midway():
        with place_folder(tmp_path / "final") as folder:
            (folder / "half").write_text("x")
            raise RuntimeError("midway")

    with pytest.raises(RuntimeError, match="midway"):
        fail_midway()
    assert list(tmp_path.iterdir()) == []
    with place_folder(tmp_path / "final") as folder:
        (folder / "whole").write_text("x")
        assert not (tmp_path / "final").exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["final", "whole"]


def test_full_disk_says_what_to_do(tmp_path):
    with (
        pytest.raises(OSError, match=r"No space left.*LRA_DATA") as caught,
        place_folder(tmp_path / "f"),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert caught.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []


def test_root_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("LRA_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.delenv("LRA_DATA")
    assert data_root() == Path.home() / ".cache" / "lra"


@pytest.fixture(scope="module")
def root_of_fixtures():
    return data_root()


def test_fixtures_prepare_outside_the_machines_cache(root_of_fixtures, tmp_path_factory):
    assert root_of_fixtures.is_relative_to(tmp_path_factory.getbasetemp())
    assert root_of_fixtures != data_root()


HOLDER = """
import sys
from lra.tasks.data.sources import lock
with lock("shared"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_killed_holder_leaves_no_stale_lock():
    child = subprocess.Popen(
        [sys.executable, "-c", HOLDER],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout.readline() == "held\n"
        entered = threading.Event()

        def wait():
            with lock("shared"):
                entered.set()

        thread = threading.Thread(target=wait)
        thread.start()
        assert not entered.wait(0.2)
        child.kill()
        assert entered.wait(10)
        thread.join()


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS])
@pytest.mark.filterwarnings("ignore:flock not supported")
def test_a_folder_without_locks_has_a_file_in_their_place(number, monkeypatch):
    import fcntl

    def refused(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refused)
    with lock("data"):
        assert [*(data_root() / "locks").glob("data*")]
        held = threading.Event()

        def other():
            with lock("data"):
                held.set()

        thread = threading.Thread(target=other)
        thread.start()
        assert not held.wait(0.3)
    thread.join()
    assert held.is_set()
