"""YAML from files and words: read safely, in bounded time, with numbers as Hydra reads them.

A name for a part of a file (an anchor) may be used often, and a few lines can so stand for billions
of values: what a text would become is counted before it is built.
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
"""What JSON can hold, and the merge of mappings; no dates, sets, bytes or Python objects."""


class BadYaml(ValueError):
    """A text that is not YAML, or more than a configuration needs; the message names the place."""


if yaml.__with_libyaml__:

    class _Base(Composer, yaml.CSafeLoader):
        """Reads with libyaml, several times as fast, and builds nodes in Python.

        libyaml's own builder has no limit of depth: 90,000 brackets would end the process.
        """

        def __init__(self, text: str) -> None:
            yaml.CSafeLoader.__init__(self, text)
            Composer.__init__(self)
else:
    _Base = yaml.SafeLoader  # type: ignore[assignment,misc]


class _Loader(_Base):
    """Safe tags only; 1e-3 is a number, a date is text, and a key stands once."""

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
    """Return the mapping in a YAML file, an empty one for an empty file.

    Raises:
        BadYaml: the file holds something else; the message names file and place.
        OSError: the file cannot be read.
    """
    if file.exists() and not file.is_file():
        raise BadYaml(f"{file} is not a regular file; remove it, or put a YAML file there")
    with file.open("rb") as stream:
        raw = stream.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise BadYaml(
            f"{file} is larger than {MOST_BYTES:,} bytes: no configuration needs that much"
        )
    try:
        node = parse(raw.decode("utf-8"), str(file))
    except UnicodeDecodeError as error:
        raise BadYaml(f"{file} is not YAML: {error}; correct or remove it") from error
    if node is None:
        return {}
    if not isinstance(node, dict):
        raise BadYaml(
            f"{file} must hold a mapping: got {type(node).__name__}; see the other files in its "
            "folder"
        )
    return node


def parse(text: str, where: str) -> Any:
    """Return what a YAML text says; `where` opens the message of a `BadYaml`."""
    try:
        loader = _Loader(text)
        node = loader.get_single_node()  # a graph, in which a value that is named twice is once
        if node is None:
            return None
        if _extent(node, 0, {}).values > MOST_VALUES:
            raise BadYaml(f"{where} stands for more than {MOST_VALUES:,} values: use fewer aliases")
        return loader.construct_document(node)
    except RecursionError as error:
        raise BadYaml(f"{where} is nested deeper than {DEEPEST} levels; make it flatter") from error
    except BadYaml:
        raise
    except (yaml.YAMLError, ValueError, LookupError) as error:  # `!!bool maybe`, 5,000 digits
        raise _not_yaml(where, error) from error


def _not_yaml(where: str, error: Exception) -> BadYaml:
    reason = " ".join(str(error).split())[:300]
    return BadYaml(f"{where} is not YAML: {reason}; correct or remove it")


class _Extent(NamedTuple):
    """What a node becomes with every alias written out."""

    values: int
    height: int


def _extent(node: yaml.Node, depth: int, extents: dict[int, _Extent]) -> _Extent:
    """Return how much a node stands for, without writing it out.

    Raises RecursionError for one that is nested too deeply or contains itself, and YAMLError for a
    strange tag or a key that stands twice.
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
        parts = [_extent(part, depth + 1, extents) for part in below]
        height = 1 + max((extent.height for extent in parts), default=0)
        if height > DEEPEST:
            raise RecursionError
        extents[id(node)] = _Extent(1 + sum(extent.values for extent in parts), height)
    return extents[id(node)]
