"""Archives of arrays: per-example outcomes, and checks of checkpoints. Torch-free."""

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from lra.conf.plain_files import no_file
from lra.conf.system_errors import is_fault, is_file, persistent
from lra.runners.records import Outcomes
from lra.runners.storage.formats import DamagedFile, read_bytes, unreadable


def pack_outcomes(outcomes: Sequence[Outcomes]) -> bytes:
    """Return the content of an npz file: hits as packed bits or fractions, nll as float32.

    Raises:
        ValueError: Arrays are not in ascending order of index, or their lengths differ.
    """
    import numpy as np

    arrays: dict[str, Any] = {}
    for outcome in outcomes:
        index = np.asarray(outcome.index, dtype=np.int64)
        hit = np.asarray(outcome.hit)
        nll = np.asarray(outcome.nll, dtype=np.float32)
        if f"{outcome.split}.index" in arrays:
            raise ValueError(
                f"outcomes of split {outcome.split!r} were passed twice; pass them once"
            )
        if not index.shape == hit.shape == nll.shape or index.ndim != 1:
            raise ValueError(
                f"outcomes of split {outcome.split!r} must be three vectors of equal length: got "
                f"index of shape {index.shape}, hit {hit.shape}, nll {nll.shape}"
            )
        if (np.diff(index) <= 0).any():
            raise ValueError(
                f"outcomes of split {outcome.split!r} must be in ascending order of index"
            )
        arrays[f"{outcome.split}.index"] = index
        if hit.dtype == bool:
            arrays[f"{outcome.split}.hit"] = np.packbits(hit)
        else:
            arrays[f"{outcome.split}.share"] = hit.astype(np.float32)
        arrays[f"{outcome.split}.nll"] = nll
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def unpack_outcomes(path: Path) -> list[Outcomes]:
    """Return the outcomes in a file of `pack_outcomes`, by split name. Raises `BadStore`."""
    import numpy as np

    data = read_bytes(path)
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as archive:
            return list(_unpack(archive))
    except TORN as error:
        raise DamagedFile(
            f"{path}: this file is incomplete or of another kind ({error}); move it and the rows "
            "file next to it away, then rerun the sweep"
        ) from error


TORN = (
    zipfile.BadZipFile, zlib.error, LookupError, ValueError, TypeError, AttributeError, EOFError,
    OSError, RuntimeError, MemoryError, ArithmeticError, SyntaxError, struct.error,
)  # fmt: skip
"""Errors of numpy and zipfile for a file that is no valid archive."""


def _unpack(arrays: Any) -> Iterator[Outcomes]:
    """Yield the outcomes of each split in an opened npz file. Raises ValueError if invalid."""
    import numpy as np

    for split in sorted(name.removesuffix(".index") for name in arrays if ".index" in name):
        index, nll = arrays[f"{split}.index"], arrays[f"{split}.nll"]
        if f"{split}.share" in arrays:
            hit = arrays[f"{split}.share"]
        else:
            hit = np.unpackbits(arrays[f"{split}.hit"], count=len(index)).astype(bool)
        if not index.shape == hit.shape == nll.shape or index.ndim != 1:
            raise ValueError(f"outcomes of split {split!r} are not three vectors of equal length")
        if index.dtype != np.int64 or nll.dtype != np.float32 or (np.diff(index) <= 0).any():
            raise ValueError(
                f"outcomes of split {split!r} need an ascending int64 index and a float32 nll"
            )
        yield Outcomes(split=split, index=index, hit=hit, nll=nll)


def check_archive(path: Path) -> None:
    """Compare the parts of a checkpoint with their checksums. Raises `BadStore`.

    `torch.load` does not check them. This function does not import torch.
    """
    try:
        if not is_file(path):
            raise DamagedFile(f"{path}: {no_file(path)}")
        persistent(check_parts, path, path)
    except OSError as error:
        raise unreadable(path, error) from error


def check_parts(archive: Path | BinaryIO, path: Path) -> None:
    """Compare the parts of an archive with their checksums.

    Args:
        archive: the path of the file, or the opened file.
        path: the path for messages.

    Raises:
        DamagedFile: the file is no archive, or a part has changed.
        OSError: the system could not read the file.
    """
    try:
        with zipfile.ZipFile(archive) as opened:
            part = opened.testzip()
    except TORN as error:
        if is_fault(error):
            raise
        raise DamagedFile(
            f"{path}: this file is incomplete or of another kind ({error}); move it away"
        ) from error
    if part is not None:
        raise DamagedFile(f"{path}: {part} in this file has a wrong checksum; move the file away")
