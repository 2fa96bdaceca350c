"""What a person sees of a sweep, line by line and on a terminal, with a clock that stands still."""

import io
import logging
import os
import random
from collections.abc import Callable
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
from fuzz import cases
from screen import Screen

from lra.runners.isolation.progress import Event, Progress
from lra.runners.records import Cell, Status
from lra.terminal.board import LEFT, STOPPED, ProgressBoard
from lra.terminal.screen import Region, gauge, on_terminal, squeeze, trim, width
from lra.terminal.volume import Volume
from lra.terminal.wording import ahead, cell_facts, join_facts, time_words
from tests.runners.storage.stored_cells import make_cell

STEP = Progress(
    unit="step", done=400, total=1000, loss=1.2344, learning_rate=2e-3, speed=12_300.4,
    speed_unit="tokens", left_s=170.0,
)  # fmt: skip


cell = partial(make_cell, length=8)


class Sweep:
    """A board over some cells, its clock, and what it wrote."""

    def __init__(
        self, count: int = 3, *, size: tuple[int, int] | None = None, **options: Any
    ) -> None:
        self.cells = [cell(number) for number in range(count)]
        self.now = 0.0
        self.out = io.StringIO()
        self.screen: Screen | None = None
        region = None
        if size is not None:
            self.screen = Screen(*size)
            self.out = region_stream = Feed(self.screen)
            region = Region(region_stream, lambda: os.terminal_size(size))
        titles = options.pop("titles", {c.key: f"cell {n}" for n, c in enumerate(self.cells)})
        self.board = ProgressBoard(
            self.cells, titles, out=self.out, clock=lambda: self.now, region=region, **options
        )

    def wait(self, seconds: float, each: float = 0.5) -> None:
        for _ in range(round(seconds / each)):
            self.now += each
            self.board.tick()

    @property
    def lines(self) -> list[str]:
        """What was written, without time stamps, which are checked."""
        found = []
        for line in self.out.getvalue().splitlines():
            stamp, text = line[:19], line[20:]
            assert datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S")
            found.append(text)
        return found


class Feed(io.StringIO):
    """Shows what is written on a screen."""

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self.screen = screen

    def write(self, text: str) -> int:
        self.screen.feed(text)
        return super().write(text)


# -- lines ----------------------------------------------------------------------------------------


def test_a_cell_from_its_begin_to_its_end() -> None:
    sweep = Sweep()
    first = sweep.cells[0]
    sweep.board.start(first, ["key 0a"])
    sweep.board.advance(first, Event(level=logging.INFO, text="resumed at step 53"))
    sweep.board.advance(first, Event(level=logging.DEBUG, text="checkpoint written"))
    sweep.now += 9.0
    sweep.board.advance(first, STEP)
    sweep.wait(1.0)
    sweep.board.finish(first, "accuracy 0.500")
    sweep.board.finish(sweep.cells[1], "unsupported: no", Status.unsupported)
    sweep.board.finish(sweep.cells[2], f"{STOPPED}: asked", STOPPED)
    sweep.board.summary("results")
    assert sweep.lines == [
        "[1/3] cell 0: begun",
        "[1/3] cell 0: resumed at step 53",
        "[1/3] cell 0: step 400/1,000, loss 1.234, lr 2.0e-3, 12,300 tokens/s, 3 min left",
        "[1/3] cell 0: accuracy 0.500 (10.0 s)",
        "[2/3] cell 1: unsupported: no",
        "[3/3] cell 2: stopped, without rows: asked",
        "3 runs in 10.0 s: 1 ok, 1 unsupported, 1 stopped, without rows; results in results",
    ]


def test_waits_between_lines_double_up_to_five_minutes() -> None:
    sweep = Sweep(1)
    sweep.board.start(sweep.cells[0])
    at = []
    for _ in range(2 * 3600):
        before = len(sweep.lines)
        sweep.wait(1.0, each=1.0)
        sweep.board.advance(sweep.cells[0], STEP)
        if len(sweep.lines) > before:
            at.append(sweep.now)
    assert at[:8] == [10, 30, 70, 150, 310, 610, 910, 1210]
    assert {b - a for a, b in pairwise(at[5:])} == {300}


def test_a_cell_that_says_nothing_is_not_silent() -> None:
    sweep = Sweep(1)
    sweep.board.start(sweep.cells[0])
    sweep.board.advance(sweep.cells[0], Progress(phase="first call"))
    sweep.wait(80)
    assert sweep.lines[1:] == [f"[1/1] cell 0: first call, for {s} s" for s in (10, 30, 70)]


def test_a_time_left_grows_old_with_its_message() -> None:
    sweep = Sweep(1)
    sweep.board.start(sweep.cells[0])
    sweep.board.advance(sweep.cells[0], STEP)
    sweep.wait(30)
    assert sweep.lines[-1].endswith("140 s left") or sweep.lines[-1].endswith("3 min left")
    sweep.wait(300)
    assert "left" not in sweep.lines[-1]


def test_making_data_is_a_phase_of_its_own() -> None:
    sweep = Sweep(1)
    with sweep.board.preparing("listops"):
        logging.getLogger("lra.tasks.data.stored_task").info("preparing listops in x")
        sweep.wait(12)
    with sweep.board.preparing("text"):
        pass
    assert sweep.lines == [
        "preparing listops in x",
        "preparing listops: under way, for 10 s",
        "listops is ready (12.0 s)",
    ]


def test_quiet_says_failures_and_the_end() -> None:
    sweep = Sweep(volume=Volume.quiet)
    for each, status in zip(sweep.cells, (Status.ok, Status.crashed, LEFT), strict=True):
        sweep.board.start(each, ["key"])
        sweep.board.advance(each, Event(level=logging.WARNING, text="hm"))
        sweep.board.advance(each, STEP)
        sweep.wait(100)
        sweep.board.finish(each, f"ended {status}", status)
    sweep.board.summary("here")
    assert sweep.lines == [
        "[2/3] cell 1: ended crashed (1 min 40 s)",
        "[3/3] cell 2: ended left (1 min 40 s)",
        "3 runs in 5 min 00 s: 1 ok, 1 crashed, 1 left; results in here",
    ]


def test_verbose_says_every_phase_and_every_second() -> None:
    sweep = Sweep(1, volume=Volume.verbose)
    only = sweep.cells[0]
    sweep.board.start(only, ["key 0a", "log here"])
    for phase in ("building", "first step"):
        sweep.board.advance(only, Progress(phase=phase))
    for number in range(40):
        sweep.board.advance(only, Progress(unit="step", done=number, total=40))
        sweep.now += 0.125
    sweep.board.advance(only, Event(level=logging.DEBUG, text="checkpoint of step 40 written"))
    assert sweep.lines == [
        *(f"[1/1] {text}" for text in ("cell 0: begun", "key 0a", "log here")),
        *(f"[1/1] cell 0: {text}" for text in (
            "building", "first step", "step 0/40", "step 8/40", "step 16/40", "step 24/40",
            "step 32/40",
            "checkpoint of step 40 written")),
    ]  # fmt: skip


def test_what_was_not_tried_is_counted() -> None:
    sweep = Sweep(2)
    sweep.board.start(sweep.cells[0])
    sweep.board.finish(sweep.cells[0], "no memory", Status.out_of_memory)
    sweep.board.summary("r")
    assert sweep.lines[-1] == "2 runs in 0.0 s: 1 out of memory, 1 not started; results in r"


@pytest.mark.parametrize("seed", range(cases(20)))
def test_lines_hold_no_control_characters_and_every_place_belongs_to_one_cell(seed: int) -> None:
    draw = random.Random(seed)
    sweep = Sweep(8, volume=draw.choice([Volume.normal, Volume.verbose]))
    running: list[Cell] = []
    waiting = list(sweep.cells)
    while waiting or running:
        sweep.wait(draw.choice([0.5, 5, 50]))
        act = draw.randrange(4)
        if act == 0 and waiting:
            running.append(waiting.pop())
            sweep.board.start(running[-1])
        elif act == 1 and running:
            sweep.board.finish(running.pop(draw.randrange(len(running))), "done")
        elif running:
            text = draw.choice(["a\rb", "\x1b[2J", "two\nlines", "ü…"])
            message: Any = Event(level=logging.INFO, text=text) if act == 2 else STEP
            sweep.board.advance(draw.choice(running), message)
    written = sweep.out.getvalue()
    assert all(letter.isprintable() or letter == "\n" for letter in written)
    places: dict[str, set[str]] = {}
    for line in sweep.lines:
        place, _, rest = line.partition("] ")
        places.setdefault(place, set()).add(rest.partition(":")[0])
    assert sorted(places) == [f"[{n}/8" for n in range(1, 9)]
    assert all(len(names) == 1 for names in places.values())


# -- a terminal -----------------------------------------------------------------------------------

TITLES = (
    "train sliding_window on listops, seed 0, window=16, steps=400",
    "step linear at 64",
    "ü" * 90,
)


def drawn(sweep: Sweep) -> list[str]:
    return sweep.screen.text[-len(sweep.board.region.drawn) :]  # type: ignore[union-attr]


def test_a_bar_with_everything_beside_it() -> None:
    sweep = Sweep(2, size=(120, 24))
    sweep.board.start(sweep.cells[0])
    sweep.now += 1
    sweep.board.advance(sweep.cells[0], STEP)
    assert drawn(sweep) == [
        "[1/2] cell 0",
        " 40% |████▍      | step 400/1,000, loss 1.234, lr 2.0e-3, 12,300 tokens/s, 3 min left",
        "0 of 2 runs have ended, 1.0 s so far",
    ]
    sweep.board.finish(sweep.cells[0], "accuracy 0.5")
    assert [line for line in sweep.screen.text if line] == ["[1/2] cell 0: accuracy 0.5 (1.0 s)"]


@pytest.mark.parametrize("seed", range(cases(30)))
def test_whatever_the_size_nothing_wraps_and_nothing_stays(seed: int) -> None:
    draw = random.Random(seed)
    size = (draw.choice([12, 20, 40, 60, 80, 120, 200]), draw.choice([4, 8, 24]))
    count = draw.choice([1, 2, 5, 40])
    sweep = Sweep(count, size=size)
    sweep.board.titles = {each.key: draw.choice(TITLES) for each in sweep.cells}
    messages = [STEP, Progress(phase="x" * 70), Progress(phase="timing", unit="sample", done=1)]
    for each in sweep.cells:
        sweep.board.start(each)
    for _ in range(20):
        sweep.now += 0.3
        sweep.board.advance(draw.choice(sweep.cells), draw.choice(messages))
    assert sweep.screen.wrapped == 0
    region = sweep.board.region
    assert 1 <= len(region.drawn) < size[1]
    assert len(sweep.screen.text) == len(region.drawn)  # only this drawing, and no older one
    region.clear()
    assert "".join(sweep.screen.text) == ""


def test_narrow_terminals_keep_the_step_and_the_time_left() -> None:
    sweep = Sweep(1, size=(40, 24), titles={cell(0).key: TITLES[0]})
    sweep.board.start(sweep.cells[0])
    sweep.now += 1
    sweep.board.advance(sweep.cells[0], STEP)
    head, state = drawn(sweep)
    assert head.endswith("window=16, steps=400")
    assert state == " 40% step 400/1,000, 3 min left"


def test_a_terminal_that_became_narrower_is_wiped_whole() -> None:
    screen = Screen(80)
    size = [80, 24]
    region = Region(Feed(screen), lambda: os.terminal_size(size))
    region.draw(["a" * 70, "b" * 70, "c"])
    narrow = Screen(30)  # as terminals do: what is there is wrapped anew
    for number, line in enumerate(screen.text):
        narrow.feed(line + "\n" * (number < 2))
    size[0] = 30
    region.stream = Feed(narrow)
    region.draw(["d"])
    assert narrow.text == ["d"]


@pytest.mark.parametrize(
    "text", ["plain text of some length", "ü" * 30, "漢字" * 12, "a\u0301" * 30]
)
def test_cut_texts_fit(text: str) -> None:
    for columns in range(2, 40):
        for cut in (trim, squeeze):
            found = cut(text, columns)
            assert width(found) <= columns
            assert (found == text) == (width(text) <= columns)


def test_bars_are_full_at_the_end_and_empty_at_the_begin() -> None:
    for encoding in ("utf-8", "ascii"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
        widths = [len(gauge(n / 100, 7, stream)) for n in range(-5, 106)]
        assert set(widths) == {7}
        assert gauge(0.0, 7, stream).strip() == ""
        assert len(set(gauge(1.0, 7, stream))) == 1
        gauge(0.4, 7, stream).encode(encoding)


def test_what_a_stream_cannot_write_is_escaped() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    sweep = Sweep(1)
    sweep.board.out = out
    sweep.board.say("ü and …", always=True)
    assert out.buffer.getvalue().endswith(b"\\xfc and ~\n")  # type: ignore[attr-defined]


def test_a_dumb_terminal_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "dumb")
    assert not on_terminal(Terminal(), Terminal())
    monkeypatch.setenv("TERM", "xterm")
    assert on_terminal(Terminal(), Terminal())
    assert not on_terminal(Terminal(), io.StringIO())


def test_the_time_a_sweep_takes_yet_is_told_only_where_it_is_known() -> None:
    sweep = Sweep(4, size=(120, 24))
    assert sweep.board._estimate_left(sweep.now) is None
    for number in range(2):
        sweep.board.start(sweep.cells[number])
        sweep.now += 10
        sweep.board.finish(sweep.cells[number], "ok")
    assert sweep.board._estimate_left(sweep.now) == pytest.approx(20)
    sweep.board.start(sweep.cells[2])
    sweep.now += 4
    assert sweep.board._estimate_left(sweep.now) == pytest.approx(16)
    sweep.now += 7  # longer than those before: nobody knows
    assert sweep.board._estimate_left(sweep.now) is None


# -- words ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("say", "seconds", "said"),
    [
        (time_words, 0.04, "0.0 s"), (time_words, 59.94, "59.9 s"),
        (time_words, 59.96, "1 min 00 s"), (time_words, 151, "2 min 31 s"),
        (time_words, 3599.6, "1 h 00 min"), (time_words, 11_100, "3 h 05 min"),
        (time_words, 187_200, "2 d 4 h"), (ahead, 0.2, "1 s"), (ahead, 89.1, "90 s"),
        (ahead, 91, "2 min"), (ahead, 7_800, "2 h 10 min"), (ahead, 1e6, "11 d 13 h"),
    ],
)  # fmt: skip
def test_durations(say: Callable[[float], str], seconds: float, said: str) -> None:
    assert say(seconds) == said


@pytest.mark.parametrize(
    ("loss", "said"),
    [(1.2344, "1.234"), (0.01, "0.010"), (0.00012, "0.00012"), (123456.0, "123,456"),
     (1e9, "1.00e+09"), (float("nan"), "nan"), (0.0, "0"), (-2.5, "-2.500")],
)  # fmt: skip
def test_numbers_keep_what_counts(loss: float, said: str) -> None:
    found = cell_facts(Progress(loss=loss, unit="step"), age_s=0, phase_s=0)
    assert found[1].text == f"loss {said}"


def test_the_least_worth_goes_first() -> None:
    found = cell_facts(STEP, age_s=0, phase_s=0)
    lengths = [join_facts(found, width).count(",") for width in range(80, 0, -1)]
    assert lengths == sorted(lengths, reverse=True)
    assert join_facts(found, 1) == "step 400/1,000"
    assert join_facts(found, 30) == "step 400/1,000, 3 min left"
    assert join_facts(found, 45) == "step 400/1,000, loss 1.234, 3 min left"
