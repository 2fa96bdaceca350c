"""The archive of the Long Range Arena: the folders of each task's files.

lra_release/listops-1000/                           ListOps
lra_release/tsv_data/                               retrieval
lra_release/pathfinder32/curv_contour_length_14/    Pathfinder; also with 64, 128 and 256 pixels
lra_release/lra_release/                            the pictures again; those of 128 pixels differ

ListOps and retrieval have one file for each split; the module
`lra.tasks.classification.pathfinder.division` divides pictures. In evaluation, the released code
drops an incomplete last batch; lra scores every example.
"""

from collections.abc import Callable
from pathlib import Path

from lra.tasks.errors import BadData

URL = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
ABOUT = f"{URL} (7.7 GB; its publishers state no hash)"
NAME = "lra_release"


def find_task_folder(path: Path, folder: str, holds: Callable[[Path], bool]) -> Path:
    """Return the folder of a task's files: `path`, or a subfolder of the unpacked archive there.

    If no folder has such files, returns `path`, so that a message can name it.

    Args:
        path: The path that the user named.
        folder: Name of the task's folder in the archive.
        holds: Returns whether a folder has files of the task.

    Raises:
        BadData: The archive has the folder twice.
    """
    if holds(path):
        return path
    within = (path / folder, path / NAME / folder, path / NAME / NAME / folder)
    places = [place for place in within if holds(place)]
    if len(places) > 1:
        raise BadData(
            f"{path} contains the folder {folder} {len(places)} times: "
            f"{' and '.join(map(str, places))}; set task.path to one of these folders: their "
            "pictures of 128 pixels differ, and the S4 repository reads the inner folder"
        )
    return places[0] if places else path


def copy_of(path: Path) -> str:
    """Return `lra_release/` if `path` is in the inner copy of the archive, else ""."""
    parts = path.absolute().parts
    return f"{NAME}/" if parts.count(NAME) > 1 else ""
