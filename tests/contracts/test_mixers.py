"""Every family that a YAML offers, in both directions, through the contract kit."""

from pathlib import Path

import pytest
import yaml

import conf
from lra.composition.compose import mixer_factory
from models.contract import CHECKS, verify
from models.contract.suite import direction

(FOLDER,) = [Path(entry) / "model" for entry in conf.__path__]
MODELS = {path.stem: yaml.safe_load(path.read_text()) for path in FOLDER.glob("*.yaml")}
FAMILIES = sorted(name for name, model in MODELS.items() if "mixer" in model)


def test_there_are_families():
    assert FAMILIES, f"no YAML in {FOLDER}: nothing was checked"


@pytest.mark.parametrize("family", FAMILIES)
def test_mixer_keeps_the_contract(family):
    """Both directions in one test: that one is offered is a finding about the two."""
    factory, _ = mixer_factory(MODELS[family]["mixer"], ())
    found = verify(factory)
    wrong = [f"{finding.check}: {finding.detail}" for finding in found if not finding.passed]
    assert not wrong, "\n".join(wrong)
    names = {finding.check for finding in found}
    every = [{f"{direction(causal)}.{check}" for check in CHECKS} for causal in (False, True)]
    assert any(checks <= names for checks in every), "no direction went through every check"
