"""What a layer of every family costs at `LENGTH` tokens, as recorded: a change of it is looked at.

    python -m tests.contracts.test_layer_costs     # records all anew

The contract kit measures growth, and would pass a layer that does all twice. Recorded are products,
forward and backward, those of a forward pass without gradient, and bytes that autograd
keeps, at default options; a family that is not recorded yet is not compared.
"""

import json
from pathlib import Path

import pytest

from lra.composition.compose import mixer_factory
from lra.models.contract.case import Case
from lra.models.contract.costs import count_evaluation, count_training
from lra.models.contract.suite import direction
from lra.models.mixer import Unsupported
from tests.contracts.test_mixers import FAMILIES, MODELS, TOKEN_BY_TOKEN

FILE = Path(__file__).with_name("recorded_costs.json")
RECORDED = json.loads(FILE.read_text()) if FILE.exists() else {}
LENGTH = 512


def costs(family: str) -> dict[str, dict[str, int]]:
    """Return the counts of one row in each direction that a family offers."""
    factory, _ = mixer_factory(MODELS[family]["mixer"], ())
    length, counts = LENGTH // 4 if family in TOKEN_BY_TOKEN else LENGTH, {}
    for causal in (False, True):
        case = Case(make=factory, causal=causal)
        try:
            training, evaluation = count_training(case, length), count_evaluation(case, length)
        except Unsupported:
            continue
        counts[direction(causal)] = {
            "training_operations": training.operations,
            "evaluation_operations": evaluation.operations,
            "saved_bytes": training.saved,
        }
    return counts


@pytest.mark.share(4)
@pytest.mark.parametrize("family", RECORDED)
def test_costs_are_those_recorded(family):
    assert costs(family) == RECORDED[family]


if __name__ == "__main__":
    lines = [f"{json.dumps(family)}: {json.dumps(costs(family))}" for family in FAMILIES]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
