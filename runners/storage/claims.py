"""Advisory claims: a process notes that it works on a cell, so that others take another one.

Claims only save work. If one fails, two processes compute the same cell, and the store keeps the
file of one of them.

A claim whose holder has died is stale, and others may take it:

- If this process can see the holder (`lra.runners.storage.holders.alive`), the kernel says whether
  it lives.
- Any other holder touches its file again and again. The file's age is measured by the file
  server's clock: against a file that is touched just now in the same folder. If that clock was set
  a short while ago, ages are ignored until a living holder has had time to touch its file again.
- A file that this process has watched unchanged for `stale_s`, by its own monotonic clock, is stale
  whatever the server's clock says.
- A claim that was written for another folder, of which this one is a copy, is stale here
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
"""Seconds after which the server is asked for its time again."""
STEPPED_S = 5.0
"""A server's clock that gained or lost more seconds than this against ours has been set."""


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
        ask: returns the time on the server of a folder, in seconds since 1970; raises OSError.
            None: this machine's clock stands for the server's, and nothing is written.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        ask: Callable[[Path], float] | None = touched_now,
    ) -> None:
        self.clock, self.ask = clock, ask
        self._answers: dict[Path, tuple[float, float]] = {}
        """For each folder: the time on `clock` when the server was asked, and its answer."""
        self._set_at: dict[Path, float] = {}
        """For each folder: the time on `clock` when we saw that the server's clock had been set."""

    def now(self, folder: Path) -> float:
        """Return the time on the server of `folder`, in seconds since 1970.

        If the server cannot be asked, because the folder is read-only, return this machine's time.
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
                self._set_at[folder] = now
        self._answers[folder] = now, answer
        return answer

    def age_s(self, folder: Path, touched_ns: int, *, trusted_s: float) -> float | None:
        """Return the age in seconds of a file in `folder` that was touched at `touched_ns`.

        None: the server's clock was set less than `trusted_s` seconds ago, so the age is unknown.
        """
        age_s = self.now(folder) - touched_ns / 1e9
        set_at = self._set_at.get(folder)
        return None if set_at is not None and self.clock() - set_at < trusted_s else age_s


TOUCH_S = 30.0
"""Seconds after which a holder touches its claim again."""


class Claim:
    """A claim that this process holds; a context manager that releases it."""

    def __init__(self, path: Path, content: str, touch_s: float) -> None:
        self.path = path
        self.touch_s = touch_s
        self._content = content
        self._held, self._owner = True, os.getpid()

    @property
    def held(self) -> bool:
        """Whether `release` has not been called yet."""
        return self._held

    def release(self) -> None:
        """Give the claim back; a second call, or one in a forked process, does nothing."""
        if not self._held or self._owner != os.getpid():
            return
        self._held = False
        self._give_back()  # if that fails, `_keeper` tries it again

    def look_after(self) -> None:
        """Show a sign of life, or retry to release what could not be released before."""
        if not self._held:
            self._give_back()
            return
        with suppress(OSError):  # a network folder may fail for a moment; the next touch will do
            if self._is_mine():
                os.utime(self.path)

    def _give_back(self) -> None:
        """Remove the file; if the system refuses, `_keeper` still has the claim and retries."""

        def act() -> None:
            if self._is_mine():
                self.path.unlink(missing_ok=True)

        with suppress(OSError):
            persistent(act)
            _keeper.forget(self)

    def _is_mine(self) -> bool:
        """Tell whether the file is still ours: another process may have taken a stale claim."""
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
    """Touches every claim of this process, in one thread that runs while there are claims."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start without claims. A forked process does so too: its parent keeps its claims."""
        self._settles = False
        """Whether `_settle` is registered for the end of this process."""
        self._changed = threading.Condition()
        self._due: dict[Claim, float] = {}
        """The time of each claim's next touch, by the monotonic clock."""
        self._thread: threading.Thread | None = None

    def keep(self, claim: Claim) -> None:
        """Touch a claim from now on."""
        with self._changed:
            if not self._settles:  # `Finalize` also works in a forked worker, which ends by `_exit`
                self._settles = True
                Finalize(None, self._settle, exitpriority=0)
            self._due[claim] = time.monotonic() + claim.touch_s
            if self._thread is None:
                self._thread = threading.Thread(target=self._touch, name="claims", daemon=True)
                self._thread.start()
            self._changed.notify()

    def forget(self, claim: Claim) -> None:
        """Touch a claim no more."""
        with self._changed:
            self._due.pop(claim, None)
            self._changed.notify()

    def _settle(self) -> None:
        """At the end of the process, retry to remove the claims that could not be removed."""
        for claim in [claim for claim in self._due if not claim.held]:
            claim.look_after()

    def _touch(self) -> None:
        """Touch each claim when it is due; return once there are none."""
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
    """Tells which claims are stale; remembers since when each file has been unchanged.

    Args:
        clock: monotonic seconds of this process.
        server: the clock of the file server.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, server: ServerClock | None = None
    ) -> None:
        self.clock, self.server = clock, server or ServerClock(clock)
        self._unchanged: dict[Path, tuple[tuple[int, str], float]] = {}
        """For each claim: when it was touched and its text, and since when we have seen these."""

    def left_behind(self, path: Path, stale_s: float = STALE_S) -> ClaimFile | None:
        """Return the content of the claim at `path` if it is stale; None if somebody holds it.

        If there is no file, nobody holds the claim: return a `ClaimFile` without text.

        Raises:
            OSError: it cannot be read.
        """
        content = read_claim(path)
        if content is None:
            return ClaimFile("", 0)
        return content if self._is_stale(path, content, stale_s) else None

    def _is_stale(self, path: Path, content: ClaimFile, stale_s: float) -> bool:
        """Tell whether nobody holds a claim any more, by the rules at the top of this module."""
        if strange_home(content.holder, path.parent) is not None:
            return True
        lives = None if content.holder is None else alive(content.holder)
        if lives is not None:  # None: this process cannot see the holder
            return not lives
        mark, now = (content.touched_ns, content.text), self.clock()
        known_mark, since = self._unchanged.get(path, (None, now))
        if known_mark != mark:
            since = now
            self._unchanged[path] = mark, since
        if now - since > stale_s:
            return True
        age_s = self.server.age_s(path.parent, content.touched_ns, trusted_s=stale_s)
        return age_s is not None and age_s > stale_s

    def living(self, folder: Path, stale_s: float = STALE_S) -> dict[str, Holder]:
        """Return who holds claims in a folder, by the names of the claims.

        Claims that cannot be read, or are half written, are excluded.
        """
        holders = {}
        paths = _claims(folder)
        for path in [path for path in self._unchanged if path.parent == folder]:
            if path not in paths:
                del self._unchanged[path]
        for path in paths:
            with suppress(OSError):
                content = read_claim(path)
                if content and content.holder and not self._is_stale(path, content, stale_s):
                    holders[path.name] = content.holder
        return holders


def strange_home(holder: Holder | None, folder: Path) -> Home | None:
    """Return the folder that a claim in `folder` was written for; None if that is `folder`.

    Raises OSError.
    """
    home = None if holder is None else holder.home
    return None if home is None or home.is_(folder) else home


def strangers(folder: Path, *, remove: bool) -> list[str]:
    """Return a sentence for each other folder for which claims in this one were written.

    Such claims came here when a results folder was copied or moved.

    Args:
        folder: the folder of claims.
        remove: whether to remove these claims; those that cannot be removed stay.
    """
    counts: Counter[str] = Counter()
    for path in _claims(folder):
        with suppress(OSError):
            content = read_claim(path)
            if content is not None and (home := strange_home(content.holder, folder)) is not None:
                counts[home.path] += 1
                if remove:
                    _put_aside(path, content.text)
    return [
        f"{count:,} of the marks of running processes in this folder belong to "
        f"{legible(str(Path(path).parent))}, {COPIED}: their runs can be started here"
        for path, count in counts.items()
    ]


def _claims(folder: Path) -> list[Path]:
    """Return the claims in a folder, held or stale. Hidden files are temporary, not claims."""
    try:
        names = sorted(persistent(os.listdir, folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in names if not name.startswith(".")]


_observer = Observer()
_reader = Observer(server=ServerClock(ask=None))
"""An observer that writes nothing: this machine's clock stands for the server's."""


def living_holders(folder: Path) -> dict[str, Holder]:
    """Return who holds the claims in a folder, by the names of the claims: see `Observer`."""
    return _observer.living(folder)


def is_stale(path: Path) -> bool:
    """Tell whether nobody holds the claim at `path` any more, without writing any file."""
    return _reader.left_behind(path) is not None


def clear(folder: Path, names: Collection[str]) -> None:
    """Remove the stale ones among the claims with these `names`, which are keys of finished cells.

    If a process is killed after it stored the rows of a cell and before it released its claim, no
    other process takes that claim, because the cell is finished. A claim that cannot be read or
    removed now stays, which is harmless.
    """
    for path in _claims(folder):
        if path.name in names:
            with suppress(OSError):
                stale = _observer.left_behind(path)
                if stale is not None:
                    _put_aside(path, stale.text)


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
        title: name of the cell, for people.
        worker: name of the worker that takes it, for people.
        touch_s: seconds after which the holder touches the file again.
        stale_s: age in seconds from which an untouched claim is stale.
        observer: tells whether a claim that is already there is stale; None: that of this process.

    Raises:
        atomic.Unwritable: the folder cannot be written.
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
    """Take the claim at `path` and return its content; None if a living process holds it."""
    note = {**note, "home": Home.from_folder(path.parent).plain()}
    for _ in range(2):  # the second time after a stale claim was removed
        try:
            return _create(path, note)
        except FileExistsError:
            stale = observer.left_behind(path, stale_s)
            if stale is None or not _put_aside(path, stale.text):
                return None
    return None


def _create(path: Path, note: dict[str, object]) -> str:
    """Create the file and return its content: `note`, and the server's time of creation."""
    opened = path.open("x")
    try:
        with opened as file:
            content = json.dumps({**note, "at": os.fstat(file.fileno()).st_mtime})
            file.write(content)
    except OSError:  # an empty claim would keep all processes away until it is stale
        persistent(path.unlink, missing_ok=True)
        raise
    return content


def _put_aside(path: Path, text: str) -> bool:
    """Remove the stale claim at `path`; return whether the place is free now.

    If several processes find the claim stale, one renames it. Another may be so late that it
    renames the new claim that the first one has made. It sees that by `text`, and restores it.

    Args:
        path: the claim's file.
        text: the content that was found stale.
    """
    aside = writers.temporary(path)
    try:
        path.rename(aside)
    except FileNotFoundError:
        return True
    try:
        content = read_claim(aside)  # read as before, so that equal files have equal texts
        late = content is None or content.text != text
        if late:
            with suppress(OSError):  # a third process made a claim, or links are unsupported here
                os.link(aside, path)
    finally:
        with suppress(OSError):
            persistent(aside.unlink)
    with suppress(OSError):  # a temporary file that stays is harmless
        for other in path.parent.glob(".*.tmp"):  # of a process killed between rename and unlink
            if writers.has_died(other):
                other.unlink(missing_ok=True)
    return not late
