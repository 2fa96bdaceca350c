"""Installs an archive of lra in an environment made from nothing, and tries it in an empty folder.

    python -m tests.from_wheel.environments ARCHIVE [--dependencies oldest] [--python python3.13]

Of dependencies, `tested` are the versions of constraints.txt, `oldest` the lower bounds of
pyproject.toml, `newest` what pip takes; torch is the tested one each time, as another means
gigabytes. With `--without-torch`, for a Python that no build of it is at hand for, what needs none
is tried: lists and reports. Exit code 1 where something fails.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
TESTED = ROOT / "constraints.txt"
LIGHT = (
    "--version", "list models", "list performer", "report --rows example",
)  # fmt: skip
TRAINING = "task=listops task.source=sample optim.steps=2 optim.warmup_steps=0 logger=none"
HEAVY = (
    f"run model=linear {TRAINING}",
    "run runner=scaling model=sdpa runner.lengths=[128] runner.modes=[step] logger=none",
    "plan model=performer task=listops",
    "verify linear --max-length 64",
    "doctor",
)


def pins(dependencies: str) -> list[str]:
    """Return the lines of a file of constraints."""
    tested = TESTED.read_text(encoding="utf-8").splitlines()
    if dependencies == "tested":
        return tested
    found = [line for line in tested if line.startswith("torch==")]
    if dependencies == "oldest":
        for line in PROJECT["dependencies"]:
            needed = Requirement(line)
            if needed.name != "torch":
                (oldest,) = (each.version for each in needed.specifier if each.operator == ">=")
                found.append(f"{needed.name}=={oldest}")
    return found


def main() -> int:
    """Install and try; say what was installed and what failed."""
    args = argparse.ArgumentParser()
    args.add_argument("archive", type=lambda text: Path(text).resolve())
    args.add_argument("--dependencies", choices=("tested", "oldest", "newest"), default="tested")
    args.add_argument("--python", default=sys.executable)
    args.add_argument("--without-torch", action="store_true")
    chosen = args.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        home, own = Path(folder), Path(folder) / "own"
        own.mkdir()
        (home / "pins.txt").write_text("\n".join(pins(chosen.dependencies)))
        subprocess.run([chosen.python, "-m", "venv", home / "venv"], check=True)
        inside = home / "venv/bin"
        pip = [inside / "python", "-m", "pip", "--disable-pip-version-check"]
        install = [*pip, "install", "--quiet", "--no-compile", "--constraint", home / "pins.txt"]
        if chosen.without_torch:
            needed = [line for line in PROJECT["dependencies"] if Requirement(line).name != "torch"]
            subprocess.run([*install, *needed], check=True)
            subprocess.run([*install, "--no-deps", chosen.archive], check=True)
        else:
            subprocess.run([*install, chosen.archive], check=True)
            subprocess.run([*pip, "check"], check=True)
        listed = subprocess.run([*pip, "list", "--format", "json"], check=True, capture_output=True)
        versions = {each["name"].lower(): each["version"] for each in json.loads(listed.stdout)}
        names = [Requirement(line).name.lower() for line in PROJECT["dependencies"]]
        shown = " ".join(f"{name} {versions[name]}" for name in names if name in versions)
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"LRA_DATA": str(own / "data")}
        failed = []
        for words in (*LIGHT, *(() if chosen.without_torch else HEAVY)):
            done = subprocess.run(
                [inside / "lra", *words.split()], cwd=own, env=environment, text=True, check=False,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            if done.returncode or "Traceback" in done.stdout or "Warning" in done.stdout:
                failed.append(words)
                print(f"lra {words}: exit code {done.returncode}\n{done.stdout}")
        python = subprocess.run(
            [inside / "python", "--version"], check=True, capture_output=True, text=True
        ).stdout.strip()
    what = f"{chosen.archive.name}, {python}, {chosen.dependencies}"
    print(f"{what}: {'failed: ' + '; '.join(failed) if failed else 'all works'}; {shown}")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
