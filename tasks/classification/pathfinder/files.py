"""Pathfinder pictures in the layout of the Long Range Arena archive.

    pathfinder32/curv_contour_length_14/imgs/3/sample_7.png     8-bit gray
    pathfinder32/curv_contour_length_14/metadata/3.npy          text: folder, file, number, label, …

Pictures come in the order of the metadata files' numbers and of their lines. The files of metadata
are plain text whatever their ending says. A picture of 0 bytes is left out (the archive has one).
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
"""Folders of the archive by the dashes of a long snake."""
LABEL_COLUMN = 3
PUBLISHED = 200_000
"""Pictures of a set, empty ones among them."""
EMPTY = 1
"""Pictures of 0 bytes that a published set has at most."""
LICENCE = "licence: none stated; cite Linsley et al. 2018 and arXiv:2011.04006"


class ListedPicture(NamedTuple):
    """One picture: its file, its label, and what the released code calls it."""

    file: Path
    label: int
    key: str
    """Folder, file, and number in the list of metadata, from 1 on."""
    empty: bool


def holds_pictures(folder: Path) -> bool:
    """Tell whether a folder is a set of pictures."""
    return (folder / "metadata").is_dir()


def entries(folder: Path, *, partial: bool) -> list[ListedPicture]:
    """Return the pictures that the metadata of a set list, in order, those of 0 bytes marked.

    Args:
        folder: e.g. pathfinder32/curv_contour_length_14.
        partial: Whether the user says that it is a part of a set.

    Raises:
        NotPrepared: The folder has no metadata, or a picture is missing.
        BadData: A line of metadata cannot be read, or other numbers of pictures are listed, or are
            empty, than were published.
    """
    lists = sorted(
        (path for path in (folder / "metadata").glob("*.npy") if path.stem.isdigit()),
        key=lambda path: int(path.stem),
    )
    if not lists:
        raise NotPrepared(
            f"{folder / 'metadata'} has no 0.npy, 1.npy …: task.path must name a set of pictures "
            "such as pathfinder32/curv_contour_length_14, with the folders imgs and metadata, or "
            f"the unpacked archive, from {arena.ABOUT}; or set task.source=generated; {LICENCE}"
        )
    listed: list[ListedPicture] = []
    for path in lists:
        lines = enumerate(path.read_text(errors="replace").splitlines(), 1)
        listed += [
            _listed_picture(folder, line, number, path) for number, line in lines if line.strip()
        ]
    empty = [entry.file for entry in listed if entry.empty]
    if empty:
        log.warning("skipped %d empty pictures, e.g. %s", len(empty), empty[0])
    if len(empty) == len(listed):
        raise BadData(f"{folder}: no picture with content; fetch the archive again")
    if len(empty) > EMPTY and not partial:
        raise BadData(
            f"{folder}: {len(empty):,} pictures are empty, wanted at most {EMPTY} as published, "
            f"e.g. {empty[0]}: unpack the archive again, or, if you want a part of it, set "
            "task.partial=true, which marks every row"
        )
    numbers, wanted = {"metadata": len(listed)}, {"metadata": PUBLISHED}
    check_whole(numbers, wanted, where=str(folder), of="pictures", partial=partial)
    return listed


def _listed_picture(folder: Path, line: str, number: int, path: Path) -> ListedPicture:
    where, columns = f"{path}, line {number}", line.split()
    if len(columns) <= LABEL_COLUMN or columns[LABEL_COLUMN] not in {"0", "1", "0.0", "1.0"}:
        raise BadData(
            f"{where}: {line[:60]!r}; wanted folder, file, number, label (0 or 1), …: the file is "
            "damaged or of another version"
        )
    file = folder / columns[0] / columns[1]
    if not file.resolve().is_relative_to(folder.resolve()):
        raise BadData(f"{where}: {columns[0]}/{columns[1]} lies outside {folder}; refused")
    if not file.is_file():
        raise NotPrepared(f"{file} is missing, though {where} lists it: unpack the archive again")
    return ListedPicture(
        file=file,
        label=int(float(columns[LABEL_COLUMN])),
        key=f"{columns[0]}_{columns[1]}_{number}",
        empty=not file.stat().st_size,
    )


UNREADABLE = (
    UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError,
)  # fmt: skip
"""What Pillow raises of a file that is no sound picture."""


def pictures(listed: list[ListedPicture], side: int) -> Iterator[UInt8[np.ndarray, "s s"]]:
    """Yield the gray levels of each picture.

    Raises:
        BadData: A picture is damaged or has another size.
    """
    for entry in tqdm(listed, desc="pictures", unit="file", disable=None):
        try:
            with Image.open(entry.file) as opened:
                if opened.size != (side, side):  # before anything is decoded
                    raise BadData(
                        f"{entry.file}: {opened.size[0]:,} x {opened.size[1]:,} pixels, wanted "
                        f"{side} x {side}; set task.side to the size of these pictures"
                    )
                levels = np.asarray(opened.convert("L"))
        except BadData:
            raise
        except UNREADABLE as error:
            raise BadData(f"{entry.file} cannot be read as a picture: {error}") from error
        yield levels
