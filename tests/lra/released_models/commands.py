"""Read options as commands, parsers, dataclasses and functions of released code say them."""

import ast
import re
from pathlib import Path


def registering(file: Path) -> dict:
    """Return the functions of a file, without decorators: those that register sizes."""
    functions = [node for node in ast.parse(file.read_text()).body
                 if isinstance(node, ast.FunctionDef)]  # fmt: skip
    for function in functions:
        function.decorator_list = []
    scope: dict = {"safe_getattr": getattr, "safe_hasattr": hasattr}
    exec(compile(ast.Module(functions, type_ignores=[]), file.name, "exec"), scope)
    return scope


def flags(words: list[str]) -> dict:
    """Return the options of a command; those without a value are True."""
    found: dict = {}
    key = ""
    for word in words:
        if word.startswith("--") and "=" in word:
            key, _, value = word.lstrip("-").partition("=")
            found[key] = value
        elif word.startswith("-") and not re.fullmatch(r"-?[\d.e-]+", word):
            key = word.lstrip("-")
            found[key] = True
        elif key:
            found[key] = word if found[key] is True else f"{found[key]} {word}"
    return found


def literal(node: ast.expr | str | bool) -> object:
    """Return a constant as it is written in code or a command, or else the text."""
    try:
        return ast.literal_eval(node)
    except (ValueError, SyntaxError):
        return ast.unparse(node) if isinstance(node, ast.AST) else node


def given(words: list[str]) -> dict:
    """Return the options of a command by the names that code reads, with numbers as such."""
    return {key.replace("-", "_"): literal(value) for key, value in flags(words).items()}


def of_parser(file: Path, *, own: bool = True, within: str = "") -> dict:
    """Return the defaults of all `add_argument` calls of a file.

    Args:
        file: Of Python.
        own: Whether those without a default count, as None, or False for switches.
        within: The name of the only function that is looked into, in place of the file.
    """
    found = {}
    tree: ast.AST = ast.parse(file.read_text())
    if within:
        (tree,) = (node for node in ast.walk(tree) if getattr(node, "name", "") == within)
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument":
            words = {word.arg: word.value for word in call.keywords}
            names = [each.value for each in call.args if isinstance(each, ast.Constant)]
            if not names:  # of plug-ins, whose names are computed
                continue
            name = next((name for name in names if name.startswith("--")), names[0])
            action = literal(words["action"]) if "action" in words else None
            unset = {"store_true": False, "store_false": True}.get(action)
            if "default" in words or own:
                default = literal(words["default"]) if "default" in words else unset
                found[name.lstrip("-").replace("-", "_")] = default
    return found


def of_class(file: Path, name: str) -> dict:
    """Return the defaults of the fields of a dataclass; those that another one decides are not."""
    (node,) = (node for node in ast.parse(file.read_text()).body
               if getattr(node, "name", "") == name)  # fmt: skip
    found = {}
    for field in node.body:
        value = field.value if isinstance(field, ast.AnnAssign) else None
        if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "field":
            words = {word.arg: word.value for word in value.keywords}
            found[field.target.id] = literal(words.get("default", words.get("default_factory")))
    return found


def of_signature(file: Path, name: str) -> dict:
    """Return the defaults of a function's arguments, or of those that a class is made with."""
    (node,) = (node for node in ast.parse(file.read_text()).body
               if getattr(node, "name", "") == name)  # fmt: skip
    if isinstance(node, ast.ClassDef):
        (node,) = (each for each in node.body if getattr(each, "name", "") == "__init__")
    arguments, defaults = node.args.args, node.args.defaults
    last = arguments[len(arguments) - len(defaults) :]
    return {each.arg: literal(value) for each, value in zip(last, defaults, strict=True)}
