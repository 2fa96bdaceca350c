"""`lra list NAME`: print every option of a choice with its type, values, default and meaning."""

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
    """The full key, such as model.mixer.features."""
    type: str
    default: Any
    """The value that the YAML file gives it."""
    values: dict[str, str]
    """The meaning of each allowed value; empty if every value of the type is allowed."""
    meaning: str
    brief: str
    """The meaning in one line, for a list of many options."""
    switch: bool = False
    """Whether the values are true and false (and null, if optional)."""
    optional: bool = False
    """Whether the value may be null."""


OF_ALL = {"model": "models (the backbone)", "search": "searches"}
UNTYPED = {dict: "mapping", type(None): "text, or null"}
"""Types, by default value, of options that no class has, because composition alone reads them."""


def choice_options(file: Path) -> list[Option]:
    """Return the options of the choice in a YAML file; a preset, a protocol or a size has none."""
    group, node = file.parent.name, load(file)
    meanings = comments(file)
    if group == "model":
        part = "stack" if "stack" in node else "mixer"
        return _list_options(node[part], f"model.{part}", meanings, inside=f"{part}.")
    if group == "runner":
        shared = load(ours() / "config.yaml")["runner"]
        # The options of the runner come first, and its values replace the shared defaults.
        return _list_options({**node, **shared, **node}, group, meanings, CONTROL)
    if group in ("task", OF_SUBMIT, *CLASSES):
        return _list_options(node, group, meanings, CLASSES.get(group))
    return []


def shared_options(file: Path) -> list[Option]:
    """Return the options that all choices of the file's group share.

    These are, for a model, the options of the backbone; for an optimiser or a search, the options
    of config.yaml that its file does not set.
    """
    config, group, node = ours() / "config.yaml", file.parent.name, load(file)
    if group in ("optim", "search"):
        others = {key: value for key, value in load(config)[group].items() if key not in node}
        return _list_options(others, group, comments(config), CLASSES[group], inside=f"{group}.")
    if group != "model":
        return []
    backbone = {**load(config)["model"]["backbone"], **(node.get("backbone") or {})}
    prefix = "model.backbone"
    return _list_options(backbone, prefix, comments(config), BACKBONE, inside=f"{prefix}.")


def sets(file: Path) -> dict[str, Any]:
    """Return the values that a choice sets for options of other groups, by key.

    A preset, a protocol or a size sets any options; a model sets options of the backbone.
    """
    if file.parent.name in ("model", "task", "runner", OF_SUBMIT, *CLASSES):
        backbone = load(file).get("backbone") or {} if file.parent.name == "model" else {}
        return {f"model.backbone.{key}": value for key, value in backbone.items()}
    node = {key: value for key, value in load(file).items() if key not in NO_OPTIONS}
    # Hydra's comment `# @package optim` in the first line puts the file's keys below `optim`.
    first_line = file.read_text(encoding="utf-8").partition("\n")[0]
    package = first_line.partition("@package ")[2].strip()
    prefix = "" if package in ("", "_global_") else f"{package}."
    return {prefix + key: value for key, value in _flatten_keys(node)}


def _flatten_keys(node: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted key and the value of each entry of a nested mapping."""
    for key, value in node.items():
        if isinstance(value, Mapping) and value:
            yield from _flatten_keys(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _list_options(
    node: Mapping[str, Any],
    prefix: str,
    meanings: Mapping[str, str],
    class_path: str | None = None,
    inside: str = "",
) -> list[Option]:
    """Return the options in a mapping of a YAML file.

    Args:
        node: The mapping of keys to defaults; its `class_path` names a class with these options.
        prefix: What precedes a key on the command line.
        meanings: The comments of the file by key.
        class_path: Another class that documents some of the options.
        inside: What precedes a key in `meanings`.
    """
    classes = filter(None, (class_path, node.get("class_path")))
    documented = {
        name: parameter for path in classes for name, parameter in parameters(path).items()
    }
    options = []
    for key, default in node.items():
        if key in NO_OPTIONS:
            continue
        parameter = documented.get(key, Parameter("", (), ""))
        comment = meanings.get(inside + key, "")
        options.append(
            Option(
                key=f"{prefix}.{key}",
                type=parameter.type or UNTYPED.get(type(default), ""),
                default=default,
                values=dict(parameter.values),
                meaning=_write_meaning(parameter, comment),
                brief=_write_brief(parameter, comment),
                switch=parameter.switch,
                optional=parameter.optional,
            )
        )
    return options


def _write_meaning(parameter: Parameter, comment: str) -> str:
    """Return the meaning of an option, from its docstring and from the comment in its YAML file.

    If half of the words are the same in both, only the longer text is used.
    """
    values = {name for name, _ in parameter.values}
    # A comment such as `a | b: text` repeats the values, which are printed anyway.
    listed, _, text_after = comment.partition(": ") if " | " in comment else ("", "", comment)
    if {word.strip() for word in listed.split("|")} == values:
        comment = text_after
    if {word.strip() for word in comment.split("|")} <= values:
        comment = ""
    parts = [part for part in (parameter.meaning, comment) if part]
    docstring_words, comment_words = (
        set(re.findall(r"[a-z]{3,}", part.lower())) for part in (parameter.meaning, comment)
    )
    shorter = min(len(docstring_words), len(comment_words))
    if len(parts) == 2 and 2 * len(docstring_words & comment_words) >= shorter:
        # A list of values, `a | b`, is the last resort.
        parts = [max(parts, key=lambda part: (not re.match(r"\w+ \|", part), len(part)))]
    text = " ".join(_punctuate(part) for part in parts)
    return re.sub(r"\b(None|True|False)\b", lambda word: _YAML_WORDS[word[0]], text)


def _write_brief(parameter: Parameter, comment: str) -> str:
    """Return one sentence on an option; it names the values if there is a fixed list of them."""
    first = ""
    if parameter.meaning:
        first = re.split(r"(?<=\w)\. (?=[A-Z])", _write_meaning(parameter, ""))[0]
    if first and parameter.values:
        return f"{first.rstrip('.')}: {' | '.join(name for name, _ in parameter.values)}"
    return _punctuate(comment) if comment else first


_YAML_WORDS = {"None": "null", "True": "true", "False": "false"}


def _punctuate(text: str) -> str:
    """Return `text` with a capital letter, unless it begins with values, and with a full stop."""
    first = text.split(maxsplit=1)[0]
    sentence = text if first.endswith(":") or " | " in text else text[0].upper() + text[1:]
    return sentence + ("" if text.endswith((".", ":", "!", "?")) else ".")


def print_choices(
    files: Sequence[Path], config_dirs: Sequence[Path], *, everything: bool, as_json: bool
) -> None:
    """Print choices with their options.

    Args:
        files: The YAML file of each choice.
        config_dirs: Folders with the user's YAML files.
        everything: Whether to print the type, values and meaning of each option, not only a line.
        as_json: Whether to print JSON.
    """
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
    """Yield the lines that explain one choice.

    Args:
        file: Its YAML file.
        word: What selects its group on the command line, such as `model` or `+protocol`.
        everything: As in `print_choices`.
    """
    entry = read_entry(file)
    option_lines = _explain_options if everything else _summarise_options
    yield f"{word}={entry.name}: {entry.summary}"
    about = load(file).get("about") or {}
    for key, value in about.items():
        if isinstance(value, Mapping):
            yield f"  {key}:"
            for name, text in value.items():
                yield from textwrap.wrap(
                    f"{name}: {text}", WIDTH, initial_indent="    ", subsequent_indent="      "
                )
        elif key != "summary":
            yield f"  {key}: {value}"
    yield f"  file: {entry.file}"
    options = choice_options(file)
    if options:
        yield "\noptions"
        yield from option_lines(options)
    settings = sets(file)
    conditional = [] if everything else [key for key in settings if re.match(r"for_\w+\.", key)]
    if settings:
        yield "\nsets"
        for key, value in settings.items():
            if key in conditional:
                continue
            yield from textwrap.wrap(
                f"{key}={typed_value(value)}",
                WIDTH,
                initial_indent="  ",
                subsequent_indent="      ",
            )
    shared = shared_options(file)
    group_members = OF_ALL.get(file.parent.name, "optimisers")
    if shared and everything:
        yield f"\nshared by all {group_members}"
        yield from option_lines(shared)
    elif shared or options or conditional:
        more = ["types, values and meanings"] if options else []
        more += [f"{len(shared)} options shared by all {group_members}"] if shared else []
        if conditional:
            more += [f"{len(conditional)} settings for single tasks, models or runners"]
        yield f"\n`lra list {entry.name} --all` adds {', and '.join(more)}"


def _summarise_options(options: Sequence[Option]) -> Iterator[str]:
    """Yield one line for each option, with key, default and meaning, cut to `WIDTH` characters."""
    heads = [f"  {option.key}={typed_value(option.default)}" for option in options]
    heads = [
        textwrap.shorten(head, WIDTH // 2, placeholder=" …") if len(head) > WIDTH else head
        for head in heads
    ]
    head_width = min(max(map(len, heads)), WIDTH // 2)
    for head, option in zip(heads, options, strict=True):
        text_width = max(WIDTH - max(head_width, len(head)) - 2, 30)
        text = textwrap.shorten(option.brief, text_width, placeholder=" …")
        yield f"{head:{head_width}}  {text}"


def _explain_options(options: Sequence[Option]) -> Iterator[str]:
    """Yield several lines for each option: key, default and type; its meaning; each value."""
    wrap = partial(textwrap.wrap, width=WIDTH, initial_indent=INDENT)
    for option in options:
        yield f"  {option.key}={typed_value(option.default)}   ({option.type or 'any'})"
        yield from wrap(option.meaning, subsequent_indent=INDENT)
        if any(option.values.values()):
            for name, meaning in option.values.items():
                text = name + (f": {meaning}" if meaning else "")
                yield from wrap(text, subsequent_indent=f"{INDENT}  ")
        elif option.values:
            yield f"{INDENT}one of {', '.join(option.values)}"


def typed_value(value: Any) -> str:
    """Return a value as a user types it on the command line, such as null or [1,2]."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {typed_value(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(typed_value, value)) + "]"
    return str(value)
