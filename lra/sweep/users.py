"""Records which processes use a results folder and the data folder, while they use them.

Each process has a claim, as cells have, in results/users/ and in $LRA_DATA/locks/users/.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from uuid import uuid4

from lra.runners.storage.claims import clear, living_holders, take_claim
from lra.runners.storage.holders import Holder
from lra.tasks.data.sources import data_root


@contextmanager
def at_work(root: Path, sweep: str, *, data: bool, worker: str = "") -> Iterator[None]:
    """Record that this process works on a sweep, so that `lra clean` removes nothing that it uses.

    An error of the file system is ignored: a folder that cannot be written cannot be cleaned.

    Args:
        root: The results folder.
        sweep: The name of the sweep.
        data: Whether its cells read the data folder.
        worker: The name of the worker; "": this process is no worker.
    """
    with ExitStack() as claims:
        for folder in [_of_results(root), *([_of_data()] if data else [])]:
            with suppress(OSError):
                if folder.is_dir():
                    clear(folder, {path.name for path in folder.iterdir()})
                title = f"sweep {sweep} in {root.resolve()}"
                claim = take_claim(folder / uuid4().hex[:12], title=title, worker=worker)
                if claim is not None:
                    claims.enter_context(claim)
        yield


def users_of_results(root: Path) -> Mapping[str, Holder]:
    """Return the processes that work in a results folder now, by the names of their claims."""
    return living_holders(_of_results(root))


def users_of_data() -> Mapping[str, Holder]:
    """Return the processes that use the data folder now, wherever their results are."""
    return living_holders(_of_data())


def _of_results(root: Path) -> Path:
    return root / "users"


def _of_data() -> Path:
    return data_root() / "locks" / "users"
