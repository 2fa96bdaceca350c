"""Advisory claims: a note that somebody works on a cell, so that a second sweep takes another one.

Nothing is wrong when a claim fails to hold: two processes then compute the same cell, and the
store keeps the file of one of them.

Of a holder that this process can see (`lra.runners.storage.holders.alive`) the kernel says whether
it lives. Any other shows signs of life: it touches its file, whose age is measured by the file
server's clock, against a file touched just now in the same folder. What this process has seen
unchanged for as long, by this process's monotonic clock, is abandoned whatever a clock says; and a
server whose clock was set meanwhile is not believed until a claim had time to be touched again.

A claim that was written for another folder, of which this one is a copy, is held by nobody here
(`lra.runners.storage.homes`).
"""

import json
import os
import socket
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Collection
from contextlib import suppress
from multiprocessing.util import Finalize
from pathlib import Path
from uuid import uuid4

from lra.conf.plain_files import NoFile
from lra.conf.system_errors import persistent
from lra.runners.records import legible
from lra.runners.storage import writers
from lra.runners.storage.atomic import STALE_S, make_folder, unwritable
from lra.runners.storage.holders import (
    ClaimFile,
    Holder,
    alive,
    process_place,
    process_start,
    read_claim,
)
from lra.runners.storage.homes import COPIED, Home

ASKED_S = 10.0
"""For so long the answer of the server holds."""
STEPPED_S = 5.0
"""A clock that gained or lost so many seconds against ours was set."""


def touched_now(folder: Path) -> float:
    """Touch a file in a folder and return the time that the server gave it. Raises OSError."""
    name = f".clock.{socket.gethostname()}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp"
    path = folder / name
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
    try:
        os.utime(descriptor)
        return os.fstat(descriptor).st_mtime
    finally:
        os.close(descriptor)
        with suppress(OSError):
            path.unlink()


class ServerClock:
    """Ages of files by the clock that gave them their times.

    Args:
        clock: monotonic seconds of this process.
        ask: returns what time it is on the server of a folder, in seconds; raises OSError. None:
            nothing is written, and this machine's clock is taken for the server's.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        ask: Callable[[Path], float] | None = touched_now,
    ) -> None:
        self.clock, self.ask = clock, ask
        self._answers: dict[Path, tuple[float, float]] = {}
        """Of each folder, our clock when the server was asked, and its answer."""
        self._set: dict[Path, float] = {}
        """When we saw that a server's clock had been set."""

    def now(self, folder: Path) -> float:
        """Return what time it is on the server: seconds since 1970.

        Where nothing can be written in the folder, this machine's time.
        """
        if self.ask is None:
            return time.time()
        now = self.clock()
        if folder in self._answers:
            asked, server = self._answers[folder]
            if now - asked < ASKED_S:
                return server + now - asked
        try:
            answer = self.ask(folder)
        except OSError:
            return time.time()
        if folder in self._answers:
            asked, server = self._answers[folder]
            if abs(answer - server - (now - asked)) > STEPPED_S:
                self._set[folder] = now
        self._answers[folder] = now, answer
        return answer

    def age_s(self, folder: Path, touched_ns: int, *, trusted_s: float) -> float | None:
        """Return the age of a file in a folder; None where the clock was set in `trusted_s`."""
        age_s = self.now(folder) - touched_ns / 1e9
        was_set = self._set.get(folder)
        return None if was_set is not None and self.clock() - was_set < trusted_s else age_s


TOUCH_S = 30.0
"""Between two signs of life."""


class Claim:
    """A claim that is held; a context manager that gives it back."""

    def __init__(self, path: Path, content: str, touch_s: float) -> None:
        self.path = path
        self.touch_s = touch_s
        self._content = content
        self._held, self._owner = True, os.getpid()

    @property
    def held(self) -> bool:
        """Whether it was not released."""
        return self._held

    def release(self) -> None:
        """Give the claim back; a second call, or one in a forked process, does nothing."""
        if not self._held or self._owner != os.getpid():
            return
        self._held = False
        self._give_back()  # else it is tried again, at the end of the process at the latest

    def look_after(self) -> None:
        """Show a sign of life, or retry to release what could not be released before."""
        if not self._held:
            self._give_back()
            return
        with suppress(OSError):  # a network folder that hiccups; the next touch will do
            if self._is_mine():
                os.utime(self.path)

    def _give_back(self) -> None:
        def act() -> None:
            if self._is_mine():
                self.path.unlink(missing_ok=True)

        with suppress(OSError):
            persistent(act)
            _keeper.forget(self)

    def _is_mine(self) -> bool:
        try:
            seen = read_claim(self.path)
        except NoFile:
            return False
        return seen is not None and seen.text == self._content

    def __enter__(self) -> "Claim":
        """Return the claim itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give the claim back."""
        self.release()


class _Keeper:
    """Touches every claim of this process, in one thread, which runs while there are any."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Keep nothing: also in a forked process, which leaves the parent's claims to it."""
        self._settles = False
        self._changed = threading.Condition()
        self._due: dict[Claim, float] = {}
        """When each claim is to be touched, by the monotonic clock."""
        self._thread: threading.Thread | None = None

    def keep(self, claim: Claim) -> None:
        with self._changed:
            if not self._settles:  # also in a worker that was forked, and leaves by `os._exit`
                self._settles = True
                Finalize(None, self._settle, exitpriority=0)
            self._due[claim] = time.monotonic() + claim.touch_s
            if self._thread is None:
                self._thread = threading.Thread(target=self._touch, name="claims", daemon=True)
                self._thread.start()
            self._changed.notify()

    def forget(self, claim: Claim) -> None:
        with self._changed:
            self._due.pop(claim, None)
            self._changed.notify()

    def _settle(self) -> None:
        """Release at the end of the process what could not be released before."""
        for claim in [claim for claim in self._due if not claim.held]:
            claim.look_after()

    def _touch(self) -> None:
        while True:
            with self._changed:
                if not self._due:
                    self._thread = None
                    return
                wait = min(self._due.values()) - time.monotonic()
                if wait > 0:
                    self._changed.wait(wait)
                    continue
                now = time.monotonic()
                due = [claim for claim, at in self._due.items() if at <= now]
                self._due |= {claim: now + claim.touch_s for claim in due}
            for claim in due:  # without the lock: a server may take its time
                claim.look_after()


_keeper = _Keeper()
os.register_at_fork(after_in_child=_keeper.begin)


class Observer:
    """Judges claims, and remembers what it has seen of them.

    Args:
        clock: monotonic seconds of this process.
        server: the clock of the file server.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, server: ServerClock | None = None
    ) -> None:
        self.clock, self.server = clock, server or ServerClock(clock)
        self._first: dict[Path, tuple[tuple[int, str], float]] = {}
        """What was seen in a claim's file, and since when it has been so."""

    def left_behind(self, path: Path, stale_s: float = STALE_S) -> ClaimFile | None:
        """Return what is in a claim that nobody holds any more; None where somebody does.

        A claim that is not there is held by nobody; `ClaimFile` then has no text.

        Raises:
            OSError: it cannot be read.
        """
        seen = read_claim(path)
        if seen is None:
            return ClaimFile("", 0)
        return seen if self._stale(path, seen, stale_s) else None

    def _stale(self, path: Path, seen: ClaimFile, stale_s: float) -> bool:
        if strange_home(seen.holder, path.parent) is not None:
            return True
        lives = None if seen.holder is None else alive(seen.holder)
        if lives is not None:
            return not lives
        mark, now = (seen.touched_ns, seen.text), self.clock()
        if path not in self._first or self._first[path][0] != mark:
            self._first[path] = mark, now
        if now - self._first[path][1] > stale_s:
            return True
        age_s = self.server.age_s(path.parent, seen.touched_ns, trusted_s=stale_s)
        return age_s is not None and age_s > stale_s

    def living(self, folder: Path, stale_s: float = STALE_S) -> dict[str, Holder]:
        """Return who holds claims in a folder, by the names of the claims.

        What cannot be read, and what is half written, is left out.
        """
        holders = {}
        paths = _claims(folder)
        for path in [path for path in self._first if path.parent == folder]:
            if path not in paths:
                del self._first[path]
        for path in paths:
            with suppress(OSError):
                seen = read_claim(path)
                if seen and seen.holder and not self._stale(path, seen, stale_s):
                    holders[path.name] = seen.holder
        return holders


def strange_home(holder: Holder | None, folder: Path) -> Home | None:
    """Return the folder that a claim in `folder` was written for; None if that is `folder`.

    Raises OSError.
    """
    home = None if holder is None else holder.home
    return None if home is None or home.is_(folder) else home


def strangers(folder: Path, *, remove: bool) -> list[str]:
    """Return a sentence for each other folder whose claims came here with a copy, or a move.

    Args:
        folder: of claims.
        remove: whether they go, as far as they can be removed.
    """
    counts: Counter[str] = Counter()
    for path in _claims(folder):
        with suppress(OSError):
            seen = read_claim(path)
            if seen is not None and (home := strange_home(seen.holder, folder)) is not None:
                counts[home.path] += 1
                if remove:
                    _put_aside(path, seen.text)
    return [
        f"{count:,} claims here are of {legible(str(Path(path).parent))}, {COPIED}: these runs "
        "are free here"
        for path, count in counts.items()
    ]


def _claims(folder: Path) -> list[Path]:
    """Return the claims of a folder, held or not; hidden names are files of a moment."""
    try:
        names = sorted(persistent(os.listdir, folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in names if not name.startswith(".")]


_observer = Observer()
_reader = Observer(server=ServerClock(ask=None))
"""Writes nothing, and takes this machine's clock for the server's."""


def living_holders(folder: Path) -> dict[str, Holder]:
    """Return who holds the claims in a folder, by the names of the claims: see `Observer`."""
    return _observer.living(folder)


def is_stale(path: Path) -> bool:
    """Tell whether nobody holds the claim at `path` any more, for people: it writes nothing."""
    return _reader.left_behind(path) is not None


def clear(folder: Path, names: Collection[str]) -> None:
    """Remove the claims of these names that nobody holds any more.

    A process that is killed between the rows of a cell and the end of its claim leaves one that no
    other has a reason to take. What cannot be read or removed just now stays, in nobody's way.
    """
    for path in _claims(folder):
        if path.name in names:
            with suppress(OSError):
                left = _observer.left_behind(path)
                if left is not None:
                    _put_aside(path, left.text)


def take_claim(
    path: Path,
    *,
    title: str = "",
    worker: str = "",
    touch_s: float = TOUCH_S,
    stale_s: float = STALE_S,
    observer: Observer | None = None,
) -> Claim | None:
    """Take the claim at `path`, or return None where a living process holds it.

    Args:
        path: the claim's file; its folder is made where missing.
        title: of the cell, for people.
        worker: name of the worker that takes it, for people.
        touch_s: seconds between two signs of life.
        stale_s: age from which a claim counts as abandoned.
        observer: who judges the claims of others.

    Raises:
        durable.Unwritable: the folder cannot be written.
    """
    observer = observer or _observer
    make_folder(path.parent)
    note: dict[str, object] = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "started": process_start(),
        "place": process_place(),
        "worker": worker,
        "title": title,
        "token": uuid4().hex,
    }
    try:
        content = persistent(_taken, path, note, stale_s, observer)
    except OSError as error:
        raise unwritable(path, error) from error
    if content is None:
        return None
    claim = Claim(path, content, touch_s)
    _keeper.keep(claim)
    return claim


def _taken(path: Path, note: dict[str, object], stale_s: float, observer: Observer) -> str | None:
    """Return the content of a claim that was taken; None where a living process holds it."""
    note = {**note, "home": Home.from_folder(path.parent).plain()}
    for _ in range(2):
        try:
            return _create(path, note)
        except FileExistsError:
            left = observer.left_behind(path, stale_s)
            if left is None or not _put_aside(path, left.text):
                return None
    return None


def _create(path: Path, note: dict[str, object]) -> str:
    """Create the file and return its content: `note`, and the server's time of creation."""
    opened = path.open("x")
    try:
        with opened as file:
            content = json.dumps({**note, "at": os.fstat(file.fileno()).st_mtime})
            file.write(content)
    except OSError:  # an empty claim would keep everybody away until it is stale
        persistent(path.unlink, missing_ok=True)
        raise
    return content


def _put_aside(path: Path, text: str) -> bool:
    """Remove a claim that nobody holds; return whether its place is free now.

    Of several processes that find it stale, one renames it. Another may be so late that it renames
    the claim of the first, and gives it back.
    """
    aside = writers.temporary(path)
    try:
        path.rename(aside)
    except FileNotFoundError:
        return True
    try:
        seen = read_claim(aside)  # as it was read before: so much of it, and its ends of lines
        late = seen is None or seen.text != text
        if late:
            with suppress(OSError):  # somebody else has come meanwhile, or there are no links here
                os.link(aside, path)
    finally:
        with suppress(OSError):
            persistent(aside.unlink)
    with suppress(OSError):  # what stays is in nobody's way
        for other in path.parent.glob(".*.tmp"):  # of one that was killed between the two
            if writers.has_died(other):
                other.unlink(missing_ok=True)
    return not late
