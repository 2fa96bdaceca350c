"""TAB in a real shell, and what the program answers it."""

import os
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

from lra.commands.completion import candidates
from lra.composition.catalogue import names
from tests.lra_process import HOME

LINES = {
    "lra ru": "run ",
    "lra run model=linear,sof": "linear,softmax ",
    "lra run -m seed=0,1 model=performer model.mixer.renorm": "model.mixer.renormalise=",
    "lra verify performe": "performer ",
    "lra report --sweep o": "",
}


def offered(*line: str) -> list[str]:
    """What may follow the words of a line, of which the last is being written."""
    verb, *before, prefix = line
    found = candidates(prefix, parsed_args=Namespace(verb=verb, words=before))
    return [word for word in found if word.startswith(prefix)]


def test_words_of_every_kind() -> None:
    assert offered("run", "model=performe") == ["model=performer"]
    assert offered("plan", "-m", "model=linear,softma") == ["model=linear,softmax"]
    assert offered("run", "+experiment=quick") == ["+experiment=quickstart"]
    assert offered("run", "model=performer", "model.mixer.feat") == [
        "model.mixer.features=", "model.mixer.feature_epsilon=",
    ]  # fmt: skip
    assert offered("run", "model=tlb", "model.st")[0].startswith("model.stack.")
    assert "optim.schedule=rsqrt" in offered("submit", "optim.schedule=")
    assert offered("run", "hardware.compile=") == [
        "hardware.compile=true",
        "hardware.compile=false",
    ]
    assert offered("choose", "hardware=a") == ["hardware=a100"]
    assert offered("compare", "linear", "performe") == ["performer"]
    assert {*names("task")} <= {*offered("list", "tasks", "")}
    assert offered("run", "seed=") == []


def test_files_of_ones_own_are_offered(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text(
        "name: mine\nmixer:\n  class_path: somewhere.Mine\n  depth_of_mine: 3\n"
    )
    own = ("run", "--config-dir", str(tmp_path))
    assert offered(*own, "model=mi") == ["model=mine"]
    assert offered(*own, "model=mine", "model.mixer.d") == ["model.mixer.depth_of_mine="]


def test_bash(tmp_path: Path) -> None:
    program = tmp_path / "lra"
    program.write_text(f'#!/bin/sh\nPYTHONPATH={HOME} exec {sys.executable} -P -m lra "$@"\n')
    program.chmod(0o755)
    script = 'eval "$(lra completion bash)"\n'
    for line in LINES:
        script += f"COMP_LINE={line!r} COMP_POINT={len(line)} COMPREPLY=()\n"
        script += '_python_argcomplete lra\necho "${COMPREPLY[*]}"\n'
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", script],
        env={**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == [*LINES.values()]
    assert done.stderr == ""


def test_an_answer_needs_no_heavy_package() -> None:
    code = (
        "import sys\nfrom argparse import Namespace\n"
        "from lra.commands.completion import candidates\n"
        "print(len(candidates('model', Namespace(verb='run', words=['model=performer']))))\n"
        "print({'torch', 'hydra', 'numpy', 'pandas'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=HOME, capture_output=True, text=True, check=True
    )
    count, heavy = done.stdout.splitlines()
    assert int(count) > 50
    assert heavy == "set()"
