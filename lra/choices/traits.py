"""`lra list models --traits`: what each family guarantees, read off instances without weights."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
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
"""Of the models in which families stand; traits such as `max_length` may follow from it. As many
layers as Funnel has blocks: what a layer hands to the next one is there, too."""
MEMORY = 64
"""Tokens that states remember of which sizes are told."""


def describe_traits(
    node: Mapping[str, Any], plugins: Sequence[str] = (), where: str = "model"
) -> dict[str, Any]:
    """Return the traits of the model that a file's `node` describes, as plain values.

    Models are built that may see later tokens, and that may not, on the meta device, with what the
    file asks of the backbone. `directions` says what mixers make of that; where the first model
    looks back alone, `looks_back` is true. A model that the family refuses is named with the
    refusal. Where a trait holds in one direction only, `differs` names that.
    """
    mixers, stack, options = core_of(node, plugins, where)
    found, refusals, looks_back = dict[str, dict[str, Any]](), dict[str, str](), False
    for direction, head in (
        ("bidirectional", Head.classification), ("causal", Head.language_modelling),
    ):  # fmt: skip
        try:
            facts = _facts(node, mixers, stack, head)
        except Unsupported as error:
            refusals[direction] = str(error)
            continue
        if facts.pop("causal") and direction == "bidirectional":
            looks_back = True
        else:
            found[direction] = facts
    traits: dict[str, Any] = {
        "directions": [*found], "refusals": refusals, "variant": options.get("variant"),
        "looks_back": looks_back, "differs": {},
    }  # fmt: skip
    for facts in found.values():
        traits |= {
            **facts,
            "supports": sorted({*facts["supports"], *traits.get("supports", ())}),
            "cross": facts["cross"] or traits.get("cross", False),  # of another sequence
        }
    for name in _OFFERS if found else ():
        holds = [direction for direction, facts in found.items() if facts[name]]
        traits[name] = bool(holds)
        if 0 < len(holds) < len(found):
            traits["differs"][name] = holds
    return traits


_OFFERS = ("random_draws", "weight_dropout", "reversible")
"""Traits that may hold in one direction alone."""


def _facts(node: Mapping[str, Any], mixers: Sequence[Any], stack: Any, head: Any) -> dict[str, Any]:
    """Return what holds in all layers of the model that answers like this.

    Raises:
        Unsupported: The family refuses it.
    """
    import torch

    wanted = dict(node.get("backbone") or {})
    if head in TOKEN_HEADS:
        wanted.pop("pooling", None)
    size = {"width": WIDTH, "heads": HEADS, "depth": max(DEPTH, len(mixers))}
    task = TaskFacts(head=head, vocabulary=16, classes=2, max_length=MAX_LENGTH)

    def built(**more: Any) -> Backbone:
        config = make(BackboneConfig, {**wanted, **size, **more}, "model.backbone")
        with torch.device("meta"):
            return Backbone(config, task, mixers, stack=stack, seed=0).eval()

    model = built()
    facts = asdict(model.traits[0])
    for each in model.traits[1:]:
        facts["reversible"] &= each.reversible
        facts["supports"] &= each.supports
    if facts["reversible"]:
        try:
            built(residual=Residual.reversible.value, feed_forward="gelu")
        except ValueError:
            facts["reversible"] = False
    # A prefix gives nothing to a mixer that looks both ways, and ranks are for such alone.
    facts["supports"] = facts["supports"] - (set() if facts["causal"] else {"prefix"})
    if facts["max_length"] is not None:
        facts["max_length"] = MAX_LENGTH  # without a CLS vector
    facts |= {"state": False, "state_bytes": {}}
    for memory in (MEMORY, 2 * MEMORY):
        try:
            _, states = cast(Any, model.initial_state(1, memory))
        except Unsupported:
            break
        facts["state"] = True
        facts["state_bytes"][memory] = size_bytes(states) // size["depth"]
    return {k: sorted(v) if isinstance(v, frozenset) else v for k, v in facts.items()}


def print_traits(files: Iterable[Path], plugins: Sequence[str], as_json: bool) -> int:
    """Print the traits of the models among the files; 1 if one could not be built at all."""
    of_models = [file for file in files if file.parent.name == "model"]
    if not of_models:
        raise UnknownName("--traits describes models: use `lra list models --traits`")
    models: dict[str, dict[str, Any]] = {}
    broken: dict[str, str] = {}
    for file in of_models:
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
            print(f"{name}: not {direction}: {reason}")
    for name, reason in broken.items():
        print(f"{name}: cannot be built: {reason}")
    return 1 if broken else 0


def growth(facts: Mapping[str, Any]) -> tuple[str, str]:
    """Return how operations and activations grow with the length n."""
    return str(Growth(**facts["operations"])), str(Growth(**facts["memory"]))


def line(name: str, facts: dict[str, Any]) -> tuple[str, ...]:
    """Return one row of the table."""
    if not facts["directions"]:
        return (name, "none", *[""] * 7)
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
