"""Archives unpacked into folders, whole or not at all."""

import zipfile
from pathlib import Path

from lra.conf.short_values import short_repr
from lra.tasks.data.archives import (
    Budget,
    Readable,
    damage_explained,
    open_member,
    opened_zip,
    walked_tar,
)
from lra.tasks.data.sources import CHUNK_BYTES, lock, place_folder
from lra.tasks.errors import BadData


def extract(archive: Path, final: Path) -> Path:
    """Unpack a .tar.gz, .tar.xz, .tar or .zip so that it appears at `final` whole or not at all.

    Members that would land outside, links, device files and bombs are refused.

    Raises:
        BadData: The archive is damaged, of no known kind, or holds a member that is refused.
    """
    with lock(f"extract-{final.name}"):
        if final.is_dir():
            return final
        with place_folder(final) as folder, damage_explained(archive):
            if zipfile.is_zipfile(archive):
                _extract_zip(archive, folder)
            else:
                _extract_tar(archive, folder)
    return final


def _extract_tar(archive: Path, folder: Path) -> None:
    for member, file in walked_tar(archive, Budget(archive)):
        target = _inside(archive, folder, member.name)
        if file is not None:
            _copy(file, target, archive)
        elif member.isdir():
            target.mkdir(parents=True, exist_ok=True)
        else:
            raise BadData(
                f"{archive}: {short_repr(member.name)} is a link or a device, refused: pack the "
                "files themselves (tar --dereference --hard-dereference)"
            )


def _extract_zip(archive: Path, folder: Path) -> None:
    with opened_zip(archive) as packed:
        for member in packed.infolist():
            target = _inside(archive, folder, member.filename)
            if member.is_dir():
                target.mkdir(parents=True, exist_ok=True)
            else:
                with open_member(packed, member.filename) as file:
                    _copy(file, target, archive)


def _inside(archive: Path, folder: Path, name: str) -> Path:
    target = (folder / name).resolve()
    if not target.is_relative_to(folder.resolve()):
        raise BadData(f"{archive}: member {short_repr(name)} would land outside; refused")
    return target


def _copy(file: Readable, target: Path, archive: Path) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as written:
            while chunk := file.read(CHUNK_BYTES):
                written.write(chunk)
    except (FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise BadData(f"{archive}: {target.name} is a file and a folder at once") from error
