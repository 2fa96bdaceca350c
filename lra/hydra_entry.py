"""The words after `lra run`, through Hydra, to resolved configurations.

With Hydra's own sweeper and launcher nothing is executed here and nothing is written: the
combinations are collected, so that the sweep as a whole can be listed, split and run side by side.
Any other launcher (SLURM, …) is called as Hydra calls it, with each combination in a process of its
own, where the collected entry is executed at once.
"""

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, cast

from lra import guard
from lra.configuration import ConfigError, check
from lra.own_options import own_options
from lra.progress import counted
from lra.suggest import unknown

MULTIRUN = ("-m", "--multirun")
LONGEST_WORD = 10_000
"""Characters; a longer one would take Hydra seconds to read."""
BASIC = ("hydra._internal.core_plugins.basic_launcher.BasicLauncher",
         "hydra._internal.core_plugins.basic_sweeper.BasicSweeper")  # fmt: skip
"""What may be replaced by collecting."""


class Entry(NamedTuple):
    """One combination of choices."""

    config: dict[str, Any]
    """Parts of it may be those of other entries: nothing may change them."""
    overrides: tuple[str, ...]
    place: Mapping[str, str] = {}
    """Where files of the user's own are: see `runners.records.Cell`."""


def entries(argv: Sequence[str], execute: Callable[[list[Entry]], object]) -> list[Entry]:
    """Return what the command line asks for; empty where Hydra only printed something.

    Args:
        argv: The words after `lra run`.
        execute: Called at once, instead of collecting, under a launcher other than Hydra's own.

    Raises:
        ConfigError: unknown group, option, key, or malformed words, with near matches.
    """
    from hydra import version
    from hydra.core.global_hydra import GlobalHydra

    from lra.complaints import explained
    from lra.repository import hydra_of

    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise instead of exiting: the messages are ours
    version.setbase("1.3")
    parser, flags = _flags(argv)
    try:
        with explained(flags.overrides, flags.config_dir):
            hydra = hydra_of(flags.config_dir)
            if _printed(hydra, parser, flags):
                return []
            mode, master = _master(hydra, flags)
        if mode == "RUN":
            return _one(master, flags)
        hydra_words = [*flags.overrides, "hydra.mode=MULTIRUN"]
        if not _is_basic(master):
            _check_plugins(master)
            with explained(flags.overrides, flags.config_dir, all_errors=False):
                hydra.multirun(flags.config_name, _job(execute, flags.config_dir), hydra_words)
            return []
        return _many(hydra, master, flags)
    finally:
        GlobalHydra.instance().clear()


class _Words(argparse.ArgumentParser):
    """Hydra's flags, refused in one line."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}; `lra run --help` shows how a command is spelt")


def _flags(argv: Sequence[str]) -> tuple[argparse.ArgumentParser, argparse.Namespace]:
    """Return Hydra's flags and the words beside them, wherever each of them stands."""
    from hydra._internal.utils import get_args_parser

    parser = _Words(prog="lra run", parents=[get_args_parser()], add_help=False)
    flags = parser.parse_intermixed_args(argv)
    for word in (*flags.overrides, flags.config_dir or "", flags.config_name or ""):
        if len(word) > LONGEST_WORD or not word.isprintable():
            raise ConfigError(
                f"{word[:60]!a}: wanted at most {LONGEST_WORD:,} characters, all printable"
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
    asked = [flags.run, flags.multirun, flags.cfg, flags.info, flags.shell_completion]
    if sum(map(bool, asked)) > 1:
        raise ConfigError("give one of --run, --multirun, --cfg, --info and --shell-completion")
    flags.config_name = flags.config_name or "config"
    return parser, flags


def _printed(hydra: Any, parser: argparse.ArgumentParser, flags: argparse.Namespace) -> bool:
    """Have Hydra print what the flags ask for; return whether they did."""
    if flags.hydra_help:
        hydra.hydra_help(flags.config_name, args_parser=parser, args=flags)
    elif flags.cfg:
        hydra.show_cfg(
            flags.config_name, flags.overrides, flags.cfg, flags.package, resolve=flags.resolve
        )
    elif flags.info:
        hydra.show_info(flags.info, flags.config_name, flags.overrides)
    elif flags.shell_completion:
        hydra.shell_completion(flags.config_name, flags.overrides)
    else:
        return False
    return True


def _master(hydra: Any, flags: argparse.Namespace) -> tuple[str, Any]:
    """Return RUN or MULTIRUN, and the configuration of the run, or of the sweep as a whole.

    Besides the flag, a word or a file may say `hydra.mode`.
    """
    from hydra.types import RunMode

    def load(mode: RunMode) -> Any:
        return hydra.config_loader.load_configuration(
            flags.config_name, [*flags.overrides, f"hydra.mode={mode.name}"], mode
        )

    if flags.multirun or "hydra.mode=MULTIRUN" in flags.overrides:
        return "MULTIRUN", load(RunMode.MULTIRUN)
    one = hydra.config_loader.load_configuration(flags.config_name, flags.overrides, RunMode.RUN)
    if one.hydra.mode is RunMode.MULTIRUN:
        return "MULTIRUN", load(RunMode.MULTIRUN)
    one.hydra.mode = RunMode.RUN
    return "RUN", one


def _is_basic(master: Any) -> bool:
    targets = {_target(master, "launcher"), _target(master, "sweeper")}
    return targets == {*BASIC} and not master.hydra.callbacks


def _target(master: Any, part: str) -> str:
    """Return the class that a part of Hydra names."""
    node = master.hydra[part]
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise ConfigError(f"hydra.{part}: got {node!r}; wanted a mapping with _target_")
    return str(node["_target_"])


def _check_plugins(master: Any) -> None:
    """Refuse a launcher or a sweeper that is not installed. Raises ConfigError."""
    from hydra.core.plugins import Plugins
    from hydra.plugins.launcher import Launcher
    from hydra.plugins.sweeper import Sweeper

    plugins = Plugins.instance()
    for part, kind in (("launcher", Launcher), ("sweeper", Sweeper)):
        known = [f"{found.__module__}.{found.__name__}" for found in plugins.discover(kind)]
        target = _target(master, part)
        if target not in known:
            raise ConfigError(f"hydra.{part}._target_: " + unknown("plug-in", target, known))


def _one(master: Any, flags: argparse.Namespace) -> list[Entry]:
    from lra.combinations import resolved
    from lra.complaints import explained

    with explained(flags.overrides, flags.config_dir):
        tree = resolved(master)
    return [_entry(tree, _words_of(master.hydra), flags.config_dir, str(Path.cwd()))]


def _words_of(hydra: Any) -> tuple[str, ...]:
    """Return the words that are not for Hydra itself, as they were given."""
    from omegaconf import OmegaConf

    words = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    return tuple(cast(list[str], words))


def _many(hydra: Any, master: Any, flags: argparse.Namespace) -> list[Entry]:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from lra.combinations import Composer, expand
    from lra.complaints import explained

    with explained(flags.overrides, flags.config_dir):
        sweeper = master.hydra.sweeper
        words = [f"{key}={value}" for key, value in (sweeper.params or {}).items()]
        words += _words_of(master.hydra)
        parsed = OverridesParser.create(hydra.config_loader).parse_overrides(words)
        combinations = expand(parsed, sweeper.max_batch_size)
        composer = Composer(hydra.config_loader, master, parsed)
    found, here = [], str(Path.cwd())
    for combination in counted(combinations, "composing combination"):
        with explained(combination, flags.config_dir):
            tree = composer.compose(combination)
        own = tuple(w for w in combination if not w.lstrip("+~").startswith(("hydra.", "hydra/")))
        found.append(_entry(tree, own, flags.config_dir, here))
    return found


def _job(execute: Callable[[list[Entry]], object], config_dir: str | None) -> Callable[[Any], None]:
    """Return what Hydra calls in each process of another launcher, wherever that starts."""
    here = str(Path.cwd())

    def job(config: Any) -> None:
        guard.see(here)
        from hydra.core.hydra_config import HydraConfig
        from omegaconf import OmegaConf

        from lra.complaints import explained

        words = _words_of(HydraConfig.get())
        with explained(words, None):
            tree = cast(dict[str, Any], OmegaConf.to_container(config, resolve=True))
        execute([_entry(tree, words, config_dir, here)])

    return job


def _entry(
    tree: dict[str, Any], words: tuple[str, ...], config_dir: str | None, here: str
) -> Entry:
    if isinstance(tree.get("plugins"), str):  # one name needs no brackets
        tree = {**tree, "plugins": [tree["plugins"]]}
    check(tree)
    place = {} if config_dir is None else {"config_dir": config_dir}
    if place or tree["plugins"]:
        place["folder"] = here
    return Entry(own_options(tree, words), words, place)
