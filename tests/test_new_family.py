"""A new family is one file, one YAML and one test: in a copy of the project, with no line changed.

The family is in `new_family/`: the mean of the values so far, with a kind of its own. Beside it
stand two without a test of their own: one approximates attention, one sees the past alone. A new
task is one file and one YAML.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests import lra_process

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent
GIVEN = Path(__file__).parent / "new_family"
FAMILY, KIND, APPROXIMATION = "running_mean", "running means", "key_means"
CAUSAL, TASK = "token_shift", "majority"
ADDED = {
    "running_mean.py": f"models/families/{FAMILY}.py",
    "running_mean.yaml": f"conf/model/{FAMILY}.yaml",
    "running_mean_checks.py": f"tests/models/families/test_{FAMILY}.py",
    "key_means.py": f"models/families/{APPROXIMATION}.py",
    "key_means.yaml": f"conf/model/{APPROXIMATION}.yaml",
    "token_shift.py": f"models/families/{CAUSAL}.py",
    "token_shift.yaml": f"conf/model/{CAUSAL}.yaml",
    "majority.py": f"tasks/classification/{TASK}.py",
    "majority.yaml": f"conf/task/{TASK}.yaml",
}
ROOMS = ("conf", "docs/site", "lra", "models", "reports", "runners", "tasks", "tests")
GO_OVER_ALL = (
    "tests/contracts",
    "tests/lra/composition/test_compose.py",
    "tests/lra/test_recorded_defaults.py",
    "tests/lra/composition/test_selection.py",
    "tests/lra/commands/test_explain.py",
    "tests/lra/commands/test_list.py",
    "tests/lra/sweep/test_trial_builds.py",
    "tests/models/backbone/test_attention_weights.py",
    "tests/models/backbone/test_padding.py",
    f"tests/models/families/test_{FAMILY}.py",
    "tests/tasks/baselines/test_seen.py",
    "tests/tasks/data/test_shared_cache.py",
    "tests/test_family_pages.py",
    "tests/test_rules.py",
)
PAGES = ("pyproject.toml", "README.md", "CONTRIBUTING.md", "Makefile")
OF_ALL = (
    "test_selection",
    "test_every_choice_of_ours_says_what_it_is",
    "test_every_default_is_the_recorded_one",
    "test_there_are",
    "test_the_import_rules_hold",
    "test_choices_of_models_are_compared",
    "test_types_and_values_are_those_that_are_checked_when_it_runs",
)
"""Tests that go over all families in one piece; those of one family have its name."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a copy of the project with the files."""
    folder = tmp_path_factory.mktemp("project")
    left = shutil.ignore_patterns("__pycache__", "published")
    for room in ROOMS:
        shutil.copytree(ROOT / room, folder / room, ignore=left)
    for page in PAGES:
        shutil.copy(ROOT / page, folder)
    for name, place in ADDED.items():
        assert not (ROOT / place).exists(), f"{place} is there: choose another name in this test"
        shutil.copy(GIVEN / name, folder / place)
    return folder


def python(copy: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run Python on the copy, one thread, in a folder."""
    settings = {"PYTHONPATH": f"{copy}{os.pathsep}{copy / 'docs/site'}", "OMP_NUM_THREADS": "1"}
    return lra_process.python(*words, cwd=folder, **settings)


def test_every_rule_and_every_contract_takes_it_up(copy: Path) -> None:
    chosen = " or ".join((FAMILY, APPROXIMATION, CAUSAL, TASK, *OF_ALL))
    options = ("-q", "-rp", "-p", "no:cacheprovider", "-n", "0", "-k", chosen)
    done = python(copy, copy, "-m", "pytest", *options, *GO_OVER_ALL)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = [line for line in done.stdout.splitlines() if line.startswith("PASSED")]
    for name in (
        f"test_mixer_keeps_the_contract[{FAMILY}-cpu]",
        f"test_model_yaml_lists_exactly_the_constructor[{FAMILY}]",
        f"test_every_option_has_type_and_meaning[model-{FAMILY}]",
        f"test_every_option_of_a_family_is_on_its_page[{FAMILY}]",
        f"test_mixer_keeps_the_contract[{APPROXIMATION}-cpu]",
        f"test_builds_on_meta[{CAUSAL}]",
        f"test_numbers_below_zero_are_refused_with_their_value[{CAUSAL}]",
        f"test_baselines_read_what_batches_deliver[{TASK}-0]",
        f"test_every_option_has_type_and_meaning[task-{TASK}]",
        f"test_{FAMILY}.py::test_is_the_mean_as_it_is_written[",
        *OF_ALL,
    ):
        assert any(name in line for line in passed), name


def test_every_verb_and_every_report_has_it(copy: Path, tmp_path: Path) -> None:
    """One test, for one process that does it all."""
    done = python(copy, tmp_path, "-P", str(GIVEN / "visits.py"), FAMILY, KIND, APPROXIMATION)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    known = json.loads(done.stdout.splitlines()[-1])
    listed(known)
    chosen(known)
    approximated(known)
    verified(known)
    reported(known)
    drawn(known)


def listed(known: dict[str, Any]) -> None:
    assert FAMILY in known["list"]
    assert "model.mixer.gate=sigmoid" in known["options"]
    assert known["traits"]["directions"] == ["bidirectional", "causal"]
    assert known["traits"]["state"] is True


def chosen(known: dict[str, Any]) -> None:
    assert known["of its kind"] == [FAMILY]
    for where in ("all", "causal", "model=all", "families", "families_train"):
        assert known[where].count(FAMILY) == 1, where
        assert len(known[where]) > 10, where


def approximated(known: dict[str, Any]) -> None:
    for where in ("approximations", "approximation"):
        assert known[where].count(APPROXIMATION) == 1, where
        assert FAMILY not in known[where], where
        assert len(known[where]) > 10, where
    assert known["errors"]["32"] < 1e-12 < known["errors"]["4"]


def verified(known: dict[str, Any]) -> None:
    (line,) = known["verify"].splitlines()
    name, _, counts = line.partition(": ")
    passed, _, _, failed, *_ = counts.split()
    assert (name, failed) == (FAMILY, "0")
    assert int(passed) > 40


def reported(known: dict[str, Any]) -> None:
    (rows,) = (rows for name, rows in known["tables"].items() if name.startswith("efficiency"))
    assert rows
    assert any("time" in name for name in known["figures"])
    for part in ("attention with equal weights", "`gate=sigmoid`", "## Measured"):
        assert part in known["page"]
    assert f"## {KIND.capitalize()}" in known["overview"]
    assert f"[{FAMILY}]({FAMILY}.md)" in known["overview"]
    assert known["page figures"]


def drawn(known: dict[str, Any]) -> None:
    """In the panel of its kind, and like no other family."""
    assert known["panels"][KIND] == [FAMILY]
    others = [look for name, look in known["looks"].items() if name != FAMILY]
    assert known["looks"][FAMILY] not in others
