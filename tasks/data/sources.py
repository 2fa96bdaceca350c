"""The cache of data: locks, complete files, hashes, downloads.

Every file of the cache is written under a temporary name and renamed when it is complete, so a
reader never finds an incomplete file, even after a crash.
"""

import hashlib
import http.client
import json
import logging
import os
import shutil
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from lra.conf.cached_texts import data_root as data_root  # noqa: PLC0414  # handed on
from lra.conf.plain_files import read_json, typed_object
from lra.conf.system_errors import NO_LOCKS, STORAGE_ALONE
from lra.tasks.data.bars import tqdm
from lra.tasks.data.full_disk import full_disk_explained
from lra.tasks.data.leftovers import PARTIAL, open_to_append, temporary_file, temporary_folder
from lra.tasks.errors import BadData, NotPrepared

log = logging.getLogger(__name__)

CHUNK_BYTES = 1 << 20
TIMEOUT_S = 30.0
SETTLED_S = 2
"""The hash of a file is remembered only if its last change is at least this many seconds ago."""


@contextmanager
def lock(name: str) -> Iterator[None]:
    """Hold the lock `name` of this cache inside the block; wait while another process has it.

    The kernel frees the lock when the process ends in any way. On a file system without locks, a
    file that names the process replaces the lock. Temporary files have locks of a different kind:
    see `lra.tasks.data.leftovers`.
    """
    from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

    folder = data_root() / "locks"
    with full_disk_explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        file_lock: BaseFileLock = FileLock(folder / f"{name}.lock")
        try:
            file_lock.acquire(blocking=False)
        except Timeout:
            log.info("this process waits for another process, which prepares %s", name)
            file_lock.acquire()
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            log.warning(
                "the file system of %s has no locks (%s), so lra uses a lock file", folder,
                error.strerror,
            )  # fmt: skip
            file_lock = SoftFileLock(folder / f"{name}.held")
            file_lock.acquire()
    try:
        yield
    finally:
        file_lock.release()


@contextmanager
def place_folder(final: Path) -> Iterator[Path]:
    """Yield an empty temporary folder; rename it to `final` on success, or remove it on failure.

    The caller must hold a `lock`.
    """
    with full_disk_explained(final.parent), temporary_folder(final) as temporary:
        yield temporary
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` in one step, replacing an older file; the umask gives its rights."""
    with full_disk_explained(path.parent), temporary_file(path) as temporary:
        temporary.write_text(text)
        temporary.replace(path)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remembered_sha256(path: Path) -> str:
    """Return `sha256(path)`, from the cache if the file has not changed since it was computed."""
    return _remembered(path, lambda: [("", _state(path.stat()))], lambda: sha256(path))


def path_identity(path: Path, instructions: str) -> str:
    """Return the hash of the file or folder `path`.

    Raises `NotPrepared` if it is missing, with `instructions` for the user.
    """
    if path.is_file():
        return remembered_sha256(path)
    if path.is_dir():
        return folder_identity(path)
    raise NotPrepared(f"task.path={path} is missing; {instructions}")


def folder_identity(folder: Path) -> str:
    """Return a hash of the names and contents of all files below `folder`, cached.

    Links are followed; a folder inside itself is entered once.
    """

    def states() -> list[tuple[str, list[int]]]:
        """Return each name with the state of its file, which a change of the file changes."""
        return [(name, _state(os.stat(folder / name))) for name in files_below(folder)]  # noqa: PTH116

    def content() -> str:
        """Return the hash of all names and contents."""
        digest = hashlib.sha256()
        for name in tqdm(
            files_below(folder), desc=f"hashes of {folder.name}", unit="file", disable=None
        ):
            digest.update(json.dumps([name, sha256(folder / name)]).encode())
        return digest.hexdigest()

    return _remembered(folder, states, content)  # reads contents only if a state has changed


def texts_identity(place: Path, files: Sequence[Path]) -> str:
    """Return a hash of the contents of `files` in order, cached under the path that names them."""

    def states() -> list[tuple[str, list[int]]]:
        """Return each file with its state, which a change of the file changes."""
        return [(str(file), _state(file.stat())) for file in files]

    def content() -> str:
        """Return the hash of all contents."""
        digest = hashlib.sha256()
        for file in tqdm(files, desc=f"hashes of {place.name}", unit="file", disable=None):
            digest.update(sha256(file).encode())
        return digest.hexdigest()

    return _remembered(place, states, content)  # reads contents only if a state has changed


def files_below(folder: Path) -> list[str]:
    """Return the sorted relative names of all files below `folder`."""
    names: list[str] = []

    def enter(path: str, above: frozenset[tuple[int, int]]) -> None:
        """Add the files in `path`; skip a folder of `above`, which a link leads back to."""
        status = (folder / path).stat()
        identity = (status.st_dev, status.st_ino)
        if identity in above:
            return
        with os.scandir(folder / path) as entries:
            for entry in entries:
                name = f"{path}/{entry.name}" if path else entry.name
                if entry.is_dir():
                    enter(name, above | {identity})
                elif entry.is_file():
                    names.append(name)

    enter("", frozenset())
    return sorted(names)


def _state(status: os.stat_result) -> list[int]:
    """Return size, times, device and inode of a file, of which every change of it changes one."""
    return [
        status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino,
    ]  # fmt: skip


def _remembered(
    path: Path, states: Callable[[], list[tuple[str, list[int]]]], hashed: Callable[[], str]
) -> str:
    """Return a hash from the cache, or compute it and store it in the cache.

    The hash of a file that changed less than `SETTLED_S` ago is not stored, because another change
    could give the file the same date.

    Args:
        path: The file or folder, which has one entry in the cache.
        states: Returns the present name and state of each file; if they differ from those of the
            cache entry, the hash is computed again.
        hashed: Computes the hash.
    """
    before = states()
    state = hashlib.sha256(json.dumps(before).encode()).hexdigest()
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    note = data_root() / "hashes" / f"{name}.json"
    # Ignore an entry that is missing, damaged, or unreadable in another user's cache.
    with suppress(OSError, ValueError):
        remembered = typed_object(read_json(note), {"state": str, "sha256": str})
        if remembered["state"] == state:
            return str(remembered["sha256"])
    digest = hashed()
    if states() != before:
        raise BadData(f"{path} changed while lra was reading it; rerun the same command")
    last_change_ns = max((changed_ns for _, (_, _, changed_ns, *_) in before), default=0)
    if time.time_ns() - last_change_ns > SETTLED_S * 1_000_000_000:
        try:
            write_whole(note, json.dumps({"path": str(path), "state": state, "sha256": digest}))
        except OSError as error:
            log.warning("lra cannot store the hash of %s: %s", path, error)
    return digest


def check_file(path: Path, *, size: int, sha256: str) -> None:
    """Raise `BadData` unless the file has this size in bytes and this hash."""
    actual_size = path.stat().st_size
    if actual_size != size:
        raise BadData(
            f"{path}: the file has {actual_size} bytes; wanted {size} bytes; delete the file and "
            "prepare again"
        )
    digest = remembered_sha256(path)
    if digest != sha256:
        raise BadData(
            f"{path}: the SHA-256 of the file is {digest}; wanted {sha256}; delete the file and "
            "prepare again, or set task.path to this file to use it as it is"
        )


def download(
    url: str, final: Path, *, size: int, sha256: str, instructions: str, mirrors: Sequence[str] = ()
) -> Path:
    """Download `url` to `final` and return `final`; resume an interrupted download.

    Args:
        url: Address of the file.
        final: Path for the complete file; if it exists, only its size and hash are checked.
        size: Size of the file in bytes.
        sha256: Hash of the file, 64 hexadecimal digits.
        instructions: Another way to get the file; ends the message of a failure.
        mirrors: Further addresses of the file, which are tried after `url`.

    Raises:
        NotPrepared: No address delivers the file.
        BadData: The last address delivers another file.
    """
    # Each address but the last, with the one that is tried after it.
    for address, other in zip((url, *mirrors), mirrors, strict=False):
        try:
            return _download(address, final, size=size, sha256=sha256, instructions=instructions)
        except (NotPrepared, BadData) as error:
            if final.is_file():
                raise
            log.warning("%s; lra is trying %s", error, other)
    last = (url, *mirrors)[-1]
    return _download(last, final, size=size, sha256=sha256, instructions=instructions)


def _download(url: str, final: Path, *, size: int, sha256: str, instructions: str) -> Path:
    """Download from one address; see `download`."""
    with full_disk_explained(final.parent), lock(f"download-{final.name}"):
        if final.is_file():
            check_file(final, size=size, sha256=sha256)
            return final
        final.parent.mkdir(parents=True, exist_ok=True)
        partial = final.with_name(f"{final.name}{PARTIAL}")
        with open_to_append(partial) as file:
            try:
                _fetch(url, file, size, partial.stem, instructions)
            except urllib.error.HTTPError as error:
                raise NotPrepared(f"{url}: {error.code} {error.reason}; {instructions}") from error
            except (OSError, http.client.HTTPException) as error:
                local = isinstance(error, OSError) and not isinstance(error, ssl.SSLError)
                if local and getattr(error, "errno", None) in STORAGE_ALONE:
                    raise  # a fault of the disk, not of the network
                if isinstance(error, http.client.IncompleteRead):
                    file.write(error.partial)
                message = _interruption(url, partial, _length(file), size, error)
                raise NotPrepared(f"{message} {instructions}") from error
            if (length := _length(file)) < size:
                message = _interruption(url, partial, length, size, None)
                raise NotPrepared(f"{message} {instructions}")
        try:
            check_file(partial, size=size, sha256=sha256)
        except BadData as error:
            partial.unlink()
            raise BadData(
                f"{url} delivered another file than the wanted one ({error}); {instructions}"
            ) from None
        partial.replace(final)
    return final


def _interruption(url: str, partial: Path, length: int, size: int, error: Exception | None) -> str:
    """Return the message about a download that ended after `length` bytes, without remedies."""
    reason = "" if error is None else f" ({type(error).__name__}: {error})"
    if not length and isinstance(error, urllib.error.URLError):
        return f"{url} cannot be reached{reason};"
    return (
        f"{url}: the connection ended after {length} of {size} bytes{reason}; rerun the same "
        f"command to resume from {partial}, or"
    )


def _length(file: BinaryIO) -> int:
    """Return the number of bytes written to an open file so far."""
    file.flush()
    return os.fstat(file.fileno()).st_size


def _fetch(url: str, file: BinaryIO, size: int, name: str, instructions: str) -> None:
    """Append the missing bytes of `url` to `file`; stop soon after `size` bytes.

    Raises:
        BadData: The server offers a file of another size.
    """
    length = _length(file)
    if length >= size:
        return
    request = urllib.request.Request(url, headers={"Range": f"bytes={length}-"} if length else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        resumed = answer.status == 206  # HTTP: partial content
        if length and not resumed:
            file.truncate(0)
            length = 0
        announced = answer.headers.get("Content-Length", "")
        if announced.isdecimal() and length + int(announced) != size:
            raise BadData(
                f"{url} offers {length + int(announced)} bytes; wanted {size} bytes; the file at "
                f"this address has changed; {instructions}"
            )
        with tqdm(
            desc=name, total=size, initial=length, unit="B", unit_scale=True, disable=None
        ) as bar:
            while length <= size and (chunk := answer.read(CHUNK_BYTES)):
                file.write(chunk)
                length += len(chunk)
                bar.update(len(chunk))


def open_binary(path: Path) -> BinaryIO:
    """Open a file for reading bytes; raise `NotPrepared` if it is missing."""
    try:
        return path.open("rb")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotPrepared(f"{path} is missing") from error
