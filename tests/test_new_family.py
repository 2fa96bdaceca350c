"""A new family is one file, one YAML and one test: in a copy of the project, with no line changed.

The family is in `new_family/`: the mean of the values so far, with a kind of its own. Beside it
stand two without a test of their own: one approximates attention, one sees the past alone. A new
task is one file and one YAML.
"""

import os
import shutil
from pathlib import Path

import pytest

from tests import lra_process

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent
GIVEN = Path(__file__).parent / "new_family"
FAMILY, APPROXIMATION = "running_mean", "key_means"
CAUSAL, TASK = "token_shift", "majority"
VISITS = "test_visits.py"
ADDED = {
    "running_mean.py": f"models/families/{FAMILY}.py",
    "running_mean.yaml": f"conf/model/{FAMILY}.yaml",
    "running_mean_checks.py": f"tests/models/families/test_{FAMILY}.py",
    "visits_checks.py": f"tests/{VISITS}",
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
    f"tests/{VISITS}",
)
PAGES = ("pyproject.toml", "README.md", "CONTRIBUTING.md", "Makefile")
OF_ALL = (
    "test_selection",
    "test_every_choice_of_ours_says_what_it_is",
    "test_every_option_has_type_and_meaning",
    "test_every_default_is_the_recorded_one",
    "test_there_are",
    "test_the_import_rules_hold",
    "test_choices_of_models_are_compared",
    "test_what_is_recorded_is_what_classes_say",
    "test_visits",
)
"""Tests that go over all families in one piece; those of one family have its name."""


def copied(folder: Path) -> None:
    """Make a copy of the project with the files, and with what Python has compiled of it."""
    for room in ROOMS:
        shutil.copytree(ROOT / room, folder / room, ignore=shutil.ignore_patterns("published"))
    for page in PAGES:
        shutil.copy(ROOT / page, folder)
    for name, place in ADDED.items():
        assert not (ROOT / place).exists(), f"{place} is there: choose another name in this test"
        shutil.copy(GIVEN / name, folder / place)


def test_every_rule_every_contract_and_every_verb_takes_it_up(tmp_path: Path) -> None:
    copied(tmp_path)
    chosen = " or ".join((FAMILY, APPROXIMATION, CAUSAL, TASK, *OF_ALL))
    options = ("-q", "-rp", "-p", "no:cacheprovider", "-n", "0", "-k", chosen)
    settings = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{tmp_path / 'docs/site'}"}
    made = lra_process.python("docs/site/option_table.py", cwd=tmp_path, **settings)
    assert made.returncode == 0, made.stderr
    words = ("-m", "pytest", *options, *GO_OVER_ALL)
    done = lra_process.python(*words, cwd=tmp_path, OMP_NUM_THREADS="1", LRA_SHAPES="0", **settings)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    passed = [line for line in done.stdout.splitlines() if line.startswith("PASSED")]
    for name in (
        f"test_mixer_keeps_the_contract[{FAMILY}-cpu]",
        f"test_model_yaml_lists_exactly_the_constructor[{FAMILY}]",
        f"test_every_option_of_a_family_is_on_its_page[{FAMILY}]",
        f"test_mixer_keeps_the_contract[{APPROXIMATION}-cpu]",
        f"test_builds_on_meta[{CAUSAL}]",
        f"test_numbers_below_zero_are_refused_with_their_value[{CAUSAL}]",
        f"test_baselines_read_what_batches_deliver[{TASK}-0]",
        f"test_{FAMILY}.py::test_is_the_mean_as_it_is_written[",
        *OF_ALL,
    ):
        assert any(name in line for line in passed), name
