"""Disks that are full, read-only, slow or failing, while a sweep writes there.

A small file system in memory is really full and really read-only; errors that no file system gives
on demand, and slowness, come from a library between the program and its C library (`shim`).
"""

import errno
import os
import random
import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from tests.campaign import fresh
from tests.campaign.part import Found, LeftOut, Settings
from tests.campaign.shim import Faults
from tests.campaign.sweeps import (
    SHORT,
    TINY,
    Bench,
    Ended,
    check_left,
    check_store,
    done_cells,
    undisturbed,
)

ABOUT = "full, limited, read-only, failing and slow disks"
WORDS = ("-m", *TINY, "model=linear,performer", "seed=range(0,3)")
REFUSALS = ("EIO", "ENOSPC", "EROFS", "EDQUOT", "ESTALE", "EFBIG")
MOST_STARTS = 60
"""A sweep that is not done after so many starts gets nowhere."""


def run(settings: Settings) -> Found:
    """Try each kind of disk on sweeps of six trainings."""
    found = Found("disk")
    words = SHORT if settings.short else WORDS
    whole = undisturbed(settings, *words)
    found.figures["cells in each sweep"] = done_cells(whole)
    kinds: dict[Callable[..., None], int] = {
        _too_small: settings.few(12, 0),
        _filled_meanwhile: settings.few(12, 0),
        _read_only_meanwhile: settings.few(12, 0),
        _limited: settings.few(6, 0),
        _failing: settings.few(40, 1),
        _slow: settings.few(4, 0),
    }
    reasons = []
    for kind, number in kinds.items():
        name = kind.__name__.removeprefix("_").replace("_", " ")
        for turn in range(number):
            draw = settings.draw("disk", name, turn)
            bench = Bench(settings, f"{kind.__name__}-{turn}", words)
            case = f"disk {name}, {turn}"
            try:
                with _place(bench, kind in MOUNTED) as mounted:
                    kind(found, bench, draw, mounted)
                    check_store(found, bench.results, whole, case)
            except LeftOut as reason:
                reasons.append(f"{name}: {reason}")
                break
            check_left(found, bench, case)
        else:
            settings.say(f"{name}: {number} sweeps, {sum(found.faults.values())} faults so far")
    if reasons:
        found.figures["left out"] = "; ".join(reasons)
    return found


@contextmanager
def _place(bench: Bench, mounted: bool) -> Iterator[Path]:
    """Give a bench its disk: a file system of its own where that is asked for."""
    disk = bench.folder / "disk"
    disk.mkdir()
    if not mounted:
        yield disk
        return
    if not _mount("-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)):
        raise LeftOut("needs the right to mount a small tmpfs")
    bench.results = disk / "results"
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


def _mount(*words: str) -> bool:
    if os.geteuid():
        return False
    return not subprocess.run(["mount", *words], capture_output=True, check=False).returncode


def _words(bench: Bench) -> tuple[str, ...]:
    return ("run", *bench.words, f"results={bench.results}")


def _judge(found: Found, ended: Ended, case: str, faults: int = 1) -> bool:
    """Check how a sweep ended that may have met a fault; return whether it is done."""
    found.check(ended.code in (0, 2), f"{case}: ended with {ended.code}: {ended.said[-800:]}")
    found.check(ended.clear(), f"{case}: ended unclear: {ended.said[-800:]}")
    if ended.code == 2:
        found.faults[case] += faults
        found.check(
            "Rerun the same command to resume" in ended.said and "lra: " in ended.said,
            f"{case}: no way out in {ended.said[-800:]}",
        )
    return ended.code == 0


def _in_peace(found: Found, bench: Bench, case: str) -> None:
    last = bench.run(*_words(bench))
    found.check(last.code == 0, f"{case}: afterwards {last.code}: {last.said[-800:]}")


def _too_small(found: Found, bench: Bench, draw: random.Random, disk: Path) -> None:
    """Grow the disk a little whenever it is full."""
    size = draw.randrange(60, 300)
    for _ in range(MOST_STARTS):
        _mount("-o", f"remount,size={size}k", str(disk))
        if _judge(found, bench.run(*_words(bench)), "full disk"):
            return
        size += draw.randrange(20, 200)
    found.check(False, "full disk: gets nowhere as it grows")


def _filled_meanwhile(found: Found, bench: Bench, draw: random.Random, disk: Path) -> None:
    """Somebody else fills the disk for a while."""
    running = bench.start(*_words(bench))
    _wait_for_cells(bench)
    time.sleep(2 * draw.random())
    hog = disk / "hog"
    with suppress(OSError), hog.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(65536))
    time.sleep(draw.random())
    ended = running.end() if draw.random() < 0.7 else None
    hog.unlink()
    _judge(found, ended or running.end(), "disk filled in mid-sweep")
    _in_peace(found, bench, "disk filled in mid-sweep")


def _read_only_meanwhile(found: Found, bench: Bench, draw: random.Random, disk: Path) -> None:
    """Mount the disk read-only in mid-sweep, in a moment in which nobody has a file open."""
    running = bench.start(*_words(bench))
    _wait_for_cells(bench)
    time.sleep(2 * draw.random())
    made = False
    while not running.over() and not made:
        made = _mount("-o", "remount,ro", str(disk))
    ended = running.end()
    if made:
        _mount("-o", "remount,rw", str(disk))
    else:
        found.figures["no moment to mount read-only"] = (
            int(found.figures.get("no moment to mount read-only", 0)) + 1
        )
    _judge(found, ended, "disk read-only in mid-sweep")
    _in_peace(found, bench, "disk read-only in mid-sweep")


def _limited(found: Found, bench: Bench, draw: random.Random, disk: Path) -> None:
    """No file may be larger than some kilobytes (`ulimit -f`)."""
    size = draw.randrange(2_000, 60_000)
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (size, size))
    _judge(found, bench.start(*_words(bench), prepare=partial(fresh.begin, limit)).end(),
           "limit on the size of files")  # fmt: skip
    _in_peace(found, bench, "limit on the size of files")


def _failing(found: Found, bench: Bench, draw: random.Random, disk: Path) -> None:
    """Calls that write fail at random with one of the errors of a disk, for a while."""
    faults = Faults(bench.folder / "faults", bench.results)
    name = draw.choice(REFUSALS)
    permille = draw.choice((1, 5, 30, 200, 1000))
    running = bench.start(*_words(bench), more=faults.variables)
    if draw.random() < 0.8:
        _wait_for_cells(bench)
    time.sleep(draw.random())
    faults.disk(getattr(errno, name), permille)
    ended = running.end() if draw.random() < 0.7 else None
    time.sleep(draw.random())
    faults.disk()
    ended = ended or running.end()
    number = faults.applied()
    found.faults[f"{name} of a call"] += number
    _judge(found, ended, f"sweeps ended by {name}")
    found.check(number or ended.code == 0, f"{name}: ended with {ended.code} without a fault")
    _in_peace(found, bench, f"{name} of {permille} in a thousand calls")


def _slow(found: Found, bench: Bench, draw: random.Random, disk: Path) -> None:
    """Every call takes milliseconds, as on a busy file server."""
    faults = Faults(bench.folder / "faults", bench.results)
    delay_us = draw.choice((1_000, 3_000, 10_000))
    faults.disk(delay_us=delay_us)
    begun = time.monotonic()
    ended = bench.run(*_words(bench), more=faults.variables)
    found.faults["slow calls"] += faults.applied()
    found.check(ended.code == 0, f"slow disk: ended with {ended.code}: {ended.said[-800:]}")
    name = f"seconds of a sweep, {delay_us / 1000:g} ms a call"
    found.figures[name] = round(time.monotonic() - begun, 1)


MOUNTED = (_too_small, _filled_meanwhile, _read_only_meanwhile)


def _wait_for_cells(bench: Bench) -> None:
    deadline = time.monotonic() + 60
    while not list(bench.results.glob("cells/*/*")) and time.monotonic() < deadline:
        time.sleep(0.01)
