"""Where data come from: the cache root, locks, atomic placement, hashes, downloads.

Everything that lands in the cache is written under a temporary name and renamed when complete, so
that a reader never meets half a file, however the writer ended.
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
    """Hold the lock `name` of this cache; wait while another process has it.

    The kernel frees the lock when its holder ends in any way, so none is ever stale. On a file
    system without such locks it is a file that names its holder.

    Temporary files and folders are held by themselves (`lra.tasks.data.leftovers`), not by a lock
    beside
    them: this is how what a killed writer left is told from what is still written.
    """
    from filelock import BaseFileLock, FileLock, SoftFileLock, Timeout

    folder = data_root() / "locks"
    with full_disk_explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        held: BaseFileLock = FileLock(folder / f"{name}.lock")
        try:
            held.acquire(blocking=False)
        except Timeout:
            log.info("waiting for another process that prepares %s", name)
            held.acquire()
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            log.warning("%s has no locks (%s): a lock file is used instead", folder, error.strerror)
            held = SoftFileLock(folder / f"{name}.held")
            held.acquire()
    try:
        yield
    finally:
        held.release()


@contextmanager
def place_folder(final: Path) -> Iterator[Path]:
    """Yield an empty temporary folder that becomes `final` on success and vanishes on failure.

    Call it under `lock`.
    """
    with full_disk_explained(final.parent), temporary_folder(final) as temporary:
        yield temporary
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)


def write_whole(path: Path, text: str) -> None:
    """Write a small file whole, with the rights that the umask gives; the last writer stays."""
    with full_disk_explained(path.parent), temporary_file(path) as temporary:
        temporary.write_text(text)
        temporary.replace(path)


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def remembered_sha256(path: Path) -> str:
    """Return `sha256(path)`, remembered in the cache as long as the file stays as it is."""
    return _remembered(path, lambda: [("", _state(path.stat()))], lambda: sha256(path))


def path_identity(path: Path, instructions: str) -> str:
    """Return the hash of a file or of a folder; `NotPrepared` where there is neither."""
    if path.is_file():
        return remembered_sha256(path)
    if path.is_dir():
        return folder_identity(path)
    raise NotPrepared(f"task.path={path} is missing: {instructions}")


def folder_identity(folder: Path) -> str:
    """Return a hash of the names and contents of all files below `folder`, remembered as one.

    Links are followed, folders that lie in themselves are entered once.
    """

    def states() -> list[tuple[str, list[int]]]:
        return [(name, _state(os.stat(folder / name))) for name in files_below(folder)]  # noqa: PTH116

    def content() -> str:
        digest = hashlib.sha256()
        for name in tqdm(
            files_below(folder), desc=f"hashes of {folder.name}", unit="file", disable=None
        ):
            digest.update(json.dumps([name, sha256(folder / name)]).encode())
        return digest.hexdigest()

    return _remembered(folder, states, content)


def texts_identity(place: Path, files: Sequence[Path]) -> str:
    """Return a hash of the contents of some files in their order, remembered as one.

    Args:
        place: What names them: a file, a folder or a pattern.
        files: All of them.
    """

    def states() -> list[tuple[str, list[int]]]:
        return [(str(file), _state(file.stat())) for file in files]

    def content() -> str:
        digest = hashlib.sha256()
        for file in tqdm(files, desc=f"hashes of {place.name}", unit="file", disable=None):
            digest.update(sha256(file).encode())
        return digest.hexdigest()

    return _remembered(place, states, content)


def files_below(folder: Path) -> list[str]:
    """Return the sorted relative names of all files below `folder`."""
    names: list[str] = []

    def enter(path: str, above: frozenset[tuple[int, int]]) -> None:
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
    """Return size, times and inode of a file: one of them changes with every change of the file."""
    return [
        status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_dev, status.st_ino,
    ]  # fmt: skip


def _remembered(
    path: Path, states: Callable[[], list[tuple[str, list[int]]]], hashed: Callable[[], str]
) -> str:
    """Return a hash from the cache, or compute it and store it there.

    A file that changed less than `SETTLED_S` ago can change again without a new date, so that its
    hash is not stored.

    Args:
        path: The file or folder, which has one entry in the cache.
        states: Returns name and state of each file now; the entry counts while these are equal.
        hashed: Computes the hash.
    """
    seen = states()
    state = hashlib.sha256(json.dumps(seen).encode()).hexdigest()
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    note = data_root() / "hashes" / f"{name}.json"
    # Not there, damaged, or in a cache of somebody who lets nobody read.
    with suppress(OSError, ValueError):
        remembered = typed_object(read_json(note), {"state": str, "sha256": str})
        if remembered["state"] == state:
            return str(remembered["sha256"])
    digest = hashed()
    if states() != seen:
        raise BadData(f"{path} changed while it was read; rerun the same command")
    newest = max((state[2] for _, state in seen), default=0)
    if time.time_ns() - newest > SETTLED_S * 1_000_000_000:
        try:
            write_whole(note, json.dumps({"path": str(path), "state": state, "sha256": digest}))
        except OSError as error:
            log.warning("the hash of %s cannot be stored: %s", path, error)
    return digest


def check_file(path: Path, *, size: int, sha256: str) -> None:
    """Raise `BadData` unless the file has this size and hash."""
    actual_size = path.stat().st_size
    if actual_size != size:
        raise BadData(
            f"{path}: {actual_size} bytes, wanted {size}: the file is truncated or another "
            "file; delete it and prepare again"
        )
    digest = remembered_sha256(path)
    if digest != sha256:
        raise BadData(
            f"{path}: SHA-256 {digest}, wanted {sha256}: the file is damaged or another file; "
            "delete it and prepare again, or name it as the task's path to use it unchanged"
        )


def download(
    url: str,
    final: Path,
    *,
    size: int,
    sha256: str,
    instructions: str,
    mirrors: Sequence[str] = (),
) -> Path:
    """Fetch `url` to `final`, resuming what an interrupted call left; check size and hash.

    Args:
        url: Where the file lies.
        final: Where it goes; present means complete.
        size: Its bytes.
        sha256: Its hash, 64 hexadecimal digits.
        instructions: What a person can do instead; ends the message of a failure.
        mirrors: Where the same file lies as well; asked in turn where `url` does not give it.

    Raises:
        NotPrepared: The file cannot be fetched.
        BadData: What came is not the file that was wanted.
    """
    for address, other in zip((url, *mirrors), mirrors, strict=False):
        try:
            return _download(address, final, size=size, sha256=sha256, instructions=instructions)
        except (NotPrepared, BadData) as error:
            if final.is_file():
                raise
            log.warning("%s; trying %s", error, other)
    last = (url, *mirrors)[-1]
    return _download(last, final, size=size, sha256=sha256, instructions=instructions)


def _download(url: str, final: Path, *, size: int, sha256: str, instructions: str) -> Path:
    """Fetch from one address; see `download`."""
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
                ours = isinstance(error, OSError) and not isinstance(error, ssl.SSLError)
                if ours and getattr(error, "errno", None) in STORAGE_ALONE:
                    raise
                if isinstance(error, http.client.IncompleteRead):
                    file.write(error.partial)
                message = _broken_off(url, partial, _length(file), size, error)
                raise NotPrepared(f"{message}; {instructions}") from error
            if (there := _length(file)) < size:
                raise NotPrepared(f"{_broken_off(url, partial, there, size, None)}; {instructions}")
        try:
            check_file(partial, size=size, sha256=sha256)
        except BadData as error:
            partial.unlink()
            raise BadData(
                f"{url} did not deliver the wanted file ({error}); {instructions}"
            ) from None
        partial.replace(final)
    return final


def _broken_off(url: str, partial: Path, there: int, size: int, error: Exception | None) -> str:
    """Return what to say of a download that did not come to its end."""
    reason = "" if error is None else f" ({type(error).__name__}: {error})"
    if not there and isinstance(error, urllib.error.URLError):
        return f"{url} cannot be reached{reason}"
    return (
        f"{url}: the connection ended after {there} of {size} bytes{reason}; rerun the same "
        f"command to resume from {partial}, or"
    )


def _length(file: BinaryIO) -> int:
    file.flush()
    return os.fstat(file.fileno()).st_size


def _fetch(url: str, file: BinaryIO, size: int, name: str, instructions: str) -> None:
    """Append to `file` what is missing of `url`, and not much more.

    Raises:
        BadData: The server offers a file of another size.
    """
    have = _length(file)
    if have >= size:
        return
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
        resumed = answer.status == 206
        if have and not resumed:
            file.truncate(0)
            have = 0
        announced = answer.headers.get("Content-Length", "")
        if announced.isdecimal() and have + int(announced) != size:
            raise BadData(
                f"{url} offers {have + int(announced)} bytes, wanted {size}: the file there has "
                f"changed; {instructions}"
            )
        with tqdm(
            desc=name, total=size, initial=have, unit="B", unit_scale=True, disable=None
        ) as bar:
            while have <= size and (chunk := answer.read(CHUNK_BYTES)):
                file.write(chunk)
                have += len(chunk)
                bar.update(len(chunk))


def open_binary(path: Path) -> BinaryIO:
    """Open a file for reading bytes; `NotPrepared` where it is missing."""
    try:
        return path.open("rb")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotPrepared(f"{path} is missing") from error
