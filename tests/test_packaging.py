"""What is built must run elsewhere: the wheel carries YAML, figure style and templates."""

import importlib.metadata
import re
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from lra.conf.rooms import ROOMS
from tests.lra_process import python

ROOT = Path(__file__).resolve().parent.parent
HOMES = {"lra": "lra", **{room: f"lra/{room}" for room in ROOMS}}
"""Folders of a clone, and where they are in the wheel."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    done = python(
        "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index",
        "--disable-pip-version-check", "--quiet", "--wheel-dir", folder, ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    (built,) = folder.glob("*.whl")
    return built


def test_the_wheel_holds_every_source_choice_and_data_file_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    wanted = {
        f"{home}/{file.relative_to(ROOT / folder)}"
        for folder, home in HOMES.items()
        for pattern in ("*.py", "*.yaml", "*.mplstyle", "*.csv", "*.j2", "*.js", "*.css")
        for file in (ROOT / folder).rglob(pattern)
    }
    assert {"lra/conf/config.yaml", "lra/conf/model/softmax.yaml", "lra/__main__.py"} <= wanted
    assert any(name.endswith(".mplstyle") for name in wanted)
    assert {
        f"lra/reports/page/templates/{name}" for name in ("report.html.j2", "tables.js", "page.css")
    } <= wanted
    wanted |= {"lra/py.typed", "lra/results/published_rows.json"}  # types are for others, too
    assert wanted - packed == set()
    tops = {name.split("/")[0] for name in packed}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"lra"}


def test_the_unpacked_wheel_runs_from_another_directory(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "elsewhere").mkdir()

    def lra(*words):
        place = {"cwd": tmp_path / "elsewhere", "PYTHONPATH": str(tmp_path / "site")}
        return python("-P", "-m", "lra", *words, **place)

    listed = lra("list", "models", "--json")
    assert listed.returncode == 0, listed.stderr
    assert str(tmp_path / "site" / "lra" / "conf" / "model") in listed.stdout
    assert str(ROOT) not in listed.stdout
    composed = lra("run", "model=linear", "--cfg", "job")
    assert composed.returncode == 0, composed.stderr
    assert "models.families.linear.LinearAttention" in composed.stdout
    compared = lra("compare", "linear", "sdpa", "--rows", "example")
    assert compared.stdout.startswith("linear − sdpa at mqar: "), compared.stderr
    screen = lra("choose", "length=4096", "task=text", "model=linear,sdpa")
    assert re.search(r"^linear .* 0\.\d+\[\w\] +\d+\.\d\[\w\] ", screen.stdout, re.MULTILINE)


def stranger(folder: Path, name: str) -> Path:
    """Build the wheel of a package that has the name of one of our folders."""
    file = folder / f"{name}-1.0-py3-none-any.whl"
    about = f"{name}-1.0.dist-info"
    texts = {
        f"{name}/__init__.py": "WHOSE = 'theirs'\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},,\n" for path in (*texts, f"{about}/RECORD"))
    with zipfile.ZipFile(file, "w") as archive:
        for path, text in {**texts, f"{about}/RECORD": record}.items():
            archive.writestr(path, text)
    return file


@pytest.mark.slow
def test_packages_of_the_same_names_come_and_go_without_a_trace(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=False)
    inside = str(tmp_path / "venv" / "bin" / "python")
    others = [stranger(tmp_path, name) for name in ("conf", "tasks", "reports")]
    path = {"PYTHONPATH": sysconfig.get_path("purelib")}  # what lra needs

    def pip(*words):
        done = python("-m", "pip", "--python", inside, "--quiet", *words)
        assert done.returncode == 0, done.stderr

    def lra_works():
        code = "import lra.conf, sys; print(lra.conf.__file__)\nfrom lra.cli import main; "
        code += "sys.exit(main(['list', 'hardware']))"
        done = python("-c", code, cwd=tmp_path, program=inside, **path)
        where = tmp_path / "venv" / "lib"
        return done.returncode == 0 and done.stdout.startswith(str(where)) and "a100" in done.stdout

    def theirs():
        code = "import conf, tasks, reports; print(conf.WHOSE, tasks.WHOSE, reports.WHOSE)"
        return python("-c", code, cwd=tmp_path, program=inside, **path).stdout.split()

    def install(*files):
        pip("install", "--no-deps", "--no-index", "--no-compile", *files)
        assert theirs() == ["theirs"] * 3

    install(*others)
    install(wheel)
    assert lra_works()
    pip("uninstall", "--yes", "conf", "tasks", "reports")
    assert lra_works()
    install(*others)
    assert lra_works()
    pip("uninstall", "--yes", "lra")
    assert theirs() == ["theirs"] * 3


def test_doctor_names_what_another_package_replaced(wheel, tmp_path):
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)

    def said():
        code = "from lra.machine.probes import installed_files; print(*installed_files(), sep='|')"
        done = python("-c", code, cwd=tmp_path, PYTHONPATH=str(site))
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    assert said().startswith("True|")
    (site / "lra" / "models" / "mixer.py").write_text("")
    (site / "lra" / "conf" / "config.yaml").unlink()
    (site / "stranger-1.0.dist-info").mkdir()
    (site / "stranger-1.0.dist-info" / "METADATA").write_text("Name: stranger\nVersion: 1.0\n")
    (site / "stranger-1.0.dist-info" / "RECORD").write_text("lra/models/mixer.py,,\n")
    works, what, way_out = said().split("|")
    assert (works, what.split()[:2]) == ("False", ["2", "of"])
    assert "they have the same names as files of stranger" in what
    assert "pip uninstall stranger" in way_out


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSION = "Programming Language :: Python :: 3."
MINORS = [c.removeprefix(VERSION) for c in PROJECT["classifiers"] if c.startswith(VERSION)]


def test_what_the_workflow_makes_is_there_for_every_python_that_is_promised():
    text = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    (job,) = yaml.safe_load(text)["jobs"].values()
    (pythons,) = (step["with"]["python-version"] for step in job["steps"] if "setup" in str(step))
    assert {*pythons.split()} == {f"3.{minor}" for minor in MINORS}
    rules = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert {"release", "environments"} < {*job["strategy"]["matrix"]["target"]} <= {*rules}


def wanted(extra: str | None) -> list[str]:
    """What is installed with one extra, or without any."""
    found = PROJECT["optional-dependencies"][extra] if extra else PROJECT["dependencies"]
    own = [Requirement(line) for line in found if Requirement(line).name == "lra"]
    found = [line for line in found if Requirement(line).name != "lra"]
    return sum((wanted(name) for each in own for name in sorted(each.extras)), found)


def pinned() -> dict[str, str]:
    """The versions of constraints.txt, by name."""
    lines = [line.partition("#")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()]
    pins = {}
    for line in filter(str.strip, lines):
        requirement = Requirement(line)
        (specifier,) = requirement.specifier
        assert specifier.operator == "==", line
        assert "+" not in specifier.version, f"{line}: a local build is not on every index"
        pins[canonicalize_name(requirement.name)] = specifier.version
    return pins


def test_every_dependency_is_pinned_to_a_version_that_it_allows():
    pins = pinned()
    assert pins["torch"] == "2.13.0"
    for line in wanted(None) + wanted("dev"):
        requirement = Requirement(line)
        assert pins[canonicalize_name(requirement.name)] in requirement.specifier, line


def misfits(python: str, lines: list[str], pins: dict[str, str]) -> list[str]:
    """Say which pins keep pip from installing these on another Python.

    What is installed here says of itself on which it runs, and what else it needs there: no index
    is asked. What has no pin may have any version.
    """
    here = {"python_full_version": python, "python_version": python.rpartition(".")[0]}
    left = [(Requirement(line), "", "pyproject.toml") for line in lines]
    seen: set[tuple[str, str]] = set()
    found = []
    while left:
        needed, extra, by = left.pop()
        name = canonicalize_name(needed.name)
        if name not in pins or not (
            needed.marker is None or needed.marker.evaluate({**here, "extra": extra})
        ):
            continue
        if pins[name] not in needed.specifier:
            found.append(f"{by} needs {needed.name}{needed.specifier}, pinned is {pins[name]}")
        known = importlib.metadata.distribution(name)
        for own in {"", *needed.extras} - {each for other, each in seen if other == name}:
            seen.add((name, own))
            runs_on = SpecifierSet(known.metadata.get("Requires-Python", ""))
            if own == "":
                if Version(known.version).public != pins[name]:
                    found.append(f"{name}: pinned is {pins[name]}, installed is {known.version}")
                if python not in runs_on:
                    found.append(f"{name}=={pins[name]} runs on Python {runs_on}")
            left += [(Requirement(line), own, name) for line in known.requires or []]
    return sorted(found)


def oldest() -> str:
    """The first release that requires-python promises."""
    (specifier,) = SpecifierSet(PROJECT["requires-python"])
    assert specifier.operator == ">="
    return ".".join([*specifier.version.split("."), "0"][:3])


@pytest.mark.parametrize("python", sorted({oldest(), *(f"3.{minor}.0" for minor in MINORS)}))
def test_the_pins_fit_every_python_that_is_promised(python):
    assert python in SpecifierSet(PROJECT["requires-python"])
    assert misfits(python, wanted(None) + wanted("dev"), pinned()) == []


def test_a_pin_that_a_python_or_another_pin_refuses_is_found():
    (said,) = misfits("3.6.0", ["numpy"], pinned())
    assert said.startswith(f"numpy=={pinned()['numpy']} runs on Python >=3.")
    old = pinned() | {"numpy": "2.2.0"}
    clash = "pandas needs numpy>=2.3.3, pinned is 2.2.0"  # on 3.14 alone
    assert [clash in misfits(f"3.{minor}.0", ["pandas"], old) for minor in (13, 14)] == [
        False,
        True,
    ]
