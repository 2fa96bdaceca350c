"""Pathfinder pictures in the layout of the Long Range Arena archive.

    pathfinder32/curv_contour_length_14/imgs/3/sample_7.png     8-bit gray
    pathfinder32/curv_contour_length_14/metadata/3.npy          text: folder, file, number, label, …

Pictures are in the order of the metadata files' numbers and of their lines. Metadata files are
plain text, in spite of their ending. Pictures of 0 bytes are skipped; the archive has one.
"""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError

from lra.tasks.data import arena
from lra.tasks.data.bars import tqdm
from lra.tasks.data.published_data import check_whole
from lra.tasks.errors import BadData, NotPrepared

log = logging.getLogger(__name__)

SETS = {6: "curv_baseline", 9: "curv_contour_length_9", 14: "curv_contour_length_14"}
"""Folder of the archive for each number of dashes of a long snake."""
LABEL_COLUMN = 3
PUBLISHED = 200_000
"""Number of pictures in a set, including empty ones."""
EMPTY = 1
"""Most pictures of 0 bytes in a published set."""
LICENCE = "no licence is stated; please cite Linsley et al. 2018 and arXiv:2011.04006"


class ListedPicture(NamedTuple):
    """One picture of a set: its file, its label, and its name in the released code."""

    file: Path
    label: int
    key: str
    """Name in the released code: folder, file, and line in the metadata, from 1."""
    empty: bool
    """Whether the file has 0 bytes."""


def holds_pictures(folder: Path) -> bool:
    """Return whether `folder` is a set of pictures."""
    return (folder / "metadata").is_dir()


def entries(folder: Path, *, partial: bool) -> list[ListedPicture]:
    """Return the pictures that the metadata of a set list, in order, including empty ones.

    Args:
        folder: The set, for example pathfinder32/curv_contour_length_14.
        partial: Whether the user says that this is a part of a set.

    Raises:
        NotPrepared: The folder has no metadata, or a picture is missing.
        BadData: A line of metadata cannot be read, or the number of pictures, or of empty ones, is
            not the published one.
    """
    lists = sorted(
        (path for path in (folder / "metadata").glob("*.npy") if path.stem.isdigit()),
        key=lambda path: int(path.stem),
    )
    if not lists:
        raise NotPrepared(
            f"{folder / 'metadata'} has no files 0.npy, 1.npy …; set task.path to a set of "
            "pictures such as pathfinder32/curv_contour_length_14, with the folders imgs and "
            f"metadata, or to the unpacked archive, from {arena.ABOUT}; or set "
            f"task.source=generated; {LICENCE}"
        )
    listed: list[ListedPicture] = []
    for path in lists:
        lines = enumerate(path.read_text(errors="replace").splitlines(), 1)
        listed += [
            _listed_picture(folder, line, number, path) for number, line in lines if line.strip()
        ]
    empty = [entry.file for entry in listed if entry.empty]
    if empty:
        log.warning("lra skips %d empty pictures, for example %s", len(empty), empty[0])
    if len(empty) == len(listed):
        raise BadData(f"{folder}: all pictures are empty files; fetch the archive again")
    if len(empty) > EMPTY and not partial:
        raise BadData(
            f"{folder}: {len(empty):,} pictures are empty files, for example {empty[0]}, but only "
            f"{EMPTY} of the published ones is; unpack the archive again, or, to use a part of it, "
            "set task.partial=true, which marks every row"
        )
    numbers, wanted = {"metadata": len(listed)}, {"metadata": PUBLISHED}
    check_whole(numbers, wanted, where=str(folder), of="pictures", partial=partial)
    return listed


def _listed_picture(folder: Path, line: str, number: int, path: Path) -> ListedPicture:
    """Return the picture of a line of the metadata file `path`, with this line number."""
    where, columns = f"{path}, line {number}", line.split()
    if len(columns) <= LABEL_COLUMN or columns[LABEL_COLUMN] not in {"0", "1", "0.0", "1.0"}:
        raise BadData(
            f"{where}: the line is {line[:60]!r}; wanted folder, file, number, label (0 or 1), …; "
            "the file is damaged or of another version"
        )
    file = folder / columns[0] / columns[1]
    if not file.resolve().is_relative_to(folder.resolve()):
        raise BadData(
            f"{where}: {columns[0]}/{columns[1]} is outside {folder}; lra does not read this file"
        )
    if not file.is_file():
        raise NotPrepared(f"{file} is missing, although {where} lists it; unpack the archive again")
    return ListedPicture(
        file=file,
        label=int(float(columns[LABEL_COLUMN])),
        key=f"{columns[0]}_{columns[1]}_{number}",
        empty=not file.stat().st_size,
    )


UNREADABLE = (
    UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError,
)  # fmt: skip
"""Errors of Pillow for a damaged picture."""


def pictures(listed: list[ListedPicture], side: int) -> Iterator[UInt8[np.ndarray, "s s"]]:
    """Yield the gray levels of each listed picture, which must have `side` x `side` pixels.

    Raises:
        BadData: A picture is damaged or has another size.
    """
    for entry in tqdm(listed, desc="pictures", unit="file", disable=None):
        try:
            with Image.open(entry.file) as opened:
                if opened.size != (side, side):  # check the size before decompressing
                    width, height = opened.size
                    raise BadData(
                        f"{entry.file}: the picture has {width:,} x {height:,} pixels; wanted "
                        f"{side} x {side}; set task.side to the size of these pictures"
                    )
                levels = np.asarray(opened.convert("L"))
        except BadData:
            raise
        except UNREADABLE as error:
            raise BadData(f"lra cannot read {entry.file} as a picture: {error}") from error
        yield levels
