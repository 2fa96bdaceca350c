"""Reads packed files as streams; explains damage, and refuses files made to fill the disk.

The size that a file gives for itself is never trusted. Bytes are counted as they are unpacked and
compared with the bounds below, so that memory and disk stay bounded whatever was packed.
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
"""Of unpacked to packed bytes; text shrinks to a fifth or a twentieth, pairs of papers, in which
each text recurs, to a seventy-sixth."""
MOST_MEMBERS = 1_000_000
"""Of one archive; that of IMDb has 100,000."""
LONGEST_HEADER = 1 << 14
"""Bytes of a long name or of other facts about a member of a tar."""
UNPACKING_BYTES = 1 << 28
"""Memory that an .xz may ask for; its strongest setting takes 65 MiB."""
PIECE_BYTES = 4096
"""Packed bytes that LZMA in a zip is given at once: Python sets no bound to what they become."""
ARCHIVE_ERRORS: tuple[type[Exception], ...] = (
    tarfile.TarError, zipfile.BadZipFile, EOFError, lzma.LZMAError, zlib.error, struct.error,
    ValueError, IndexError, KeyError, OverflowError, NotImplementedError, RuntimeError, MemoryError,
)  # fmt: skip
"""What the standard library raises on a damaged archive, besides an OSError without errno."""
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA)
FETCH = "the archive is truncated, damaged or of an unknown kind: fetch it again"


@contextmanager
def damage_explained(path: Path) -> Iterator[None]:
    """Turn what the standard library raises on a damaged archive into `BadData`."""
    try:
        yield
    except BadData:
        raise
    except OSError as error:
        # Else the machine's fault. An archive may ask for a position before its own beginning.
        if error.errno not in (None, errno.EINVAL):
            raise
        raise _damaged(path, error) from error
    except ARCHIVE_ERRORS as error:
        raise _damaged(path, error) from error


def _damaged(archive: Path, error: BaseException) -> BadData:
    return BadData(
        f"{archive}: {type(error).__name__}: {error}; {FETCH} (wanted .tar, packed as .gz, .xz or "
        ".bz2 or not, or .zip)"
    )


class Budget:
    """How many bytes may come out of a packed file.

    Args:
        path: The packed file.
        most: Bytes that its reader needs at most; None: only the packed size is a limit.
    """

    def __init__(self, path: Path, most: int | None = None) -> None:
        self.path, self.spent = path, 0
        self.packed = path.stat().st_size
        self.limit = LARGEST_RATIO * self.packed + CHUNK_BYTES
        self.refusal = (
            f"unpacking would give more than {LARGEST_RATIO} times its {self.packed:,} bytes; "
            "refused, because data sets do not compress so well"
        )
        if most is not None and most < self.limit:
            self.limit = most
            self.refusal = f"unpacking would give more than {most:,} bytes, wanted fewer"

    def spend(self, number: int) -> None:
        """Count `number` unpacked bytes; raise BadData if they are too many in all."""
        self.spent += number
        if self.spent > self.limit or number < 0:
            raise BadData(f"{self.path}: {self.refusal}; fetch it again from its publisher")


# --- one stream ----------------------------------------------------------------------------------


class _Gunzip:
    """A decompressor of gzip with the interface of those of `bz2` and `lzma`."""

    def __init__(self) -> None:
        self.inner = zlib.decompressobj(wbits=31)

    def decompress(self, data: bytes, most: int) -> bytes:
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
    name: str
    magic: bytes
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
    """The unpacked content of a file that holds one packed stream, or several in a row."""

    def __init__(self, path: Path, packing: _Packing, budget: Budget) -> None:
        super().__init__()
        self.path, self.packing, self.budget = path, packing, budget
        self.file = path.open("rb")
        self.decoder, self.waiting, self.broken = packing.decoder(), b"", False

    def readable(self) -> bool:
        return True

    def close(self) -> None:
        self.file.close()
        super().close()

    def readinto(self, buffer: Any) -> int:
        data = self._some(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _some(self, most: int) -> bytes:
        """Return at most so many bytes; none at the end."""
        while True:
            if self.decoder.eof and not self._another():
                return b""
            given, self.waiting = self.waiting, b""
            if not given and self.decoder.needs_input:
                given = self.file.read(CHUNK_BYTES)
            try:
                data: bytes = self.decoder.decompress(given, max(1, most))
            except (OSError, ValueError, EOFError, lzma.LZMAError, zlib.error) as error:
                raise self._broken(f"{type(error).__name__}: {error}") from error
            except MemoryError as error:
                raise self._broken("it needs more memory than this machine has") from error
            if data:
                self.budget.spend(len(data))
                return data
            if not given and not self.decoder.eof and self.decoder.needs_input:
                raise self._broken("cut off")

    def _another(self) -> bool:
        """Begin the next stream of several; False where there is none."""
        rest = self.decoder.unused_data or self.file.read(CHUNK_BYTES)
        while rest and not rest.strip(b"\0"):  # padding
            rest = self.file.read(CHUNK_BYTES)
        self.waiting = rest.lstrip(b"\0")
        if self.waiting:
            self.decoder = self.packing.decoder()
        return bool(self.waiting)

    def _broken(self, fault: str) -> BadData:
        self.broken = True
        return BadData(
            f"{self.path}: the {self.packing.name} stream breaks within the first "
            f"{self.file.tell():,} of {self.budget.packed:,} packed bytes, "
            f"{self.budget.spent:,} bytes unpacked: {fault}; {FETCH}"
        )


class _Stream(BufferedReader):
    """Unpacked bytes. If the reader refuses the content, damage of the packed file is reported.

    A changed byte shows as strange content first, and as a wrong checksum at the end. So the rest
    of the stream is read after a ValueError, and a wrong checksum there is raised in its place.
    """

    raw: _Unpacked

    def __exit__(self, kind: Any, fault: Any, trace: Any) -> None:
        try:
            while isinstance(fault, ValueError) and not self.raw.broken and self.read(CHUNK_BYTES):
                pass
        finally:
            self.close()


def open_packed(path: Path, most: int | None = None) -> BufferedReader:
    """Open a file for reading bytes, unpacking .gz, .xz and .bz2 on the way.

    Args:
        path: The file; its name says how it is packed.
        most: Bytes that the reader needs at most; None: no limit but that of `Budget`.

    Raises:
        BadData: From its reads: the file is damaged, or more comes out of it than should.
    """
    if (ending := path.suffix.lower()) in PACKINGS:
        return _stream(path, PACKINGS[ending], Budget(path, most))
    if most is not None and (size := path.stat().st_size) > most:
        raise BadData(f"{path} has {size:,} bytes, wanted at most {most:,}: is this another file?")
    return path.open("rb")


def _stream(path: Path, packing: _Packing, budget: Budget) -> BufferedReader:
    return _Stream(_Unpacked(path, packing, budget), CHUNK_BYTES)


# --- tar -----------------------------------------------------------------------------------------


class _Header(tarfile.TarInfo):
    """A header of a tar, which may not be lacking, broken or very long.

    `tarfile` takes a file that breaks off between two members, or goes on with a broken header, for
    one that ends there.
    """

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> "_Header":
        if len(buf) != tarfile.BLOCKSIZE:
            raise tarfile.ReadError("it ends before its end mark")
        if not any(buf):  # the mark
            return super().frombuf(buf, encoding, errors)
        try:
            header = super().frombuf(buf, encoding, errors)
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(str(error)) from error
        if header.size < 0 or (header.type in EXTENDED and header.size > LONGEST_HEADER):
            raise tarfile.ReadError(f"a header of {header.size:,} bytes")
        return header

    def _no_holes(self, *_: Any) -> NoReturn:
        raise tarfile.ReadError("a sparse file: pack it without --sparse")

    # Their maps are read without bounds; zeros out of nothing would be, too.
    _proc_sparse = _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _no_holes


EXTENDED = frozenset(
    (tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.GNUTYPE_LONGNAME,
     tarfile.GNUTYPE_LONGLINK)
)  # fmt: skip


def _walk_tar(archive: Path, budget: Budget) -> Iterator[tuple[tarfile.TarInfo, IO[bytes] | None]]:
    """Yield the members of a tar, files with their content, in its order and to its very end."""
    with archive.open("rb") as file:
        start = file.read(6)
    packing = next((p for p in PACKINGS.values() if start.startswith(p.magic)), None)
    opened = archive.open("rb") if packing is None else _stream(archive, packing, budget)
    longest = budget.packed if packing is None else budget.limit
    with opened, tarfile.open(fileobj=opened, mode="r|", tarinfo=_Header) as tar:
        number = 0
        while (member := tar.next()) is not None:
            tar.members = []  # type: ignore[attr-defined]  # else all are remembered
            number += 1
            if number > MOST_MEMBERS:
                raise BadData(f"{archive} has more than {MOST_MEMBERS:,} members; refused")
            if not 0 <= member.size <= longest:  # before anything seeks its end
                budget.spend(member.size)
                raise BadData(
                    f"{archive}: {short_repr(member.name)} is larger than the whole archive; "
                    f"{FETCH}"
                )
            yield member, tar.extractfile(member) if member.isreg() else None
        rest: BinaryIO = tar.fileobj  # type: ignore[assignment]
        while chunk := rest.read(CHUNK_BYTES):  # there, a checksum is compared
            if any(chunk):
                raise BadData(f"{archive}: there are bytes after the end of the archive; {FETCH}")


def tar_members(
    archive: Path, wanted: Callable[[PurePosixPath], bool], *, most: int
) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Yield name and content of the wanted files of a tar, packed or not, in its order.

    Args:
        archive: The tar.
        wanted: Says which files.
        most: Bytes of all their contents.

    Raises:
        BadData: The archive is damaged, anywhere up to its last byte, or a bomb.
    """
    # Contents are read here: what a caller reads is outside the reach of this explanation.
    budget = Budget(archive, most)
    with damage_explained(archive):
        for member, file in _walk_tar(archive, Budget(archive)):
            path = PurePosixPath(member.name)
            if file is not None and wanted(path):
                budget.spend(member.size)
                yield path, file.read()


# --- zip -----------------------------------------------------------------------------------------


class _Member(RawIOBase):
    """A file of a zip."""

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
    """Open a zip whose members are, by what it says of them, no more than they should be.

    What it says is no less than what `open_member` reads.

    Raises:
        BadData: It is damaged, encrypted, a bomb or packed in another way.
    """
    with damage_explained(archive), zipfile.ZipFile(archive) as packed:
        members, budget = packed.infolist(), Budget(archive, most)
        if len(members) > MOST_MEMBERS:
            raise BadData(f"{archive} has more than {MOST_MEMBERS:,} members; refused")
        for member in members:
            budget.spend(member.file_size)
            if member.compress_type not in METHODS or member.flag_bits & 1:
                raise BadData(
                    f"{archive}: {short_repr(member.filename)} is encrypted or packed with "
                    f"method {member.compress_type}, wanted deflate, LZMA or none: pack it again"
                )
        yield packed


@contextmanager
def open_member(packed: zipfile.ZipFile, name: str) -> Iterator[BufferedIOBase]:
    """Open a member of a zip for reading bytes."""
    member = packed.getinfo(name)
    at_once = PIECE_BYTES if member.compress_type == zipfile.ZIP_LZMA else CHUNK_BYTES
    with packed.open(member) as file, BufferedReader(_Member(file, at_once), CHUNK_BYTES) as opened:
        yield opened
