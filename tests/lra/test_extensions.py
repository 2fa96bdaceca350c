"""An installed package brings choices of its own, which nothing imports before one is chosen."""

import json
import os
from pathlib import Path

import pytest

from tests import lra_process
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
         "optim.batch_size=2", "task.max_length=200", "logger=none", "report=false")  # fmt: skip
ONE_AFTER_ANOTHER = """\
import contextlib, io, json, sys
from lra.cli import main
from lra.composition.selection import sets
from tests.lra_process import count_short

answers = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        code = main(words)
    answers.append((code, out.getvalue(), "acme_still.mixer" in sys.modules))
    count_short()
print(json.dumps([sets()["all"], *answers]))
"""


def installed(site: Path) -> None:
    """Write the package into a folder, as pip installs one."""
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


@pytest.mark.slow
def test_a_choice_is_listed_with_its_package_which_nothing_imports_before_it_is_chosen(
    tmp_path: Path,
) -> None:
    installed(tmp_path / "site")
    seen = tmp_path / "seen"
    path = {"PYTHONPATH": f"{tmp_path / 'site'}{os.pathsep}{HOME}", "ACME_SEEN": str(seen)}

    run = lra_process.run(
        ["run", "model=still", *SHORT], cwd=tmp_path, env={**os.environ, **path},
        prepare=lra_process.forget_packages,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert seen.exists()
    (cell,) = tmp_path.glob("results/cells/*/*/cell.json")
    assert json.loads(cell.read_text())["config"]["plugins"] == ["acme_still"]
    lines = (
        ("list", "models"), ("list", "models", "--json"), ("show", cell.parent.name[:8]),
        ("report",), ("run", "model=linear", *SHORT, "runner.dry_run=true"),
        ("verify", "still", "--max-length", "64"),
    )  # fmt: skip
    done = lra_process.python(
        "-P", "-c", ONE_AFTER_ANOTHER, json.dumps(lines), cwd=tmp_path, OMP_NUM_THREADS="1", **path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    every, *answers = json.loads(done.stdout)
    assert ("linear" in every, "still" in every) == (True, False)  # or presets would change
    assert [imported for _, _, imported in answers] == [False] * 5 + [True]
    assert [code for code, *_ in answers] == [0] * 6
    listed, as_json, _, _, planned, verified = (said for _, said, _ in answers)
    (line,) = [line for line in listed.splitlines() if line.split()[:1] == ["still"]]
    assert line.endswith("acme_still")
    files = {entry["name"]: entry["file"] for entry in json.loads(as_json)}
    assert files["linear"] == str(HOME / "conf" / "model" / "linear.yaml")
    assert "train linear on listops" in planned
    assert "checks passed" in verified
