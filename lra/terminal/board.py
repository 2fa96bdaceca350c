"""Print the progress of a sweep: the runs that begin, are running, and have ended.

Progress goes to stdout, line by line; only errors go to stderr. A file or a pipe gets a line about
each running run after 10 s, then after waits that double up to 5 minutes. If stdout and stderr are
terminals, the progress of running runs is instead redrawn in place, in the bottom lines.
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
"""The shortest and the longest wait between two lines about a running run, in seconds."""
VERBOSE_S = 1.0
"""The wait between two lines about one phase of a run, with `--verbose`."""
DRAWN_S, LOOK_S = 0.1, 0.5
"""Seconds between two drawings, and between two checks of whether a line is due."""
GOOD = frozenset({Status.ok, Status.skipped})
"""Endings that `--quiet` omits."""
UNLIKE = ("model", "mixer", "seed", "trainings")
"""Parts of the identity in which two runs may differ and still take about the same time."""
STOPPED, SAVED, LEFT = "stopped, without rows", "saved half-way", "left"
UNENDED = (STOPPED, SAVED, LEFT)
"""Endings of runs that stored no rows; a rerun continues a saved one from its checkpoint."""


@dataclass(slots=True)
class _Running:
    """The progress of a running run, or of the preparation of data; times are in seconds."""

    kind: str
    """The same text for runs that take about the same time: see `_describe_work`."""
    position: str
    title: str
    begun: float
    due: float
    """When the next line is due."""
    place: str = ""
    """The devices or cores that the run uses, in words."""
    wait: float = FIRST_S
    message: Progress = field(default_factory=lambda: Progress(phase="starting"))
    message_at: float = 0.0
    phase_at: float = 0.0
    printed_at: float = 0.0

    def take(self, message: Progress, now: float) -> bool:
        """Store the last message of the run; return whether it begins a new phase."""
        begins = message.phase != self.message.phase
        if begins:
            self.phase_at = now
        self.message, self.message_at = message, now
        return begins

    def text(self, now: float, columns: int | None = None) -> str:
        """Return the progress of the run in words, in at most `columns` columns (None: any)."""
        parts = cell_facts(self.message, age_s=now - self.message_at, phase_s=now - self.phase_at)
        if columns is not None and self.place:  # only lines that are redrawn repeat the place
            parts.append(Fact(self.place, 5))
        return join_facts(parts, columns)

    @property
    def share(self) -> float | None:
        """The finished share of the phase, from 0 to 1; None if its length is unknown."""
        return self.message.done / self.message.total if self.message.total else None


class ProgressBoard:
    """Prints the progress and the ending of each run.

    In its `with` block, a thread prints the lines that become due.
    """

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
        """Start the clock of the sweep.

        Args:
            waiting: The runs that will be executed.
            titles: The name of each run, by key.
            volume: How much is printed.
            out: The stream for lines; None: stdout.
            err: The stream for errors; None: stderr.
            clock: Returns the time in seconds.
            region: The bottom lines of the terminal; None: a new region, if `out` and `err` are
                terminals.
        """
        self.titles, self.volume, self.clock = titles, volume, clock
        self.out, err = out or sys.stdout, err or sys.stderr
        self.total, self.begin = len(waiting), clock()
        self.running: dict[str, _Running] = {}
        self.numbers: dict[str, str] = {}
        self.endings: Counter[str] = Counter()
        self.ahead = Counter(map(_describe_work, waiting))  # runs to start, by kind
        self.took: dict[str, list[float]] = defaultdict(list)
        """Seconds that each ended run took, by its kind."""
        if region is None and on_terminal(self.out, err) and volume is not Volume.quiet:
            region = Region(err)
        self.region = region
        self.stamped = region is None and not self.out.isatty()  # lines of a log have their time
        self.drawn_at = -DRAWN_S
        self.busy = False
        """Whether data are being prepared, which draws separate bars."""
        self._lock, self._over = threading.RLock(), threading.Event()
        self._watch = threading.Thread(target=self._tick_repeatedly, name="board", daemon=True)

    def __enter__(self) -> "ProgressBoard":
        """Start the thread that prints due lines."""
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread, and remove the drawn lines."""
        self._over.set()
        self._watch.join()
        with self._lock:
            if self.region is not None:
                self.region.clear()

    def _tick_repeatedly(self) -> None:
        """Call `tick` every `LOOK_S` seconds until the `with` block ends."""
        while not self._over.wait(LOOK_S):
            with suppress(OSError, ValueError):  # if the reader is gone, the main thread raises
                self.tick()

    def tick(self) -> None:
        """Print each line that is due, or redraw the bottom lines of a terminal."""
        with self._lock:
            if self.region is None and self.volume is not Volume.quiet:
                for running in self.running.values():
                    if self.clock() >= running.due:
                        self._print_progress(running)
            self._draw()

    @contextmanager
    def preparing(self, what: str) -> Iterator[None]:
        """Show, while the `with` block prepares the data `what`, that it is running.

        At the end, a line says how long it took, if that was more than a second.
        """
        begun = self.clock()
        preparation = _Running("", "", f"preparing {what}", begun, begun + FIRST_S)
        preparation.take(Progress(phase="under way"), begun)
        with self._lock:
            self.running[what] = preparation
            self.busy = True
        try:
            with listen(self._print_event, log=None):
                yield
        finally:
            with self._lock:
                del self.running[what]
                self.busy = False
        if self.clock() - begun >= VERBOSE_S or self.volume is Volume.verbose:
            self.say(f"{what} is ready ({time_words(self.clock() - begun)})")

    def _print_event(self, message: Progress | Event, about: str = "") -> None:
        """Print the text of an event after `about`; minor events only with `--verbose`."""
        if isinstance(message, Event) and (
            message.level >= logging.INFO or self.volume is Volume.verbose
        ):
            self.say(about + legible(message.text))

    def start(self, cell: Cell, details: Sequence[str] = (), place: str = "") -> None:
        """Print that a run begins, and follow its progress from now on.

        Args:
            cell: The run.
            details: Lines that are printed with `--verbose`.
            place: The devices or cores that the run uses, in words.
        """
        with self._lock:
            now, name = self.clock(), self.titles[cell.key]
            running = _Running(
                _describe_work(cell), self._number(cell), name, now, now + FIRST_S, place=place
            )
            running.message_at = running.phase_at = now
            self.running[cell.key] = running
            self.ahead[running.kind] -= 1
            if self.region is None or self.volume is Volume.verbose:
                on_place = f" on {place}" if place and self.volume is Volume.verbose else ""
                self.say(f"{running.position} {name}: begun{on_place}")
            for line in details if self.volume is Volume.verbose else ():
                self.say(f"{running.position} {line}")
            self._draw(at_once=True)

    def advance(self, cell: Cell, message: Progress | Event) -> None:
        """Show the progress of the run `cell`, or an event in it."""
        with self._lock:
            running, now = self.running[cell.key], self.clock()
            if isinstance(message, Event):
                self._print_event(message, f"{running.position} {running.title}: ")
                return
            begins = running.take(message, now)
            if self.volume is Volume.verbose and (begins or now - running.printed_at >= VERBOSE_S):
                self._print_progress(running)
            self._draw()

    def finish(self, cell: Cell, outcome: str, status: str = Status.ok) -> None:
        """Print how a run ended.

        Args:
            cell: The run.
            outcome: Its result, or the reason why it has none.
            status: One of `Status` or `UNENDED`.
        """
        with self._lock:
            running, now = self.running.pop(cell.key, None), self.clock()
            self.endings[status] += 1
            time_spent = ""
            if running is None:  # it ended before it was started, for example without its data
                self.ahead[_describe_work(cell)] -= 1
            else:
                self.took[running.kind].append(now - running.begun)
                time_spent = f" ({time_words(now - running.begun)})"
            line = f"{self._number(cell)} {self.titles[cell.key]}: {outcome}{time_spent}"
            self.say(line, always=status not in GOOD)
            self._draw(at_once=True)

    def summary(self, folder: str) -> None:
        """Print how many runs ended in each way, their time, and the results folder."""
        parts = ending_words(self.endings)
        missing = self.total - self.endings.total()
        parts += [f"{missing} not started"] if missing else []
        runs = "1 run" if self.total == 1 else f"{self.total} runs"
        took = time_words(self.clock() - self.begin)
        self.say(f"{runs} in {took}: {', '.join(parts)}; results in {folder}", always=True)

    def say(self, line: str, *, always: bool = False) -> None:
        """Print a line above the drawn lines; with `--quiet`, only if `always` is true."""
        if self.volume is Volume.quiet and not always:
            return
        with self._lock:
            if self.region is not None:
                self.region.clear()
            stamp = f"{datetime.now():%Y-%m-%d %H:%M:%S} " if self.stamped else ""
            print(encodable(f"{stamp}{line}", self.out), file=self.out, flush=True)
            self._draw(at_once=True)

    def _number(self, cell: Cell) -> str:
        """Return the number of a run, as [2/9]; runs are numbered in the order of their start."""
        number = self.numbers.setdefault(cell.key, str(len(self.numbers) + 1))
        return f"[{number:>{len(str(self.total))}}/{self.total}]"

    def _print_progress(self, running: _Running) -> None:
        """Print a line about a running run, and set the time of its next line."""
        now = self.clock()
        if self.volume is not Volume.verbose:
            running.wait = min(LONGEST_S, 2 * running.wait)
        running.printed_at, running.due = now, now + running.wait
        self.say(f"{running.position} {running.title}: {running.text(now)}".lstrip())

    def _draw(self, *, at_once: bool = False) -> None:
        """Redraw the bottom lines, at most every `DRAWN_S` seconds unless `at_once`."""
        now = self.clock()
        if self.region is None or self.busy:
            return
        if at_once or now - self.drawn_at >= DRAWN_S:
            self.drawn_at = now
            self.region.draw(self._make_lines(now, *self.region.room(), self.region.stream))

    def _make_lines(self, now: float, columns: int, rows: int, stream: TextIO) -> list[str]:
        """Return the lines to draw: one or two about each running run, then one about the sweep."""
        lines: list[str] = []
        two_each = 2 * len(self.running) + 1 <= rows - 1  # if all fit above one free row
        listed = list(self.running.values())[: rows - 2]
        for running in listed:
            head = f"{running.position} {running.title}"
            state = partial(running.text, now)
            if two_each:
                lines += [squeeze(head, columns), bar_line(running.share, state, columns, stream)]
            else:
                text = state(columns // 2)
                lines.append(f"{squeeze(head, columns - len(text) - 2)}: {text}")
        if self.total > 1 and self.running:
            hidden = len(self.running) - len(listed)
            lines.append(join_facts(self._describe_sweep(now, hidden), columns))
        return lines

    def _describe_sweep(self, now: float, hidden: int) -> list[Fact]:
        """Return facts about the sweep and their ranks; `hidden` running runs have no line."""
        failed = sum(count for status, count in self.endings.items() if status not in GOOD)
        seconds_left = self._estimate_left(now)
        return [
            Fact(f"{self.endings.total()} of {self.total} runs have ended", 0),
            *([Fact(f"{failed} not ok", 2)] if failed else []),
            *([Fact(f"{hidden} more are running", 3)] if hidden else []),
            Fact(f"{time_words(now - self.begin)} so far", 4),
            *([] if seconds_left is None else [Fact(f"about {ahead(seconds_left)} left", 1)]),
        ]

    def _estimate_left(self, now: float) -> float | None:
        """Return an estimate of the seconds until the sweep ends, from the runs that have ended.

        A run is assumed to take the mean time of the ended runs of its kind. The result is None if
        no run of some kind has ended yet, or if a running one already takes longer than that mean.
        """
        waiting = +self.ahead  # the plus sign drops counts of zero
        kinds = (*waiting, *(running.kind for running in self.running.values()))
        if not all(self.took.get(kind) for kind in kinds):
            return None
        means = {kind: fmean(times) for kind, times in self.took.items() if times}
        running_s = [(means[run.kind], now - run.begun) for run in self.running.values()]
        if any(spent_s > mean for mean, spent_s in running_s):
            return None
        total_s = sum(means[kind] * count for kind, count in waiting.items())
        total_s += sum(mean - spent_s for mean, spent_s in running_s)
        return total_s / max(1, len(running_s))  # so many runs are executed at once


def ending_words(endings: Counter[str]) -> list[str]:
    """Return how many runs ended in each way, as 3 ok or 1 out of memory."""
    order = [*map(str, Status), *UNENDED]
    return [
        f"{endings[status]:,} {status.replace('_', ' ')}" for status in order if endings[status]
    ]


def _describe_work(cell: Cell) -> str:
    """Return a text that is equal for runs that take about the same time."""
    optim = cell.described.get("optim", {})
    work = {name: optim.get(name) for name in ("steps", "batch_size")}
    return canonical({**cell.described, **dict.fromkeys(UNLIKE), "optim": work})
