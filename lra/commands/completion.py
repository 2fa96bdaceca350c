"""`lra completion`: complete arguments with TAB in a shell, by argcomplete."""

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
    """Print the script of a shell; called by that script, say what the last word may become."""
    if "_ARGCOMPLETE" in os.environ:
        line = argparse.ArgumentParser(add_help=False)
        line.add_argument("verb", choices=VERBS)
        line.add_argument("words", nargs="...").completer = candidates  # type: ignore[attr-defined]
        argcomplete.autocomplete(line)  # ends the process
    about = "Print a script with which your shell completes arguments with TAB."
    example = 'example:\n  eval "$(lra completion bash)"   in ~/.bashrc'
    parser = Parser("lra completion", description=about, epilog=example)
    parser.add_argument("shell", choices=["bash", "zsh", "fish"], help="your shell")
    print(shellcode(["lra"], shell=parser.parse_args(argv).shell), end="")
    return 0


def candidates(prefix: str, parsed_args: argparse.Namespace, **_: Any) -> list[str]:
    """Return what may stand in the place of `prefix`: names, options, or `key=value`."""
    before = parsed_args.words
    folders = [Path(folder) for flag, folder in pairwise(before) if flag == "--config-dir"]
    groups = {word: group for group, word in words(folders).items()}
    if parsed_args.verb in ("list", "verify", "data", "compare"):
        return [name for group in groups.values() for name in names(group, folders)]
    if parsed_args.verb not in ("run", "plan", "choose", "submit"):
        return []
    key, equals, value = prefix.partition("=")
    if equals and key in groups:
        done = value[: value.rfind(",") + 1]
        return [f"{key}={done}{name}" for name in names(groups[key], folders)]
    defaults = load(ours() / "config.yaml")["defaults"][1:]
    chosen = {group: name for each in defaults for group, name in each.items()}
    chosen |= dict(word.partition("=")[::2] for word in before)
    files = [f for g in groups.values() for f in choices(g, folders) if f.stem == chosen.get(g)]
    options = [option for f in files for option in (*choice_options(f), *shared_options(f))]
    if equals:
        values = [("true", "false") if o.switch else o.values for o in options if o.key == key]
        return [f"{key}={value}" for each in values for value in each]
    return [f"{word}=" for word in (*groups, *(option.key for option in options))]
