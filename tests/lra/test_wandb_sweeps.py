"""The sweep files of the documentation give commands that `lra run` takes, one by one."""

import itertools
from pathlib import Path
from typing import Any

import pytest
import yaml

from lra.composition.hydra_entry import entries

FILES = sorted((Path(__file__).resolve().parents[2] / "docs" / "sweeps").glob("*.yaml"))


def drawn(parameter: dict[str, Any]) -> list[Any]:
    """Return the values of a parameter; of a range some that a server could propose."""
    if "values" in parameter:
        return list(parameter["values"])
    assert parameter["distribution"] == "log_uniform_values"
    low, high = parameter["min"], parameter["max"]
    return [low * (high / low) ** share for share in (0, 0.21, 0.57, 1)]


def commands(file: Path) -> list[list[str]]:
    """Return the words of every run, as W&B's pages say that its agent makes them."""
    sweep = yaml.safe_load(file.read_text())
    assert sweep["program"] == "lra"
    assert sweep["method"] in {"grid", "bayes"}
    grid = {name: drawn(each) for name, each in sweep["parameters"].items()}
    found = []
    for values in itertools.product(*grid.values()):
        pairs = zip(grid, values, strict=True)
        given = {"${args_no_hyphens}": [f"{name}={value}" for name, value in pairs]}
        found.append([each for word in sweep["command"] for each in given.get(word, [word])])
    return found


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_command_is_one_run_of_its_own(file: Path) -> None:
    given = commands(file)
    assert len({tuple(words) for words in given}) == len(given) > 10
    composed = []
    for program, verb, *words in given:
        assert (program, verb) == ("lra", "run")
        assert not any(word.startswith(("$", "--")) for word in words)
        if len({*words} - {*given[0]}) < 2:  # every value of every parameter, once
            (entry,) = entries(words)
            assert entry.config["sweep"] == file.stem
            assert entry.config["logger"]["mode"] == "online"
            composed.append(repr(entry.config))
    assert len(set(composed)) == len(composed) > 5


def test_a_search_of_the_server_judges_by_the_validation_split() -> None:
    searches = [each for each in map(read, FILES) if each["method"] != "grid"]
    assert searches
    for sweep in searches:
        assert sweep["metric"] == {"name": "quality/validation_accuracy", "goal": "maximize"}
        assert any(word.startswith("runner.evaluate_every_steps=") for word in sweep["command"])


def read(file: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(file.read_text())
    return loaded
