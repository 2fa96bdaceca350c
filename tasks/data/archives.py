"""Readers of compressed files as streams, which explain damage and refuse "zip bombs".

The readers distrust the size that a file states. They count bytes while they unpack, and compare
them with the limits below, so that no file can fill memory or disk.
"""

import bz2
import errno
import lzma
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import BufferedIOBase, BufferedReader, RawIOBase
from pathlib import Path, PurePosixPath
from typing import IO, Any, BinaryIO, NamedTuple, NoReturn

from lra.conf.short_values import short_repr
from lra.tasks.data.sources import CHUNK_BYTES
from lra.tasks.errors import BadData

LARGEST_RATIO = 200
"""Largest ratio of unpacked to packed bytes. Text has 5 to 20; pairs of papers, which repeat
texts, have 76."""
MOST_MEMBERS = 1_000_000
"""Most members of an archive; that of IMDb has 100,000."""
LONGEST_HEADER = 1 << 14
"""Most bytes of a long name, or of other facts about a member of a tar."""
UNPACKING_BYTES = 1 << 28
"""Most bytes of memory for unpacking an .xz; its strongest setting needs 65 MiB."""
PIECE_BYTES = 4096
"""Packed bytes of a zip that LZMA unpacks at a time, because Python does not limit the result."""
ARCHIVE_ERRORS: tuple[type[Exception], ...] = (
    tarfile.TarError, zipfile.BadZipFile, EOFError, lzma.LZMAError, zlib.error, struct.error,
    ValueError, IndexError, KeyError, OverflowError, NotImplementedError, RuntimeError, MemoryError,
)  # fmt: skip
"""Errors of the standard library for a damaged archive, together with OSError without errno."""
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA)
FETCH = "the archive is truncated, damaged or of an unknown kind; fetch it again"


@contextmanager
def damage_explained(path: Path) -> Iterator[None]:
    """Raise `BadData` for every error that a damaged archive causes in the standard library."""
    try:
        yield
    except BadData:
        raise
    except OSError as error:
        # EINVAL: a damaged archive names a position before its beginning. Others are system faults.
        if error.errno not in (None, errno.EINVAL):
            raise
        raise _damaged(path, error) from error
    except ARCHIVE_ERRORS as error:
        raise _damaged(path, error) from error


def _damaged(archive: Path, error: BaseException) -> BadData:
    """Return the error for an archive that the standard library cannot read."""
    return BadData(
        f"lra cannot read {archive} ({type(error).__name__}: {error}): {FETCH}; lra reads .zip, "
        "and .tar, also compressed as .gz, .xz or .bz2"
    )


class Budget:
    """Counts the unpacked bytes of a compressed file, up to a limit.

    Args:
        path: The compressed file.
        most: Most bytes that the reader needs; None: only `LARGEST_RATIO` limits them.
    """

    def __init__(self, path: Path, most: int | None = None) -> None:
        self.path, self.spent = path, 0
        self.packed = path.stat().st_size
        self.limit = LARGEST_RATIO * self.packed + CHUNK_BYTES  # a tiny file may exceed the ratio
        self.refusal = (
            f"the unpacked file would have more than {LARGEST_RATIO} times its {self.packed:,} "
            "bytes, but no data set compresses so well"
        )
        if most is not None and most < self.limit:
            self.limit = most
            self.refusal = f"the unpacked file would have more than the allowed {most:,} bytes"

    def spend(self, number: int) -> None:
        """Count `number` further bytes; raise BadData if the total exceeds the limit.

        A damaged file can state a negative number, which is refused, too.
        """
        self.spent += number
        if self.spent > self.limit or number < 0:
            raise BadData(f"{self.path}: {self.refusal}; fetch the file again from its publisher")


# --- one stream ----------------------------------------------------------------------------------


class _Gunzip:
    """A decompressor of gzip with the interface of those of `bz2` and `lzma`."""

    def __init__(self) -> None:
        self.inner = zlib.decompressobj(wbits=31)  # 15 for the largest window, 16 for gzip

    def decompress(self, data: bytes, most: int) -> bytes:
        """Return up to `most` bytes; packed bytes that earlier calls left over come first."""
        return self.inner.decompress(self.inner.unconsumed_tail + data, most)

    @property
    def eof(self) -> bool:
        return self.inner.eof

    @property
    def needs_input(self) -> bool:
        return not self.inner.unconsumed_tail

    @property
    def unused_data(self) -> bytes:
        return self.inner.unused_data


class _Packing(NamedTuple):
    """A kind of compression; `decoder` makes a decompressor of one stream."""

    name: str
    magic: bytes
    """First bytes of such a file."""
    decoder: Callable[[], Any]


PACKINGS: Mapping[str, _Packing] = {
    ".gz": _Packing("gzip", b"\x1f\x8b", _Gunzip),
    ".xz": _Packing(
        "xz", b"\xfd7zXZ\0", lambda: lzma.LZMADecompressor(lzma.FORMAT_AUTO, UNPACKING_BYTES)
    ),
    ".bz2": _Packing("bzip2", b"BZh", bz2.BZ2Decompressor),
}
PACKED = ("", *PACKINGS)
"""Endings of files that `open_packed` reads."""


class _Unpacked(RawIOBase):
    """The unpacked content of a file that consists of one or more compressed streams."""

    def __init__(self, path: Path, packing: _Packing, budget: Budget) -> None:
        super().__init__()
        self.path, self.packing, self.budget = path, packing, budget
        self.file = path.open("rb")
        # `waiting` are packed bytes of the next stream; `broken` is set when damage is found.
        self.decoder, self.waiting, self.broken = packing.decoder(), b"", False

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        """Fill `buffer` with unpacked bytes; return their number, 0 at the end."""
        data = self._read_some(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _read_some(self, most: int) -> bytes:
        """Return between 1 and `most` unpacked bytes, or none at the end of the file."""
        while True:
            if self.decoder.eof and not self._start_next_stream():
                return b""
            packed, self.waiting = self.waiting, b""
            if not packed and self.decoder.needs_input:
                packed = self.file.read(CHUNK_BYTES)
            try:
                data: bytes = self.decoder.decompress(packed, max(1, most))
            except (OSError, ValueError, EOFError, lzma.LZMAError, zlib.error) as error:
                raise self._damage(f"{type(error).__name__}: {error}") from error
            except MemoryError as error:
                raise self._damage("unpacking needs more memory than is free") from error
            if data:
                self.budget.spend(len(data))
                return data
            if not packed and not self.decoder.eof and self.decoder.needs_input:
                raise self._damage("the file ends too early")

    def _start_next_stream(self) -> bool:
        """Start the next compressed stream of the file; return False at the end of the file."""
        rest = self.decoder.unused_data or self.file.read(CHUNK_BYTES)
        while rest and not rest.strip(b"\0"):  # padding
            rest = self.file.read(CHUNK_BYTES)
        self.waiting = rest.lstrip(b"\0")
        if self.waiting:
            self.decoder = self.packing.decoder()
        return bool(self.waiting)

    def _damage(self, fault: str) -> BadData:
        """Return the error for a damaged stream, with the position of the damage."""
        self.broken = True
        return BadData(
            f"{self.path}: the {self.packing.name} stream is damaged within the first "
            f"{self.file.tell():,} of {self.budget.packed:,} packed bytes, after "
            f"{self.budget.spent:,} unpacked bytes ({fault}); {FETCH}"
        )


class _Stream(BufferedReader):
    """Unpacked bytes. If the content is wrong because the packed file is damaged, it says so.

    A changed byte first gives wrong content, and only at the end a wrong checksum. So after a
    ValueError, the rest of the stream is read, and a wrong checksum is raised instead of it.
    """

    raw: _Unpacked

    def __exit__(self, kind: Any, fault: Any, trace: Any) -> None:
        """Close the stream; after a ValueError, first read the rest to compare the checksum."""
        try:
            while isinstance(fault, ValueError) and not self.raw.broken and self.read(CHUNK_BYTES):
                pass
        finally:
            self.close()


def open_packed(path: Path, most: int | None = None) -> BufferedReader:
    """Open a file for reading bytes; unpack .gz, .xz and .bz2 while reading.

    Args:
        path: The file; its ending names the compression.
        most: Most bytes that the reader needs; None: only the limit of `Budget` applies.

    Raises:
        BadData: While reading: the file is damaged, or has more bytes than allowed.
    """
    if (ending := path.suffix.lower()) in PACKINGS:
        return _stream(path, PACKINGS[ending], Budget(path, most))
    if most is not None and (size := path.stat().st_size) > most:
        raise BadData(
            f"{path} has {size:,} bytes, more than the allowed {most:,}; check whether this is the "
            "right file"
        )
    return path.open("rb")


def _stream(path: Path, packing: _Packing, budget: Budget) -> BufferedReader:
    return _Stream(_Unpacked(path, packing, budget), CHUNK_BYTES)


# --- tar -----------------------------------------------------------------------------------------


class _Header(tarfile.TarInfo):
    """A header of a tar; a missing, damaged or very long header raises an error.

    Without this class, `tarfile` would treat a missing or damaged header as the end of the archive.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        """Return the header in a block of the archive."""
        if len(buf) != tarfile.BLOCKSIZE:
            raise tarfile.ReadError("the file ends before the end mark of the archive")
        if not any(buf):  # the end mark
            return super().frombuf(buf, encoding, errors)
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from error
        if header.size < 0 or (header.type in EXTENDED and header.size > LONGEST_HEADER):
            raise tarfile.ReadError(f"a header states a size of {header.size:,} bytes")
        return header

    def _refuse_sparse(self, *_: Any) -> NoReturn:
        raise tarfile.ReadError("the archive has a sparse file: pack it without --sparse")

    # `tarfile` does not limit the maps of sparse files, nor the zeros that they stand for.
    _proc_sparse = _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _refuse_sparse


EXTENDED = frozenset(
    (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME,
     tarfile.GNUTYPE_LONGLINK)
)  # fmt: skip


def _walk_tar(archive: Path, budget: Budget) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    """Yield the members of a tar in order, each file with its content; check the whole archive."""
    with archive.open("rb") as file:
        start = file.read(6)  # as many bytes as the longest `magic`
    packing = next((p for p in PACKINGS.values() if start.startswith(p.magic)), None)
    opened = archive.open("rb") if packing is None else _stream(archive, packing, budget)
    longest = budget.packed if packing is None else budget.limit  # most bytes of a member
    with opened, tarfile.open(fileobj=opened, mode="r|", tarinfo=_Header) as tar:
        number = 0
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # free the memory of earlier members
            number += 1
            if number > MOST_MEMBERS:
                raise BadData(f"{archive} has more than {MOST_MEMBERS:,} members, the most allowed")
            if not 0 <= member.size <= longest:  # check before reading to the end of the member
                budget.spend(member.size)
                raise BadData(
                    f"{archive}: the member {short_repr(member.name)} is larger than the whole "
                    f"archive; {FETCH}"
                )
            yield member, tar.extractfile(member) if member.isreg() else None
        rest: BinaryIO = tar.fileobj  # type: ignore[assignment]
        while chunk := rest.read(CHUNK_BYTES):  # the last read compares the checksum
            if any(chunk):
                raise BadData(f"{archive}: there are bytes after the end of the archive; {FETCH}")


def tar_members(
    archive: Path, wanted: Callable[[PurePosixPath], bool], *, most: int
) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield name and content of the wanted files of a tar, compressed or not, in order.

    Args:
        archive: The tar.
        wanted: Returns whether a file of this name is wanted.
        most: Most bytes of all wanted files together.

    Raises:
        BadData: The archive is damaged at any place, or unpacks to too many bytes.
    """
    # This function reads the contents, so that `damage_explained` covers errors of reading.
    budget = Budget(archive, most)
    with damage_explained(archive):
        for member, file in _walk_tar(archive, Budget(archive)):
            path = PurePosixPath(member.name)
            if file is not None and wanted(path):
                budget.spend(member.size)
                yield path, file.read()


# --- zip -----------------------------------------------------------------------------------------


class _Member(RawIOBase):
    """A file of a zip, which is read at most `at_once` bytes at a time."""

    def __init__(self, file: BufferedIOBase | IO[bytes], at_once: int) -> None:
        super().__init__()
        self.file, self.at_once = file, at_once

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.file.read(min(len(buffer), self.at_once))
        buffer[: len(data)] = data
        return len(data)


@contextmanager
def opened_zip(archive: Path, most: int | None = None) -> Iterator[zipfile.ZipFile]:
    """Open a zip, after checking that its members state no more than `most` bytes together.

    `open_member` reads no more of a member than it states.

    Raises:
        BadData: The zip is damaged, encrypted, too large, or uses another compression.
    """
    with damage_explained(archive), zipfile.ZipFile(archive) as packed:
        members, budget = packed.infolist(), Budget(archive, most)
        if len(members) > MOST_MEMBERS:
            raise BadData(f"{archive} has more than {MOST_MEMBERS:,} members, the most allowed")
        for member in members:
            budget.spend(member.file_size)
            if member.compress_type not in METHODS or member.flag_bits & 1:
                raise BadData(
                    f"{archive}: {short_repr(member.filename)} is encrypted, or compressed by "
                    f"method {member.compress_type}; make the archive again, without a password, "
                    "by deflate, LZMA or no compression"
                )
        yield packed


@contextmanager
def open_member(packed: zipfile.ZipFile, name: str) -> Iterator[BufferedIOBase]:
    """Open a member of a zip for reading bytes."""
    member = packed.getinfo(name)
    at_once = PIECE_BYTES if member.compress_type == zipfile.ZIP_LZMA else CHUNK_BYTES
    with packed.open(member) as file, BufferedReader(_Member(file, at_once), CHUNK_BYTES) as opened:
        yield opened
