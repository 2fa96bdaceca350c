"""Choices of dataclasses of options, run by `test_named_options.py` in a process of its own.

The type checks of the test run stand in front of a dataclass's constructor, and would refuse the
plain strings that this is about; without them the constructor is what users have.
"""

import types
from enum import StrEnum
from pathlib import Path
from typing import Union, get_args, get_origin

import pytest

from lra import conf
from lra.composition.binding import schema
from lra.composition.compose import locate
from lra.composition.runner_class import our_runners
from lra.composition.yaml_text import load
from lra.models.backbone.model import BackboneConfig, Head, TaskFacts
from lra.models.mixer import Site, Unsupported
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.training.optim import OptimConfig
from lra.tasks.classification.table import TableTask

FOLDER = Path(*conf.__path__)


def nodes(group):
    return {file.stem: load(file) for file in sorted((FOLDER / group).glob("*.yaml"))}


MODELS = {
    name: locate(node.get("mixer", node.get("stack"))["class_path"])
    for name, node in nodes("model").items()
}
STACKS = {name for name, node in nodes("model").items() if "stack" in node}
"""Models that are no mixer in the common stack."""


def _sees_the_past_alone(family):
    try:
        family(Site(width=16, heads=2, max_length=64))
    except Unsupported:
        return True
    return False


CAUSAL_ALONE = {
    name for name, family in MODELS.items() if name not in STACKS and _sees_the_past_alone(family)
}
TASKS = {name: locate(node["class_path"]) for name, node in nodes("task").items()}
CONFIGS = [
    *our_runners().values(),
    HardwareProfile, OptimConfig, BackboneConfig, TaskFacts, Site,
]  # fmt: skip
BUILT = [*dict.fromkeys([*MODELS.values(), *TASKS.values(), *CONFIGS])]


def choices_of(target):
    """Return the options of `target` that are a choice, or a list of choices."""
    found = {}
    for name, (hint, _) in schema(target).items():
        kinds = [hint]
        if get_origin(hint) in {Union, types.UnionType}:
            kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        several = get_origin(kinds[0]) is list
        kind = get_args(kinds[0])[0] if several else kinds[0]
        if isinstance(kind, type) and issubclass(kind, StrEnum):
            found[name] = (kind, several)
    return found


OPTIONS = [
    (target, name, kind, several)
    for target in BUILT
    for name, (kind, several) in choices_of(target).items()
]
SPELT = [(*option, choice) for option in OPTIONS for choice in option[2]]


def named(case):
    return "-".join([case[0].__qualname__, case[1], *([case[4].value] if len(case) == 5 else [])])


def among(targets):
    return [pytest.param(case, id=named(case)) for case in SPELT if case[0] in targets]


NEEDED = {
    TaskFacts: {"head": Head.classification, "vocabulary": 7, "classes": 3, "max_length": 12},
    Site: {"width": 8, "heads": 2, "max_length": 12},
    HardwareProfile: {"name": "here"},
    TableTask: {"labels": ["a", "b"], "dataset": "owner/name"},
}


def outcome(run):
    """Return what `run` returns, or what it refuses."""
    try:
        return run()
    except ValueError as error:
        return f"{type(error).__name__}: {error}"


def allows_none(target, name):
    return type(None) in get_args(schema(target)[name].kind)


def refuse_unknown_names(case, *arguments):
    """Assert that wrong values of an option are refused, with the choices and a near match."""
    target, name, kind, several = case
    wrong = [*kind][-1].value + "x"
    for value in (wrong, 1, wrong.upper(), *([] if allows_none(target, name) else [None])):
        with pytest.raises(ValueError, match="wanted one of") as refused:
            target(*arguments, **{**NEEDED.get(target, {}), name: [value] if several else value})
        message = str(refused.value)
        assert message.startswith(name)
        assert repr(value) in message
        assert all(choice.value in message for choice in kind)
        assert value is None or isinstance(value, int) or "did you mean" in message


@pytest.mark.parametrize("case", among(CONFIGS))
def test_a_config_is_the_same_by_name(case):
    config, name, _, several, choice = case
    given = NEEDED.get(config, {})

    def value(chosen):
        return getattr(config(**{**given, name: [chosen] if several else chosen}), name)

    wanted, found = outcome(lambda: value(choice)), outcome(lambda: value(choice.value))
    if isinstance(wanted, StrEnum):
        assert found is wanted
    else:
        assert found == wanted
        assert [*map(type, found)] == [*map(type, wanted)]


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=named(case)) for case in OPTIONS if case[0] in CONFIGS]
)
def test_an_unknown_name_is_refused_with_the_choices(case):
    refuse_unknown_names(case)
