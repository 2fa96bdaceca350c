"""`lra list models --traits`: what each family guarantees, read off instances without weights."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lra.composition.yaml_text import load
from lra.errors import UnknownName
from lra.terminal.console import print_table

WIDTH, HEADS, MAX_LENGTH = 64, 2, 1024
"""The site at which families are built; traits such as `max_length` may follow from it."""


def describe(
    node: Mapping[str, Any], plugins: Sequence[str] = (), where: str = "model"
) -> dict[str, Any]:
    """Return the traits of the model that a file's `node` describes, as plain values.

    It is built in both directions, on the meta device, in the backbone that its file asks for.
    A direction that the family refuses is named together with the refusal.
    """
    import torch

    from lra.composition.binding import make
    from lra.composition.compose import core_of
    from lra.models.backbone.config import BackboneConfig
    from lra.models.mixer import Remembers, Site, Unsupported

    mixers, stack, options = core_of(node, plugins, where)
    config = make(BackboneConfig, node.get("backbone"), "model.backbone")
    traits: dict[str, Any] = {
        "directions": [], "refusals": {}, "state": False, "variant": options.get("variant"),
    }  # fmt: skip
    for direction, causal in (("bidirectional", False), ("causal", True)):
        site = Site(width=WIDTH, heads=HEADS, max_length=MAX_LENGTH, causal=causal)
        try:
            with torch.device("meta"):
                mixer: Any = stack(site, config) if stack else mixers[0](site)
        except Unsupported as error:
            traits["refusals"][direction] = str(error)
            continue
        traits["directions"].append(direction)
        facts = asdict(mixer.traits)
        facts.pop("causal")
        facts["cross"] |= traits.get("cross", False)  # of another sequence, one direction can
        # A prefix gives nothing to a mixer that looks both ways, and ranks are for such alone.
        facts["supports"] = facts["supports"] - (set() if causal else {"prefix"})
        facts["supports"] |= set(traits.get("supports", ()))
        traits |= {k: sorted(v) if isinstance(v, frozenset) else v for k, v in facts.items()}
        if isinstance(mixer, Remembers):
            try:
                with torch.device("meta"):
                    mixer.initial_state(1, 8)
                traits["state"] = True
            except Unsupported:
                pass
    return traits


def print_traits(files: Iterable[Path], plugins: Sequence[str], as_json: bool) -> int:
    """Print the traits of the models among the files; 1 if one could not be built at all."""
    of_models = [file for file in files if file.parent.name == "model"]
    if not of_models:
        raise UnknownName("--traits describes models only: use `lra list models --traits`")
    models: dict[str, dict[str, Any]] = {}
    broken: dict[str, str] = {}
    for file in of_models:
        name = file.stem
        try:
            models[name] = describe(load(file), plugins, str(file))
        except ValueError as error:
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
    from lra.models.mixer import Growth

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
