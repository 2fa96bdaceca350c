"""What sources and YAML files say of an option: type, allowed values and meaning.

Sources are read, never imported, so that a list costs milliseconds and needs no torch. A meaning is
written once: in the `Args` of the docstring of a class, under the field of a dataclass, or in the
comment of its line of YAML.
"""

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from lra.runners.storage.fingerprint import located

WORDS = {
    "int": "whole number", "float": "number", "str": "text", "bool": "true or false",
    "None": "null", "Any": "anything",
    "Count": "whole number", "Whole": "whole number", "Positive": "number", "Share": "number",
    "NonNegative": "number", "Fraction": "number",
}  # fmt: skip
LISTS = ("list", "Sequence", "tuple")
MAPPINGS = ("dict", "Mapping")
CLASSES = {
    "hardware": "runners.measurement.hardware.HardwareProfile",
    "optim": "runners.training.optim.OptimConfig",
    "logger": "lra.composition.compose.Logger",
    "search": "lra.tuning.record.SearchOptions",
}
"""What types the options of a group whose files name no class."""
CONTROL, BACKBONE = "lra.composition.run.Control", "models.backbone.config.BackboneConfig"
GIVEN = frozenset({"self", "site", "config"})
"""Parameters of a mixer or a stack that are no options."""


class Parameter(NamedTuple):
    """An option as its source describes it."""

    type: str
    values: tuple[tuple[str, str], ...]
    """Each allowed value with its meaning, where there is a list of them."""
    meaning: str
    default: str
    switch: bool = False
    """Whether it is true or false, or perhaps null."""
    optional: bool = False
    """Whether it may be null."""


class Definition(NamedTuple):
    """A definition, and the module that holds it."""

    node: ast.ClassDef | ast.FunctionDef
    """Of an enumeration that a call creates, a class with the same members."""
    module: str


@lru_cache(maxsize=512)
def tree_of(module: str) -> ast.Module | None:
    """Return the parsed source of a module; None where there is none on the path."""
    path = located(module)
    return None if path is None else ast.parse(path.read_bytes(), filename=str(path))


def find(module: str, name: str) -> Definition | None:
    """Return the class or function `name` of a module, where it is defined."""
    tree = tree_of(module)
    for node in tree.body if tree else ():
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return Definition(node, module)
        if isinstance(node, ast.Assign) and (enumeration := _enumeration(node, name)):
            return Definition(enumeration, module)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return find(node.module, alias.name)
    return None


def _enumeration(node: ast.Assign, name: str) -> ast.ClassDef | None:
    """Return `Name = StrEnum("Name", members)` as the class that it makes, if it is that."""
    target, call = node.targets[0], node.value
    if not (isinstance(target, ast.Name) and target.id == name and isinstance(call, ast.Call)):
        return None
    if ast.unparse(call.func) != "StrEnum" or len(call.args) != 2:
        return None
    try:
        listed = ast.literal_eval(call.args[1])
    except ValueError:
        return None
    members = listed.split() if isinstance(listed, str) else [*listed]
    names = [member if isinstance(member, str) else member[0] for member in members]
    lines = "".join(f"    {member}_ = {member!r}\n" for member in names)
    (definition,) = ast.parse(f"class {name}(StrEnum):\n{lines}").body
    return definition if isinstance(definition, ast.ClassDef) else None


def parameters(class_path: str) -> dict[str, Parameter]:
    """Return the options of a class, function or dataclass in order; none where it is not found."""
    module, _, name = class_path.rpartition(".")
    lineage = [*_lineage(find(module, name))]
    meanings: dict[str, str] = {}
    for definition in reversed(lineage):
        meanings |= _documented(definition.node)
    for definition in lineage:
        if isinstance(definition.node, ast.FunctionDef):
            return _of_call(definition.node, definition.module, meanings)
        if "options" in map(ast.unparse, definition.node.decorator_list):
            break
        for child in definition.node.body:
            if isinstance(child, ast.FunctionDef) and child.name == "__init__":
                return _of_call(child, definition.module, meanings)
    options: dict[str, Parameter] = {}
    for definition in reversed(lineage):
        marks = [*map(ast.unparse, definition.node.decorator_list)]
        if "options" in marks or any("dataclass" in mark for mark in marks):
            inherited = {name: option.meaning for name, option in options.items()}
            options |= _of_dataclass(definition, inherited | meanings)
    return options


def _lineage(definition: Definition | None) -> Iterator[Definition]:
    """Yield a class and its bases, as far as sources tell."""
    if definition is None:
        return
    yield definition
    if isinstance(definition.node, ast.ClassDef):
        for base in definition.node.bases:
            if isinstance(base, ast.Name):
                yield from _lineage(find(definition.module, base.id))


def _documented(node: ast.ClassDef | ast.FunctionDef) -> dict[str, str]:
    """Return the meanings in the `Args` of a definition and of its constructor."""
    inner = [c for c in node.body if isinstance(c, ast.FunctionDef) and c.name == "__init__"]
    meanings: dict[str, str] = {}
    for definition in (node, *inner):
        meanings |= arguments(ast.get_docstring(definition) or "")
    return meanings


def arguments(docstring: str) -> dict[str, str]:
    """Return the entries of `Args`, or of `Options`, of a docstring in Google's style."""
    entries: dict[str, list[str]] = {}
    name, inside, edge = "", False, 0
    for line in docstring.splitlines():
        text = line.strip()
        if text in ("Args:", "Options:"):
            inside, edge = True, len(line) - len(line.lstrip())
            continue
        if not inside or not text:
            continue
        indent = len(line) - len(line.lstrip())
        if indent <= edge:
            break
        entry = re.fullmatch(r"(\w+(?:, \w+)*):\s*(.*)", text)
        if entry and indent == edge + 4:
            name = entry[1]
            entries[name] = [entry[2]]
        elif name:
            entries[name].append(text)
    return {
        name: " ".join(lines).strip()
        for names, lines in entries.items()
        for name in names.split(", ")
    }


def _of_call(call: ast.FunctionDef, module: str, meanings: dict[str, str]) -> dict[str, Parameter]:
    options = {}
    for argument, default in zip(call.args.kwonlyargs, call.args.kw_defaults, strict=True):
        if argument.arg not in GIVEN and argument.annotation is not None:
            meaning = meanings.get(argument.arg, "")
            options[argument.arg] = _parameter(argument.annotation, default, module, meaning)
    return options


def _of_dataclass(definition: Definition, meanings: dict[str, str]) -> dict[str, Parameter]:
    options = {}
    for name, (field, text) in _fields(definition.node.body).items():
        if not ast.unparse(field.annotation).startswith("ClassVar"):
            meaning = text or meanings.get(name, "")
            options[name] = _parameter(field.annotation, field.value, definition.module, meaning)
    return options


def _fields(body: list[ast.stmt]) -> dict[str, tuple[ast.AnnAssign, str]]:
    """Return each annotated field with the text under it."""
    by_name: dict[str, tuple[ast.AnnAssign, str]] = {}
    for node, following in zip(body, [*body[1:], None], strict=True):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            by_name[node.target.id] = (node, _one_line(following))
    return by_name


def _one_line(node: ast.stmt | None) -> str:
    """Return a docstring that stands by itself, in one line."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return " ".join(str(node.value.value).split())
    return ""


def _parameter(
    annotation: ast.expr, default: ast.expr | None, module: str, meaning: str
) -> Parameter:
    values: list[tuple[str, str]] = []
    for choice in _choices(annotation, module):
        values += _members(choice)
        meaning = meaning or " ".join((ast.get_docstring(choice) or "").split())
    default_text = "" if default is None else ast.unparse(default)
    kinds = [ast.unparse(kind) for kind in _united(annotation)]
    return Parameter(
        type=type_phrase(annotation, bool(values)),
        values=tuple(values),
        meaning=meaning,
        default=default_text,
        switch=kinds[0] == "bool",
        optional=kinds[-1] == "None",
    )


def _united(annotation: ast.expr) -> list[ast.expr]:
    """Return the types that an annotation joins by `|`."""
    if isinstance(annotation, ast.BinOp):
        return [*_united(annotation.left), *_united(annotation.right)]
    return [annotation]


def type_phrase(annotation: ast.expr, chosen: bool = False) -> str:
    """Return a type as one says it, as in `list of whole numbers, or null`."""
    if isinstance(annotation, ast.BinOp):
        left, right = type_phrase(annotation.left, chosen), type_phrase(annotation.right, chosen)
        return f"{left}, or {right}" if right == "null" else f"{left} or {right}"
    if isinstance(annotation, ast.Subscript):
        outer, inner = ast.unparse(annotation.value), annotation.slice
        if outer in LISTS:
            return f"list of {_many(type_phrase(inner, chosen))}"
        if outer in MAPPINGS and isinstance(inner, ast.Tuple):
            return f"mapping to {_many(type_phrase(inner.elts[-1], chosen))}"
        return type_phrase(inner, chosen)
    name = ast.unparse(annotation)
    return "choice" if chosen and name not in WORDS else WORDS.get(name, name)


def _many(word: str) -> str:
    if word.startswith(("list of", "mapping to")):
        return word.replace("list of", "lists of").replace("mapping to", "mappings to")
    return word if word in ("text", "anything", "true or false") else f"{word}s"


def _choices(annotation: ast.expr, module: str) -> Iterator[ast.ClassDef]:
    """Yield every enumeration that an annotation names."""
    for node in ast.walk(annotation):
        if not isinstance(node, ast.Name) or node.id in WORDS:
            continue
        definition = find(module, node.id)
        if definition is None or not isinstance(definition.node, ast.ClassDef):
            continue
        if "StrEnum" in map(ast.unparse, definition.node.bases):
            yield definition.node


def _members(choice: ast.ClassDef) -> Iterator[tuple[str, str]]:
    """Yield the values of an enumeration with their meanings."""
    for member, following in zip(choice.body, [*choice.body[1:], None], strict=True):
        if isinstance(member, ast.Assign) and isinstance(member.targets[0], ast.Name):
            value = member.value
            name = value.value if isinstance(value, ast.Constant) else member.targets[0].id
            yield str(name), _one_line(following)


def comments(file: Path) -> dict[str, str]:
    """Return the comment of each key of a YAML file, by its dotted path.

    That is what stands behind a key, or else on the lines above it, at its own depth.
    """
    by_path: dict[str, str] = {}
    above: list[str] = []
    open_keys: list[tuple[int, str]] = []
    for line in file.read_text(encoding="utf-8").splitlines():
        key = re.match(r"( *)([A-Za-z_]\w*):(?:\s|$)", line)
        if line.strip().startswith("#"):
            above.append(line.strip().lstrip("# "))
            continue
        if key:
            depth = len(key[1])
            open_keys = [entry for entry in open_keys if entry[0] < depth]
            path = ".".join([*(name for _, name in open_keys), key[2]])
            open_keys.append((depth, key[2]))
            behind = re.search(r"\s#\s*(.*)$", line)
            text = behind[1] if behind else " ".join(above) if depth or len(above) == 1 else ""
            by_path[path] = text.strip()
        above = []
    return by_path
