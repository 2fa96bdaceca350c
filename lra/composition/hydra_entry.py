"""Make resolved configurations from the arguments of `lra run`, with the help of Hydra.

This module starts no run and writes no file. It collects all combinations of a sweep, so that other
code can list them, split them, and execute several at once. It refuses launchers and sweepers of
other packages, because these would start each combination themselves.
"""

import argparse
import os
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.types import IntervalSweep, Override
from hydra.types import RunMode
from hydra.version import VersionBase

from lra.composition import protocol, unread_options
from lra.composition.class_path import check_named, name_plugins
from lra.composition.combinations import (
    NEEDS_SEARCH,
    expand,
    is_range,
    with_first_seed,
    with_options,
    with_settings,
    with_trained,
)
from lra.composition.complaints import NO_PLUGINS, check_words, refusing_by_word
from lra.composition.composer import Composer
from lra.composition.configuration import check, long_forms
from lra.composition.display import explain, print_configurations
from lra.composition.extensions import chosen_packages, extensions
from lra.composition.files import Files, our_files
from lra.composition.run import Composed, Searched
from lra.composition.selection import expand_sets
from lra.composition.words import as_text, legible, read_word
from lra.conf.short_values import number_of, short
from lra.errors import ConfigError
from lra.runners.records import Memo
from lra.terminal.progress import still_running, with_progress

NO_SEARCH = "none"
MULTIRUN = ("-m", "--multirun")
INFO = ("all", "config", "defaults", "searchpath")
STEERING = ("Cc", "Cs", "Zl", "Zp")
"""Unicode categories of characters that no argument may contain, such as control characters."""
LONGEST_WORD = 10_000
"""The longest argument, in characters; Hydra would need seconds to read a longer one."""
BASIC = {"launcher": "BasicLauncher", "sweeper": "BasicSweeper"}
"""Hydra's own launcher and sweeper, which this module replaces; it refuses all others."""
VARIANTS = "variants"
"""Entry of a preset's `hydra.sweeper.params`: each line has arguments of further runs."""
PATH = "hydra.searchpath="


@still_running("reading the configuration", first_s=2.0, piped=False)
def entries(argv: Sequence[str], *, models: bool = True) -> list[Composed]:
    """Return a configuration for each run that the command line asks for.

    The list is empty if the command only prints something, as with --cfg or --hydra-help.

    Args:
        argv: The arguments of `lra run`.
        models: Whether to put options of files that have no effect in a run back to their defaults
            (see `lra.composition.unread_options`); this builds models, so it needs torch.

    Raises:
        ConfigError: A group, option or key is unknown, or an argument is malformed.
    """
    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise instead of exiting: the messages are ours
    flags = _parse_flags(argv)
    if flags.hydra_help:
        return []
    folders = [Path(flags.config_dir)] if flags.config_dir else []
    words = [legible(expand_sets(word, folders)) for word in long_forms(flags.overrides)]
    check_words(words, folders)
    configurations: list[Composed] = []
    try:
        with refusing_by_word(words):
            of_hydra = [word for word in words if _is_for_hydra(word)]
            flags.overrides = [word for word in words if word not in of_hydra]
            if flags.multirun:
                of_hydra.append("hydra.mode=MULTIRUN")
            asked = [word for word in of_hydra if not word.startswith(PATH)]
            composer = Composer(files_of(flags.config_dir, _read_search_path(of_hydra)), asked)
            flags.overrides = [*composer.in_place(flags.overrides)]
            runs, sweep, searched = _list_command_runs(composer, flags)
            if flags.info:
                explain(composer, flags.info, runs)
            elif flags.cfg:
                print_configurations(composer, flags, runs, sweep=sweep)
        if not flags.info and not flags.cfg:
            configurations = _compose_all(composer, runs, flags.config_dir, models=models)
        for note in dict.fromkeys(
            (*composer.notes, *protocol.notes([e.config for e in configurations]))
        ):
            print(f"lra: {note}", file=sys.stderr)
        return [entry._replace(searched=searched, several=sweep) for entry in configurations]
    finally:
        GlobalHydra.instance().clear()


def composed(runs: Sequence[Sequence[str]], place: Mapping[str, str]) -> list[Composed]:
    """Return the configurations of the trials of a search.

    Their arguments come from a stored search. A package that only they name is not imported: the
    user's command has to name it.

    Args:
        runs: The arguments of each run.
        place: Where files of the user's own are: see `lra.runners.records.Cell`.

    Raises:
        NotNamed: They name a package that no command of this process has named.
    """
    folder, user_folder = Path(place.get("folder", ".")), place.get("config_dir")
    config_dir = None if user_folder is None else str(folder / user_folder)
    with hydra_left_alone():
        os.environ["HYDRA_FULL_ERROR"] = "1"
        try:
            stored = _compose_all(Composer(files_of(config_dir)), runs, config_dir, check_named)
            return [e._replace(place=place) for e in stored]
        finally:
            GlobalHydra.instance().clear()


def only_entry(words: Sequence[str]) -> Composed:
    """Return the one configuration that words ask for.

    Raises:
        ConfigError: The arguments are wrong, or ask for several configurations.
    """
    with hydra_left_alone():
        results = entries(words)
    if len(results) != 1:
        raise ConfigError(
            f"got arguments that give {len(results)} configurations ({' '.join(words)}); wanted "
            "arguments that give one"
        )
    (result,) = results
    return result


@contextmanager
def hydra_left_alone() -> Iterator[None]:
    """Restore Hydra's global state at the end: the calling program may use Hydra itself."""
    hydra, config, version = GlobalHydra.instance(), HydraConfig.instance(), VersionBase.instance()
    before = hydra.hydra, config.cfg, version.version_base
    name = "HYDRA_FULL_ERROR"
    full = os.environ.get(name)
    try:
        yield
    finally:
        hydra.hydra, config.cfg, version.version_base = before
        if full is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = full


def files_of(config_dir: str | None, searched: Sequence[Path] = ()) -> Files:
    """Return the configuration files that arguments can choose from.

    Args:
        config_dir: A folder of the user's own, or None.
        searched: Further folders, from `hydra.searchpath`.
    """
    own = [] if config_dir is None else [Path(config_dir)]
    others = [*own, *extensions().values(), *searched]
    return Files(others) if others else our_files()


def _is_for_hydra(word: str) -> bool:
    """Return whether an argument is for Hydra itself."""
    return word.lstrip("+~").startswith(("hydra.", "hydra/"))


def _read_search_path(of_hydra: Sequence[str]) -> list[Path]:
    """Return the folders that `hydra.searchpath=[file:///some/folder]` names."""
    for word in of_hydra:
        read = read_word(word) if word.startswith(PATH) else None
        named = [] if read is None else read.value()
        if not isinstance(named, list) or not all(isinstance(name, str) for name in named):
            raise ConfigError(
                f"{short(word)}: wanted a list of folders, as in "
                "hydra.searchpath=[file:///some/folder]"
            )
        if named:
            return [Path(name.removeprefix("file://")) for name in named]
    return []


class _Words(argparse.ArgumentParser):
    """The parser of `lra run`, which raises ConfigError in place of printing its usage."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; `lra run --help` shows how to write the arguments")


def _parse_flags(argv: Sequence[str]) -> argparse.Namespace:
    """Return the flags, such as -m, and the other arguments; their order is free."""
    parser = _Words(prog="lra run", add_help=False, allow_abbrev=False)
    say = parser.add_argument
    say(
        "overrides",
        nargs="*",
        metavar="KEY=VALUE",
        help="choices of YAML files (model=linear) and values (optim.steps=500)",
    )
    say("--hydra-help", action="store_true", help="these lines")
    say(
        "--cfg",
        "-c",
        choices=["job", "hydra", "all"],
        help="print the configuration of each run, and start no run",
    )
    say("--resolve", action="store_true", help="replace references by values in what --cfg prints")
    say("--package", "-p", help="print only this key of what --cfg would print")
    say(
        "--info",
        "-i",
        nargs="?",
        const="all",
        choices=INFO,
        help="print the files from which the values of the first run come, and start no run",
    )
    say(
        "--run", "-r", action="store_true",
        help="execute a single run, even if the preset describes a sweep",
    )  # fmt: skip
    say("--multirun", "-m", action="store_true", help="run a sweep of all combinations of values")
    say("--config-dir", "-cd", help="a folder with your YAML files")
    flags = parser.parse_intermixed_args(argv)
    if flags.hydra_help:
        parser.print_help()
    for word in (*flags.overrides, flags.config_dir or ""):
        if len(word) > LONGEST_WORD or any(unicodedata.category(char) in STEERING for char in word):
            raise ConfigError(
                f"{short(ascii(word))}: wanted an argument of at most {LONGEST_WORD:,} printable "
                "characters"
            )
    if flags.config_dir is not None and not Path(flags.config_dir).is_dir():
        raise ConfigError(
            f"--config-dir: {flags.config_dir} is not a folder; give the path of a folder with "
            "YAML files"
        )
    if not flags.cfg and (flags.resolve or flags.package is not None):
        given = "--resolve" if flags.resolve else f"--package {short(flags.package)}"
        raise ConfigError(f"{given} has no effect without --cfg; add it, as in lra run --cfg job")
    for flag, other in (("run", "multirun"), ("cfg", "info")):
        if getattr(flags, flag) and getattr(flags, other):
            raise ConfigError(f"got both --{flag} and --{other}; give only one of them")
    return flags


def _list_command_runs(
    composer: Composer, flags: argparse.Namespace
) -> tuple[list[list[str]], bool, Searched | None]:
    """Return the arguments of each run, whether these are a sweep, and the search if it is one.

    A command is a sweep with -m, if an argument or a file sets `hydra.mode`, or if its preset names
    what is swept and `--run` does not ask for a single run. A note tells the user about a sweep or
    a search that no argument asks for.
    """
    hydra = composer.own_part(flags.overrides).hydra
    _check_basic(hydra)
    parsed = [composer.parse(word) for word in flags.overrides]
    several = [str(word.input_line) for word in parsed if word.is_sweep_override()]
    params, mode = hydra.sweeper.params or {}, hydra.mode
    preset = _name_preset(flags.overrides)
    searches = (hydra.runtime.choices.get("search") or NO_SEARCH) != NO_SEARCH
    if searches and not flags.run:
        runs, searched = _list_arms(composer, flags, hydra, parsed)
        if not any(word.startswith("search=") for word in flags.overrides):
            note = f"{preset} is a search that tunes {number_of(len(runs), 'arm')} separately"
            composer.notes[f"{note}; --run makes one run of it"] = None
        return runs, True, searched
    if not searches and (lost := [word for word in flags.overrides if word.startswith("search.")]):
        raise ConfigError(
            f"{lost[0]} has no effect, because this command is not a search; add search=halton, "
            "or remove this argument"
        )
    if mode is not RunMode.MULTIRUN and (mode is not None or flags.run or not params):
        if ranged := [w.input_line for w in parsed if isinstance(w.value(), IntervalSweep)]:
            raise ConfigError(f"{ranged[0]}: {NEEDS_SEARCH}")
        if several:
            raise ConfigError(
                f"{short(several[0])}: several values need a sweep. Add -m to run a sweep. Use "
                "brackets if you mean one list, or write "
                f"{short(as_text(several[0].partition('=')[2]))} if you mean one text"
            )
        if flags.run and params:
            composer.notes[f"{preset} is a sweep; --run makes one run of it"] = None
        return [flags.overrides], False, None
    runs = _list_combinations(composer, flags, hydra, parsed)
    requested = "hydra.mode=MULTIRUN" in composer.of_hydra
    if len(runs) > 1 and not requested:
        note = f"{preset} is a sweep of {number_of(len(runs), 'run')}, even without -m"
        composer.notes[f"{note}; --run makes one run of it"] = None
    return runs, True, None


def _list_arms(
    composer: Composer, flags: argparse.Namespace, hydra: Any, typed: Sequence[Override]
) -> tuple[list[list[str]], Searched]:
    """Return the arguments of each arm of a search, and the ranges that it searches over.

    `hydra` is the part of this name of the configuration; the user typed the arguments `typed`.
    """
    every = [*_expand_preset(composer, flags, hydra), *typed]
    ranged = [word for word in every if is_range(word)]
    ranges = {word.key_or_group: str(word.input_line).partition("=")[2] for word in ranged}
    lists = [
        w.key_or_group for w in every if w.is_sweep_override() and w.key_or_group not in ranges
    ]
    fixed = {w.key_or_group for w in typed if not is_range(w)}
    if both := next((key for key in ranges if key in fixed), None):
        raise ConfigError(
            f"{both}: got both a value and a range for this option; remove one of the two, "
            "because a search needs only one"
        )
    runs = _list_combinations(composer, flags, hydra, typed, ranged)
    options = composer.compose(runs[0])["search"]
    # The preset chooses the search, and the arguments of a cell contain the preset: search=none
    # lets them stand for one run when somebody repeats that cell.
    named = any(word.startswith("search=") for word in flags.overrides)
    none = [] if named else [f"search={NO_SEARCH}"]
    arms = [[w for w in run if not w.startswith(("search=", "search."))] + none for run in runs]
    return arms, Searched(options["name"], options, ranges, tuple(lists))


def _expand_preset(composer: Composer, flags: argparse.Namespace, hydra: Any) -> list[Override]:
    """Return what a preset sweeps over, as arguments."""
    folders = [Path(flags.config_dir)] if flags.config_dir else []
    return [
        composer.parse(expand_sets(f"{key}={value}", folders))
        for key, value in (hydra.sweeper.params or {}).items()
        if key != VARIANTS
    ]


def _list_variants(
    composer: Composer, hydra: Any, typed: Sequence[Override]
) -> Iterator[list[Override]]:
    """Yield the arguments of each line of a preset's `variants`, which only scale=full runs.

    A typed argument wins over the same argument of a line. A line is skipped if it is about other
    tasks than those typed, or if nothing but the task is left of it.
    """
    lines = str((hydra.sweeper.params or {}).get(VARIANTS, "")).splitlines()
    keys = {word.key_or_group for word in typed}
    tasks = {str(value) for word in typed if word.key_or_group == "task" for value in _values(word)}
    for line in lines if hydra.runtime.choices.get("scale") == "full" else ():
        words = [composer.parse(word) for word in line.split()]
        of_task = [str(value) for w in words if w.key_or_group == "task" for value in _values(w)]
        chosen = [name for name in of_task if not tasks or name in tasks]
        others = [word for word in words if word.key_or_group not in {*keys, "task"}]
        if others and (chosen or not of_task):
            yield [composer.parse(f"task={name}") for name in [",".join(chosen)] if name] + others


def _values(word: Override) -> list[Any]:
    """Return the values of an argument, of which there is one or a list."""
    return [*word.sweep_iterator()] if word.is_sweep_override() else [word.value()]


def _list_combinations(
    composer: Composer,
    flags: argparse.Namespace,
    hydra: Any,
    typed: Sequence[Override],
    ranged: Sequence[Override] = (),
) -> list[list[str]]:
    """Return the arguments of each combination of a sweep, without those in `ranged`."""
    swept = [word for word in _expand_preset(composer, flags, hydra) if word not in ranged]
    typed = [word for word in typed if word not in ranged]
    runs = expand([*swept, *typed])
    untyped = [word for word in typed if word.key_or_group != "task"]
    for words in _list_variants(composer, hydra, typed):
        runs += expand([*swept, *untyped, *words])
    if "task" not in {word.key_or_group for word in typed}:
        runs = with_settings(runs, composer)
    if {"protocol", "model"} <= {word.key_or_group for word in swept}:
        runs = with_trained(runs, composer)
    if "seed" in {word.key_or_group for word in swept} - {word.key_or_group for word in typed}:
        runs = with_first_seed(runs)
    runs = [[word for word in run if not _is_for_hydra(word)] for run in runs]
    return with_options(runs, composer)


def _name_preset(words: Sequence[str]) -> str:
    """Return the last argument that chooses a preset or a protocol, for messages."""
    presets = [word for word in words if word.startswith(("+experiment=", "+protocol="))]
    return presets[-1] if presets else "this configuration"


def _check_basic(hydra: Any) -> None:
    """Raise ConfigError if Hydra's part sets a launcher, sweeper or callback of another package."""
    for part, basic in BASIC.items():
        node = hydra[part]
        if not isinstance(node, Mapping) or "_target_" not in node:
            raise ConfigError(
                f"hydra.{part}: got {node!r}; wanted a mapping that contains the key _target_"
            )
        if (target := str(node["_target_"])).rpartition(".")[2] != basic:
            raise ConfigError(f"hydra.{part}: got {short(target)}; {NO_PLUGINS}")
    if hydra.callbacks:
        raise ConfigError("hydra.callbacks: lra ignores callbacks of Hydra; remove this key")


def _compose_all(
    composer: Composer,
    runs: Sequence[Sequence[str]],
    config_dir: str | None,
    see_plugins: Callable[[Sequence[str]], None] = name_plugins,
    *,
    models: bool = True,
) -> list[Composed]:
    """Compose and check the configuration of each run.

    Args:
        composer: Of the command.
        runs: The arguments of each run.
        config_dir: A folder of the user's own files, or None.
        see_plugins: Gets the packages that a configuration names.
        models: See `entries`.
    """
    results, here, memo = list[Composed](), str(Path.cwd()), Memo()
    pairs = list[tuple[Any, Any]]()  # each configuration before and after `without_unread`
    place = {} if config_dir is None else {"config_dir": config_dir}
    for number, words in enumerate(with_progress(runs, "composing combination")):
        with refusing_by_word(words):
            tree = composer.resolved(words, number)
        tree = {key: value for key, value in tree.items() if key != "search"}
        if isinstance(tree.get("plugins"), str):  # one name needs no brackets
            tree = {**tree, "plugins": [tree["plugins"]]}
        if packages := [name for name in chosen_packages(tree) if name not in tree["plugins"]]:
            tree = {**tree, "plugins": [*tree["plugins"], *packages]}
        check(tree, memo)
        see_plugins(tree["plugins"])
        pairs.append((tree, unread_options.without_unread(tree, words, memo) if models else tree))
        _, tree = pairs[-1]
        # The current folder matters only if the run has files or packages of the user.
        run_place = {**place, "folder": here} if place or tree["plugins"] else place
        results.append(Composed(tree, tuple(words), run_place))
    composer.notes |= dict.fromkeys(unread_options.notes(pairs))
    return results
