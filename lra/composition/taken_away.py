"""Answers to `~key`: an option that a word took away would come back with its default, unsaid.

An entry of a mapping that says what differs is taken away: what holds elsewhere then holds there.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from conf.shown import short
from lra.composition.catalogue import names, words
from lra.composition.complaints import tree_of
from lra.composition.option_sources import BACKBONE, CLASSES, CONTROL, parameters
from lra.composition.own_options import TABLES

MAPPINGS = (
    *TABLES,
    "runner.pretraining",
    "model.layer_options",
    "hardware.typical",
    "hydra.sweeper.params",
)
"""Empty by default."""


def taken_away(overrides: Sequence[str]) -> str | None:
    """Return the answer to the first word that takes away more than a mapping or its entry."""
    for word in overrides:
        key = word[1:].partition("=")[0]
        of_mapping = f"{key}.".startswith(tuple(f"{mapping}." for mapping in MAPPINGS))
        if word.startswith("~") and not of_mapping:
            return f"{short(word)}: {_answer(key, overrides)}"
    return None


def _answer(key: str, overrides: Sequence[str]) -> str:
    group = key.partition("@")[0]
    word = words().get(group)
    if word is not None and word != group:
        return f"no choice is taken away: leave out {word}=NAME, or choose another"
    if word is not None:
        return (
            "no choice is taken away, for a default would stand in its place: "
            f"{group}=NAME, of {', '.join(names(group))}"
        )
    answer = "no option is taken away, for its default would come back"
    if takes_null(key, tree_of(overrides)):
        return f"{answer}; {key}=null switches it off"
    return f"{answer}; {short(key) or 'KEY'}=VALUE says what is to hold instead"


def takes_null(key: str, tree: Mapping[str, Any]) -> bool:
    """Return whether an option may be null, as far as the sources of its class tell."""
    above, _, option = key.rpartition(".")
    node: Any = tree
    for part in above.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    class_path = node.get("class_path") if isinstance(node, dict) else None
    shared = {**CLASSES, "model.backbone": BACKBONE, "runner": CONTROL}.get(above)
    options = (parameters(str(path)).get(option) for path in (class_path, shared) if path)
    return any(parameter is not None and parameter.optional for parameter in options)
