"""Lines about planning while it lasts, and about a finished cell."""

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol, TypeVar

from lra.runners.records import Measurement, Status
from lra.tasks.data.bars import tqdm
from lra.terminal.screen import beneath
from lra.terminal.wording import time_words

if TYPE_CHECKING:
    from lra.runners.runner import Runner
    from lra.runners.storage.index import CellSummary, Failure

PARTS = frozenset({"reference", "factor", "measure", "peer", "budget"})
"""Labels of rows that are a part of a cell's result: one without a number leaves the others."""


PATIENCE_S = 1.0
"""Seconds of planning after which a person wants to see that something is done."""
AGAIN_S = 10.0
"""Seconds after which a log says so once more."""

speaking = True
"""Whether planning says anything; `lra run --quiet` switches it off."""
Item = TypeVar("Item")


def with_progress(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yield the items; where that takes more than a second, say how far it is.

    A bar on a terminal, which goes away at the end; in a log, a line now and then.
    """
    if not speaking:
        yield from items
        return
    if sys.stderr.isatty():
        yield from tqdm(items, desc=what, delay=PATIENCE_S, leave=False, file=beneath(sys.stderr))
        return
    yield from with_lines(items, lambda n, _: f"{what} {n} of {len(items):,}", first_s=PATIENCE_S)


def with_lines(
    items: Sequence[Item], line: Callable[[int, Item], str], *, first_s: float | None = None
) -> Iterator[Item]:
    """Yield the items; print `line` of number and item after `first_s`, then each `AGAIN_S`."""
    due = time.monotonic() + (AGAIN_S if first_s is None else first_s)
    for number, item in enumerate(items, 1):
        if (now := time.monotonic()) > due:
            print(line(number, item), file=sys.stderr, flush=True)
            due = now + AGAIN_S
        yield item


@contextmanager
def still_running(what: str, *, first_s: float = AGAIN_S, piped: bool = True) -> Iterator[None]:
    """Say on stderr that something lasts: after `first_s`, then after waits that double.

    Where it is not `piped`, a terminal alone gets the lines.
    """
    over, begun = threading.Event(), time.monotonic()
    heard = speaking and (piped or sys.stderr.isatty())

    def tell() -> None:
        wait = first_s
        while heard and not over.wait(wait):
            with suppress(OSError, ValueError):  # nobody reads it
                tqdm.write(
                    f"{what}: {time_words(time.monotonic() - begun)} so far", file=sys.stderr
                )
            wait *= 2

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def failure(rows: list[Measurement]) -> Measurement | None:
    """Return the row by which a cell failed: one that is no mere part, or any if nothing is ok."""
    bad = [row for row in rows if row.status is not Status.ok]
    return _decisive(bad, some_good=len(bad) < len(rows))


def failure_of(summary: "CellSummary") -> "Failure | None":
    """Return what `failure` returns of the rows of a stored cell."""
    return _decisive(summary.failures, some_good=Status.ok in summary.statuses)


class _Labelled(Protocol):
    @property
    def labels(self) -> Mapping[str, str]: ...


Bad = TypeVar("Bad", bound=_Labelled)


def _decisive(bad: Sequence[Bad], *, some_good: bool) -> Bad | None:
    """Return which of the rows that are not ok decides how their cell ended: see `failure`."""
    whole = [row for row in bad if not PARTS & row.labels.keys()]
    return next(iter(whole if whole or some_good else bad), None)


def headline(kind: "type[Runner]", rows: list[Measurement]) -> str:
    """Return the result of a finished cell of a kind of runner, in a few words."""
    ended = failure(rows)
    if ended is not None:
        return f"{ended.status}: {ended.reason.splitlines()[0]}"
    final = [row for row in rows if row.step is None and row.value is not None]
    return kind.headline(final) or f"{len(rows)} rows"
