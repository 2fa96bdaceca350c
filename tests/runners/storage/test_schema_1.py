"""What schema 1 said of a cell, in the words of today."""

from runners.storage.schema_1 import described

RUNNER = {
    "name": "approximation",
    "budgets": [16, 32],
    "budget": {"performer": "features", "yoso": "hashes"},
    "own_budgets": {"yoso": [4]},
    "targets": {"yoso": {"mode": "expectation"}},
}


def test_of_mappings_by_model_the_models_own_part_stays() -> None:
    shared = {"name": "approximation", "own_budgets": {}}
    assert described({"model": "performer", "runner": RUNNER})["runner"] == {
        **shared, "option": "features", "budgets": [16, 32], "target": {},
    }  # fmt: skip
    assert described({"model": "yoso", "runner": RUNNER})["runner"] == {
        **shared, "option": "hashes", "budgets": [4], "target": {"mode": "expectation"},
    }  # fmt: skip
    other = {"model": "yoso", "runner": {"name": "train", "log_every_steps": 5}}
    assert described(other)["runner"] == {"name": "train"}
