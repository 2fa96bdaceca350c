"""`lra completion`: make a shell complete arguments with TAB, through the package argcomplete."""

import argparse
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

import argcomplete
from argcomplete.shell_integration import shellcode

from lra.choices.explain import choice_options, shared_options
from lra.cli import VERBS
from lra.composition.arguments import Parser
from lra.composition.catalogue import choices, names, ours, words
from lra.composition.yaml_text import load


def main(argv: list[str]) -> int:
    """Print the completion script of a shell.

    That script calls `lra` with _ARGCOMPLETE set; then this prints completions of the last word.
    """
    if "_ARGCOMPLETE" in os.environ:
        line = argparse.ArgumentParser(add_help=False)
        line.add_argument("verb", choices=VERBS)
        line.add_argument("words", nargs="...").completer = candidates  # type: ignore[attr-defined]
        argcomplete.autocomplete(line)  # ends the process
    about = "Print a script with which your shell completes arguments with TAB."
    example = 'example, a line for your ~/.bashrc:\n  eval "$(lra completion bash)"'
    parser = Parser("lra completion", description=about, epilog=example)
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="your shell")
    print(shellcode(["lra"], shell=parser.parse_args(argv).shell), end="")
    return 0


def candidates(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Return the completions of `prefix`: names, options, or `key=value`.

    Args:
        prefix: What the user has typed of the last argument.
        parsed_args: The verb, and in `words` the arguments before the last.
    """
    before = parsed_args.words
    folders = [Path(folder) for flag, folder in pairwise(before) if flag == "--config-dir"]
    groups = {word: group for group, word in words(folders).items()}
    if parsed_args.verb in ("list", "verify", "data", "compare"):
        return [name for group in groups.values() for name in names(group, folders)]
    if parsed_args.verb not in ("run", "plan", "choose", "submit"):
        return []
    key, equals, value = prefix.partition("=")
    if equals and key in groups:
        earlier_values = value[: value.rfind(",") + 1]  # `a,b,` of `a,b,c`
        return [f"{key}={earlier_values}{name}" for name in names(groups[key], folders)]
    defaults = load(ours() / "config.yaml")["defaults"][1:]  # without `_self_`
    chosen = {group: name for default in defaults for group, name in default.items()}
    chosen |= dict(word.partition("=")[::2] for word in before)
    files = [f for g in groups.values() for f in choices(g, folders) if f.stem == chosen.get(g)]
    options = [option for f in files for option in (*choice_options(f), *shared_options(f))]
    if equals:
        same_key = [option for option in options if option.key == key]
        values = [("true", "false") if option.switch else option.values for option in same_key]
        return [f"{key}={value}" for option_values in values for value in option_values]
    return [f"{word}=" for word in (*groups, *(option.key for option in options))]
