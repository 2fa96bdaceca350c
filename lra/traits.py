"""`lra list models --traits`: what each family guarantees, read off instances without weights."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lra.listing import load, roots, table
from lra.suggest import UnknownName

if TYPE_CHECKING:
    from models.backbone import StackFactory
    from models.mixer import MixerFactory

WIDTH, HEADS, MAX_LENGTH = 64, 2, 1024
"""The site at which families are built; traits such as `max_length` may follow from it."""


def describe(
    mixers: "Sequence[MixerFactory]",
    stack: "StackFactory | None" = None,
    needs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the traits of a mixer, or a stack, as plain values.

    It is built in both directions, on the meta device; `needs` is what the model's file asks of
    the backbone.
    A direction that the family refuses is named together with the refusal.
    """
    import torch

    from lra.compose import make
    from models.frame import BackboneConfig
    from models.mixer import Remembers, Site, Unsupported

    frame = make(BackboneConfig, needs, "model.backbone")

    found: dict[str, Any] = {"directions": [], "refusals": {}, "state": False}
    for direction, causal in (("bidirectional", False), ("causal", True)):
        site = Site(width=WIDTH, heads=HEADS, max_length=MAX_LENGTH, causal=causal)
        try:
            with torch.device("meta"):
                mixer: Any = stack(site, frame) if stack else mixers[0](site)
        except Unsupported as error:
            found["refusals"][direction] = str(error)
            continue
        found["directions"].append(direction)
        facts = asdict(mixer.traits)
        facts.pop("causal")
        found |= {k: sorted(v) if isinstance(v, frozenset) else v for k, v in facts.items()}
        if isinstance(mixer, Remembers):
            try:
                with torch.device("meta"):
                    mixer.initial_state(1, 8)
                found["state"] = True
            except Unsupported:
                pass
    return found


def print_traits(
    groups: Sequence[str], config_dirs: Sequence[Path], plugins: Sequence[str], as_json: bool
) -> int:
    """Print the traits of every model; 1 if some model could not be built at all."""
    from lra.compose import core_of

    if list(groups) != ["model"]:
        raise UnknownName("--traits describes models only: use `lra list models --traits`")
    files: dict[str, Path] = {}
    for root in roots(config_dirs):
        for file in sorted(root.glob("model/*.yaml")):
            files.setdefault(file.stem, file)
    found: dict[str, dict[str, Any]] = {}
    broken: dict[str, str] = {}
    for name, file in sorted(files.items()):
        try:
            node = load(file)
            mixers, stack, options = core_of(node, plugins, str(file))
            facts = describe(mixers, stack, node.get("backbone"))
            found[name] = {**facts, "variant": options.get("variant")}
        except ValueError as error:
            broken[name] = str(error)
    if as_json:
        print(json.dumps({"models": found, "broken": broken}, indent=2, ensure_ascii=False))
        return 1 if broken else 0
    header = (
        "model", "directions", "operations", "memory", "length", "state", "honours", "positions",
        "also",
    )  # fmt: skip
    print(table([header, *(line(name, facts) for name, facts in found.items())], indent=""))
    for name, facts in found.items():
        for direction, reason in facts["refusals"].items():
            print(f"{name}: not {direction}: {reason}")
    for name, reason in broken.items():
        print(f"{name}: cannot be built: {reason}")
    return 1 if broken else 0


def line(name: str, facts: dict[str, Any]) -> tuple[str, ...]:
    """Return one row of the table."""
    if not facts["directions"]:
        return (name, "none", *[""] * 7)
    flags = (
        "row_stochastic", "weight_dropout", "cross", "random_draws", "selection_leak", "simulated",
    )  # fmt: skip
    also = [flag.replace("_", "-") for flag in flags if facts[flag]]
    also += [] if facts["reversible"] else ["not-reversible"]
    also += [f"variant={facts['variant']}"] if facts.get("variant") else []
    return (
        name,
        "both" if len(facts["directions"]) > 1 else facts["directions"][0],
        f"n^{facts['operations_exponent']:.3g}" + (" log n" if facts["operations_log"] else ""),
        f"n^{facts['memory_exponent']:.3g}",
        "as built" if facts["max_length"] else "any",
        "yes" if facts["state"] else "no",
        ",".join(facts["honours"]) or "-",
        ",".join(facts["positions"]) or "-",
        ", ".join(also) or "-",
    )
