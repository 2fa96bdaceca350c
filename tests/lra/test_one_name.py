"""lra beside projects that have folders with the names of its own: neither is in the other's way.

Each case runs with lra as a wheel has it, all in one folder, and as a clone on the path has it.
"""

import os
import subprocess
from pathlib import Path

import nbformat.v4
import pytest
from nbclient import NotebookClient

from lra.conf.rooms import ROOMS, imported_name, stored_name
from tests import lra_process
from tests.lra_process import HOME, unpacked

RUN = "lra.run(['task=listops', 'runner=certify', 'runner.dry_run=true', 'logger=none'])"
THEIRS = "WHOSE = 'theirs'\n"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds lra as pip unpacks it."""
    site = tmp_path_factory.mktemp("site")
    unpacked(site)
    # The clone of these tests is on the path of their interpreter.
    away = f"import sys\nsys.path[:] = [entry for entry in sys.path if entry != {str(HOME)!r}]\n"
    (site / "sitecustomize.py").write_text(away)
    return site


@pytest.fixture(params=["wheel", "clone"])
def installed(request: pytest.FixtureRequest) -> Path:
    return HOME if request.param == "clone" else request.getfixturevalue("wheel")


def python(folder: Path, installed: Path, code: str, *path: Path) -> str:
    """Run code in a folder, lra being last on the path; return what it prints."""
    done = attempt(folder, installed, "-c", code, path=path)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def attempt(
    folder: Path, installed: Path, *words: str, path: tuple[Path, ...] = ()
) -> subprocess.CompletedProcess[str]:
    entries = os.pathsep.join(map(str, (*path, installed)))
    data = str(folder / "data")
    return lra_process.python(*words, cwd=folder, PYTHONPATH=entries, LRA_DATA=data)


def project(folder: Path, *, packages: bool = True) -> Path:
    """Write folders with all names of ours, of `net.py` each."""
    for room in ROOMS:
        (folder / room).mkdir(parents=True)
        (folder / room / "net.py").write_text(THEIRS)
        (folder / room / "positions.py").write_text(THEIRS)
        if packages:
            (folder / room / "__init__.py").write_text(THEIRS)
    return folder


def test_names_of_ours_are_stored_without_the_one_that_holds_them():
    assert imported_name("models.families.linear") == "lra.models.families.linear"
    assert stored_name("lra.models.families.linear") == "models.families.linear"
    for name in ("acme.models.mixer", "lra.cluster.slurm", "modelsx.a", "lra"):
        assert imported_name(name) == stored_name(name) == name


@pytest.mark.share(4)
def test_packages_of_theirs_stay_theirs_before_and_after(installed, tmp_path):
    project(tmp_path)
    theirs = "".join(
        f"from {room} import net, positions; print(net.WHOSE, positions.WHOSE)\n" for room in ROOMS
    )
    ours = "".join(f"import lra.{room}\n" for room in ROOMS)
    for code in (theirs, f"import lra\n{theirs}", ours + theirs):
        assert python(tmp_path, installed, code).split() == ["theirs"] * 2 * len(ROOMS)


def test_folders_without_init_stay_theirs_beside_a_wheel(wheel, tmp_path):
    project(tmp_path, packages=False)
    code = "".join(
        f"import lra.{room}; from {room} import net; print(net.WHOSE)\n" for room in ROOMS
    )
    assert python(tmp_path, wheel, code).split() == ["theirs"] * len(ROOMS)


def test_a_clone_on_the_path_refuses_to_be_imported_under_other_names(tmp_path):
    code = "".join(
        f"try: import {room}\nexcept ImportError as error: print(error)\n" for room in ROOMS
    )
    done = attempt(tmp_path, HOME, "-c", code)
    for room in ROOMS:
        assert f"{room} is a part of lra" in done.stdout


@pytest.mark.share(4)
def test_the_path_of_a_process_and_of_its_children_is_left_alone(installed, tmp_path):
    project(tmp_path)
    (tmp_path / "spawned.py").write_text(
        "import multiprocessing, sys\n"
        "def path(): return list(sys.path)\n"
        "if __name__ == '__main__':\n"
        "    before = path()\n"
        "    import lra, lra.models\n"
        "    assert path() == before\n"
        "    with multiprocessing.get_context('spawn').Pool(1) as pool:\n"
        "        print(pool.apply(path) == before)\n"
    )
    done = attempt(tmp_path, installed, "spawned.py")
    assert (done.stdout.strip(), done.returncode) == ("True", 0), done.stderr


def test_a_notebook_has_its_own_and_ours(tmp_path, monkeypatch):
    """Its folder comes behind PYTHONPATH, and before what is installed with --editable."""
    project(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    cells = [
        "import models, lra",
        "assert lra.task('listops', source='sample').spec.name == 'listops'",
        "from models import net\nassert models.WHOSE == net.WHOSE == 'theirs'",
        f"assert lra.__file__.startswith({str(HOME)!r})",
    ]
    code = [nbformat.v4.new_code_cell(cell) for cell in cells]
    notebook = nbformat.v4.new_notebook(cells=code)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, resources=resources).execute()  # raises what a cell does


@pytest.mark.share(4)
def test_lra_runs_in_their_hydra_application(installed, tmp_path):
    """A script that has imported its own packages, and keeps its own configuration."""
    project(tmp_path)
    (tmp_path / "conf" / "config.yaml").write_text("whose: theirs\n")
    (tmp_path / "app.py").write_text(
        "import models, tasks, conf\n"
        "import hydra\n"
        "import lra\n\n\n"
        "@hydra.main(version_base='1.3', config_path='conf', config_name='config')\n"
        "def main(config):\n"
        f"    print(config.whose, {RUN}.exit_code, models.WHOSE, lra.models.__file__)\n\n\n"
        "if __name__ == '__main__':\n    main()\n"
    )
    done = attempt(tmp_path, installed, "app.py", "hydra.run.dir=out")
    last = done.stdout.splitlines()[-1:]
    place = installed / ("models" if installed == HOME else "lra/models") / "__init__.py"
    assert last == [f"theirs 0 theirs {place}"], done.stderr


OWN_MIXER = """
from torch import nn

from lra.models.mixer import Family, Traits, blanked
from .net import WHOSE


class Own(Family):
    def __init__(self, site) -> None:
        super().__init__()
        assert WHOSE == "theirs"
        self.traits = Traits(causal=site.causal, sees_order=False)
        self.map = nn.Linear(site.width, site.width)

    def forward(self, x, layout):
        return self.map(blanked(x, layout, self.traits))
"""


@pytest.mark.share(4)
@pytest.mark.slow
@pytest.mark.parametrize("init", [True, False])
def test_a_mixer_in_a_package_of_our_name_is_re_exported(wheel, tmp_path, init):
    """As the message says, in a clone and, where `__init__.py` is missing, beside a wheel."""
    installed = HOME if init else wheel
    project(tmp_path, packages=init)
    (tmp_path / "models" / "mine.py").write_text(OWN_MIXER)
    (tmp_path / "own_mixers.py").write_text("from models.mine import *\n")
    (tmp_path / "my_conf" / "model").mkdir(parents=True)
    (tmp_path / "my_conf" / "model" / "own.yaml").write_text(
        "name: own\nabout: {summary: mine}\nmixer: {class_path: own_mixers.Own}\n"
    )

    def lra(*words: str, path: tuple[Path, ...] = ()) -> tuple[int, str]:
        done = attempt(tmp_path, installed, "-P", "-m", "lra", *words, path=path)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stdout + done.stderr

    for place in ("models.mine:Own", "models.mine.Own", "reports.mine:Own"):
        code, said = lra("verify", place)
        assert code == 2
        assert said.count("\n") == 1
        package = place.partition(".")[0]
        assert f"{package!r} always means the package of lra" in said
        assert (
            f"own_mixers.py next to its package with the line `from {package}.mine import *`"
            in said
        )
        assert f"give own_mixers instead of {package}.mine, and set PYTHONPATH=." in said
    if init:
        code, said = lra("verify", "own_mixers:Own")
        assert code == 2
        assert "add the folder that contains it to PYTHONPATH" in said
    words = ("verify", "own_mixers:Own", "--max-length", "32", "--quiet")
    code, said = lra(*words, path=(tmp_path,))
    assert code == 0, said

    run = ("run", "model=own", "--config-dir", "my_conf", "plugins=own_mixers", "report=false",
           "task.source=sample", "logger=none", "optim.steps=1",
           "optim.warmup_steps=0")  # fmt: skip
    assert lra(*run, path=(tmp_path,))[0] == 0
    assert "1 done" in lra(*run, "runner.dry_run=true", path=(tmp_path,))[1]
    (tmp_path / "models" / "net.py").write_text(f"{THEIRS}OTHER = 1\n")
    said = lra(*run, "runner.dry_run=true", path=(tmp_path,))[1]
    assert "code changed since it ran (own:models.net)" in said


def test_a_misspelt_place_of_ours_is_answered_with_near_ones(tmp_path):
    """No package of theirs is here."""
    done = attempt(tmp_path, HOME, "-P", "-m", "lra", "verify", "models.families.linaer:X")
    assert done.returncode == 2
    assert "did you mean 'linear'" in done.stderr
