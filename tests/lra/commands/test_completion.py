"""TAB in real shells, and what the program answers them."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lra.cli import VERBS, main
from lra.commands.completion import RUN_FLAGS, candidates, flags
from lra.composition.catalogue import names
from tests.lra_process import HOME


def test_words_of_every_kind() -> None:
    assert {*VERBS} <= {*candidates([""])}
    assert candidates(["run", "model=performe"]) == ["model=performer"]
    assert candidates(["run", "model=linear,softma"]) == ["model=linear,softmax"]
    assert candidates(["run", "+experiment=quick"]) == ["+experiment=quickstart"]
    assert candidates(["run", "model=performer", "model.mixer.feat"]) == [
        "model.mixer.features=",
        "model.mixer.feature_epsilon=",
    ]
    assert candidates(["run", "model=tlb", "model.st"])[0].startswith("model.stack.")
    assert candidates(["run", "model.backbone.pooling="])[0] == "model.backbone.pooling=cls"
    assert "optim.schedule=rsqrt" in candidates(["run", "optim.schedule="])
    assert candidates(["run", "hardware.compile="]) == [
        "hardware.compile=true",
        "hardware.compile=false",
    ]
    assert candidates(["run", "report."]) == ["report.write=", "report.style="]
    assert candidates(["run", "report.style=paper_c"]) == ["report.style=paper_column"]
    assert "slides" in candidates(["report", "--style", ""])
    assert candidates(["compare", "linear", "performe"]) == ["performer"]
    assert candidates(["compare", "linear", "sdpa", "--metric", "accur"]) == ["accuracy"]
    assert candidates(["run", "logger=tens"]) == ["logger=tensorboard"]
    assert "--sweep" in candidates(["dashboard", "--"])
    assert candidates(["list", "performe"]) == ["performer"]
    assert candidates(["list", "tasks", ""]) == names("task")
    assert candidates(["list", "linear", "perf"]) == ["performer"]
    assert candidates(["data", "show", "listo"]) == ["listops"]
    assert "source=sample" in candidates(["data", "show", "listops", "source="])
    assert candidates(["verify", "linear", "feat"]) == ["feature_map="]
    assert candidates(["completion", ""]) == ["bash", "zsh", "fish"]
    assert candidates(["run", "--config-dir", ""]) == []
    assert candidates(["nonsense", "x"]) == []


def test_keys_of_cells_and_sweeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert candidates(["show", ""]) == []
    for root in ("results", "others"):
        for key in ("3fa9", "3fb0", "77aa"):
            (tmp_path / root / "cells" / key[:2] / (key + root)).mkdir(parents=True)
        (tmp_path / root / "sweeps" / f"of_{root}").mkdir(parents=True)
    assert candidates(["show", "3"]) == ["3fa9results", "3fb0results"]
    assert candidates(["show", "--results", "others", "7"]) == ["77aaothers"]
    assert candidates(["report", "--sweep", ""]) == ["of_results"]


def test_files_of_ones_own_are_offered(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text(
        "name: mine\nmixer:\n  class_path: somewhere.Mine\n  depth_of_mine: 3\n"
    )
    own = ["run", "--config-dir", str(tmp_path)]
    assert candidates([*own, "model=mi"]) == ["model=mine"]
    assert candidates([*own, "model=mine", "model.mixer.d"]) == ["model.mixer.depth_of_mine="]
    (tmp_path / "model" / "mine.yaml").write_text("{")
    assert candidates([*own, "model=mine", "model.mixer.d"]) == []


def test_flags_are_those_of_the_parsers(capsys: pytest.CaptureFixture[str]) -> None:
    from hydra._internal.utils import get_args_parser

    known = {flag for action in get_args_parser()._actions for flag in action.option_strings}
    assert {*RUN_FLAGS} <= known | {"--config-dir"}
    for verb in {*VERBS} - {"run", "submit"}:  # which print a help of their own
        with pytest.raises(SystemExit, match="0"):
            main([verb, "--help"])
        text = capsys.readouterr().out.partition("examples:")[0]
        shown = {*re.findall(r"(?<![\w-])--[a-z][a-z-]*", text)}
        if verb != "data":  # whose flags belong to its own verbs
            assert shown == {*flags(verb)} - {"--words"}, verb


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """A folder with an executable `lra`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    file = folder / "lra"
    file.write_text(f'#!/bin/sh\nPYTHONPATH={HOME} exec {sys.executable} -P -m lra "$@"\n')
    file.chmod(0o755)
    return folder


LINES = {
    "lra ru": "run",
    "lra run model=linear,sof": "softmax",
    "lra run model=performer model.mixer.renorm": "model.mixer.renormalise=",
    "lra data show patht": None,
    "lra run --multi": "--multirun",
}


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash(program: Path) -> None:
    script = 'eval "$(lra completion bash)"\n'
    for line in LINES:
        script += f"COMP_LINE={line!r} COMP_POINT={len(line)} COMPREPLY=()\n"
        script += '_lra_complete\necho "<${COMPREPLY[*]}>"\n'
    done = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", script],
        env={**os.environ, "PATH": f"{program}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    answers = done.stdout.splitlines()
    assert len(answers) == len(LINES)
    for (line, wanted), answer in zip(LINES.items(), answers, strict=True):
        assert answer.endswith(f"{wanted or '<'}>"), (line, answer)
    assert done.stderr == ""


@pytest.mark.skipif(not shutil.which("fish"), reason="needs fish")
def test_fish(program: Path, tmp_path: Path) -> None:
    script = "lra completion fish | source\n"
    script += "".join(f"echo '>'; complete -C {line!r}\n" for line in LINES)
    done = subprocess.run(
        ["fish", "--no-config", "-c", script],
        env={**os.environ, "PATH": f"{program}{os.pathsep}{os.environ['PATH']}"},
        cwd=program, capture_output=True, text=True, timeout=300, check=True,
    )  # fmt: skip
    answers = done.stdout.split(">\n")[1:]
    for (line, wanted), answer in zip(LINES.items(), answers, strict=True):
        assert (wanted or "") in answer, (line, answer)


@pytest.mark.skipif(not shutil.which("zsh"), reason="needs zsh")
def test_zsh(program: Path, tmp_path: Path) -> None:
    """Through a terminal of its own: zsh completes nothing without its line editor."""
    environment = {
        **os.environ, "PATH": f"{program}{os.pathsep}{os.environ['PATH']}", "TERM": "dumb",
        "HOME": str(tmp_path), "PS1": "", "ZDOTDIR": str(tmp_path),
    }  # fmt: skip
    pid, terminal = pty.fork()
    if pid == 0:
        os.execvpe("zsh", ["zsh", "-f", "-i"], environment)
    try:
        os.write(terminal, b'eval "$(lra completion zsh)"; echo rea""dy\n')
        assert "ready" in until(terminal, "ready")
        for line, wanted in LINES.items():
            if wanted:
                os.write(terminal, f"{line}\t".encode())
                assert wanted in until(terminal, wanted), line
                os.write(terminal, b"\x15")
    finally:
        os.close(terminal)
        os.waitpid(pid, 0)


def until(terminal: int, wanted: str) -> str:
    """Return what a terminal shows until `wanted` is there; all that came within a minute."""
    shown, end = "", time.monotonic() + 60
    while wanted not in shown and time.monotonic() < end:
        if select.select([terminal], [], [], 0.5)[0]:
            shown += os.read(terminal, 4096).decode(errors="replace").replace("\a", "")
    return shown
