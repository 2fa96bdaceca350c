"""Answers to words of a command that are no words of Hydra's: one table of patterns.

A pattern is about a word and those behind it, with ends of lines between them, which no word holds;
`<group>` stands for the groups. The first row that fits and has an answer gives it.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import NamedTuple

from lra.composition.catalogue import names, words
from lra.composition.own_options import TABLES
from lra.composition.words import FUNCTIONS, legible, proposal, reading
from lra.conf.shown import short
from lra.errors import unknown

LONGEST = 800
"""Characters of an answer."""
EVERY = frozenset({"*", "all", "any", "every", "each"})
FLAGS = (
    "cfg", "package", "info", "multirun", "run", "resolve", "version", "help", "config-dir",
    "config-name", "config-path", "experimental-rerun", "hydra-help", "shell-completion", "plugin",
)  # fmt: skip
"""Hydra's and ours, which are no words."""
TOP = ("seed", "results", "sweep", "plugins", "report")
AS_TEXT = "; as text it is "
RANGES = {
    "loguniform": "tag(log, interval({}))",
    "uniform": "interval({})",
    "quniform": "range({})",
    "randint": "range({})",
}
"""What other libraries' ranges of a search are here."""
TO_WORKERS = (
    "lra runs its cells itself; `lra submit` with the same other words hands them to workers in "
    "the background, here or on a cluster"
)
TO_SEARCH = (
    "lra searches by a group of its own, with the same ranges as words: search=halton, random or "
    "grid, and by Optuna's samplers search=tpe, gp or cmaes"
)
MAPPINGS = (
    *TABLES, "runner.pretraining", "model.layer_options", "hardware.typical",
    "hydra.sweeper.params",
)  # fmt: skip
"""Empty by default: an entry may be taken away, as what holds elsewhere then holds there."""


class Moment(IntEnum):
    """When a row is asked."""

    flags = 0
    """Before flags are read."""
    early = 1
    """Before Hydra sees the words: it would take them."""
    late = 2
    """Once Hydra could not compose them."""


class Choices(NamedTuple):
    """What can be chosen: by group, its word on the command line, and its names."""

    words: Mapping[str, str]
    names: Callable[[str], Sequence[str]]

    @classmethod
    def of(cls, config_dir: str | None) -> "Choices":
        """Return ours, and those under `config_dir`."""
        folders = [] if config_dir is None else [Path(config_dir)]
        return cls(words(folders), lambda group: names(group, folders))


class Typed:
    """A word that a pattern fits; its groups are read by name, "" where they took no part."""

    def __init__(self, match: re.Match[str], choices: Choices, before: str) -> None:
        self._match, self.choices = match, choices
        self.before = before
        self.word, *self.rest = match.string.split("\n")
        self.key, _, self.value = self.word.partition("=")

    def __getitem__(self, name: str) -> str:
        return self._match[name] or ""

    def word_for(self, value: str, key: str | None = None) -> str:
        """Return the word to type for a value of a group, or of any other key."""
        key = self["group"] if key is None else key
        return f"{self.choices.words.get(key, key)}={value}"

    @property
    def names(self) -> Sequence[str]:
        """The choices of its group."""
        return self.choices.names(self["group"])


Answer = Callable[[Typed], str | None]


def answer(words: Sequence[str], choices: Choices, stage: Moment = Moment.late) -> str | None:
    """Return what is wrong with the first word that has a row in the table, and the way out."""
    groups = f"(?P<group>{'|'.join(map(re.escape, choices.words))})"
    rows = [
        (re.compile(f"(?:{pattern.replace('<group>', groups)})(?=\n|\\Z)"), reply)
        for when, pattern, reply in TABLE
        if when is stage
    ]
    for index, word in enumerate(words):
        for pattern, reply in rows:
            match = pattern.match("\n".join(words[index:]))
            text = match and reply(Typed(match, choices, words[index - 1] if index else ""))
            if text:
                return brief(f"{short(word) if word.strip() else repr(word)}: {text}")
    return None


def brief(text: str) -> str:
    """Return an answer about a very long word without its middle."""
    return text if len(text) <= LONGEST else f"{text[:300]} … {text[-300:]}"


def _dashed(typed: Typed) -> str | None:
    key, value = typed["key"], typed["value"]
    ours = key.partition(".")[0] in (*typed.choices.words, *TOP)
    if key == "dry-run":
        return "words have no dashes: runner.dry_run=true"
    given = typed["equals"] or typed["next"]
    foreign = typed["dashes"] == "--" and given and key.replace("-", "_").isidentifier()
    if not ours and not (foreign and key not in FLAGS):
        return None
    following = "" if typed["equals"] else typed["next"]
    right = shlex.quote(typed.word_for(value or following or "VALUE", key.replace("-", "_")))
    return f"words have no dashes: {right}"


def _several(typed: Typed) -> str:
    inside, group = typed["inside"].replace(" ", ""), typed["group"]
    if not inside:
        return f"wanted one of {', '.join(typed.names)}"
    return f"a run has one {group}; several are a sweep: lra run -m {group}={inside}"


def _taken_away(typed: Typed) -> str:
    key = typed["key"]
    word = typed.choices.words.get(key.partition("@")[0])
    if word is not None:
        among = ", ".join(typed.choices.names(key.partition("@")[0]))
        return f"no choice is taken away: leave out {word}=NAME, or choose another, of {among}"
    key = short(key) or "KEY"
    return (
        f"no option is taken away, for its default would come back; {key}=VALUE says what is to "
        f"hold instead, and {key}=null switches it off where it can be off"
    )


def _torn(typed: Typed) -> str | None:
    if _open(typed.word) <= 0:
        return None
    whole = typed.word
    for part in typed.rest:
        whole += f" {part}"
        if _open(whole) == 0:
            tight = re.sub(r"(?<=[\[,{]) | (?=[\],}])", "", whole)
            return (
                "the shell has split this at its spaces; in quotes it is one word: "
                f"{shlex.quote(tight)}"
            )
    return "a bracket is not closed" + proposal(typed.key, typed.value, AS_TEXT)


def _open(word: str) -> int:
    bare = re.sub(r"'[^']*'|\"[^\"]*\"", "", word)
    return sum(map(bare.count, "[{(")) - sum(map(bare.count, "]})"))


def _alone(typed: Typed) -> str | None:
    """Answer the name of a choice without its group."""
    owners = [group for group in typed.choices.words if typed.word in typed.choices.names(group)]
    alternatives = " or ".join(typed.word_for(typed.word, group) for group in owners)
    return f"wanted {alternatives}" if owners else None


def _no_value(typed: Typed) -> str:
    whole = f"{typed.before} {typed.word}"
    if "=" in typed.before and re.fullmatch(r"[\w/-]+", typed.word):
        joined = shlex.quote(whole)
        return f"wanted KEY=VALUE; if it belongs to the word before, quotes join them: {joined}"
    return "wanted KEY=VALUE or GROUP=NAME, as in optim.steps=500 or model=linear"


def _choice(typed: Typed) -> str | None:
    """Answer a choice of files that is written wrongly."""
    group, value = typed["group"], typed.value
    word = typed.choices.words[group]
    if value in EVERY and value not in typed.names:
        return f"a run has one {group}; all of them are a sweep: lra run -m '{word}=glob(*)'"
    if typed.key == word:
        return None
    plus = "is added with a plus" if word != group else "has a choice already; without the plus"
    return f"{group} {plus}: {word}={value}"


def _round(typed: Typed) -> str | None:
    as_list = f"{typed.key}=[{typed['inside'].replace(' ', '').rstrip(',')}]"
    if reading(legible(as_list)) is None:
        return None
    return f"a list has square brackets: {shlex.quote(as_list)}"


def _unread(typed: Typed) -> str | None:
    """Answer a word that Hydra's grammar has no reading for."""
    if reading(typed.word) is not None:
        return None
    call = re.search(rf"\b({'|'.join(FUNCTIONS)})\s*\(", typed.value)
    other = re.fullmatch(r"\s*([A-Za-z_][\w-]*)\s*\(.*\)\s*", typed.value, re.ASCII | re.DOTALL)
    if call:
        why = f"wanted {FUNCTIONS[call[1]]}" + ("" if other else ", which stands alone")
    elif other and (ours := RANGES.get(re.sub("[_-]", "", other[1]).lower())):
        inside = typed.value.strip()[:-1].partition("(")[2]
        word = f"{typed.key}={ours.format(inside or 'LOW,HIGH')}"
        why = f"{other[1]}() of other libraries is written {shlex.quote(word)}"
    elif other:
        why = unknown("function", other[1], FUNCTIONS).rstrip(".")
    elif typed.value.count('"') % 2 or typed.value.count("'") % 2:
        why = "a quotation mark is not closed"
    elif fewer := _fewer_commas(typed):
        swept = "-m " if "," in fewer and not fewer.startswith(("[", "{", "choice")) else ""
        why = f"a comma too many; without it: {swept}{shlex.quote(f'{typed.key}={fewer}')}"
    else:
        why = "commas, brackets, quotation marks, \\ and ${ have a meaning of their own"
    return why + proposal(typed.key, typed.value, AS_TEXT)


def _fewer_commas(typed: Typed) -> str:
    """Return a value without commas that separate nothing; "" where that helps nobody."""
    fewer = re.sub(r"^\s*,|,(?=\s*(?:[,\])}]|$))", "", typed.value)
    there = fewer.strip() and fewer != typed.value
    return fewer if there and reading(f"{typed.key}={fewer}") is not None else ""


_KEPT = "|".join(map(re.escape, MAPPINGS))
NO_KEY = (
    "no key: wanted KEY=VALUE, as in optim.steps=500; a key has letters of ASCII, digits, _ and "
    "dots"
)
TABLE: tuple[tuple[Moment, str, Answer], ...] = (
    (Moment.flags, r"(?P<dashes>--?)(?P<key>[^-=\n][^=\n]*)(?P<equals>=?)(?P<value>[^\n]*)"
     r"(?:\n(?P<next>[^=\n]*))?", _dashed),
    (Moment.early, r"<group>=\[(?P<inside>[^\n]*)\]", _several),
    (Moment.early, r"\+*hydra\.sweeper\.params=(?!\{\s*\}(?:\n|$))[^\n]*", lambda _:
     "what is swept stands as words of their own: KEY=1,2 or KEY=choice(1,2)"),
    (Moment.early, r"[+~]*hydra[./]sweeper\b(?!=basic\b)(?!\.params\b|\.max_batch_size\b)[^\n]*",
     lambda _: TO_SEARCH),
    (Moment.early, r"[+~]*hydra[./]launcher\b(?!=basic\b)[^\n]*", lambda _: TO_WORKERS),
    (Moment.early, rf"~(?!(?:{_KEPT})(?![^.=\n]))(?P<key>[^=\n]*)[^\n]*", _taken_away),
    (Moment.late, r"[^\n]*[\[{(][^\n]*", _torn),
    (Moment.late, r"(?P<key>[^=\n]+)\n=(?P<value>[^\n]*)(?:\n(?P<next>[^\n]*))?", lambda t:
     "no spaces around =, please: " + shlex.quote(
         t.word_for(t["value"] or t["next"] or "VALUE", t["key"]))),
    (Moment.late, r"<group>[\n:](?P<name>[^=\n]+)", lambda t:
     f"an = joins group and name: {t.word_for(t['name'])}"
     if ":" in t.word or t["name"] in t.names else None),
    (Moment.late, r"[^~=\n][^=\n]*", _alone),
    (Moment.late, r"<group>", lambda t: f"wanted {t.word_for('NAME')}: {', '.join(t.names)}"),
    (Moment.late, r"(?!~)[^=\n]*", _no_value),
    (Moment.late, r"(?!(?:\+\+?|~)?[A-Za-z_$][\w$/@.-]*(?:=|\n|\Z))[^\n]*", lambda t:
     NO_KEY if not t.key.lstrip("+~") or reading(t.word) is None else None),
    (Moment.late, r"<group>=['\"]?(?P<value>[^\n'\"]*;[^\n'\"]*)['\"]?", lambda t:
     f"; separates nothing here: -m {t.word_for(t['value'].replace(';', ','))}"),
    (Moment.late, r"\+*<group>=(?!\{)[^\n]*", _choice),
    (Moment.late, r"[^=\n]+=\((?P<inside>[^()\n]*)\)", _round),
    (Moment.late, r"(?P<key>[^=\n]+)=~(?P<path>(?:/[\w./-]*)?)", lambda t:
     f"no shell expands ~ there: {t['key']}=$HOME{t['path']}"),
    (Moment.late, r"[^\n]*", _unread),
)  # fmt: skip
