"""Slips in the words of a command, each answered with the words to type.

Every rule is about a word that fits no configuration, or that Hydra takes for something
that is never meant.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from conf.shown import short
from lra.composition.catalogue import names, words
from lra.composition.words import legible, no_key, proposal, reading

LONGEST = 800
"""Characters of an answer."""
EVERY = frozenset({"*", "all", "any", "every", "each"})
FLAGS = ("cfg", "package", "info", "multirun", "run", "resolve", "version", "help")
"""Hydra's, as far as they are one word."""
TOP = ("seed", "results", "sweep", "plugins", "report")
AS_TEXT = "; as text it is "
TO_WORKERS = (
    "lra runs its cells itself; `lra submit` with the same other words hands them to workers in "
    "the background, here or on a cluster"
)
OURS = ("hydra.sweeper.params.", "hydra.sweeper.max_batch_size.")
"""Of Hydra's sweeper, what a sweep has."""


class Choices(NamedTuple):
    """What can be chosen: by group, its word on the command line, and its names."""

    words: Mapping[str, str]
    names: Callable[[str], Sequence[str]]

    @classmethod
    def of(cls, config_dir: str | None) -> "Choices":
        """Return ours, and those under `config_dir`."""
        folders = [] if config_dir is None else [Path(config_dir)]
        return cls(words(folders), lambda group: names(group, folders))


def slip(words: Sequence[str], choices: Choices) -> str | None:
    """Return what is wrong with the first word that is no word, and the way out."""
    for index, word in enumerate(words):
        rest = words[index + 1 :]
        key, equals, value = word.partition("=")
        answer = _torn(word, rest)
        if not equals and not word.startswith("~"):
            answer = answer or _no_value(word, words[:index], rest, choices)
        elif equals and not key.lstrip("+~"):
            answer = answer or no_key(word)
        elif equals:
            answer = answer or _of_a_group(key, value, choices) or _quoting(key, value)
        if answer:
            return brief(answer)
    return None


def brief(answer: str) -> str:
    """Return an answer about a very long word without its middle."""
    return answer if len(answer) <= LONGEST else f"{answer[:300]} … {answer[-300:]}"


def listed(words: Sequence[str], choices: Choices) -> str | None:
    """Return what is wrong with a list of choices, which Hydra would merge into one another."""
    for word in words:
        key, _, value = word.partition("=")
        if key in choices.words and re.fullmatch(r"\[.*\]", value):
            inside = value[1:-1].replace(" ", "")
            return (
                f"{word}: a run has one {key}; several are a sweep: lra run -m {key}={inside}"
                if inside
                else f"{word}: wanted one of {', '.join(choices.names(key))}"
            )
    return None


def handed_over(words: Sequence[str]) -> str | None:
    """Return the answer to a word that hands the cells to a launcher or a sweeper of others."""
    for word in words:
        key, _, value = word.lstrip("+~").partition("=")
        part = re.match(r"hydra[./](launcher|sweeper)\b", key)
        if part and value != "basic" and not f"{key}.".startswith(OURS):
            return f"{short(word)}: {TO_WORKERS}"
    return None


def dashed(argv: Sequence[str], choices: Choices) -> str | None:
    """Return the word to type for an option of ours that is written as a flag."""
    for index, word in enumerate(argv):
        key, equals, value = word.lstrip("-").partition("=")
        ours = key.partition(".")[0] in (*choices.words, *TOP)
        foreign = word.startswith("--") and equals and key.isidentifier() and key not in FLAGS
        if not word.startswith("-") or not (ours or foreign):
            continue
        if not equals and index + 1 < len(argv) and "=" not in argv[index + 1]:
            value = argv[index + 1]
        right = shlex.quote(f"{choices.words.get(key, key)}={value or 'VALUE'}")
        return f"{word}: words have no dashes: {right}"
    return None


def _torn(word: str, rest: Sequence[str]) -> str | None:
    """Answer a list or a mapping that the shell has split at its spaces."""
    if _open(word) <= 0:
        return None
    whole = word
    for part in rest:
        whole += f" {part}"
        if _open(whole) == 0:
            tight = re.sub(r"(?<=[\[,{]) | (?=[\],}])", "", whole)
            return (
                f"{word}: the shell has split this at its spaces; in quotes it is one word: "
                f"{shlex.quote(tight)}"
            )
    key, _, value = word.partition("=")
    return f"{short(word)}: a bracket is not closed" + proposal(key, value, AS_TEXT)


def _open(word: str) -> int:
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", word)
    return sum(map(bare.count, "[{(")) - sum(map(bare.count, "]})"))


def _no_value(
    word: str, before: Sequence[str], rest: Sequence[str], choices: Choices
) -> str | None:
    """Answer a word without an equals sign."""
    following = rest[0] if rest else ""
    if following.startswith("=") and word:
        value = following[1:] or (rest[1] if len(rest) > 1 else "VALUE")
        right = shlex.quote(f"{choices.words.get(word, word)}={value}")
        return f"{word}: no spaces around =, please: {right}"
    if word in choices.words and following in choices.names(word):
        return f"{word}: an = joins group and name: {choices.words[word]}={following}"
    return _a_name(word, choices) or _loose(word, before)


def _a_name(word: str, choices: Choices) -> str | None:
    """Answer the name of a group, or of one of its choices, that stands alone."""
    group, _, name = word.partition(":")
    if name and group in choices.words:
        return f"{word}: wanted {choices.words[group]}={name}"
    owners = [group for group in choices.words if word in choices.names(group)]
    if owners:
        alternatives = " or ".join(f"{choices.words[group]}={word}" for group in owners)
        return f"{word}: wanted {alternatives}"
    if word in choices.words:
        return f"{word}: wanted {choices.words[word]}=NAME: {', '.join(choices.names(word))}"
    return None


def _loose(word: str, before: Sequence[str]) -> str:
    """Answer any other word without an equals sign."""
    if word and before and "=" in before[-1] and re.fullmatch(r"[\w/-]+", word):
        return (
            f"{short(word)}: wanted KEY=VALUE or GROUP=NAME; if it belongs to the word before, "
            f"quotes join them: {shlex.quote(f'{before[-1]} {word}')}"
        )
    return f"{short(word)!r}: wanted KEY=VALUE or GROUP=NAME, as in optim.steps=500 or model=linear"


def _of_a_group(key: str, value: str, choices: Choices) -> str | None:
    """Answer a choice of files that is written wrongly."""
    group = key.lstrip("+")
    if group not in choices.words or value.startswith("{"):
        return None
    word = choices.words[group]
    if ";" in value:
        return f"{key}={value}: ; separates nothing here: -m {word}={value.replace(';', ',')}"
    if value in EVERY and value not in choices.names(group):
        return (
            f"{key}={value}: a run has one {group}; all of them are a sweep: "
            f"lra run -m '{word}=glob(*)'"
        )
    if key != word and word == group:
        return f"{key}={value}: {group} has a choice already; without the plus: {group}={value}"
    if key != word:
        return f"{key}={value}: {group} is added with a plus: {word}={value}"
    return None


def _quoting(key: str, value: str) -> str | None:
    """Answer characters that mean something to Hydra."""
    seen = short(f"{key}={value}")
    if re.fullmatch(r"\([^()]*\)", value):
        as_list = f"{key}=[{value[1:-1].replace(' ', '').rstrip(',')}]"
        if reading(legible(as_list)) is not None:
            return f"{seen}: a list has square brackets: {shlex.quote(as_list)}"
    if re.fullmatch(r"~(/[\w./-]*)?", value, re.ASCII):
        return f"{seen}: no shell expands ~ there: {key}=$HOME{value[1:]}"
    odd = value.count('"') % 2 or value.count("'") % 2
    if odd and reading(f"{key}={value}") is None:
        return f"{seen}: a quotation mark is not closed" + proposal(key, value, AS_TEXT)
    return None
