"""Packed files: read in place or unpacked, with damage explained and mischief refused."""

import bz2
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path, PurePosixPath
from typing import Any

from tasks.errors import BadData
from tasks.sources import CHUNK_BYTES, lock, placing

LARGEST_RATIO = 200
"""Of unpacked to packed bytes; text shrinks to a fifth or a twentieth."""
ARCHIVE_ERRORS: tuple[type[Exception], ...] = (
    tarfile.TarError,
    zipfile.BadZipFile,
    EOFError,
    lzma.LZMAError,
    zlib.error,
)
"""What the standard library raises on a damaged archive, besides an OSError without errno."""
OPENERS: dict[str, Any] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
PACKED = ("", *OPENERS)
"""Endings of files that `open_packed` reads."""


@contextmanager
def damage_explained(path: Path, also: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Turn what the standard library raises on a damaged archive into `BadData`.

    Args:
        path: The archive that is read inside.
        also: Further errors that can only mean damage here.
    """
    try:
        yield
    except OSError as error:
        if error.errno is not None:  # the machine's fault, not the archive's
            raise
        raise _damaged(path, error) from error
    except (*ARCHIVE_ERRORS, *also) as error:
        raise _damaged(path, error) from error


def _damaged(archive: Path, error: BaseException) -> BadData:
    return BadData(
        f"{archive}: {type(error).__name__}: {error}; the archive is truncated, damaged or of an "
        "unknown kind (wanted .tar.gz, .tar.xz or .zip): fetch it again"
    )


def open_packed(path: Path) -> BufferedIOBase:
    """Open a file for reading bytes, line by line too, unpacking .gz, .xz and .bz2 on the way."""
    opened: BufferedIOBase = OPENERS.get(path.suffix, Path.open)(path, "rb")
    return opened


def tar_members(
    archive: Path, wanted: Callable[[PurePosixPath], bool]
) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield name and content of the wanted files of a tar, packed or not, in its order.

    Raises:
        BadData: The archive is damaged, anywhere up to its last byte.
    """
    # Contents are read here: what a caller reads is outside the reach of this explanation.
    with damage_explained(archive), tarfile.open(archive, "r:*") as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            file = tar.extractfile(member) if member.isfile() and wanted(path) else None
            if file is not None:
                yield path, file.read()
        _read_to_end(tar)


def _read_to_end(tar: tarfile.TarFile) -> None:
    """Read what is left behind the last member: only there the checksum is compared."""
    while tar.fileobj is not None and tar.fileobj.read(CHUNK_BYTES):
        pass


def extract(archive: Path, final: Path) -> Path:
    """Unpack a .tar.gz, .tar.xz, .tar or .zip so that it appears at `final` whole or not at all.

    Members that would land outside, links that point outside, device files and archives that swell
    beyond all measure are refused.

    Raises:
        BadData: The archive is damaged, of no known kind, or holds a member that is refused.
    """
    with lock(f"extract-{final.name}"):
        if final.is_dir():
            return final
        with placing(final) as folder, damage_explained(archive):
            if zipfile.is_zipfile(archive):
                _extract_zip(archive, folder)
            else:
                _extract_tar(archive, folder)
    return final


def _extract_tar(archive: Path, folder: Path) -> None:
    total = 0

    def counted(member: tarfile.TarInfo, path: str) -> tarfile.TarInfo | None:
        nonlocal total
        total += member.size
        _refuse_bomb(archive, total)
        kept = tarfile.data_filter(member, path)
        # Its modes may keep others out of a shared cache; None leaves them to the umask (PEP 706).
        return kept.replace(mode=None, deep=False)  # type: ignore[arg-type]

    with tarfile.open(archive, "r:*") as tar:
        tar.extractall(str(folder), filter=counted)
        _read_to_end(tar)


def _extract_zip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as packed:
        total = 0
        for member in packed.infolist():
            total += member.file_size
            _refuse_bomb(archive, total)
            target = (folder / member.filename).resolve()
            if not target.is_relative_to(folder.resolve()):
                raise BadData(f"{archive}: member {member.filename!r} would land outside; refused")
        packed.extractall(folder)


def _refuse_bomb(archive: Path, total: int) -> None:
    """Raise `BadData` where the unpacked bytes are out of all proportion to the packed ones."""
    packed = archive.stat().st_size
    if total > LARGEST_RATIO * packed + CHUNK_BYTES:
        raise BadData(
            f"{archive}: more than {LARGEST_RATIO} times its {packed:,} bytes would be unpacked; "
            "refused: data sets do not shrink so much; fetch it again from its publisher"
        )
