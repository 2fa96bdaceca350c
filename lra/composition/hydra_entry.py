"""The words after `lra run`, through Hydra, to resolved configurations.

Nothing is executed here and nothing is written: the combinations are collected, so that the sweep
as a whole can be listed, split and run side by side. Launchers and sweepers of others, which start
each combination by itself, are refused.
"""

import argparse
import os
import shlex
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from conf.shown import short
from lra.composition.class_path import name_plugins
from lra.composition.configuration import check, long_forms
from lra.composition.run import Composed
from lra.composition.selection import expand_sets
from lra.errors import ConfigError
from lra.terminal.progress import counted
from runners.records import Memo

if TYPE_CHECKING:
    from lra.composition.loader import Loader

MULTIRUN = ("-m", "--multirun")
STEERING = ("Cc", "Cs", "Zl", "Zp")
"""Categories of characters that no word has: controls, ends of lines, halves of UTF-16."""
LONGEST_WORD = 10_000
"""Characters; a longer one would take Hydra seconds to read."""
BASIC = ("hydra._internal.core_plugins.basic_launcher.BasicLauncher",
         "hydra._internal.core_plugins.basic_sweeper.BasicSweeper")  # fmt: skip
"""What is replaced by collecting."""


def entries(argv: Sequence[str]) -> list[Composed]:
    """Return what the command line asks for; empty where Hydra only printed something.

    Args:
        argv: The words after `lra run`.

    Raises:
        ConfigError: unknown group, option, key, or malformed words, with near matches.
    """
    from hydra import version
    from hydra.core.global_hydra import GlobalHydra

    from lra.composition.answers import Choices, Stage, answer
    from lra.composition.complaints import explained
    from lra.composition.contradictions import refuse_contradictions
    from lra.composition.protocol import notes
    from lra.composition.repository import hydra_of
    from lra.composition.words import legible

    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise instead of exiting: the messages are ours
    version.setbase("1.3")
    _refuse(answer(argv, Choices.of(None), Stage.flags))
    parser, flags = _flags(argv)
    folders = [Path(flags.config_dir)] if flags.config_dir else []
    flags.overrides = [legible(expand_sets(word, folders)) for word in long_forms(flags.overrides)]
    _refuse(answer(flags.overrides, Choices.of(flags.config_dir), Stage.early))
    try:
        with explained(flags.overrides, flags.config_dir):
            hydra = hydra_of(flags.config_dir)
            if _helped(hydra, parser, flags):
                return []
            mode, master = _master(hydra, flags)
            _check_basic(master)
        if flags.cfg or flags.info:
            _print(hydra, mode, master, flags)
            configurations = []
        elif mode == "RUN":
            configurations = _one(master, flags)
        else:
            configurations = _many(hydra, master, flags)
        for entry in configurations:
            refuse_contradictions(
                entry.config, entry.overrides, cast("Loader", hydra.config_loader)
            )
        _say(hydra.config_loader, notes([entry.config for entry in configurations]))
        return configurations
    finally:
        GlobalHydra.instance().clear()


def _refuse(complaint: str | None) -> None:
    if complaint is not None:
        raise ConfigError(complaint)


class _Words(argparse.ArgumentParser):
    """Hydra's flags, refused in one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; `lra run --help` shows how a command is spelt")


def _flags(argv: Sequence[str]) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Return Hydra's flags and the other words, wherever each of them stands."""
    from hydra._internal.utils import get_args_parser

    parser = _Words(prog="lra run", parents=[get_args_parser()], add_help=False)
    flags = parser.parse_intermixed_args(argv)
    for word in (*flags.overrides, flags.config_dir or "", flags.config_name or ""):
        if len(word) > LONGEST_WORD or any(unicodedata.category(char) in STEERING for char in word):
            raise ConfigError(
                f"{short(word)!a}: wanted at most {LONGEST_WORD:,} characters, all printable"
            )
    if flags.config_path or flags.experimental_rerun:
        raise ConfigError(
            "--config-path and --experimental-rerun do not fit lra; your own YAML files are found "
            "by --config-dir DIR, beside ours"
        )
    if flags.config_dir is not None and not Path(flags.config_dir).is_dir():
        raise ConfigError(f"--config-dir {flags.config_dir} is not a folder: give one that exists")
    if flags.resolve and not flags.cfg:
        raise ConfigError("--resolve belongs to --cfg: lra run ... --cfg job --resolve")
    if flags.run and flags.multirun:
        raise ConfigError("give one of --run and --multirun")
    if sum(map(bool, (flags.cfg, flags.info, flags.shell_completion))) > 1:
        raise ConfigError("give one of --cfg, --info and --shell-completion")
    flags.config_name = flags.config_name or "config"
    return parser, flags


def _helped(hydra: Any, parser: argparse.ArgumentParser, flags: argparse.Namespace) -> bool:
    """Have Hydra print its help, or the words that a shell asks for; return whether it did."""
    if flags.hydra_help:
        hydra.hydra_help(flags.config_name, args_parser=parser, args=flags)
    elif flags.shell_completion:
        hydra.shell_completion(flags.config_name, flags.overrides)
    else:
        return False
    return True


def _print(hydra: Any, mode: str, master: Any, flags: argparse.Namespace) -> None:
    """Print what `--cfg` or `--info` asks for, of every combination of a sweep."""
    from lra.composition.complaints import explained
    from lra.composition.printed import explain, print_configurations

    combinations = None
    with explained(flags.overrides, flags.config_dir):
        if mode == "MULTIRUN":
            combinations = _combinations(hydra, master, flags)[1]
        if flags.info:
            explain(hydra, flags, combinations)
        else:
            print_configurations(hydra, flags, master, combinations)


def _say(loader: Any, more: Sequence[str] = ()) -> None:
    """Tell the person at the keyboard what the loader has noted, and `more`, once."""
    for note in dict.fromkeys((*loader.notes, *more)):
        print(f"lra: {note}", file=sys.stderr)
    loader.notes.clear()


def _master(hydra: Any, flags: argparse.Namespace) -> tuple[str, Any]:
    """Return RUN or MULTIRUN, and the configuration of the run, or of the sweep as a whole.

    Besides the flag, a word or a file may say `hydra.mode`; and a preset that names what is swept
    is a sweep, unless `--run` asks for one run.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.types import RunMode

    loader = hydra.config_loader

    def sweep() -> Any:
        words = [*flags.overrides, "hydra.mode=MULTIRUN"]
        return loader.load_configuration(flags.config_name, words, RunMode.MULTIRUN)

    if flags.multirun or "hydra.mode=MULTIRUN" in flags.overrides:
        return "MULTIRUN", sweep()
    words = OverridesParser.create().parse_overrides(flags.overrides)
    several = [str(word.input_line) for word in words if word.is_sweep_override()]

    def load(mode: RunMode) -> Any:
        return loader.load_configuration(
            flags.config_name, flags.overrides, mode, validate_sweep_overrides=False
        )

    try:
        one = load(RunMode.MULTIRUN if several else RunMode.RUN)
    except ConfigError:  # of a run that the sweep need not have: a task without settings
        one = load(RunMode.MULTIRUN)
        if flags.run or not _swept(one):
            raise
    declared = one.hydra.mode is None and not flags.run and _swept(one)
    if one.hydra.mode is RunMode.MULTIRUN or declared:
        loader.notes.clear()
        return "MULTIRUN", sweep()
    if several:
        _refuse(_several(several[0]))
    one.hydra.mode = RunMode.RUN
    if flags.run and _swept(one):
        loader.notes[f"{_preset(flags.overrides)} is a sweep; --run makes one run of it"] = None
    return "RUN", one


def _several(word: str) -> str:
    """Return the answer to a word of several values where one run is asked for."""
    from lra.composition.answers import Choices, answer, brief
    from lra.composition.words import proposal

    if (wrong := answer([word], Choices.of(None))) is not None:  # which -m would answer alike
        return wrong
    text = f"{word}: several values are a sweep: lra run -m {shlex.quote(word)}"
    key, _, values = word.partition("=")
    if "." not in key or "(" in values:
        return brief(text)
    text += f". As one list: {shlex.quote(f'{key}=[{values}]')}"
    return brief(text + proposal(key, values, ". As one text: "))


def _swept(config: Any) -> bool:
    """Return whether a file or a word names what is swept."""
    sweeper = config.hydra.sweeper
    return isinstance(sweeper, Mapping) and bool(sweeper.get("params"))


def _preset(words: Sequence[str]) -> str:
    presets = [word for word in words if word.startswith(("+experiment=", "+protocol="))]
    return presets[-1] if presets else "this configuration"


def _check_basic(master: Any) -> None:
    """Refuse a launcher, a sweeper or callbacks of others that a file names. Raises ConfigError."""
    from lra.composition.answers import TO_WORKERS

    for part, basic in zip(("launcher", "sweeper"), BASIC, strict=True):
        if (target := _target(master, part)) != basic:
            raise ConfigError(f"hydra.{part}: got {short(target)}; {TO_WORKERS}")
    if master.hydra.callbacks:
        raise ConfigError("hydra.callbacks: lra calls none; leave it out")


def _target(master: Any, part: str) -> str:
    """Return the class that a part of Hydra names."""
    node = master.hydra[part]
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise ConfigError(f"hydra.{part}: got {node!r}; wanted a mapping with _target_")
    return str(node["_target_"])


def _one(master: Any, flags: argparse.Namespace) -> list[Composed]:
    from lra.composition.combinations import resolved
    from lra.composition.complaints import explained

    with explained(flags.overrides, flags.config_dir):
        tree = resolved(master)
    return [_entry(tree, _words_of(master.hydra), flags.config_dir, str(Path.cwd()))]


def _words_of(hydra: Any) -> tuple[str, ...]:
    """Return the words that are not for Hydra itself, unchanged."""
    from omegaconf import OmegaConf

    words = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    return tuple(cast(list[str], words))


def _combinations(
    hydra: Any, master: Any, flags: argparse.Namespace
) -> tuple[list[Any], list[list[str]]]:
    """Return the parsed words of a sweep, and the words of each of its combinations.

    That it is one is noted where no flag or word requests a sweep.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from lra.composition.combinations import expand, with_settings

    sweeper = master.hydra.sweeper
    folders = [Path(flags.config_dir)] if flags.config_dir else []
    params = (sweeper.params or {}).items()
    words = [expand_sets(f"{key}={value}", folders) for key, value in params]
    words += _words_of(master.hydra)
    parsed = OverridesParser.create(hydra.config_loader).parse_overrides(words)
    combinations = expand(parsed, sweeper.max_batch_size)
    if "task" not in {word.key_or_group for word in parsed[len(params) :]}:
        combinations = with_settings(combinations, hydra.config_loader)
    combinations = _fitted(combinations, hydra.config_loader)
    requested = flags.multirun or "hydra.mode=MULTIRUN" in flags.overrides
    if len(combinations) > 1 and not requested:
        note = f"{_preset(flags.overrides)} is a sweep of {len(combinations):,} runs, as with -m"
        hydra.config_loader.notes[f"{note}; --run makes one run of it"] = None
    return parsed, combinations


def _fitted(combinations: list[list[str]], loader: Any) -> list[list[str]]:
    """Return the combinations that their models can be, each once; what is left out is noted."""
    from lra.composition.mixer_words import MixerWords, about_mixers

    if not about_mixers(combinations):
        return combinations
    words = MixerWords(loader, combinations)
    fitted = [words.fitted(combination) for combination in combinations]
    unique = [*dict.fromkeys(tuple(line) for line in fitted if line is not None)]
    loader.notes |= dict.fromkeys(words.notes())
    return [[*line] for line in unique]


def _many(hydra: Any, master: Any, flags: argparse.Namespace) -> list[Composed]:
    from lra.composition.combinations import Composer
    from lra.composition.complaints import explained

    with explained(flags.overrides, flags.config_dir):
        parsed, combinations = _combinations(hydra, master, flags)
        composer = Composer(hydra.config_loader, master, parsed)
    composed, here, memo = [], str(Path.cwd()), Memo()
    for combination in counted(combinations, "composing combination"):
        with explained(combination, flags.config_dir):
            tree = composer.compose(combination)
        words = tuple(w for w in combination if not w.lstrip("+~").startswith(("hydra.", "hydra/")))
        composed.append(_entry(tree, words, flags.config_dir, here, memo))
    return composed


def _entry(
    tree: dict[str, Any],
    words: tuple[str, ...],
    config_dir: str | None,
    here: str,
    memo: Memo | None = None,
) -> Composed:
    if isinstance(tree.get("plugins"), str):  # one name needs no brackets
        tree = {**tree, "plugins": [tree["plugins"]]}
    check(tree, memo)
    place = {} if config_dir is None else {"config_dir": config_dir}
    if place or tree["plugins"]:
        place["folder"] = here
    name_plugins(tree["plugins"])
    return Composed(tree, words, place)
