"""Words that Hydra's grammar has no reading for, and that are text.

Its grammar knows a part of ASCII. Where it stops at any other letter, or at an equals sign, what
stands there is text, as if it were in quotes; so is a list or a sweep of such texts. What the
grammar has a meaning for is never taken as text unseen: commas, quotation marks, brackets and
`${` need quotes.
"""

import re
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import ChoiceSweep, Glob, Override, Quote, QuotedString, Sweep
from hydra.errors import HydraException

_PLAIN = re.compile(r"[\w.+/-]*", re.ASCII)
_ESCAPE = r"\\[\\()\[\]{}:=, ]"
_TEXT = re.compile(rf"(?!~)(?:(?!{_ESCAPE})[^,'\"\[\]{{}}()]|\([^,'\"\[\]{{}}()]*\)(?=\s*\S))+")
"""A value without anything that the grammar has a meaning for; (1) may stand within it."""
_FOREIGN = re.compile(r"[^\w/\\+.$%*@?|: -]", re.ASCII)
"""What an unquoted text of the grammar cannot hold."""
_QUOTED = r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\$\{[^{}]*\}"""
_OF_A_MAPPING = re.compile(r"([\w./ -]+:)(.+)", re.ASCII)


def legible(word: str) -> str:
    """Return a word with quotes around the texts that need them, or as it is."""
    key, equals, value = word.partition("=")
    if not equals or _PLAIN.fullmatch(value) or read_word(word) is not None:
        return word
    for ends in ("", "()"):  # round brackets are within a text, or else those of a call
        quoted = f"{key}={_with_quotes(value, ends)}"
        if read_word(quoted) is not None:
            return quoted
    return word


def read_word(word: str) -> Override | None:
    """Return a word as Hydra reads it; None where it does not."""
    try:
        (override,) = OverridesParser.create().parse_overrides([word])
    except (HydraException, ValueError, RecursionError):
        return None
    return None if _sweeps_within(override.value()) else override


def _sweeps_within(value: Any) -> bool:
    """Return whether a value holds several values for a part of it, which no sweep separates."""
    parts = value.list if isinstance(value, ChoiceSweep) else value
    parts = [*parts.values()] if isinstance(parts, dict) else parts
    if not isinstance(parts, list):
        return False
    return any(isinstance(part, Sweep | Glob) or _sweeps_within(part) for part in parts)


def as_text(value: str) -> str:
    """Return a value in the quotes that make it text, whatever it holds."""
    quote = Quote.single if '"' in value and "'" not in value else Quote.double
    literal = re.sub(r"(\\*)\$\{", r"\1\1\\${", value.strip(" \t"))  # `${` refers to nothing
    return QuotedString(text=literal, quote=quote).with_quotes()


def _with_quotes(value: str, ends: str) -> str:
    """Quote the texts between commas, brackets and `ends` that hold what the grammar cannot."""
    parts = re.split(rf"({_QUOTED}|[,\[\]{{}}{ends}])", value)
    in_mapping = "{" in parts
    for index, part in enumerate(parts[::2]):
        key, text = "", part
        if in_mapping and (pair := _OF_A_MAPPING.fullmatch(part)):
            key, text = pair.groups()
        if _FOREIGN.search(text) and _TEXT.fullmatch(text):
            parts[2 * index] = key + as_text(text)
    return "".join(parts)
