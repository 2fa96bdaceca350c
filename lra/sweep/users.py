"""Who works in a results folder, and with the data folder: noted from the start to the end.

results/users/<word> and $LRA_DATA/locks/users/<word>, as claims of cells are
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
    """Note that this process works on a sweep, so that nobody removes what it is to use.

    Where that cannot be noted, nothing can be removed either.

    Args:
        root: The results folder.
        sweep: Its name.
        data: Whether its cells read the data folder.
        worker: The name of a worker.
    """
    with ExitStack() as held:
        for folder in [_of_results(root), *([_of_data()] if data else [])]:
            with suppress(OSError):
                if folder.is_dir():
                    clear(folder, {path.name for path in folder.iterdir()})
                title = f"sweep {sweep} in {root.resolve()}"
                claim = take_claim(folder / uuid4().hex[:12], title=title, worker=worker)
                if claim is not None:
                    held.enter_context(claim)
        yield


def users_of_results(root: Path) -> Mapping[str, Holder]:
    """Return who works in a results folder now."""
    return living_holders(_of_results(root))


def users_of_data() -> Mapping[str, Holder]:
    """Return who works with the data folder now, wherever the results are."""
    return living_holders(_of_data())


def _of_results(root: Path) -> Path:
    return root / "users"


def _of_data() -> Path:
    return data_root() / "locks" / "users"
