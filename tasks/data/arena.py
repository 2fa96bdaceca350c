"""The archive of the Long Range Arena: where it holds a task's files.

lra_release/listops-1000/                           ListOps
lra_release/tsv_data/                               retrieval
lra_release/pathfinder32/curv_contour_length_14/    Pathfinder, likewise 64, 128 and 256
lra_release/lra_release/                            pictures once more, of 128 pixels other ones

Three files each divide ListOps and retrieval; pictures are divided by
`lra.tasks.classification.pathfinder.division`. The released code drops what does not fill a last
batch in evaluation; here every example is scored.
"""

from collections.abc import Callable
from pathlib import Path

from lra.tasks.errors import BadData

URL = "https://storage.googleapis.com/long-range-arena/lra_release.gz"
ABOUT = f"{URL} (7.7 GB; its publishers state no hash)"
NAME = "lra_release"


def find_task_folder(path: Path, folder: str, holds: Callable[[Path], bool]) -> Path:
    """Return the folder of a task's files: `path` itself, or the one inside an unpacked archive.

    Args:
        path: What the user named.
        folder: Of the task, within the archive.
        holds: Whether a folder has such files.

    Returns:
        `path` where there are none, for a message that says so.

    Raises:
        BadData: The archive has the folder twice.
    """
    if holds(path):
        return path
    within = (path / folder, path / NAME / folder, path / NAME / NAME / folder)
    places = [place for place in within if holds(place)]
    if len(places) > 1:
        raise BadData(
            f"{path} contains {folder} {len(places)} times: {' and '.join(map(str, places))}; "
            "in the published archive the pictures of 128 pixels differ, and the S4 repository "
            "reads the inner ones: name one folder by task.path"
        )
    return places[0] if places else path


def copy_of(path: Path) -> str:
    """Return `lra_release/` where `path` lies in the archive's inner copy, else nothing."""
    parts = path.absolute().parts
    return f"{NAME}/" if parts.count(NAME) > 1 else ""
