"""What is built must run elsewhere: the wheel carries YAML, figure style and templates."""

import os
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("conf", "lra", "models", "tasks", "runners", "reports")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    done = subprocess.run(
        [
            sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index",
            "--disable-pip-version-check", "--quiet", "--wheel-dir", folder, ROOT,
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_source_choice_and_data_file(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    wanted = {
        str(file.relative_to(ROOT))
        for room in ROOMS
        for pattern in ("*.py", "*.yaml", "*.mplstyle", "*.csv", "*.j2", "*.js", "*.css")
        for file in (ROOT / room).rglob(pattern)
    }
    assert {"conf/config.yaml", "conf/model/softmax.yaml", "lra/__main__.py"} <= wanted
    assert any(name.endswith(".mplstyle") for name in wanted)
    assert {
        f"reports/page/templates/{name}" for name in ("report.html.j2", "charts.js", "page.css")
    } <= wanted
    wanted |= {f"{room}/py.typed" for room in ROOMS}  # types are for others, too
    assert wanted - packed == set()


def test_the_wheel_holds_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.split("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(ROOMS)


def test_the_unpacked_wheel_runs_from_another_directory(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "elsewhere").mkdir()

    def lra(*words):
        return subprocess.run(
            [sys.executable, "-P", "-m", "lra", *words],
            cwd=tmp_path / "elsewhere",
            env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )

    listed = lra("list", "models", "--json")
    assert listed.returncode == 0, listed.stderr
    assert str(tmp_path / "site" / "conf" / "model") in listed.stdout
    assert str(ROOT) not in listed.stdout
    composed = lra("run", "model=linear", "--cfg", "job")
    assert composed.returncode == 0, composed.stderr
    assert "models.families.linear.LinearAttention" in composed.stdout


def test_every_dependency_is_pinned_to_a_version_that_it_allows():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    (own,) = [line for line in extras["dev"] if Requirement(line).name == "lra"]
    wanted = project["dependencies"] + [line for line in extras["dev"] if line != own]
    for extra in sorted(Requirement(own).extras):
        wanted += extras[extra]
    lines = [line.partition("#")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pins = {}
    for line in filter(str.strip, lines):
        requirement = Requirement(line)
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", line
        assert "+" not in specifier.version, f"{line}: a local build is not on every index"
        pins[canonicalize_name(requirement.name)] = specifier.version
    assert pins["torch"] == "2.13.0"
    for line in wanted:
        requirement = Requirement(line)
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier, line
