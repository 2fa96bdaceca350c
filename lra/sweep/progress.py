"""What is said of planning while it lasts, and of a finished cell in one line."""

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

from tqdm import tqdm

from runners.records import Measurement, Status, baseline_of

HEADLINES = ("bits_per_character", "word_perplexity", "perplexity", "accuracy")
"""Scores on the test split by which a cell is summed up: the first that it has."""

PARTS = frozenset({"reference", "factor", "measure", "peer", "budget"})
"""Labels of rows that are a part of a cell's result: one without a number leaves the others."""


PATIENCE_S = 1.0
"""Seconds of planning after which a person wants to see that something is done."""

shown = True
"""Whether planning says anything; `lra run --quiet` switches it off."""
Item = TypeVar("Item")


def counted(items: Sequence[Item], what: str) -> Iterator[Item]:
    """Yield the items; where that takes more than a second, say how far it is.

    A bar on a terminal, which goes away at the end; in a log, one line.
    """
    if not shown:
        yield from items
        return
    if sys.stderr.isatty():
        yield from tqdm(items, desc=what, delay=PATIENCE_S, leave=False, file=sys.stderr)
        return
    begin, said = time.monotonic(), False
    for number, item in enumerate(items):
        if not said and time.monotonic() - begin > PATIENCE_S:
            print(f"{what} {number + 1} of {len(items):,}", file=sys.stderr, flush=True)
            said = True
        yield item


def failure(rows: list[Measurement]) -> Measurement | None:
    """Return the row by which a cell failed: one that is no mere part, or any if nothing is ok."""
    bad = [row for row in rows if row.status is not Status.ok]
    whole = [row for row in bad if not PARTS & row.labels.keys()]
    if whole or len(bad) < len(rows):
        bad = whole
    return bad[0] if bad else None


def _named(row: Measurement) -> str:
    if row.model:
        return baseline_of(row.model) or row.model
    factor = row.labels.get("factor")
    return row.metric if factor is None else f"{row.metric} at {factor} x"


def headline(rows: list[Measurement]) -> str:
    """Return what a finished cell found, in a few words."""
    ended = failure(rows)
    if ended is not None:
        return f"{ended.status}: {ended.reason.splitlines()[0]}"
    final = [row for row in rows if row.step is None and row.value is not None]
    judged = [row for row in final if row.labels.get("split") == "test"]
    for metric in HEADLINES:
        if scores := [row for row in judged if row.metric == metric]:
            return ", ".join(f"{_named(r)} {r.value:.3f}" for r in scores)
    if spans := [r for r in final if r.metric == "span" and r.labels.get("head") == "all"]:
        return ", ".join(f"{r.labels['measure']} {r.value:.1f}" for r in spans) + " tokens"
    value = {r.metric: r.value for r in final if r.value is not None}
    if "time" in value:
        memory = value.get("peak_tensor_bytes")
        spent = "" if memory is None else f", {memory / 2**20:.0f} MiB"
        return f"{value['time'] * 1e3:.1f} ms{spent}{_disturbed(final, 'time')}"
    if "token_time" in value:
        kept = value.get("state_bytes")
        held = "" if kept is None else f", state of {kept / 2**20:.2f} MiB"
        milliseconds = value["token_time"] * 1e3
        return f"{milliseconds:.2f} ms a token{held}{_disturbed(final, 'token_time')}"
    return f"{len(rows)} rows"


def _disturbed(rows: list[Measurement], metric: str) -> str:
    """Return what disturbed a time, as the end of its line; "" for nothing."""
    (first, *_) = [row.labels.get("disturbed", "") for row in rows if row.metric == metric]
    return f"; disturbed: {first}" if first else ""
