"""Print progress during planning, and the result of a finished run in one line."""

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

PARTS = frozenset({"reference", "factor", "measure", "peer", "budget", "threshold"})
"""A row with one of these labels is part of a result: if it fails, the run has other numbers."""


PATIENCE_S = 1.0
"""Seconds of planning before the first line of progress."""
AGAIN_S = 10.0
"""Seconds between two lines of progress in a log."""

speaking = True
"""Whether planning prints progress; `lra run --quiet` sets it to False."""
Item = TypeVar("Item")


def with_progress(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yield `items`; if this takes more than a second, print progress to stderr.

    A terminal shows a bar, which vanishes at the end; a log gets a line every ten seconds. `what`
    says in words what the items are.
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
    """Yield `items`, and now and then print a line to stderr.

    Args:
        items: What to yield.
        line: Returns the line, given the number of the item (from 1) and the item.
        first_s: Seconds before the first line; None: `AGAIN_S`, as between later lines.
    """
    due = time.monotonic() + (AGAIN_S if first_s is None else first_s)
    for number, item in enumerate(items, 1):
        if (now := time.monotonic()) > due:
            print(line(number, item), file=sys.stderr, flush=True)
            due = now + AGAIN_S
        yield item


@contextmanager
def still_running(what: str, *, first_s: float = AGAIN_S, piped: bool = True) -> Iterator[None]:
    """Print on stderr, while the `with` block runs, how long it has taken so far.

    Args:
        what: What the block does, in words.
        first_s: Seconds before the first line; each further wait is twice as long.
        piped: Whether the lines are also printed if stderr is not a terminal.
    """
    over, begun = threading.Event(), time.monotonic()
    prints = speaking and (piped or sys.stderr.isatty())

    def print_lines() -> None:
        """Print lines until the block has ended; `over.wait` then returns True."""
        wait = first_s
        while prints and not over.wait(wait):
            with suppress(OSError, ValueError):  # stderr may be closed
                tqdm.write(
                    f"{what}: {time_words(time.monotonic() - begun)} so far", file=sys.stderr
                )
            wait *= 2

    thread = threading.Thread(target=print_lines, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def failure(rows: list[Measurement]) -> Measurement | None:
    """Return the row that makes a run count as failed; None if the run succeeded.

    A failed row with a label of `PARTS` fails the run only if none of its rows succeeded.
    """
    failed_rows = [row for row in rows if row.status is not Status.ok]
    return _choose_decisive(failed_rows, some_good=len(failed_rows) < len(rows))


def failure_of(summary: "CellSummary") -> "Failure | None":
    """Return the failure of a stored run, by the same rule as `failure`; None if it succeeded."""
    return _choose_decisive(summary.failures, some_good=Status.ok in summary.statuses)


class _Labelled(Protocol):
    """A row with labels."""

    @property
    def labels(self) -> Mapping[str, str]: ...


Bad = TypeVar("Bad", bound=_Labelled)


def _choose_decisive(failed_rows: Sequence[Bad], *, some_good: bool) -> Bad | None:
    """Return the first failed row that fails the whole run; None if there is no such row.

    `some_good`: whether another row of the run succeeded. See `failure`.
    """
    whole_results = [row for row in failed_rows if not PARTS & row.labels.keys()]
    return next(iter(whole_results if whole_results or some_good else failed_rows), None)


def headline(kind: "type[Runner]", rows: list[Measurement]) -> str:
    """Return the result of a finished run in a few words: its failure, or its main number.

    Args:
        kind: The class of its runner, which chooses the number.
        rows: Its rows.
    """
    failed_row = failure(rows)
    if failed_row is not None:
        return f"{failed_row.status}: {failed_row.reason.splitlines()[0]}"
    final = [row for row in rows if row.step is None and row.value is not None]
    return kind.headline(final) or f"{len(rows)} rows"
