"""What a preset sets against the protocol that was chosen with it.

A protocol is what a publication did. A word of the command may depart from it, and rows say so in
their label `changed`; a preset that is added to it would do that unseen, and is refused. A preset
that names its protocol itself knows what it does.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from lra.composition.configuration import quote
from lra.composition.files import Files
from lra.composition.own_options import TABLES, Tree, matching_options, merged
from lra.composition.protocol import flat
from lra.errors import ConfigError

OF_FILES = ("model", "task", "runner", "hardware")
GROUPS = (*OF_FILES, "optim")


def refuse_contradictions(config: Mapping[str, Any], words: Sequence[str], files: Files) -> None:
    """Refuse a preset that a protocol named by hand contradicts. Raises ConfigError.

    Args:
        config: Of one run.
        words: Those that it was composed from.
        files: That they choose from.
    """
    named = dict(word.split("=", 1) for word in words if word.startswith(("+", "protocol=")))
    protocol = named.get("+protocol", named.get("protocol"))
    preset = named.get("+experiment")
    if preset is None or protocol is None:
        return
    chosen = {group: str(config[group]["name"]) for group in TABLES.values()}
    published = _values(_settings(f"protocol/{protocol}", chosen, files))
    ours, now = _values(_settings(f"experiment/{preset}", chosen, files)), _values(config)
    for key, value in ours.items():
        contradicted = published.get(key, value) != value == now.get(key)
        if contradicted and not any(_about(word, key) for word in words):
            raise ConfigError(
                f"{key}: +experiment={preset} has {quote(value)}, and +protocol={protocol} "
                f"{quote(published[key])}; give {key}=VALUE as a word of the command, or leave the "
                "preset or the protocol out"
            )


def _settings(path: str, chosen: Mapping[str, str], files: Files) -> Tree:
    """Return what a file sets for these choices, with the files of its group that it builds on."""
    file, group = files.find(path), path.partition("/")[0]
    if file is None:
        return {}
    tree: Tree = {}
    for entry in file.brings:
        if isinstance(entry, str) and entry != "_self_":
            tree = merged(tree, _settings(f"{group}/{entry}", chosen, files))
    options = matching_options(
        file.values, chosen, files.names, f"+{group}={path.partition('/')[2]}"
    )
    return merged(tree, merged(file.values, options))


def _values(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of the groups by their keys."""
    nodes = {group: tree[group] for group in GROUPS if isinstance(tree.get(group), Mapping)}
    return {key: v for group, node in nodes.items() for key, v in flat(node, group).items()}


def _about(word: str, key: str) -> bool:
    """Tell whether a word of the command names an option, its group's file, or an entry of it."""
    name = word.lstrip("+~").partition("=")[0]
    if name in OF_FILES:  # a choice of files, of which but two hold nothing but values
        return False
    inside = "model.backbone" if name == "size" else name
    in_table = name.partition(".")[0] in TABLES
    return f"{key}.".startswith(f"{inside}.") or (in_table and name.endswith(f".{key}"))
