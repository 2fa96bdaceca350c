"""A report's files in their folder: an earlier report's go, those that no report wrote stay."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from lra.conf.plain_files import NoJson, read_json, typed_object

MANIFEST = ".report.json"
"""Names of the files that the last report wrote here, and nothing else."""


class ForeignFile(FileExistsError):
    """The folder holds a file that no report wrote, under a name that a report needs."""


def install(source: Path, folder: Path, names: Sequence[str]) -> None:
    """Move the files of a complete report into its folder.

    Args:
        source: where they were written, on the same disk.
        folder: of the report.
        names: of the files.

    Raises:
        ForeignFile: a file that no report wrote stands in the way.
    """
    before = _written_before(folder)
    foreign = [n for n in names if (folder / n).exists() and n not in before]
    if foreign:
        raise ForeignFile(
            f"{folder} holds files that `lra report` did not write: {', '.join(foreign)}; "
            "name another folder (--out) or move them away"
        )
    manifest = folder / MANIFEST

    def record(files: set[str]) -> None:
        draft = source / MANIFEST
        draft.write_text(json.dumps({"files": sorted(files)}, indent=1) + "\n", encoding="utf-8")
        draft.replace(manifest)

    # a report cut off here must still know all of its files
    record(before | set(names))
    for name in before - set(names):
        (folder / name).unlink(missing_ok=True)
    for name in names:
        shutil.move(source / name, folder / name)
    record(set(names))


def _written_before(folder: Path) -> set[str]:
    manifest = folder / MANIFEST
    if not os.path.lexists(manifest):
        return set()
    try:
        names = typed_object(read_json(manifest), {"files": list})["files"]
    except (OSError, NoJson) as error:
        raise ForeignFile(
            f"{manifest}: this file is not the list of files of a report ({error}); remove it and "
            "the old report"
        ) from error
    # names only: a manifest must not reach outside its folder
    return {str(n) for n in names if Path(str(n)).name == str(n)}
