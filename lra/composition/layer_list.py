"""The layers of a model of several families: `model.layers` and `model.layer_options`.

`layers` names a family for each layer, in one of three forms:

    [mamba2, mamba2, sdpa]                           a name for each layer
    MM*-                                             a letter for each layer
    {cycle: [mamba2, mamba2, sdpa], last: [sdpa]}    a rule for any depth

A rule repeats `cycle` up to the depth; `first` and `last` then replace the two ends. A name is a
family, `none` (a layer without a mixer), or an alias, which an entry of `layer_options` defines:

    window: {family: sliding_window, window: [129]}
    both: {parallel: [mamba2, sdpa], scales: [1.0, 0.5]}
    hybrid: {shared: [sdpa, mamba2]}          attention with one set of weights, before each mamba2

An entry of `layer_options` has options of its family, and in `backbone` options of the backbone for
these layers alone (`lra.models.backbone.layer_factory.PER_LAYER`).
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from lra.composition.configuration import LAYERS, RULE, quote
from lra.errors import ConfigError, unknown

PARTS = ("layers", "others", "layer_backbone")
"""Keys that describe several families among the options of a model's mixer."""
JOINTS = {
    "parallel": "models.backbone.parallel.Parallel",
    "shared": "models.backbone.shared_block.SharedContext",
}
"""Class of a layer that is made of several, by the key of its entry."""
NONE = "none"
"""The name of a layer without a mixer."""


def expand(layers: Any, depth: Any, letters: Collection[str], where: str) -> list[str]:
    """Return the name of each layer; [] if `layers` is empty.

    Args:
        layers: One of the three forms; other values are refused by the configuration's check.
        depth: Number of layers; anything but a number is refused elsewhere.
        letters: Names that a letter of a text may be.
        where: The key of `layers`, for messages.

    Raises:
        ConfigError: The list has another number of layers, or the rule does not fit the depth.
    """
    if not layers:
        return []
    for text in layers.values() if isinstance(layers, Mapping) else [layers]:
        if isinstance(text, str) and (foreign := sorted({*text} - {*letters})):
            raise ConfigError(
                f"{where}: got {quote(text)}; wanted {LAYERS.words} that model.layer_options "
                f"defines, which has none for {', '.join(map(repr, foreign))}"
            )
    if isinstance(layers, Mapping):
        return _apply_rule(layers, depth, where) if type(depth) is int else []
    if type(depth) is int and len(layers) != depth:
        raise ConfigError(
            f"{where}: got {len(layers)} names of families; wanted {depth} names, one for each "
            "layer of model.backbone.depth"
        )
    return [*layers]


def _apply_rule(rule: Mapping[str, Sequence[str]], depth: int, where: str) -> list[str]:
    """Return the layers of a rule; ConfigError for a depth that it does not fit."""
    cycle, first, last = ([*rule.get(key, ())] for key in RULE)
    if not cycle:
        raise ConfigError(
            f"{where}.cycle is missing; wanted the families that a rule repeats, as in "
            "{cycle: [mamba2, sdpa]}"
        )
    repeated = [cycle[layer % len(cycle)] for layer in range(depth)]
    names = [*first, *repeated[len(first) : depth - len(last)], *last]
    lost = sorted({*cycle, *first, *last} - {*names})
    if len(names) != depth or lost:
        of = f"without a layer of {', '.join(lost)}" if lost else f"of {len(names)} layers"
        raise ConfigError(
            f"{where}: the rule {quote(dict(rule))} does not fit model.backbone.depth={depth}, for "
            f"which it gives a stack {of}; set a larger depth, or name each layer"
        )
    return names


def split_entry(
    name: str, entry: Any, where: str, fields: Sequence[str]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return an entry of `layer_options` as (options of the family, options of the backbone).

    Args:
        name: Of the layer.
        entry: Its options.
        where: The key of `layer_options`, for messages.
        fields: Options of the backbone that a layer may have.
    """
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where}.{name}: got {quote(entry)}; wanted a mapping of options")
    frame = entry.get("backbone") or {}
    if not isinstance(frame, Mapping):
        raise ConfigError(
            f"{where}.{name}.backbone: got {quote(frame)}; wanted a mapping of options"
        )
    for key in frame:
        if key not in fields:
            raise ConfigError(f"{where}.{name}.backbone: " + unknown("option", str(key), fields))
    return {key: value for key, value in entry.items() if key != "backbone"}, dict(frame)


def parts_of(entry: Any) -> list[str]:
    """Return the layers that an entry of `layer_options` is made of; [] for others."""
    key = next((key for key in JOINTS if isinstance(entry, Mapping) and key in entry), "")
    parts = entry[key] if key else None
    if parts is None:
        return []
    if not isinstance(parts, list) or len({*map(str, parts)}) != len(parts) or len(parts) < 2:
        raise ConfigError(
            f"{key} in model.layer_options: got {quote(parts)}; wanted a list of two or more "
            "different layers, as in [sdpa, mamba2]"
        )
    return [*map(str, parts)]
