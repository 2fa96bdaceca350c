"""`lra list NAME`: one choice in full: every option with type, values, default and meaning."""

import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from lra.composition.catalogue import OF_SUBMIT, ours, read_entry, words
from lra.composition.option_types import (
    BACKBONE,
    CLASSES,
    CONTROL,
    Parameter,
    comments,
    parameters,
)
from lra.composition.yaml_text import load

NO_OPTIONS = frozenset({"name", "about", "class_path", "section", "defaults", "hydra"})
WIDTH, INDENT = 100, " " * 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option, as it is set on the command line."""

    key: str
    """What to type before the equals sign."""
    type: str
    default: Any
    """The value that the YAML file gives it."""
    values: dict[str, str]
    """Allowed values and what each means; empty where any of the type will do."""
    meaning: str
    brief: str
    """The meaning in one line, for a list of many."""
    switch: bool = False
    """Whether it is true or false, or perhaps null."""
    optional: bool = False
    """Whether it may be null."""


OF_ALL = {"model": "models: the backbone", "search": "searches"}
UNTYPED = {dict: "mapping", type(None): "text, or null"}
"""What options are that no class has, by their defaults: words that are read while composing."""


def choice_options(file: Path) -> list[Option]:
    """Return the options of one choice; of a preset, a protocol or a size, what it sets."""
    group, node = file.parent.name, load(file)
    meanings = comments(file)
    if group == "model":
        part = "stack" if "stack" in node else "mixer"
        return _typed(node[part], f"model.{part}", meanings, inside=f"{part}.")
    if group == "runner":
        steering = load(ours() / "config.yaml")["runner"]
        return _typed({**node, **steering, **node}, group, meanings, CONTROL)
    if group in ("task", OF_SUBMIT, *CLASSES):
        return _typed(node, group, meanings, CLASSES.get(group))
    return []


def shared_options(file: Path) -> list[Option]:
    """Return the options that every choice of a group has: of a model the backbone's.

    Of an optimiser and a search, what its own file does not set.
    """
    config, group, node = ours() / "config.yaml", file.parent.name, load(file)
    if group in ("optim", "search"):
        others = {key: value for key, value in load(config)[group].items() if key not in node}
        return _typed(others, group, comments(config), CLASSES[group], inside=f"{group}.")
    if group != "model":
        return []
    every = {**load(config)["model"]["backbone"], **(node.get("backbone") or {})}
    return _typed(every, "model.backbone", comments(config), BACKBONE, inside="model.backbone.")


def sets(file: Path) -> dict[str, Any]:
    """Return what a preset, a protocol or a size sets, by key."""
    if file.parent.name in ("model", "task", "runner", OF_SUBMIT, *CLASSES):
        backbone = load(file).get("backbone") or {} if file.parent.name == "model" else {}
        return {f"model.backbone.{key}": value for key, value in backbone.items()}
    node = {key: value for key, value in load(file).items() if key not in NO_OPTIONS}
    first = file.read_text(encoding="utf-8").partition("\n")[0]
    package = first.partition("@package ")[2].strip()
    prefix = "" if package in ("", "_global_") else f"{package}."
    return {prefix + key: value for key, value in _flat(node)}


def _flat(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _typed(
    node: Mapping[str, Any],
    prefix: str,
    meanings: Mapping[str, str],
    class_path: str | None = None,
    inside: str = "",
) -> list[Option]:
    """Return the options of a node, typed by its own class and by one more.

    `inside` stands before its keys where comments are named.
    """
    classes = filter(None, (class_path, node.get("class_path")))
    known = {name: each for path in classes for name, each in parameters(path).items()}
    options = []
    for key, default in node.items():
        if key in NO_OPTIONS:
            continue
        parameter = known.get(key, Parameter("", (), ""))
        comment = meanings.get(inside + key, "")
        options.append(
            Option(
                key=f"{prefix}.{key}",
                type=parameter.type or UNTYPED.get(type(default), ""),
                default=default,
                values=dict(parameter.values),
                meaning=_meaning(parameter, comment),
                brief=_brief(parameter, comment),
                switch=parameter.switch,
                optional=parameter.optional,
            )
        )
    return options


def _meaning(parameter: Parameter, comment: str) -> str:
    """Return what docstring and YAML say; where both say one thing, the one that says more."""
    values = {name for name, _ in parameter.values}
    listed, _, behind = comment.partition(": ") if " | " in comment else ("", "", comment)
    if {word.strip() for word in listed.split("|")} == values:
        comment = behind
    if {word.strip() for word in comment.split("|")} <= values:
        comment = ""
    parts = [part for part in (parameter.meaning, comment) if part]
    words, others = (
        set(re.findall(r"[a-z]{3,}", part.lower())) for part in (parameter.meaning, comment)
    )
    if len(parts) == 2 and 2 * len(words & others) >= min(len(words), len(others)):
        parts = [max(parts, key=lambda part: (not re.match(r"\w+ \|", part), len(part)))]
    text = " ".join(_sentence(part) for part in parts)
    return re.sub(r"\b(None|True|False)\b", lambda word: _TYPED[word[0]], text)


def _brief(parameter: Parameter, comment: str) -> str:
    """Return a sentence: of a choice what is chosen and its values, of others the comment."""
    first = (
        re.split(r"(?<=\w)\. (?=[A-Z])", _meaning(parameter, ""))[0] if parameter.meaning else ""
    )
    if first and parameter.values:
        return f"{first.rstrip('.')}: {' | '.join(name for name, _ in parameter.values)}"
    return _sentence(comment) if comment else first


_TYPED = {"None": "null", "True": "true", "False": "false"}


def _sentence(text: str) -> str:
    first = text.split(maxsplit=1)[0]
    word = text if first.endswith(":") or " | " in text else text[0].upper() + text[1:]
    return word + ("" if text.endswith((".", ":", "!", "?")) else ".")


def print_choices(
    files: Sequence[Path], config_dirs: Sequence[Path], *, everything: bool, as_json: bool
) -> None:
    """Print every choice: a line for each option, or all about it."""
    if as_json:
        records = [
            {
                **asdict(read_entry(file)),
                "options": [asdict(option) for option in choice_options(file)],
                "shared": [asdict(option) for option in shared_options(file)],
                "sets": sets(file),
            }
            for file in files
        ]
        print(json.dumps(records, indent=2, ensure_ascii=False))
        return
    group_words = {**words(config_dirs), OF_SUBMIT: OF_SUBMIT}
    for number, file in enumerate(files):
        if number:
            print()
        for line in choice_lines(file, group_words[file.parent.name], everything=everything):
            print(line)


def choice_lines(file: Path, word: str, *, everything: bool) -> Iterator[str]:
    """Yield the text of one choice."""
    entry = read_entry(file)
    option_lines = _long_lines if everything else _short_lines
    yield f"{word}={entry.name}: {entry.summary}"
    about = load(file).get("about") or {}
    for key, value in about.items():
        if key != "summary":
            yield f"  {key}: {value}"
    yield f"  file: {entry.file}"
    options = choice_options(file)
    if options:
        yield "\noptions"
        yield from option_lines(options)
    settings = sets(file)
    of_one = [] if everything else [key for key in settings if re.match(r"for_\w+\.", key)]
    if settings:
        yield "\nsets"
        for key, value in settings.items():
            if key in of_one:
                continue
            yield from textwrap.wrap(
                f"{key}={typed_value(value)}",
                WIDTH,
                initial_indent="  ",
                subsequent_indent="      ",
            )
    shared = shared_options(file)
    of_all = OF_ALL.get(file.parent.name, "optimisers")
    if shared and everything:
        yield f"\nshared by all {of_all}"
        yield from option_lines(shared)
    elif shared or options or of_one:
        rest = ["types, values and meanings in full"] if options else []
        rest += [f"{len(shared)} options shared by all {of_all}"] if shared else []
        rest += [f"{len(of_one)} settings of one task, model or runner"] if of_one else []
        yield f"\nlra list {entry.name} --all: {', and '.join(rest)}"


def _short_lines(options: Sequence[Option]) -> Iterator[str]:
    """Yield a line for each option, cut where it is too long."""
    heads = [f"  {option.key}={typed_value(option.default)}" for option in options]
    heads = [
        textwrap.shorten(head, WIDTH // 2, placeholder=" …") if len(head) > WIDTH else head
        for head in heads
    ]
    wide = min(max(map(len, heads)), WIDTH // 2)
    for head, option in zip(heads, options, strict=True):
        room = max(WIDTH - max(wide, len(head)) - 2, 30)
        yield f"{head:{wide}}  {textwrap.shorten(option.brief, room, placeholder=' …')}"


def _long_lines(options: Sequence[Option]) -> Iterator[str]:
    inside = partial(textwrap.wrap, width=WIDTH, initial_indent=INDENT)
    for option in options:
        yield f"  {option.key}={typed_value(option.default)}   ({option.type or 'any'})"
        yield from inside(option.meaning, subsequent_indent=INDENT)
        if any(option.values.values()):
            for name, meaning in option.values.items():
                text = name + (f": {meaning}" if meaning else "")
                yield from inside(text, subsequent_indent=f"{INDENT}  ")
        elif option.values:
            yield f"{INDENT}one of {', '.join(option.values)}"


def typed_value(value: Any) -> str:
    """Return a value as it is typed on the command line."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {typed_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(typed_value, value)) + "]"
    return str(value)
