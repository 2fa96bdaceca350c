"""Read YAML safely and in bounded time, with numbers as Hydra reads them.

YAML can name a value (an anchor) and repeat it by an alias, so a few lines can stand for billions
of values. Therefore the values are counted before they are built.
"""

import re
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from yaml.composer import Composer

MOST_BYTES = 100_000
MOST_VALUES = 20_000
DEEPEST = 50
KINDS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ("null", "bool", "int", "float", "str", "seq", "map", "merge")
)
"""The types of JSON, and the merge of mappings; no dates, sets, bytes or Python objects."""


class BadYaml(ValueError):
    """A text is not YAML, or is too large for a configuration; the message names the place."""


if yaml.__with_libyaml__:

    class _Base(Composer, yaml.CSafeLoader):
        """Reads text with libyaml, which is several times faster, and builds nodes in Python.

        libyaml could build nodes, too, but without a limit of depth: 90,000 brackets would crash
        the process.
        """

        def __init__(self, text: str) -> None:
            yaml.CSafeLoader.__init__(self, text)
            Composer.__init__(self)
else:
    _Base = yaml.SafeLoader  # type: ignore[assignment,misc]


class _Loader(_Base):
    """Reads safe tags only; 1e-3 is a number, and a date is text."""

    yaml_implicit_resolvers = {  # noqa: RUF012  # as the base class declares it
        first: [rule for rule in rules if rule[0] != "tag:yaml.org,2002:timestamp"]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"([-+]?\d[\d_]*(\.[\d_]*)?[eE][-+]?\d+|\.\d[\d_]*([eE][-+]\d+)?)\Z", re.ASCII),
    [*"-+0123456789."],
)


def load(file: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file; an empty mapping for an empty file.

    Raises:
        BadYaml: The file contains no mapping; the message names the file and the line.
        OSError: The file cannot be read.
    """
    if file.exists() and not file.is_file():
        raise BadYaml(f"{file} is not a regular file; remove it, or replace it by a YAML file")
    with file.open("rb") as stream:
        raw = stream.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise BadYaml(
            f"{file} is larger than {MOST_BYTES:,} bytes, which is the limit for a configuration "
            "file"
        )
    try:
        node = parse(raw.decode("utf-8"), str(file))
    except UnicodeDecodeError as error:
        raise BadYaml(f"{file} is not YAML: {error}; correct or remove it") from error
    if node is None:
        return {}
    if not isinstance(node, dict):
        raise BadYaml(
            f"{file}: got a {type(node).__name__}; wanted a mapping of keys to values, as in the "
            "other files of this folder"
        )
    return node


def parse(text: str, where: str) -> Any:
    """Return the value of a YAML text.

    Args:
        text: The text.
        where: The file or argument that contains it, for messages.

    Raises:
        BadYaml: The text is not YAML, or stands for too many values.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()  # a graph in which a value and its aliases are one node
        if node is None:
            return None
        if _measure_extent(node, 0, {}).values > MOST_VALUES:
            raise BadYaml(
                f"{where} describes more than {MOST_VALUES:,} values if its aliases are expanded; "
                "use fewer aliases"
            )
        return loader.construct_document(node)
    except RecursionError as error:
        raise BadYaml(
            f"{where} is nested deeper than {DEEPEST} levels; use fewer levels"
        ) from error
    except BadYaml:
        raise
    except (yaml.YAMLError, ValueError, LookupError) as error:  # for example `!!bool maybe`
        raise _make_error(where, error) from error


def _make_error(where: str, error: Exception) -> BadYaml:
    """Return an error that names the place, with the reason in one line."""
    reason = " ".join(str(error).split())[:300]
    return BadYaml(f"{where} is not YAML: {reason}; correct or remove it")


class _Extent(NamedTuple):
    """The number of values and of levels of a node after every alias is expanded."""

    values: int
    height: int


def _measure_extent(node: yaml.Node, depth: int, extents: dict[int, _Extent]) -> _Extent:
    """Return the extent of a node without expanding its aliases.

    Args:
        node: A node of the graph.
        depth: The number of levels above it.
        extents: Extents measured so far, by the identity of the node.

    Raises:
        RecursionError: The node is nested too deeply, or contains itself.
        YAMLError: A tag is not in `KINDS`, or a key occurs twice.
    """
    if depth > DEEPEST:
        raise RecursionError
    if node.tag not in KINDS:
        raise yaml.YAMLError(
            f"the tag {node.tag!r} is not allowed in configurations {node.start_mark}"
        )
    if id(node) not in extents:
        below: list[yaml.Node] = []
        if isinstance(node, yaml.SequenceNode):
            below = list(node.value)
        elif isinstance(node, yaml.MappingNode):
            keys = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
            for key, times in keys.most_common(1):
                if times > 1:
                    raise yaml.YAMLError(f"the key {key!r} occurs twice {node.start_mark}")
            below = [part for pair in node.value for part in pair]
        parts = [_measure_extent(part, depth + 1, extents) for part in below]
        height = 1 + max((extent.height for extent in parts), default=0)
        if height > DEEPEST:
            raise RecursionError
        extents[id(node)] = _Extent(1 + sum(extent.values for extent in parts), height)
    return extents[id(node)]
