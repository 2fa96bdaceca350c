"""`lra list models --traits`: print the properties of each family, read from models on `meta`."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, cast

from lra.composition.binding import make
from lra.composition.compose import core_of
from lra.composition.yaml_text import load
from lra.errors import UnknownName
from lra.models.backbone.choices import TOKEN_HEADS, Head, Residual
from lra.models.backbone.config import BackboneConfig, TaskFacts
from lra.models.backbone.model import Backbone
from lra.models.mixer import Growth, Unsupported
from lra.models.state import size_bytes
from lra.terminal.console import print_table

WIDTH, HEADS, MAX_LENGTH, DEPTH = 64, 2, 1024, 3
"""The size of the models that are built; a trait such as `max_length` can depend on it. There are
three layers because Funnel has three blocks."""
MEMORY = 64
"""The number of tokens in a state for which its size is reported; also twice this number."""


def describe_traits(
    node: Mapping[str, Any], plugins: Sequence[str] = (), where: str = "model"
) -> dict[str, Any]:
    """Return the traits of the model that `node` describes, as plain values.

    Builds a bidirectional and a causal model on the meta device, with the backbone options of the
    file; if the family has neither, one from sequence to sequence.

    Args:
        node: The content of the model's YAML file.
        plugins: Packages that `node` may name.
        where: The file, for messages.

    Returns:
        The traits, and also: `directions`, in which the model works; `refusals`, the reason for
        each other direction; `looks_back`, whether the bidirectional model reads earlier tokens
        only; `differs`, the directions of a trait that does not hold in all of them.
    """
    mixers, stack, options = core_of(node, plugins, where)
    by_direction, refusals, looks_back = dict[str, dict[str, Any]](), dict[str, str](), False
    for direction, head in (
        ("bidirectional", Head.classification), ("causal", Head.language_modelling),
        ("sequence-to-sequence", Head.sequence_to_sequence),
    ):  # fmt: skip
        if by_direction and head is Head.sequence_to_sequence:
            continue  # only for families that need a source and a target
        try:
            facts = _read_facts(node, mixers, stack, head)
        except Unsupported as error:
            refusals[direction] = str(error)
            continue
        if facts.pop("causal") and direction == "bidirectional":
            looks_back = True
        else:
            by_direction[direction] = facts
    traits: dict[str, Any] = {
        "directions": [*by_direction], "refusals": refusals, "variant": options.get("variant"),
        "looks_back": looks_back, "differs": {},
    }  # fmt: skip
    for facts in by_direction.values():
        traits |= {
            **facts,
            "supports": sorted({*facts["supports"], *traits.get("supports", ())}),
            "cross": facts["cross"] or traits.get("cross", False),  # attention to another sequence
        }
    for name in _DIRECTED if by_direction else ():
        holds = [direction for direction, facts in by_direction.items() if facts[name]]
        traits[name] = bool(holds)
        if 0 < len(holds) < len(by_direction):
            traits["differs"][name] = holds
    return traits


def small_model(
    node: Mapping[str, Any], mixers: Sequence[Any], stack: Any, head: Any, **more: Any
) -> Backbone:
    """Return a small model with the backbone options of its file `node`, changed by `more`.

    Args:
        node: The content of the model's YAML file.
        mixers: The factory of the mixer of each layer.
        stack: The factory of a whole stack of layers, or None.
        head: The head; a language model is causal, a classifier bidirectional.
        **more: Options of the backbone.

    Raises:
        Unsupported: The family has no such model.
    """
    options = dict(node.get("backbone") or {})
    if head in TOKEN_HEADS:  # each token gets an answer, so nothing is pooled
        options.pop("pooling", None)
    size = {"width": WIDTH, "heads": HEADS, "depth": max(DEPTH, len(mixers))}
    config = make(BackboneConfig, {**options, **size, **more}, "model.backbone")
    task = TaskFacts(head=head, vocabulary=16, classes=2, max_length=MAX_LENGTH)
    if head is Head.sequence_to_sequence:
        half = MAX_LENGTH // 2
        task = replace(task, masks=frozenset({"prefix"}), source_length=half, target_length=half)
    return Backbone(config, task, mixers, stack=stack, seed=0)


_DIRECTED = ("random_draws", "weight_dropout", "reversible")
"""Traits that may hold in one direction only."""


def _read_facts(
    node: Mapping[str, Any], mixers: Sequence[Any], stack: Any, head: Any
) -> dict[str, Any]:
    """Return the traits of a model, and the size of its state in bytes: see `small_model`."""
    import torch

    def build(**more: Any) -> Backbone:
        with torch.device("meta"):
            return small_model(node, mixers, stack, head, **more).eval()

    model = build()
    first, *others = model.traits
    facts = asdict(first)
    for layer_traits in others:
        facts["reversible"] &= layer_traits.reversible
        facts["supports"] &= layer_traits.supports
    if facts["reversible"]:
        try:
            # The mixers may be reversible, and the backbone of the family still refuse to be.
            build(residual=Residual.reversible.value, feed_forward="gelu")
        except ValueError:
            facts["reversible"] = False
    # A prefix of mutually visible tokens changes nothing for a mixer that reads all tokens.
    facts["supports"] = facts["supports"] - (set() if facts["causal"] else {"prefix"})
    if facts["max_length"] is not None:
        facts["max_length"] = MAX_LENGTH  # the model counts a CLS vector, users count tokens
    facts |= {"state": False, "state_bytes": {}}
    for memory in (MEMORY, 2 * MEMORY):
        try:
            _, states = cast(Any, model.initial_state(1, memory))
        except Unsupported:
            break
        facts["state"] = True
        facts["state_bytes"][memory] = size_bytes(states) // model.config.depth
    return {
        name: sorted(value) if isinstance(value, frozenset) else value
        for name, value in facts.items()
    }


def print_traits(files: Iterable[Path], plugins: Sequence[str], as_json: bool) -> int:
    """Print the traits of the models among `files`; return 1 if a model cannot be built, else 0."""
    model_files = [file for file in files if file.parent.name == "model"]
    if not model_files:
        raise UnknownName("--traits describes models only; use `lra list models --traits`")
    models: dict[str, dict[str, Any]] = {}
    broken: dict[str, str] = {}
    for file in model_files:
        name = file.stem
        try:
            models[name] = describe_traits(load(file), plugins, str(file))
        except (TypeError, ValueError) as error:
            broken[name] = str(error)
    if as_json:
        print(json.dumps({"models": models, "broken": broken}, indent=2, ensure_ascii=False))
        return 1 if broken else 0
    header = (
        "model", "directions", "operations", "memory", "length", "state", "supports", "positions",
        "also",
    )  # fmt: skip
    rows = [header, *(line(name, facts) for name, facts in models.items())]
    print_table(rows, indent="", header=True)
    for name, facts in models.items():
        for direction, reason in facts["refusals"].items():
            print(f"model={name} is not {direction}: {reason}")
    for name, reason in broken.items():
        print(f"model={name} cannot be built: {reason}")
    return 1 if broken else 0


def growth(facts: Mapping[str, Any]) -> tuple[str, str]:
    """Return how operations and activations grow with the length n, for example n log n and n."""
    return str(Growth(**facts["operations"])), str(Growth(**facts["memory"]))


def line(name: str, facts: dict[str, Any]) -> tuple[str, ...]:
    """Return the row of the model `name` in the table of traits."""
    if not facts["directions"]:
        return (name, "none", *[""] * 7)  # the other columns stay empty
    flags = (
        "row_stochastic", "weight_dropout", "cross", "random_draws", "selection_leak",
        "surrogate_gradient", "training_noise", "simulated",
    )  # fmt: skip
    also = [flag.replace("_", "-") for flag in flags if facts[flag]]
    also += [] if facts["reversible"] else ["not-reversible"]
    also += [f"variant={facts['variant']}"] if facts.get("variant") else []
    return (
        name,
        "both" if len(facts["directions"]) > 1 else facts["directions"][0],
        *growth(facts),
        "as built" if facts["max_length"] else "any",
        "yes" if facts["state"] else "no",
        ",".join(facts["supports"]) or "-",
        ",".join(facts["positions"]) or "-",
        ", ".join(also) or "-",
    )
