"""`lra completion`: what a shell asks for when somebody presses TAB. No torch, no Hydra."""

import argparse
import ast
from collections.abc import Iterable, Sequence
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from lra.composition.arguments import Parser
from lra.composition.catalogue import OF_SUBMIT, choices, groups, names, ours, spellings, words
from lra.composition.yaml_text import load

RUN_FLAGS = (
    "--cfg", "--config-dir", "--config-name", "--help", "--hydra-help", "--info", "--multirun",
    "--package", "--resolve", "--run", "--shell-completion", "--version", "-m",
)  # fmt: skip
"""Of Hydra, which is not imported: that takes longer than a person waits for TAB."""
PATHS = frozenset({"--config-dir", "--results", "--out", "--rows", "--from", "--publish",
                   "--picture", "--prompt-file"})  # fmt: skip
"""Flags behind which a shell completes names of files by itself."""
SHARED = {
    "add_plugin_words": ("--config-dir", "--plugin"),
    "add_plugin": ("--plugin",),
    "add_results": ("--results",),
}
"""Flags that functions of `lra.composition.arguments` add."""
TYPED = ("model", "task", "hardware", "optim", "runner", "logger")
"""Groups whose options can be set one by one."""
STYLE = "report.style"
REPORT = ("report.write", STYLE)
"""Keys of the report at the end of a run."""
MOST = 500


def candidates(line: Sequence[str]) -> list[str]:
    """Return what the last word may become.

    Args:
        line: The words behind `lra`; the last one is being written, and may be empty.
    """
    from lra.cli import VERBS

    *before, current = line or [""]
    if not before:
        completions: Iterable[str] = [*VERBS, "--help", "--version"]
    elif before[-1] in PATHS:
        completions = []
    elif before[0] in VERBS and current.startswith("-"):
        completions = flags(before[0])
    else:
        complete = {"run": _run, "plan": _run, "choose": _choose, "list": _list, "data": _data,
                    "verify": _verify,
                    "show": _show, "generate": _show, "report": _report,
                    "compare": _compare, "dashboard": _report, "submit": _submit,
                    "watch": _planned, "work": _planned, "clean": _clean,
                    "completion": _shells}.get(
                        before[0])  # fmt: skip
        try:
            completions = complete(before[1:], current) if complete else []
        except (OSError, ValueError):  # a file of the user's own that cannot be read
            completions = []
    return [word for word in dict.fromkeys(completions) if word.startswith(current)][:MOST]


def flags(verb: str) -> list[str]:
    """Return the flags of a verb, read from its source."""
    if verb == "run":
        return [*RUN_FLAGS]
    if verb == "submit":
        return [*RUN_FLAGS, "--stop"]
    from lra.cli import VERBS

    flags_of_verb = ["--help"]
    module = VERBS[verb].module
    path = module.replace(".", "/").removeprefix("lra/") + ".py"
    source = Path(str(resources.files("lra"))) / path
    for node in ast.walk(ast.parse(source.read_bytes())):
        if not isinstance(node, ast.Call):
            continue
        called = getattr(node.func, "attr", "") or getattr(node.func, "id", "")
        first = node.args[0] if node.args else None
        flags_of_verb += SHARED.get(called, ())
        if called == "add_argument" and isinstance(first, ast.Constant):
            flags_of_verb.append(str(first.value))
    return sorted({word for word in flags_of_verb if word.startswith("-")})


def _config_dirs(before: Sequence[str]) -> list[Path]:
    """Return the folders that --config-dir names."""
    pairs = pairwise(before)
    folders = [Path(word) for flag, word in pairs if flag == "--config-dir"]
    prefix = "--config-dir="
    folders += [Path(word.removeprefix(prefix)) for word in before if word.startswith(prefix)]
    return [folder for folder in folders if folder.is_dir()]


def _run(before: Sequence[str], current: str) -> list[str]:
    dirs = _config_dirs(before)
    key, separator, value = current.partition("=")
    spellings = words(dirs)
    bare = key.lstrip("+~")
    if separator:
        done, comma, _ = value.rpartition(",")
        offered = names(bare, dirs) if bare in spellings else _values(bare, _chosen(before, dirs))
        return [f"{key}={done}{comma}{name}" for name in offered]
    if "." in bare:
        plus = key[: len(key) - len(bare)]
        return [f"{plus}{option}=" for option in _option_keys(_chosen(before, dirs))]
    config = load(ours() / "config.yaml")
    top = [f"{name}=" for name in config if name not in ("defaults", "hydra", "model")]
    heads = [f"{word}=" for word in spellings.values()] + [f"{group}." for group in TYPED]
    return [*heads, *top, *([] if current else RUN_FLAGS)]


def _choose(before: Sequence[str], current: str) -> list[str]:
    """Return the words of `lra run`, and the short ones."""
    if before and before[-1] == "--by":
        return ["forecast", "time", "memory", "operations", "quality"]
    numbers = ["length=", "batch=", "width=", "heads=", "depth=", "gib="]
    return [*numbers, "causal", *_run(before, current)]


def _submit(before: Sequence[str], current: str) -> list[str]:
    """Return the words of `lra run`, and those about the cluster."""
    if before and before[-1] == "--stop":
        return _planned(before, current)
    if current.startswith(f"{OF_SUBMIT}="):
        return [f"{OF_SUBMIT}={name}" for name in names(OF_SUBMIT)]
    cluster = [word for word in before if word.startswith(f"{OF_SUBMIT}=")]
    name = cluster[-1].partition("=")[2] if cluster else "local"
    file = ours() / OF_SUBMIT / f"{name}.yaml"
    keys = [key for key in load(file) if key not in ("name", "about", "class_path")]
    cluster_words = [f"{OF_SUBMIT}=", *(f"{OF_SUBMIT}.{key}=" for key in keys)]
    return [*cluster_words, *_run(before, current)]


def _clean(before: Sequence[str], _: str) -> list[str]:
    """Return what can be removed, then the names of that."""
    from lra.results.disk import KINDS

    kind = next(iter(_positional(before)), None)
    return [item.name for item in KINDS[kind](_results(before))] if kind in KINDS else [*KINDS]


def _planned(before: Sequence[str], _: str) -> list[str]:
    """Return the sweeps that have a plan."""
    results = "--results"
    folders = [word for flag, word in pairwise(before) if flag == results]
    root = Path(folders[-1] if folders else "results")
    return sorted(path.parent.name for path in (root / "plans").glob("*/plan.json"))


def _chosen(before: Sequence[str], folders: Sequence[Path]) -> dict[str, Path]:
    """Return the file of each group that the words choose, or that is the default."""
    defaults = load(ours() / "config.yaml").get("defaults") or []
    chosen = {k: v for entry in defaults if isinstance(entry, dict) for k, v in entry.items()}
    for word in before:
        group, _, name = word.partition("=")
        if group in chosen:
            chosen[group] = name.split(",")[0]
    files = {group: {file.stem: file for file in choices(group, folders)} for group in TYPED}
    return {
        group: files[group][chosen[group]] for group in TYPED if chosen.get(group) in files[group]
    }


def _option_keys(chosen: dict[str, Path]) -> list[str]:
    keys = []
    for group, file in chosen.items():
        node: dict[str, Any] = load(file)
        if group == "model":
            part = "stack" if "stack" in node else "mixer"
            keys += [f"model.{part}.{key}" for key in node[part]]
            backbone = load(ours() / "config.yaml")["model"]["backbone"]
            keys += ["model.layers", *(f"model.backbone.{key}" for key in backbone)]
        else:
            keys += [f"{group}.{key}" for key in node if key not in ("name", "about")]
    return [*keys, *REPORT]


def _values(key: str, chosen: dict[str, Path]) -> list[str]:
    from lra.choices.explain import choice_options, shared_options

    if key in REPORT:
        return _styles() if key == STYLE else ["true", "false", "null"]
    group = key.partition(".")[0]
    if group not in chosen:
        return []
    options = shared_options if key.startswith("model.backbone.") else choice_options
    for option in options(chosen[group]):
        if option.key == key:
            if option.switch:
                return ["true", "false"]
            return [*option.values, *(["null"] if option.optional else [])]
    return []


def _positional(before: Sequence[str]) -> list[str]:
    """Return the words that are neither flags nor what stands behind one."""
    return [
        word
        for index, word in enumerate(before)
        if not word.startswith("-") and not (index and before[index - 1] in (*PATHS, "--plugin"))
    ]


def _list(before: Sequence[str], _: str) -> list[str]:
    folders, bare = _config_dirs(before), _positional(before)
    by_word = spellings(folders)
    if bare and bare[0] in by_word:
        return names(by_word[bare[0]], folders)
    everything = [name for group in groups(folders) for name in names(group, folders)]
    return everything if bare else [*by_word, *everything]


def _data(before: Sequence[str], current: str) -> list[str]:
    folders, positional = _config_dirs(before), _positional(before)
    if not positional:
        return ["prepare", "verify", "show", "certify"]
    if len(positional) == 1:
        return names("task", folders)
    return _options("task", positional[1], folders, current)


def _verify(before: Sequence[str], current: str) -> list[str]:
    folders, bare = _config_dirs(before), _positional(before)
    return _options("model", bare[0], folders, current) if bare else names("model", folders)


def _options(group: str, name: str, folders: Sequence[Path], current: str) -> list[str]:
    """Return `option=` or `option=value` words of one choice."""
    from lra.choices.explain import choice_options

    files = [file for file in choices(group, folders) if file.stem == name]
    key, separator, _ = current.partition("=")
    words = []
    for option in choice_options(files[0]) if files else []:
        last = option.key.rpartition(".")[2]
        if not separator:
            words.append(f"{last}=")
        elif last == key:
            values = ["true", "false"] if option.switch else [*option.values]
            words += [f"{key}={value}" for value in values]
    return words


def _results(before: Sequence[str]) -> Path:
    pairs = pairwise(before)
    return next((Path(word) for flag, word in pairs if flag == "--results"), Path("results"))


def _show(before: Sequence[str], current: str) -> list[str]:
    """Return keys of cells; as long as the first two digits are open, these alone.

    Behind --cost also the words of `lra run`.
    """
    if "--cost" in before and ("=" in current or "." in current or _positional(before)):
        return _run(before, current)
    folder = _results(before) / "cells"
    if not folder.is_dir() or _positional(before):
        return []
    parts = sorted(part for part in folder.iterdir() if part.name.startswith(current[:2]))
    return [cell.name for part in parts for cell in sorted(part.iterdir())][:MOST]


def _styles() -> list[str]:
    """Return the styles of reports that come with lra; a shell itself completes files."""
    folder = Path(str(resources.files("lra.reports"))) / "figures" / "styles"
    return sorted(file.stem for file in folder.glob("*.yaml"))


def _report(before: Sequence[str], _: str) -> list[str]:
    if before and before[-1] == "--style":
        return _styles()
    folder = _results(before) / "sweeps"
    if not before or before[-1] != "--sweep" or not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir() if path.is_dir())


def _compare(before: Sequence[str], current: str) -> list[str]:
    """Return the names of models, metrics behind --metric, and what `lra report` completes."""
    if before and before[-1] == "--metric":
        from lra.runners.metrics import METRICS

        return [*METRICS]
    if before and before[-1] in ("--sweep", "--split", "--where"):
        return _report(before, current)
    return names("model", [])


def _shells(_: Sequence[str], __: str) -> list[str]:
    return [*SHELLS]


BASH = r"""_lra_complete() {
    local line="${COMP_LINE:0:COMP_POINT}" words current cut
    read -ra words <<< "$line"
    if [[ "$line" == *[[:space:]] ]]; then words+=(""); fi
    current="${words[${#words[@]}-1]}"
    cut=""
    if [[ "$COMP_WORDBREAKS" == *=* ]]; then cut="${current%"${current##*[=:]}"}"; fi
    local IFS=$'\n'
    COMPREPLY=($("${words[0]}" completion --words "${words[@]:1}" 2> /dev/null))
    COMPREPLY=("${COMPREPLY[@]#"$cut"}")
    if [[ "${COMPREPLY[0]}" == *[=.] ]]; then compopt -o nospace 2> /dev/null; fi
}
complete -o default -o bashdefault -F _lra_complete lra
"""
ZSH = r"""(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }
_lra() {
    local -a found open
    found=("${(@f)$("${words[1]}" completion --words "${(@)words[2,CURRENT-1]}" "$PREFIX" \
        2> /dev/null)}")
    open=("${(@M)found:#*[=.]}")
    found=("${(@)found:#*[=.]}")
    [[ -z "${found[*]}${open[*]}" ]] && { _files; return }
    (( ${#open} )) && compadd -Q -S '' -- "${open[@]}"
    (( ${#found} )) && compadd -Q -- "${found[@]}"
}
compdef _lra lra
"""
FISH = r"""function __lra_complete
    set -l words (commandline -opc)
    $words[1] completion --words $words[2..-1] (commandline -ct) 2> /dev/null
end
complete -c lra -n "test -n \"(__lra_complete)\"" -f -a "(__lra_complete)"
"""
SHELLS = {"bash": BASH, "zsh": ZSH, "fish": FISH}


def parser() -> argparse.ArgumentParser:
    """Return the arguments of `lra completion`."""
    args = Parser(
        prog="lra completion",
        description="Print what lets a shell complete verbs, flags, names, keys, values and cells.",
        epilog='in ~/.bashrc: eval "$(lra completion bash)" | in ~/.zshrc: '
        'eval "$(lra completion zsh)" | in config.fish: lra completion fish | source',
    )
    args.add_argument("shell", choices=[*SHELLS], metavar="|".join(SHELLS))
    return args


def main(argv: list[str]) -> int:
    """Print the script of a shell, or for a shell (`--words ...`) what its last word may become."""
    if argv[:1] == ["--words"]:
        for word in candidates(argv[1:]):
            print(word)
        return 0
    print(SHELLS[parser().parse_args(argv).shell], end="")
    return 0
