"""Bad command lines of every verb, generated from what the program itself offers.

A sound line is taken, and gets a slip: a letter lost, doubled or swapped, a value of another kind,
a value or a word missing, quotes, other alphabets, absurd numbers, an option of another verb. What
comes is an answer in a few lines with exit code 2, or, where the slip did no harm, the work itself.
"""

import io
import os
import random
import re
import shlex
import signal
import time
from collections import Counter
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache
from pathlib import Path

from lra import cli
from tests.campaign.part import Found, Settings
from tests.campaign.sweeps import SHORT, undisturbed

ABOUT = "bad command lines of every verb"
SOUND = {
    "run": ("model=linear task=listops runner.dry_run=true", "-m seed=0,1 runner.dry_run=true",
            "-m +experiment=quickstart runner.dry_run=true",
            "runner=scaling runner.lengths=[64] runner.dry_run=true"),
    "plan": ("model=linear task=listops", "-m model=linear,softmax seed=0,1"),
    "report": ("--results R", "--results R --sweep S", "--results R --style paper_column"),
    "dashboard": ("--sweep S", "--project p --entity e"),
    "list": ("models", "tasks", "models --traits", "linear"),
    "data": ("show listops source=sample --count=1", "show text source=sample --index=0"),
    "verify": ("linear --width=16 --heads=2", "linear chunk=8"),
    "generate": ("C --results R --prompt a --tokens 2",),
    "show": ("C --results R", "C --results R --rows"),
    "submit": ("-m model=linear seed=0,1 cluster=local cluster.workers=2 results=N",
               "+experiment=quickstart cluster=slurm cluster.workers=3 results=N"),
    "work": ("R/plans/S", "N/plans/x"),
    "watch": ("S --results R", "R/plans/S"),
    "completion": ("bash", "zsh"),
    "doctor": ("--store --results R", "--store --json --results R"),
}  # fmt: skip
VALUES = (
    "", "''", "'", '"', "[", "]", "{", "{}", "[]", "null", "true", "nan", "inf", "-inf", "-1", "0",
    "1.7", "1e400", "9" * 40, "0x1f", "1_0", "é", "模型", "\u202e", "\u0663", "a b", "a=b", "=",
    ",", "../..", "/", "/dev/null", "~", "$HOME", "${x}", "${oc.env:HOME}", "???", "\\", "x" * 5000,
    "!!python/object:os.system", "range(0,1e9)", "<b>", "%s", "\x1b[31m",
)  # fmt: skip
BEGINS = ("run", "submit")
"""Verbs that would begin work where a slip leaves a sound line: that is only planned."""
PROCESSOR_LIMIT_S = 20
"""What no answer takes of the processor; the first of a verb imports what it needs."""


class TooSlow(BaseException):
    """No Exception: nothing in between may take it for one."""


def run(settings: Settings) -> Found:
    """Give hundreds of lines to each verb."""
    found = Found("words")
    whole = undisturbed(settings, *SHORT)
    cell = sorted(whole.glob("cells/*/*"))[0].name
    place = settings.folder / "here"
    place.mkdir()
    before = Path.cwd()
    os.chdir(place)
    try:
        ends: Counter[int] = Counter()
        for verb in [*SOUND, "no verb"]:
            if verb not in cli.VERBS and verb != "no verb":
                continue
            total = settings.few(settings.cases, 1)
            for number in range(total):
                draw = settings.draw("words", verb, number)
                words = line(verb, draw)
                words = [
                    word.replace("R", str(whole)) if word[:1] == "R" else word for word in words
                ]
                words = [cell if word == "C" else word for word in words]
                found.faults[f"lra {verb}" if verb in SOUND else "no verb at all"] += 1
                ends[_try(found, words)] += 1
            settings.say(f"{verb}: {total} lines")
        found.figures |= {f"ended with {code}": count for code, count in sorted(ends.items())}
    finally:
        os.chdir(before)
    return found


def line(verb: str, draw: random.Random) -> list[str]:
    """Return a line of a verb with one slip or two."""
    if verb not in SOUND:
        other = draw.choice([*SOUND])
        return [_typo(other, draw), *shlex.split(draw.choice(SOUND[other]))]
    words = shlex.split(draw.choice(SOUND[verb]))
    for _ in range(draw.choice((1, 1, 1, 2))):
        words = _slip(verb, words, draw)
    if verb == "verify":  # whose checks take seconds: no line of it is sound
        words.insert(draw.randrange(len(words) + 1), draw.choice(("nope=3", "--nope", "chunk=x")))
    if verb in BEGINS:
        words = [*(word for word in words if "dry_run" not in word), "runner.dry_run=true"]
    return [verb, *words]


@cache
def flags(verb: str) -> list[str]:
    """Return the flags that the help of a verb names."""
    help_text = io.StringIO()
    with redirect_stdout(help_text), suppress(SystemExit):
        cli.main([verb, "--help"])
    return sorted({*re.findall(r"(?<![\w-])--[a-z][a-z-]*", help_text.getvalue())})


def _slip(verb: str, words: list[str], draw: random.Random) -> list[str]:
    """Return a line with one slip: a word left out, doubled, misspelt, of another kind or verb."""
    at = draw.randrange(len(words)) if words else 0
    before, own, after = words[:at], words[at : at + 1], words[at + 1 :]
    key, equals, _ = (own or [""])[0].partition("=")
    value = draw.choice(VALUES)
    strange = flags(draw.choice([each for each in SOUND if each in cli.VERBS]))
    misspelt = [_typo(draw.choice(flags(verb)), draw)]
    ways = [
        [*before, *after],
        [*before, *own, *own, *after],
        [*before, *(_typo(word, draw) for word in own), *after],
        [*before, f"{key}={value}" if equals else value, *after],
        [*before, f"{key}={value}" if equals else value, *after],
        [*words, value],
        [*words, draw.choice(strange)],
        [*words, *misspelt],
    ]
    return draw.choice(ways)


def _typo(word: str, draw: random.Random) -> str:
    at = draw.randrange(len(word)) if word else 0
    swapped = word[:at] + word[at + 1 : at + 2] + word[at : at + 1] + word[at + 2 :]
    return draw.choice(
        [word[:at] + word[at + 1 :], word[:at] + word[at : at + 1] + word[at:], swapped,
         word.upper(), word + "x", word[: at + 1]]
    )  # fmt: skip


def _ring(number: int, frame: object) -> None:
    raise TooSlow


def _try(found: Found, words: list[str]) -> int:
    out, err = io.StringIO(), io.StringIO()
    begun = time.monotonic()
    before = signal.signal(signal.SIGPROF, _ring)
    signal.setitimer(signal.ITIMER_PROF, PROCESSOR_LIMIT_S)
    code = 0
    shown = ascii(words)[:300]
    try:
        with redirect_stdout(out), redirect_stderr(err), suppress(TooSlow):
            code = -1
            try:
                code = cli.main(words)
            except SystemExit as leave:
                code = leave.code if isinstance(leave.code, int) else int(bool(leave.code))
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
    said = err.getvalue()
    took = time.monotonic() - begun
    found.check(code != -1, f"{shown}: no answer within {took:.0f} s")
    found.check(code in (-1, 0, 1, 2, 3), f"{shown}: ended with {code}")
    bad = "Traceback" in said or "this is a bug" in said
    found.check(not bad, f"{shown}: {said[-1500:]}")
    if code == 2:
        found.check(said.strip(), f"{shown}: refused without a word")
        found.check(len(said.splitlines()) <= 14, f"{shown}: refused in {said[:1500]}")
    return code
