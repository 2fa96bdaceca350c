"""Claims on runs: a process writes a file which says that it executes a run, so others skip it.

Claims only save work. If a claim fails, two processes execute the same run, and the store has the
result of one of them.

A claim is stale if its holder has died; then others may take it:

- If this process can see the holder (`lra.runners.storage.holders.alive`), the kernel says whether
  it lives.
- Any other holder touches its file regularly, so an old file is stale. The age is measured by the
  clock of the file server, compared with a file that was just touched in the same folder. After
  that clock was set, ages are ignored until a living holder has had time to touch its file.
- A file that has not changed while this process watched it for `stale_s` seconds is stale.
- A claim that was written for another folder, of which this folder is a copy, is stale
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
"""The time on the server is read again after so many seconds."""
STEPPED_S = 5.0
"""If the server's clock differs from a monotonic clock by more seconds, somebody has set it."""


def touched_now(folder: Path) -> float:
    """Return the time on the file server of a folder, from a new file in it. Raises OSError."""
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
    """Computes ages of files by the clock of the file server.

    Args:
        clock: function that returns monotonic seconds of this process.
        ask: function that returns the time on the server of a folder, in seconds since 1970; it may
            raise OSError. None: the clock of this machine is used, and no file is written.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        ask: Callable[[Path], float] | None = touched_now,
    ) -> None:
        self.clock, self.ask = clock, ask
        self._answers: dict[Path, tuple[float, float]] = {}
        """For each folder: the time on `clock` when the server was asked, and the answer."""
        self._set_at: dict[Path, float] = {}
        """For each folder: the time on `clock` when a set server clock was noticed."""

    def now(self, folder: Path) -> float:
        """Return the time on the server of `folder`, in seconds since 1970.

        If the folder is read-only, the time of this machine is returned.
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
"""A holder touches its claim again after so many seconds."""


class Claim:
    """A claim of this process; as a context manager, it releases the claim at the end."""

    def __init__(self, path: Path, content: str, touch_s: float) -> None:
        self.path = path
        self.touch_s = touch_s
        self._content = content  # of the file, by which the claim is recognised
        self._held, self._owner = True, os.getpid()  # a forked process is not the owner

    @property
    def held(self) -> bool:
        """Return whether `release` has not been called yet."""
        return self._held

    def release(self) -> None:
        """Release the claim; a second call, or a call in a forked process, has no effect."""
        if not self._held or self._owner != os.getpid():
            return
        self._held = False
        self._remove_file()  # if this fails, `_keeper` tries it again

    def look_after(self) -> None:
        """Touch the file, or try again to remove it if the claim was released."""
        if not self._held:
            self._remove_file()
            return
        with suppress(OSError):  # a network folder may fail for a moment; the next touch suffices
            if self._is_mine():
                os.utime(self.path)

    def _remove_file(self) -> None:
        """Remove the file; if this fails, `_keeper` still has the claim and tries it again."""

        def act() -> None:
            if self._is_mine():
                self.path.unlink(missing_ok=True)

        with suppress(OSError):
            persistent(act)
            _keeper.forget(self)

    def _is_mine(self) -> bool:
        """Return whether the file is still of this claim; others may have taken a stale one."""
        try:
            current = read_claim(self.path)
        except NoFile:
            return False
        return current is not None and current.text == self._content

    def __enter__(self) -> "Claim":
        """Return the claim itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release the claim."""
        self.release()


class _Keeper:
    """Touches all claims of this process in a thread that runs while there are claims."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Start without claims; a forked process calls this, because its parent has the claims."""
        self._settles = False
        """Whether `_settle` is registered for the end of this process."""
        self._changed = threading.Condition()
        self._due: dict[Claim, float] = {}
        """The time of each claim's next touch, by the monotonic clock."""
        self._thread: threading.Thread | None = None

    def keep(self, claim: Claim) -> None:
        """Touch a claim regularly from now on."""
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
        """Stop touching a claim."""
        with self._changed:
            self._due.pop(claim, None)
            self._changed.notify()

    def _settle(self) -> None:
        """Try again to remove released claims; this is called at the end of the process."""
        for claim in [claim for claim in self._due if not claim.held]:
            claim.look_after()

    def _touch(self) -> None:
        """Touch each claim when it is time; return when there are no claims."""
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
        """Return the content of the claim at `path` if it is stale; None if a process holds it.

        If there is no file, a `ClaimFile` without text is returned.

        Raises:
            OSError: the file cannot be read.
        """
        content = read_claim(path)
        if content is None:
            return ClaimFile("", 0)
        return content if self._is_stale(path, content, stale_s) else None

    def _is_stale(self, path: Path, content: ClaimFile, stale_s: float) -> bool:
        """Return whether a claim is stale, by the rules at the top of this module."""
        if strange_home(content.holder, path.parent) is not None:
            return True
        lives = None if content.holder is None else alive(content.holder)
        if lives is not None:  # None: this process cannot see the holder
            return not lives
        version, now = (content.touched_ns, content.text), self.clock()
        known_version, since = self._unchanged.get(path, (None, now))
        if known_version != version:
            since = now
            self._unchanged[path] = version, since
        if now - since > stale_s:
            return True
        age_s = self.server.age_s(path.parent, content.touched_ns, trusted_s=stale_s)
        return age_s is not None and age_s > stale_s

    def living(self, folder: Path, stale_s: float = STALE_S) -> dict[str, Holder]:
        """Return the living holders of the claims in a folder, by the names of the claims.

        Claims that cannot be read, or are incomplete, are excluded.
        """
        holders = {}
        paths = _list_claims(folder)
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
    """Return the folder for which a claim in `folder` was written; None if it is `folder` itself.

    Raises OSError.
    """
    home = None if holder is None else holder.home
    return None if home is None or home.is_(folder) else home


def strangers(folder: Path, *, remove: bool) -> list[str]:
    """Return a sentence for each other folder for which claims in this folder were written.

    Such claims came here when a results folder was copied or moved.

    Args:
        folder: the folder of claims.
        remove: whether to remove these claims; those that cannot be removed stay.
    """
    counts: Counter[str] = Counter()
    for path in _list_claims(folder):
        with suppress(OSError):
            content = read_claim(path)
            if content is not None and (home := strange_home(content.holder, folder)) is not None:
                counts[home.path] += 1
                if remove:
                    _remove_stale(path, content.text)
    return [
        f"{count:,} claims of running processes in this folder belong to "
        f"{legible(str(Path(path).parent))}, {COPIED}; lra ignores them and may start their runs"
        for path, count in counts.items()
    ]


def _list_claims(folder: Path) -> list[Path]:
    """Return the paths of all claims in a folder. Hidden files are temporary, not claims."""
    try:
        names = sorted(persistent(os.listdir, folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [folder / name for name in names if not name.startswith(".")]


_observer = Observer()
_reader = Observer(server=ServerClock(ask=None))
"""An observer that writes nothing: this machine's clock stands for the server's."""


def living_holders(folder: Path) -> dict[str, Holder]:
    """Return the living holders of the claims in a folder, by the names of the claims."""
    return _observer.living(folder)


def is_stale(path: Path) -> bool:
    """Return whether the claim at `path` is stale; this writes no file."""
    return _reader.left_behind(path) is not None


def clear(folder: Path, names: Collection[str]) -> None:
    """Remove stale claims on finished runs, whose keys are `names`.

    They stay if a process is killed after it stored rows and before it released its claim. A claim
    that cannot be read or removed now stays, which is harmless.
    """
    for path in _list_claims(folder):
        if path.name in names:
            with suppress(OSError):
                stale = _observer.left_behind(path)
                if stale is not None:
                    _remove_stale(path, stale.text)


def take_claim(
    path: Path,
    *,
    title: str = "",
    worker: str = "",
    touch_s: float = TOUCH_S,
    stale_s: float = STALE_S,
    observer: Observer | None = None,
) -> Claim | None:
    """Take the claim at `path` and return it; None if a living process has it.

    Args:
        path: the file of the claim; its folder is created if it is missing.
        title: name of the run, for people.
        worker: name of the worker that takes the claim, for people.
        touch_s: the holder touches the file again after so many seconds.
        stale_s: a claim that was not touched for so many seconds is stale.
        observer: decides whether an existing claim is stale; None: the observer of this process.

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
        content = persistent(_try_to_take, path, note, stale_s, observer)
    except OSError as error:
        raise unwritable(path, error) from error
    if content is None:
        return None
    claim = Claim(path, content, touch_s)
    _keeper.keep(claim)
    return claim


def _try_to_take(
    path: Path, note: dict[str, object], stale_s: float, observer: Observer
) -> str | None:
    """Take the claim at `path` and return its content; None if a living process has it."""
    note = {**note, "home": Home.from_folder(path.parent).plain()}
    for _ in range(2):  # the second time, after a stale claim was removed
        try:
            return _create(path, note)
        except FileExistsError:
            stale = observer.left_behind(path, stale_s)
            if stale is None or not _remove_stale(path, stale.text):
                return None
    return None


def _create(path: Path, note: dict[str, object]) -> str:
    """Create the file with `note` and the server's time, and return its content."""
    opened = path.open("x")
    try:
        with opened as file:
            content = json.dumps({**note, "at": os.fstat(file.fileno()).st_mtime})
            file.write(content)
    except OSError:  # an empty claim would stop all processes until it is stale
        persistent(path.unlink, missing_ok=True)
        raise
    return content


def _remove_stale(path: Path, text: str) -> bool:
    """Remove the stale claim at `path`; return whether there is no claim now.

    If several processes find the claim stale, one of them renames it. Another one may be late and
    rename the new claim of the first. It notices this by `text`, and restores the new claim.

    Args:
        path: the file of the claim.
        text: the content of the stale claim.
    """
    aside = writers.temporary(path)
    try:
        path.rename(aside)
    except FileNotFoundError:
        return True
    try:
        content = read_claim(aside)
        is_late = content is None or content.text != text
        if is_late:
            with suppress(OSError):  # a third process made a claim, or links are unsupported here
                os.link(aside, path)
    finally:
        with suppress(OSError):
            persistent(aside.unlink)
    with suppress(OSError):  # a temporary file that stays is harmless
        for other in path.parent.glob(".*.tmp"):  # left by processes that were killed in between
            if writers.has_died(other):
                other.unlink(missing_ok=True)
    return not is_late
