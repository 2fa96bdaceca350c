"""The name of a model whose layers come from a pattern, as `+pattern=qwen3_next` chooses them.

A configuration has in `pattern` what the files of its pattern set: name, layers and depth. The
model is named after the pattern, and after what differs from these layers:

    qwen3_next                                    the layers and the depth of the pattern
    qwen3_next (4 layers)                         its rule for layers at another depth
    qwen3_next (gated_delta_net + sdpa)           other layers
"""

from collections.abc import Mapping
from typing import Any

from lra.composition.layer_list import expand, parts_of
from lra.conf.short_values import number_of
from lra.reports.names import LAYERS


def record(name: str, tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the key `pattern` of a configuration.

    Args:
        name: Of the pattern.
        tree: What its files set, as a nested mapping.
    """
    model = tree.get("model") or {}
    depth = (model.get("backbone") or {}).get("depth")
    return {
        "name": name,
        "layers": model.get("layers"),
        "depth": depth,
        "parts": _parts(model.get("layer_options")),
    }


def pattern_of(config: Mapping[str, Any]) -> tuple[str, str]:
    """Return the pattern of a run, and in words how its layers differ; ("", "") without a pattern.

    A run without `model.layers` is one of the family alone, also if a pattern set other options.

    Args:
        config: The composed configuration, resolved and checked.
    """
    pattern, model = config.get("pattern"), config["model"]
    if not pattern or not model.get("layers"):
        return "", ""
    name, depth = str(pattern["name"]), model["backbone"]["depth"]
    table = model.get("layer_options") or {}
    if model["layers"] != pattern["layers"] or _parts(table) != pattern["parts"]:
        letters = [str(model["name"]), *table]
        return name, LAYERS.join(expand(model["layers"], depth, letters, "model.layers"))
    return name, "" if pattern["depth"] in (None, depth) else number_of(depth, "layer")


def name_of(config: Mapping[str, Any]) -> str:
    """Return the name of a run's model in rows: that of its pattern, or else of its family."""
    return pattern_of(config)[0] or str(config["model"]["name"])


def _parts(table: Any) -> dict[str, Any]:
    """Return what each alias in `layer_options` stands for: a family, or several layers."""
    entries = table.items() if isinstance(table, Mapping) else ()
    return {
        name: parts_of(entry) or entry["family"]
        for name, entry in entries
        if isinstance(entry, Mapping) and (parts_of(entry) or "family" in entry)
    }
