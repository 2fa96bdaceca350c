"""Move a report's files into its folder: files of an earlier report are replaced, others stay."""

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
        source: the temporary folder in which the files were written, on the same disk.
        folder: the folder of the report.
        names: the names of the files.

    Raises:
        ForeignFile: the folder has a file of one of these names that no report wrote.
    """
    earlier_files = _read_manifest(folder)
    foreign = [n for n in names if (folder / n).exists() and n not in earlier_files]
    if foreign:
        raise ForeignFile(
            f"{folder} holds files that `lra report` did not write: {', '.join(foreign)}; "
            "name another folder with --out, or move these files away"
        )
    manifest = folder / MANIFEST

    def write_manifest(files: set[str]) -> None:
        """Replace the manifest in one step by one that lists `files`."""
        draft = source / MANIFEST
        draft.write_text(json.dumps({"files": sorted(files)}, indent=1) + "\n", encoding="utf-8")
        draft.replace(manifest)

    # If the process is killed below, the manifest must list the old and the new files.
    write_manifest(earlier_files | set(names))
    for name in earlier_files - set(names):
        (folder / name).unlink(missing_ok=True)
    for name in names:
        shutil.move(source / name, folder / name)
    write_manifest(set(names))


def _read_manifest(folder: Path) -> set[str]:
    """Return the names of the files that the last report wrote into a folder.

    The set is empty if the folder has no manifest.
    """
    manifest = folder / MANIFEST
    if not os.path.lexists(manifest):
        return set()
    try:
        names = typed_object(read_json(manifest), {"files": list})["files"]
    except (OSError, NoJson) as error:
        raise ForeignFile(
            f"{manifest}: lra cannot read this list of the old report's files ({error}); remove "
            "it and the old report"
        ) from error
    # Names with a folder are dropped, so that a forged manifest deletes no file elsewhere.
    return {str(n) for n in names if Path(str(n)).name == str(n)}
