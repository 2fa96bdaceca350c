"""The kind of value that an option takes, in words, and what another value was meant to be."""

import re
import shlex
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

KINDS = {
    int: "a whole number", float: "a number", bool: "true or false", str: "text",
    NoneType: "null", dict: "a mapping", list: "a list",
}  # fmt: skip
THOUSANDS = {"k": 10**3, "m": 10**6, "g": 10**9}
SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
OTHER_NAMES = {
    "gpu": "cuda", "fp16": "float16", "half": "float16", "fp32": "float32", "float": "float32",
    "single": "float32", "bf16": "bfloat16", "wsd": "linear", "onecycle": "one_cycle",
    "noam": "inverse_sqrt", "rope": "rotary", "causal_lm": "causal", "average": "mean",
}  # fmt: skip
"""What others call the values of our options."""
YES, NO = frozenset({"yes", "on", "true", "1"}), frozenset({"no", "off", "false", "0"})
NULL = frozenset({"none", "null", "nil", ""})


def accepted(kind: Any) -> str:
    """Return what a type takes: list[int] | None is a list of whole numbers, or null."""
    arguments = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return ", or ".join(accepted(argument) for argument in arguments)
    if get_origin(kind) is list and arguments:
        named = accepted(arguments[0])
        counted = named.startswith("a ") or arguments[0] is str
        return f"a list of {named.removeprefix('a ')}s" if counted else "a list"
    if get_origin(kind) is dict and arguments:
        return "a mapping"
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(member.name for member in kind)}"
    if kind in KINDS:
        return KINDS[kind]
    return getattr(kind, "__name__", str(kind))


def word(key: str, value: Any, kind: Any) -> str | None:
    """Return the word to type instead of `key=value`, quoted for a shell, or None."""
    if kind in (int, float) and isinstance(value, str):
        span = re.fullmatch(r"(\d{1,9})\s*(?:\.\.\.?|:|-|to)\s*(\d{1,9})", value, re.ASCII)
        if span and int(span[1]) < int(span[2]):
            stop = int(span[2]) + (":" not in value)
            return f"-m '{key}=range({span[1]},{stop})' (several values are a sweep)"
        if re.fullmatch(r"[-+\d.e]+(\s*;\s*[-+\d.e]+)+", value, re.ASCII):
            several = re.sub(r"\s*;\s*", ",", value)
            return f"-m {key}={several} (several values are a sweep)"
    if kind in (int, float) and isinstance(value, list) and len(value) > 1:
        return f"-m {key}={','.join(map(str, value))} (several values are a sweep)"
    value_word = _seconds(value) if key.endswith("_s") else None
    value_word = value_word or meant(value, kind)
    return None if value_word is None else in_shell(f"{key}={value_word}")


def escaped(text: str) -> str:
    """Return a text that OmegaConf resolves to this one: `${` refers to nothing."""
    return re.sub(r"(\\*)\$\{", r"\1\1\\${", text)


def in_shell(typed: str) -> str:
    """Quote a word for a shell, readably where it has quotes of its own."""
    readable = "'" in typed and not re.search(r'["$`\\!]', typed)
    return f'"{typed}"' if readable else shlex.quote(typed)


def in_results(root: Path) -> str:
    """Return what a command needs to find a results folder: nothing for the one it looks into."""
    return "" if root == Path("results") else f" --results {shlex.quote(str(root))}"


def _seconds(value: Any) -> str | None:
    """Return the seconds in 90s, 10m, 2h and 1d."""
    match = isinstance(value, str) and re.fullmatch(r"(\d{1,6})\s*([smhd])[a-z]*", value, re.ASCII)
    return f"{int(match[1]) * SECONDS[match[2]]}.0" if match else None


def meant(value: Any, kind: Any) -> str | None:
    """Return how the command line spells what `value` was meant to be, or None if unknown."""
    arguments = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        if NoneType in arguments and isinstance(value, str) and value.lower() in NULL:
            return "null"
        readings = (meant(value, argument) for argument in arguments if argument is not NoneType)
        return next((reading for reading in readings if reading is not None), None)
    if get_origin(kind) is list and arguments:
        return _list(value, arguments[0])
    return _READINGS[kind](value) if kind in (int, float, bool, str) else None


def _list(value: Any, kind: Any) -> str | None:
    if isinstance(value, list) and kind is str:
        parts = [str(part).lower() if type(part) in (int, bool) else part for part in value]
    elif isinstance(value, list | dict) or value is None:
        return None
    else:
        parts = re.split(r"[\s,;]+", value.strip("()")) if isinstance(value, str) else [value]
    items = [_item(part, kind) for part in parts]
    return None if None in items else f"[{','.join(map(str, items))}]"


def _item(value: Any, kind: Any) -> str | None:
    if isinstance(kind, type) and issubclass(kind, Enum):
        return str(value) if value in kind.__members__ else None
    if kind is str:
        return _list_item(value)
    if kind not in (int, float):
        return None
    return str(value) if type(value) is kind else _number(value, kind)


def _list_item(value: Any) -> str | None:
    """Return text as an item of a list, in quotes where it would be read as something else."""
    if not isinstance(value, str) or not value or "'" in value:
        return None
    plain = re.fullmatch(r"[A-Za-z_][\w./-]*", value, re.ASCII)
    return value if plain and value.lower() not in YES | NO | NULL else f"'{value}'"


def _number(value: Any, kind: type) -> str | None:
    """Return the number in 1k, 1e3, "8" and 3.0."""
    if isinstance(value, float) and kind is int:
        return f"{value:.0f}" if value.is_integer() and abs(value) < 1e15 else None
    if not isinstance(value, str) or len(value) > 30:
        return None
    text = value.strip().lower()
    match = re.fullmatch(r"([-+]?\d+(?:[_ ]\d+)*(?:\.\d+)?)\s*([kmg]?)", text, re.ASCII)
    if match is None:
        return None
    number = float(re.sub("[_ ]", "", match[1])) * THOUSANDS.get(match[2], 1)
    if kind is float and not number.is_integer():
        return str(number)
    return f"{number:.0f}" if number.is_integer() and abs(number) < 1e15 else None


def _switch(value: Any) -> str | None:
    text = str(value).lower()
    return "true" if text in YES else "false" if text in NO else None


def _text(value: Any) -> str | None:
    return f"'{str(value).lower()}'" if type(value) in (int, float, bool) else None


_READINGS = {
    int: lambda value: _number(value, int),
    float: lambda value: _number(value, float),
    bool: _switch,
    str: _text,
}
