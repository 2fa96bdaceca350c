"""Quote arguments that Hydra's grammar cannot read, so that users need no quotes for plain text.

Hydra's grammar accepts only some ASCII characters. If a value contains another character, for
example é or an equals sign, this module puts quotes around the text; likewise for each text in a
list or a sweep. Characters with a meaning in the grammar (commas, quotation marks, brackets, `${`)
are never quoted here; for these, the user must write quotes.
"""

import re
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, Quote, QuotedString, Sweep
from hydra.errors import HydraException

_PLAIN = re.compile(r"[\w.+/-]*", re.ASCII)
_ESCAPE = r"\\[\\()\[\]{}:=, ]"
_TEXT = re.compile(rf"(?!~)(?:(?!{_ESCAPE})[^,'\"\[\]{{}}()]|\([^,'\"\[\]{{}}()]*\)(?=\s*\S))+")
"""Matches text without characters that have a meaning in the grammar; it may contain (1)."""
_FOREIGN = re.compile(r"[^\w/\\+.$%*@?|: -]", re.ASCII)
"""Matches a character that the grammar does not allow in unquoted text."""
_QUOTED = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\$\{[^{}]*\}"""
_OF_A_MAPPING = re.compile(r"([\w./ -]+:)(.+)", re.ASCII)


def legible(word: str) -> str:
    """Return the argument `word`, KEY=VALUE, with quotes around the texts that need them."""
    key, equals, value = word.partition("=")
    if not equals or _PLAIN.fullmatch(value) or read_word(word) is not None:
        return word
    for ends in ("", "()"):  # round brackets belong to a text or, if that fails, to a function call
        quoted = f"{key}={_quote_texts(value, ends)}"
        if read_word(quoted) is not None:
            return quoted
    return word


def read_word(word: str) -> Override | None:
    """Return an argument as Hydra parses it; None if Hydra cannot read it."""
    try:
        (override,) = OverridesParser.create().parse_overrides([word])
    except (HydraException, ValueError, RecursionError):
        return None
    return None if _has_inner_sweep(override.value()) else override


def _has_inner_sweep(value: Any) -> bool:
    """Return whether an element of a list or mapping is a sweep, which Hydra does not expand."""
    parts = value.list if isinstance(value, ChoiceSweep) else value
    parts = [*parts.values()] if isinstance(parts, dict) else parts
    if not isinstance(parts, list):
        return False
    return any(isinstance(part, Sweep | Glob) or _has_inner_sweep(part) for part in parts)


def as_text(value: str) -> str:
    """Return `value` in quotes, with escapes, so that Hydra reads it as text."""
    quote = Quote.single if '"' in value and "'" not in value else Quote.double
    # Each `${` gets a backslash, so that it is no reference; backslashes before it are doubled.
    literal = re.sub(r"(\\*)\$\{", r"\1\1\\${", value.strip(" \t"))
    return QuotedString(text=literal, quote=quote).with_quotes()


def _quote_texts(value: str, ends: str) -> str:
    """Return `value` with quotes around the parts that the grammar does not allow unquoted.

    A part ends at a comma, at a square or curly bracket, and at each of the characters `ends`.
    """
    parts = re.split(rf"({_QUOTED}|[,\[\]{{}}{ends}])", value)
    in_mapping = "{" in parts
    for index, part in enumerate(parts[::2]):  # texts and separators take turns
        key, text = "", part
        if in_mapping and (pair := _OF_A_MAPPING.fullmatch(part)):
            key, text = pair.groups()
        if _FOREIGN.search(text) and _TEXT.fullmatch(text):
            parts[2 * index] = key + as_text(text)
    return "".join(parts)
