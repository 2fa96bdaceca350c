"""Every verb where its output or its errors are closed, full, or read by nobody."""

import os
import random
import tempfile
from functools import cache, partial
from pathlib import Path

import pytest
from fuzz import cases

from lra.cli import VERBS
from tests import lra_process

DRY = ("model=linear", "task=listops", "task.source=sample", "logger=none")
COMMANDS = [
    *([verb, "--help"] for verb in VERBS),
    ["--version"], ["list", "models"], ["completion", "bash"], ["show", "nothing"],
    ["run", *DRY, "runner.dry_run=true"],
    ["run", *DRY, "optim.steps=1", "optim.warmup_steps=0", "model.backbone.depth=1"],
]  # fmt: skip
"""The last one runs a cell."""
STATES = ("closed", "full", "unread")
FINE = "fine"
PAIRS = [
    (number, out)
    for number, words in enumerate(COMMANDS)
    for turn, out in enumerate(STATES)
    if words[-1] != "--help" or turn == number % len(STATES)
]
"""Commands with the states that they meet; the helps of the verbs, alike but for text, by turns."""


@cache
def undisturbed(number: int) -> int:
    """Return how a command ends with nothing in its way; of helps, other tests see it."""
    if COMMANDS[number][-1] == "--help":
        return 0
    with tempfile.TemporaryDirectory() as folder:
        return lra_process.run(COMMANDS[number], cwd=Path(folder)).returncode


def run(words: list[str], folder: Path, out: str, errors: str) -> tuple[int, str]:
    """Return the exit code, and what stood on either that could be read."""
    reader, writer = os.pipe()
    os.close(reader)
    full = os.open("/dev/full", os.O_WRONLY)
    with tempfile.TemporaryFile("w+") as kept:
        places = {"full": full, "unread": writer, FINE: kept.fileno(), "closed": kept.fileno()}
        first, last = 1 if out == "closed" else 2, 3 if errors == "closed" else 2
        program = lra_process.Program(
            words,
            cwd=folder,
            files=(0, places[out], places[errors]),
            prepare=partial(os.closerange, first, last),
        )
        os.close(full)
        os.close(writer)
        code = program.wait(300)
        kept.seek(0)
        return code, kept.read()


def check(number: int, folder: Path, out: str, errors: str) -> None:
    words = COMMANDS[number]
    code, said = run(words, folder, out, errors)
    told = f"{words} with output {out} and errors {errors} ended with {code}: {said}"
    assert "Traceback" not in said, told
    assert "Exception ignored" not in said, told
    assert "bug in lra" not in said, told
    expected = undisturbed(number)
    if expected != 2:  # a refusal prints nothing on the standard output
        expected = {"full": 2, "unread": 141}.get(out, expected)
    assert code == expected, told
    if out == "full" and errors == FINE and undisturbed(number) != 2:
        assert "cannot write to its standard output: No space left on device" in said, told


@pytest.mark.parametrize(
    ("number", "out"), PAIRS, ids=lambda v: v if isinstance(v, str) else " ".join(COMMANDS[v][:2])
)
def test_output_that_goes_nowhere_ends_without_a_traceback(
    number: int, out: str, tmp_path: Path
) -> None:
    check(number, tmp_path, out, FINE)


@pytest.mark.fuzz
@pytest.mark.parametrize("seed", range(cases(3)))
def test_output_and_errors_that_go_nowhere(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    number, out = draw.randrange(len(COMMANDS)), draw.choice((*STATES, FINE))
    check(number, tmp_path, out, draw.choice(STATES))


def test_what_was_done_is_kept_where_it_could_not_be_told(tmp_path: Path) -> None:
    words = [*COMMANDS[-1], "results=kept"]
    assert run(words, tmp_path, "closed", "closed")[0] == 0
    code, said = run(["list", "models"], tmp_path, FINE, FINE)
    assert (code, "linear" in said) == (0, True)
    assert [*tmp_path.glob("kept/cells/*/*/rows-*.jsonl")]
