"""Every family that a YAML offers, in both directions, through the contract kit."""

from functools import cache
from pathlib import Path

import pytest
import yaml

import conf
from lra.compose import mixer_factory
from models.contract import CHECKS, Finding, check_mixer, direction

(FOLDER,) = [Path(entry) / "model" for entry in conf.__path__]
MODELS = {path.stem: yaml.safe_load(path.read_text()) for path in FOLDER.glob("*.yaml")}
FAMILIES = sorted(name for name, model in MODELS.items() if "mixer" in model)
CAUSAL = [False, True]


@cache
def findings(family: str, causal: bool) -> list[Finding]:
    factory, _ = mixer_factory(MODELS[family]["mixer"], ())
    return check_mixer(factory, causal=causal)


def test_there_are_families():
    assert FAMILIES, f"no YAML in {FOLDER}: nothing was checked"


@pytest.mark.parametrize("causal", CAUSAL, ids=direction)
@pytest.mark.parametrize("family", FAMILIES)
def test_mixer_keeps_the_contract(family, causal):
    found = findings(family, causal)
    wrong = [f"{finding.check}: {finding.detail}" for finding in found if not finding.passed]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("family", FAMILIES)
def test_mixer_works_in_some_direction(family):
    assert any(len(findings(family, causal)) == len(CHECKS) + 1 for causal in CAUSAL)
