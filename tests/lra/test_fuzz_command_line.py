"""Generated command lines: each ends with a sound plan, or with a few lines that name the fault."""

import logging
import os
import random
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from fuzz import cases

from lra import cli
from lra.composition.catalogue import names
from lra.composition.composer import Composer
from lra.composition.files import our_files
from lra.composition.placement import keys_of
from lra.execution import in_memory
from tests import lra_process
from tests.lra_process import HOME

PROCESSOR_LIMIT_S, LIMIT_S = 10, 120
"""What no command may take of the processor, and while it only waits; most take a tenth of a
second, the first some more for its imports."""
MOST_LINES, MOST_CHARACTERS = 8, 2500
SOUND = (
    "model=linear",
    "model=performer task=text task.source=sample size=small seed=3",
    "-m model=linear,softmax seed=range(0,3)",
    "-m +experiment=quickstart runner=train model=linear,performer",
    "+protocol=nystrom task=listops model=nystromformer",
    "runner=scaling runner.lengths=[64,128] hardware=cpu logger=none",
    "runner=transfer task=text8 task.source=sample model=luna",
    "-m runner=decode,certify task=mqar model.backbone.width=32,64",
    "runner=extrapolate model.layers=[fnet,linear] model=linear",
    "runner=approximation model=performer",
)
NUMBERS = (
    "inf", "-inf", "nan", ".inf", "-.nan", "1e999", "1e-999", "-1", "0", "1.7", "-0.0", "1e3",
    "9" * 30, "-" + "9" * 30, "9" * 5000, "0x10", "1_000", "9223372036854775808", "2147483648",
)  # fmt: skip
SHAPES = (
    "null", "", "[]", "{}", "[1]", "[null]", "[inf]", "[1,nan]", "[[1],[2]]", "{a: 1}", "{a: nan}",
    "{a: {b: [inf]}}", "{1: 2}", "{null: 1}", "[" * 200 + "]" * 200, "{a: " * 60 + "1" + "}" * 60,
    "[" + "1," * 2000 + "1]", "true", "false", "[true]", "[a,b]", "{optim: {steps: -1}}",
)  # fmt: skip
TEXTS = (
    "x", "'1'", "'true'", "' '", "../x", "/", "a b", "<script>alert(1)</script>", "é", "\ud800",
    "\\0", "\x00", "\n", "\t", "a\\nb", "$x", "${seed}", "${nope}", "${oc.env:NOPE}", "${model}",
    "${hydra:job.num}", "???", "'", '"', "[", "}", "(", "a=b", "a:b", "x" * 300, "x" * 20_000,
    "models.families", "models.families.linear.LinearAttention", "os.system", "tasks.task.Task",
    "models.mixer.Unsupported", "models.families.linear.", ".x",
    "tasks.classification.listops.task.ListOps",
)  # fmt: skip
CALLS = (
    "1,2", "a,b", ",", "range(0,3)", "range(0,10000000000)", "range(0,1,0)", "range(0,inf)",
    "range(0,1,1e-300)", "range(3,0)", "range(x)", "choice()", "choice(1,2)", "interval(0,1)",
    "glob(*)", "glob(nope*)", "int(x)", "int(1.7)", "str(3)", "float(inf)", "shuffle(1,2)",
    "sort(2,1)", "tag(a,1)", "bool(2)", "nope(1)", "range(0,3", "extend_list(1)",
)  # fmt: skip
HOSTILE = (*NUMBERS, *SHAPES, *TEXTS, *CALLS)
BOMB = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(12)
)
FILES = (
    "", "name: [", "- a\n- b\n", "3", "null", "text", "\x00\x01", "name: !!python/name:os.system\n",
    "!!binary aGVsbG8=", "name: !!binary aGVsbG8=\n", "name: 2020-01-01\n", "name: mine\nname: b\n",
    BOMB, "a: &a [*a]\n", "[" * 5000, "x: " + "[" * 300 + "]" * 300, "name: mine\n" * 20_000,
    "name: mine\nsize: .inf\n", "name: mine\nmixer: 3\n", "name: mine\nmixer: {class_path: 3}\n",
    "name: mine\nstack: {class_path: models.nope.X}\n", "name: .nan\n", "1: 2\n", "? [1]\n: 2\n",
    "name: mine\nmixer: {class_path: models.families.linear.LinearAttention, chunk: .inf}\n",
    "defaults: 3\n", "defaults: [nope]\n", "defaults: [{model: [1]}]\n", "defaults: [mine]\n",
    "# @package _global_\nseed: null\n",
    "# @package ..\nseed: 1\n", "# @package _global_\nrow: 1\n", "name: ${nope}\n",
    "name: ${name}\n", "hydra: {run: 3}\n", "name: mine\nmixer: ${model}\n",
    "# @package _global_\nhydra: {sweeper: {params: {seed: 3}}}\n", "name: mine\n\tmixer: {}\n",
    "--- a\n--- b\n", "%YAML 9.9\n---\n{}\n", "name: \ud800\n", "name: é\n", "<<: [1]\n",
    "{<<: *x}",
)  # fmt: skip


class Case(NamedTuple):
    """A command line, and what an answer to it must contain: one of these."""

    words: tuple[str, ...]
    named: tuple[str, ...] = ()


class TooSlow(BaseException):
    """No Exception: nothing in between may take it for one."""


@contextmanager
def alarm(case: object) -> Iterator[None]:
    def ring(number: int, frame: object) -> None:
        raise TooSlow(f"more than a few seconds: {case}")

    clocks = (
        (signal.ITIMER_PROF, signal.SIGPROF, PROCESSOR_LIMIT_S),
        (signal.ITIMER_REAL, signal.SIGALRM, LIMIT_S),
    )
    before = [signal.signal(number, ring) for _, number, _ in clocks]
    for clock, _, limit in clocks:
        signal.setitimer(clock, limit)
    try:
        yield
    finally:
        for (clock, number, _), handler in zip(clocks, before, strict=True):
            signal.setitimer(clock, 0)
            signal.signal(number, handler)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to stand in, where no cell can start."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("LRA_DEBUG", raising=False)
    monkeypatch.setattr(in_memory, "execute", lambda sweep: pytest.fail("a dry run ran"))
    for limit in ("COUNTING_S", "LISTED_S"):  # how long is not looked at
        monkeypatch.setattr(f"lra.sweep.estimate.{limit}", 0.0)
    return folder


def call(words: tuple[str, ...]) -> int:
    """Run a command; what it makes of logging ends with it, as with its process."""
    root = logging.getLogger()
    handlers, level = [*root.handlers], root.level
    try:
        return cli.main(list(words))
    except SystemExit as leave:
        return int(leave.code or 0)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)


def fault(case: Case, code: int, out: str, err: str) -> str | None:
    """Return what is wrong with an answer. How far planning is, it may say."""
    err = re.sub(r"(composing combination|planning run) \d+ of [\d,]+\n", "", err)
    if "Traceback" in err or "this is a bug" in err or code not in (0, 2):
        return f"ended with {code}"
    if code == 0:
        return None if err == "" or err.startswith("lra") else "succeeded with a complaint"
    if len(err.splitlines()) > MOST_LINES or len(err) > MOST_CHARACTERS:
        return "more than a few lines"
    if not err.startswith("lra: ") or len(err) < 20:
        return "no message"
    if case.named and not any(name in err for name in case.named):
        return f"names none of {case.named}"
    return None


def unsound(out: str) -> bool:
    """Return whether what a dry run printed is no plan."""
    *listed, last = out.splitlines() or [""]
    counts = r"(\d+) runs? in .*: 0 done, (\d+) to do(; .*)?"
    total = re.fullmatch(counts, last)
    keys = [line.split()[0] for line in listed]
    return (
        total is None
        or not 1 <= int(total[1]) == int(total[2]) == len(set(keys)) == len(keys)
        or not all(re.fullmatch(r"[0-9a-f]{16}", key) for key in keys)
    )


def check(found: list[Case], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Run all cases and report every fault at once."""
    faults = []
    for case in found:
        words = ("run", *case.words, "runner.dry_run=true")
        with alarm(case):
            code = call(words)
        out, err = capsys.readouterr()
        prints = any(word.startswith(("--", "-c", "-sc")) for word in case.words)
        wrong = fault(case, code, out, err)
        if wrong is None and code == 0 and not prints and unsound(out):
            wrong = "no sound plan"
        if wrong is None and list(here.iterdir()):
            wrong = f"wrote {sorted(here.iterdir())}"
        if wrong is not None:
            faults.append(f"{wrong}: {ascii(case.words)[:300]}\n{out[-300:]}\n{err[-1500:]}")
    assert not faults, f"{len(faults)} of {len(found)} commands\n" + "\n".join(faults)


def named(key: str) -> tuple[str, ...]:
    """Return what an answer about a key may call it: itself, its end, or its group."""
    return (key, key.rpartition(".")[2], key.partition(".")[0])


@cache
def keys_under(words: tuple[str, ...]) -> list[str]:
    return [*keys_of(Composer(our_files()).compose(words))]


def values(draw: random.Random) -> Case:
    """A sound line with a hostile value for one of its keys, or for a group."""
    words = draw.choice(SOUND).split()
    chosen = (w for w in words if w.startswith(("model=", "task=", "runner=")))
    keys = keys_under(tuple(word.partition(",")[0] for word in chosen))
    key = draw.choice(["model", "task", "seed", "size", "optim", *keys, *keys])
    sign = draw.choice(["", "", "", "", "+", "++", "~"])
    word = f"{sign}{key}={draw.choice(HOSTILE)}"
    if draw.random() < 0.3 and "-m" not in words:
        words.insert(0, "-m")
    return Case((*words, word), (*named(key), word[:60]))


@pytest.mark.fuzz
def test_hostile_values_are_answered(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw = random.Random(20_260_101)
    check([values(draw) for _ in range(cases(15))], here, capsys)


@pytest.mark.fuzz
def test_hostile_files_are_answered(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(20_260_103)
    found = []
    for number in range(cases(10)):
        text = draw.choice(FILES)
        if draw.random() < 0.3:
            text = text[: draw.randrange(len(text) + 1)] + draw.choice(["\n", "{", "&a ", "'"])
        group = draw.choice(["model", "task", "optim", "hardware", "runner", "experiment"])
        file = tmp_path / f"conf{number}" / group / "mine.yaml"
        file.parent.mkdir(parents=True)
        file.write_bytes(text.encode("utf-8", "surrogatepass"))
        word = f"+{group}=mine" if group == "experiment" else f"{group}=mine"
        found.append(Case((word, f"--config-dir={file.parents[1]}"), ("mine", group, *TOP)))
    check(found, here, capsys)


TOP = ("seed", "row", "hydra")
"""Keys that files above set at the top."""


@pytest.mark.fuzz
def test_real_processes_answer_alike(here: Path) -> None:
    draw = random.Random(20_260_104)
    for _ in range(cases(1)):
        case = values(draw)
        words = [word for word in case.words if "\0" not in word and word.isprintable()]
        done = lra_process.run(
            ["run", *words, "runner.dry_run=true"],
            env={**os.environ, "PYTHONPATH": str(HOME), "PYTHONSAFEPATH": "1"},
        )
        assert fault(case, done.returncode, done.stdout, done.stderr) is None, (words, done)
        assert not list(here.iterdir())


def test_every_sound_line_is_planned(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The lines that are mutated above are sound, or mutating them would prove little."""
    assert {"linear", "performer"} <= set(names("model"))
    for line in SOUND:
        assert call(("run", *line.split(), "runner.dry_run=true")) == 0
        assert not unsound(capsys.readouterr().out), line
    assert not list(here.iterdir())
