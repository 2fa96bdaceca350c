"""Advisory claims: a note that somebody works on a cell, so that a second sweep takes another one.

Nothing is wrong when a claim fails to hold: two processes then compute the same cell, and the
store keeps the file of one of them.
"""

import json
import os
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from uuid import uuid4

from runners.storage.atomic import STALE_S, make_folder, unwritable

TOUCH_S = 30.0


class Claim:
    """A claim that is held; a context manager that gives it back.

    A thread touches the file while the claim is held, so that a claim without a living holder
    shows by its age.
    """

    def __init__(self, path: Path, content: str, touch_s: float) -> None:
        self._path = path
        self._content = content
        self._touch_s = touch_s
        self._released = threading.Event()
        self._thread = threading.Thread(target=self._touch, name=f"claim {path.name}", daemon=True)
        self._thread.start()

    def release(self) -> None:
        """Give the claim back; a second call does nothing."""
        if self._released.is_set():
            return
        self._released.set()
        self._thread.join()
        with suppress(OSError):  # a folder that can no longer be written; the age will tell
            if self._is_mine():
                self._path.unlink(missing_ok=True)

    def _is_mine(self) -> bool:
        try:
            return self._path.read_text() == self._content
        except FileNotFoundError:
            return False

    def _touch(self) -> None:
        while not self._released.wait(self._touch_s):
            with suppress(OSError):  # a network folder that hiccups; the next touch will do
                if self._is_mine():
                    os.utime(self._path)

    def __enter__(self) -> "Claim":
        """Return the claim itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the claim back."""
        self.release()


def take(path: Path, *, touch_s: float = TOUCH_S, stale_s: float = STALE_S) -> Claim | None:
    """Take the claim at `path`, or return None where a living process holds it.

    Args:
        path: the claim's file; its folder is made where missing.
        touch_s: seconds between two signs of life.
        stale_s: age from which a claim counts as left behind.

    Raises:
        durable.Unwritable: the folder cannot be written.
    """
    make_folder(path.parent)
    content = json.dumps(
        {"host": socket.gethostname(), "pid": os.getpid(), "token": uuid4().hex, "at": time.time()}
    )
    for _ in range(2):
        try:
            _create(path, content)
        except FileExistsError:
            if not is_stale(path, stale_s):
                return None
            # Of several processes that find it stale, one renames it.
            aside = path.with_name(f".{path.name}.{uuid4().hex[:8]}.stale")
            with suppress(FileNotFoundError):
                path.rename(aside)
                aside.unlink()
        except OSError as error:
            raise unwritable(path, error) from error
        else:
            return Claim(path, content, touch_s)
    return None


def _create(path: Path, content: str) -> None:
    with path.open("x") as file:
        try:
            file.write(content)
            file.flush()
        except OSError:  # an empty claim would keep everybody away until it is stale
            path.unlink(missing_ok=True)
            raise


def is_stale(path: Path, stale_s: float = STALE_S) -> bool:
    """Tell whether nobody holds the claim at `path` any more, by its age or its process."""
    try:
        age_s = time.time() - path.stat().st_mtime
        text = path.read_text()
    except FileNotFoundError:
        return True
    if age_s > stale_s:
        return True
    try:
        holder = json.loads(text)
        host, pid = str(holder["host"]), int(holder["pid"])
    except (ValueError, KeyError, TypeError):
        return False  # its holder may be between creating and filling it: the age will tell
    return host == socket.gethostname() and not _is_alive(pid)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
