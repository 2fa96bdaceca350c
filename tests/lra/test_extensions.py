"""An installed package brings choices of its own, which nothing imports before one is chosen."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lra_process import HOME

MIXER = '''\
"""A mixer whose import is seen."""

import os
from pathlib import Path

from lra.models.families.identity import Identity

with Path(os.environ["ACME_SEEN"]).open("a") as file:
    file.write("imported\\n")


class Still(Identity):
    """Nothing but the name differs."""
'''
SHORT = ("task=listops", "task.source=sample", "optim.steps=1", "optim.warmup_steps=0",
         "optim.batch_size=2", "task.max_length=200", "logger=none")  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package, as pip installs one."""
    site = tmp_path_factory.mktemp("site")
    (site / "acme_still" / "choices" / "model").mkdir(parents=True)
    (site / "acme_still" / "__init__.py").write_text("")
    (site / "acme_still" / "mixer.py").write_text(MIXER)
    for name in ("still", "linear"):  # linear is ours, whatever a package says
        (site / "acme_still" / "choices" / "model" / f"{name}.yaml").write_text(
            f"name: {name}\nabout: {{summary: of a package, kind: of a package, causal: true}}\n"
            "mixer:\n  class_path: acme_still.mixer.Still\n"
        )
    about = site / "acme_still-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-still\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[lra]\nacme = acme_still:choices\n")
    return site


@pytest.fixture
def lra(site: Path, tmp_path: Path):
    seen = tmp_path / "seen"

    def call(*words: str, how: tuple[str, ...] = ("-m", "lra")) -> tuple[str, bool]:
        """Return what a command prints, and whether it imported the package."""
        seen.unlink(missing_ok=True)
        done = subprocess.run(
            [sys.executable, "-P", *how, *words], cwd=tmp_path, text=True, timeout=300,
            capture_output=True, check=False,
            env={**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{HOME}", "ACME_SEEN": str(seen),
                 "LRA_DATA": str(site.parent / "data"), "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr, seen.exists()

    return call


def test_it_is_listed_with_its_package_and_not_imported(lra):
    listed, imported = lra("list", "models")
    (line,) = [line for line in listed.splitlines() if line.split()[:1] == ["still"]]
    assert line.endswith("acme_still")
    assert not imported
    entries = json.loads(lra("list", "models", "--json")[0])
    files = {entry["name"]: entry["file"] for entry in entries}
    assert files["linear"] == str(HOME / "conf" / "model" / "linear.yaml")
    code = "from lra.composition.selection import sets; print(*sets()['all'])"
    every = lra(code, how=("-c",))[0].split()
    assert ("linear" in every, "still" in every) == (True, False)  # or presets would change


@pytest.mark.slow
def test_to_choose_one_names_its_package_and_a_stored_cell_does_not(lra, tmp_path):
    said, imported = lra("run", "model=still", *SHORT)
    assert imported, said
    (cell,) = tmp_path.glob("results/cells/*/*/cell.json")
    assert json.loads(cell.read_text())["config"]["plugins"] == ["acme_still"]
    for words in (("show", cell.parent.name[:8]), ("report",)):
        assert lra(*words)[1] is False
    said, imported = lra("run", "model=linear", *SHORT, "runner.dry_run=true")
    assert "train linear on listops" in said
    assert not imported
    assert "checks passed" in lra("verify", "still", "--max-length", "64")[0]
