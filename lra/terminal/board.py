"""What a person reads while a sweep runs: its runs begun, under way and ended.

Everything goes to stdout, a line at a time, flushed; errors and refusals alone go to stderr. Where
both are one terminal, lines at its bottom are drawn again and again instead of the lines at
intervals, which a file or a pipe gets: of each running cell after 10 s, then after waits that
double, up to 5 minutes.
"""

import logging
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from statistics import fmean
from typing import TextIO

from lra.runners.isolation.progress import Event, Progress, listen
from lra.runners.records import Cell, Status, canonical, legible
from lra.terminal.screen import Region, bar_line, encodable, on_terminal, squeeze
from lra.terminal.volume import Volume
from lra.terminal.wording import Fact, ahead, cell_facts, join_facts, time_words

FIRST_S, LONGEST_S = 10.0, 300.0
"""Waits between two lines of a running cell."""
VERBOSE_S = 1.0
"""The same of one phase, where every phase is asked for."""
DRAWN_S, LOOK_S = 0.1, 0.5
"""Between two drawings, and between two looks whether something is due."""
GOOD = frozenset({Status.ok, Status.skipped})
"""Endings that `--quiet` omits."""
UNLIKE = ("model", "mixer", "seed", "trainings")
"""Parts of an identity in which cells that take about as long may differ."""
STOPPED, SAVED, LEFT = "stopped, without rows", "saved half-way", "left"
UNENDED = (STOPPED, SAVED, LEFT)
"""Endings that are no status: no rows were stored; what is saved goes on from its checkpoint."""


@dataclass(slots=True)
class _Running:
    """A cell under way, or the making of data."""

    kind: str
    """What makes cells alike: see `_alike`."""
    position: str
    title: str
    begun: float
    due: float
    place: str = ""
    """The devices or cores that it has, in words."""
    wait: float = FIRST_S
    message: Progress = field(default_factory=lambda: Progress(phase="starting"))
    message_at: float = 0.0
    phase_at: float = 0.0
    printed_at: float = 0.0

    def take(self, message: Progress, now: float) -> bool:
        """Note where the cell is now; return whether a phase begins."""
        begins = message.phase != self.message.phase
        if begins:
            self.phase_at = now
        self.message, self.message_at = message, now
        return begins

    def text(self, now: float, columns: int | None = None) -> str:
        """Return where the cell is, in at most so many columns."""
        parts = cell_facts(self.message, age_s=now - self.message_at, phase_s=now - self.phase_at)
        if columns is not None and self.place:  # drawn lines say it for as long as it runs
            parts.append(Fact(self.place, 5))
        return join_facts(parts, columns)

    @property
    def share(self) -> float | None:
        """How far the phase is, from 0 to 1; None where its length is unknown."""
        return self.message.done / self.message.total if self.message.total else None


class ProgressBoard:
    """Prints what becomes of each cell; inside its context a thread looks at the clock."""

    def __init__(
        self,
        waiting: Sequence[Cell],
        titles: Mapping[str, str],
        *,
        volume: Volume = Volume.normal,
        out: TextIO | None = None,
        err: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        region: Region | None = None,
    ) -> None:
        """Begin.

        Args:
            waiting: the cells that will be run.
            titles: their names, by key.
            volume: how much is printed.
            out: where lines go; None: stdout.
            err: where errors go, outside the drawing; None: stderr.
            clock: seconds.
            region: the bottom of the terminal; None: that of `out` and `err`, where they are one.
        """
        self.titles, self.volume, self.clock = titles, volume, clock
        self.out, err = out or sys.stdout, err or sys.stderr
        self.total, self.begin = len(waiting), clock()
        self.running: dict[str, _Running] = {}
        self.numbers: dict[str, str] = {}
        self.endings: Counter[str] = Counter()
        self.ahead = Counter(map(_alike, waiting))
        self.took: dict[str, list[float]] = defaultdict(list)
        """Seconds of the cells that ended, by what makes cells alike."""
        if region is None and on_terminal(self.out, err) and volume is not Volume.quiet:
            region = Region(err)
        self.region = region
        self.stamped = region is None and not self.out.isatty()
        self.drawn_at = -DRAWN_S
        self.busy = False
        """Whether data are being prepared, which draws bars of its own."""
        self._lock, self._over = threading.RLock(), threading.Event()
        self._watch = threading.Thread(target=self._look, name="board", daemon=True)

    def __enter__(self) -> "ProgressBoard":
        """Look at the clock from now on."""
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove what is drawn."""
        self._over.set()
        self._watch.join()
        with self._lock:
            if self.region is not None:
                self.region.clear()

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            with suppress(OSError, ValueError):  # the reader is gone: the next line raises
                self.tick()

    def tick(self) -> None:
        """Say what is due."""
        with self._lock:
            if self.region is None and self.volume is not Volume.quiet:
                for running in self.running.values():
                    if self.clock() >= running.due:
                        self._show(running)
            self._draw()

    @contextmanager
    def preparing(self, what: str) -> Iterator[None]:
        """Say that data are prepared, and how long it took where that was long."""
        begun = self.clock()
        making = _Running("", "", f"preparing {what}", begun, begun + FIRST_S)
        making.take(Progress(phase="under way"), begun)
        with self._lock:
            self.running[what] = making
            self.busy = True
        try:
            with listen(self._happened, log=None):
                yield
        finally:
            with self._lock:
                del self.running[what]
                self.busy = False
        if self.clock() - begun >= VERBOSE_S or self.volume is Volume.verbose:
            self.say(f"{what} is ready ({time_words(self.clock() - begun)})")

    def _happened(self, message: Progress | Event, about: str = "") -> None:
        if isinstance(message, Event) and (
            message.level >= logging.INFO or self.volume is Volume.verbose
        ):
            self.say(about + legible(message.text))

    def start(self, cell: Cell, details: Sequence[str] = (), place: str = "") -> None:
        """Note that a cell begins.

        Args:
            cell: the cell.
            details: are printed with `--verbose`.
            place: the devices or cores that it has, in words.
        """
        with self._lock:
            now, name = self.clock(), self.titles[cell.key]
            running = _Running(
                _alike(cell), self._position(cell), name, now, now + FIRST_S, place=place
            )
            running.message_at = running.phase_at = now
            self.running[cell.key] = running
            self.ahead[running.kind] -= 1
            if self.region is None or self.volume is Volume.verbose:
                where = f" on {place}" if place and self.volume is Volume.verbose else ""
                self.say(f"{running.position} {name}: begun{where}")
            for line in details if self.volume is Volume.verbose else ():
                self.say(f"{running.position} {line}")
            self._draw(at_once=True)

    def advance(self, cell: Cell, message: Progress | Event) -> None:
        """Show how far `cell` is, or what happened in it."""
        with self._lock:
            running, now = self.running[cell.key], self.clock()
            if isinstance(message, Event):
                self._happened(message, f"{running.position} {running.title}: ")
                return
            begins = running.take(message, now)
            if self.volume is Volume.verbose and (begins or now - running.printed_at >= VERBOSE_S):
                self._show(running)
            self._draw()

    def finish(self, cell: Cell, outcome: str, status: str = Status.ok) -> None:
        """Say how a cell ended.

        Args:
            cell: the cell.
            outcome: its result, or why there is none.
            status: one of `Status` or `UNENDED`.
        """
        with self._lock:
            running, now = self.running.pop(cell.key, None), self.clock()
            self.endings[status] += 1
            time_spent = ""
            if running is None:
                self.ahead[_alike(cell)] -= 1
            else:
                self.took[running.kind].append(now - running.begun)
                time_spent = f" ({time_words(now - running.begun)})"
            line = f"{self._position(cell)} {self.titles[cell.key]}: {outcome}{time_spent}"
            self.say(line, always=status not in GOOD)
            self._draw(at_once=True)

    def summary(self, folder: str) -> None:
        """Say how all of it ended, and where the results are."""
        parts = ending_words(self.endings)
        missing = self.total - self.endings.total()
        parts += [f"{missing} not started"] if missing else []
        runs = "1 run" if self.total == 1 else f"{self.total} runs"
        took = time_words(self.clock() - self.begin)
        self.say(f"{runs} in {took}: {', '.join(parts)}; results in {folder}", always=True)

    def say(self, line: str, *, always: bool = False) -> None:
        """Print a line, above what is drawn; where quiet is asked for, only with `always`."""
        if self.volume is Volume.quiet and not always:
            return
        with self._lock:
            if self.region is not None:
                self.region.clear()
            stamp = f"{datetime.now():%Y-%m-%d %H:%M:%S} " if self.stamped else ""
            print(encodable(f"{stamp}{line}", self.out), file=self.out, flush=True)
            self._draw(at_once=True)

    def _position(self, cell: Cell) -> str:
        """Return the number of a cell, in the order in which they are met."""
        number = self.numbers.setdefault(cell.key, str(len(self.numbers) + 1))
        return f"[{number:>{len(str(self.total))}}/{self.total}]"

    def _show(self, running: _Running) -> None:
        now = self.clock()
        if self.volume is not Volume.verbose:
            running.wait = min(LONGEST_S, 2 * running.wait)
        running.printed_at, running.due = now, now + running.wait
        self.say(f"{running.position} {running.title}: {running.text(now)}".lstrip())

    def _draw(self, *, at_once: bool = False) -> None:
        now = self.clock()
        if self.region is None or self.busy:
            return
        if at_once or now - self.drawn_at >= DRAWN_S:
            self.drawn_at = now
            self.region.draw(self._lines(now, *self.region.room(), self.region.stream))

    def _lines(self, now: float, columns: int, rows: int, stream: TextIO) -> list[str]:
        """Return what is drawn: two lines for each running cell, or one; then the whole."""
        lines: list[str] = []
        both = 2 * len(self.running) + 1 <= rows - 1
        listed = list(self.running.values())[: rows - 2]
        for running in listed:
            head = f"{running.position} {running.title}"
            state = partial(running.text, now)
            if both:
                lines += [squeeze(head, columns), bar_line(running.share, state, columns, stream)]
            else:
                text = state(columns // 2)
                lines.append(f"{squeeze(head, columns - len(text) - 2)}: {text}")
        if self.total > 1 and self.running:
            hidden = len(self.running) - len(listed)
            lines.append(join_facts(self._whole(now, hidden), columns))
        return lines

    def _whole(self, now: float, hidden: int) -> list[Fact]:
        bad = sum(count for status, count in self.endings.items() if status not in GOOD)
        left = self._left_s(now)
        return [
            Fact(f"{self.endings.total()} of {self.total} runs ended", 0),
            *([Fact(f"{bad} not ok", 2)] if bad else []),
            *([Fact(f"{hidden} more under way", 3)] if hidden else []),
            Fact(f"{time_words(now - self.begin)} so far", 4),
            *([] if left is None else [Fact(f"about {ahead(left)} left", 1)]),
        ]

    def _left_s(self, now: float) -> float | None:
        """Return the seconds that the sweep will take yet.

        From the cells that ended, each for those like it; None where some kind was not seen to the
        end, or one under way takes longer than those before.
        """
        waiting = +self.ahead
        kinds = (*waiting, *(running.kind for running in self.running.values()))
        if not all(self.took.get(kind) for kind in kinds):
            return None
        means = {kind: fmean(times) for kind, times in self.took.items() if times}
        so_far = [(means[running.kind], now - running.begun) for running in self.running.values()]
        if any(spent_s > mean for mean, spent_s in so_far):
            return None
        left = sum(means[kind] * count for kind, count in waiting.items())
        left += sum(mean - spent_s for mean, spent_s in so_far)
        return left / max(1, len(so_far))


def ending_words(endings: Counter[str]) -> list[str]:
    """Return how many cells ended in each way, in words."""
    order = [*map(str, Status), *UNENDED]
    return [f"{endings[s]:,} {s.replace('_', ' ')}" for s in order if endings[s]]


def _alike(cell: Cell) -> str:
    """Return what cells that take about as long have in common."""
    optim = cell.described.get("optim", {})
    work = {name: optim.get(name) for name in ("steps", "batch_size")}
    return canonical({**cell.described, **dict.fromkeys(UNLIKE), "optim": work})
