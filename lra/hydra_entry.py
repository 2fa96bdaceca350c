"""The words after `lra run`, through Hydra, to resolved configurations.

Hydra's basic launcher calls the job function once per combination; it only collects, so that the
sweep as a whole can be listed, split and run side by side. Any other launcher (SLURM, …) calls it
in a process of its own, where the collected entry is executed at once.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lra.compose import ConfigError
from lra.listing import names
from lra.suggest import near, unknown

MULTIRUN = ("-m", "--multirun")


class Entry(NamedTuple):
    """One combination of choices."""

    config: dict[str, Any]
    overrides: tuple[str, ...]


def entries(argv: Sequence[str], execute: Callable[[list[Entry]], object]) -> list[Entry]:
    """Return what the command line asks for; empty where Hydra only printed something.

    Args:
        argv: The words after `lra run`.
        execute: Called at once, instead of collecting, under a launcher other than Hydra's own.

    Raises:
        ConfigError: unknown group, option, key, or malformed words, with near matches.
    """
    import hydra
    from hydra.core.hydra_config import HydraConfig
    from hydra.errors import HydraException

    os.environ["HYDRA_FULL_ERROR"] = "1"  # raise instead of exiting: the messages are ours
    collected: list[Entry] = []
    refused: list[ConfigError] = []

    def job(config: Any) -> None:
        runtime = HydraConfig.get()
        words = tuple(runtime.overrides.task)
        here = runtime.launcher._target_.endswith("BasicLauncher")
        try:
            entry = Entry(own_options(_resolved(config), words), words)
        except ConfigError as error:
            if not here:  # this is another process: only the launcher can tell
                raise
            refused.append(error)  # raised below: Hydra would print lines of its own about it
            return
        if here:
            collected.append(entry)
        else:
            execute([entry])

    main = hydra.main(version_base="1.3", config_path="pkg://conf", config_name="config")(job)
    before = sys.argv
    # Hydra takes flags before or after the overrides, not among them.
    flags = [word for word in argv if word in MULTIRUN]
    sys.argv = ["lra", *flags, *(word for word in argv if word not in MULTIRUN)]
    try:
        main()
    except HydraException as error:
        raise ConfigError(_explain(error, argv)) from error
    finally:
        sys.argv = before
    if refused:
        raise refused[0]
    return collected


def _resolved(config: Any) -> dict[str, Any]:
    """Return Hydra's configuration as plain values."""
    try:
        tree = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(str(error)) from error
    if not isinstance(tree, dict):
        raise ConfigError(f"the configuration is no mapping: got {type(tree).__name__}")
    return {str(k): v for k, v in tree.items()}


def own_options(config: dict[str, Any], words: Sequence[str]) -> dict[str, Any]:
    """Apply what `per_model`, `per_task`, `per_runner` and `for_task` hold for what is chosen.

    A preset that sweeps over models, tasks or runners uses the first three to give one of these its
    own options; a protocol says by `for_task` what a task asks of every group. What the command
    line names itself wins.
    """
    by_hand = {word.split("=", 1)[0].lstrip("+~") for word in words}

    def apply(node: dict[str, Any], own: Any, path: str) -> None:
        if not isinstance(own, dict):
            raise ConfigError(f"{path}: got {own!r}; wanted a mapping of options")
        for key, value in own.items():
            if f"{path}.{key}" in by_hand:
                continue
            if isinstance(value, dict) and isinstance(node.get(key), dict):
                apply(node[key], value, f"{path}.{key}")
            else:
                node[key] = value

    for group in ("model", "task", "runner"):
        table: Mapping[str, Any] = config[f"per_{group}"] or {}
        _check_names(f"per_{group}", table, group, config)
        apply(config[group], table.get(str(config[group]["name"]), {}), group)
        config[f"per_{group}"] = {}
    protocol: Mapping[str, Any] = config["for_task"] or {}
    _check_names("for_task", protocol, "task", config)
    name = str(config["task"]["name"])
    if protocol and name not in protocol:
        raise ConfigError(
            f"for_task: this protocol has no settings for task={name}; it has them for "
            f"{', '.join(protocol)}"
        )
    for group, own in protocol.get(name, {}).items():
        apply(config[group], own, group)
    config["for_task"] = {}
    return config


def _check_names(
    where: str, table: Mapping[str, Any], group: str, config: Mapping[str, Any]
) -> None:
    known = names(group)
    for name in table:
        if name not in known and name != config[group]["name"]:
            raise ConfigError(f"{where}: " + unknown(group, str(name), known))


def _explain(error: Exception, argv: Sequence[str]) -> str:
    """Return Hydra's complaint with the near matches of the name that it could not place."""
    options = getattr(error, "options", None)
    missing = getattr(error, "missing_cfg_file", None)
    if missing:
        group, _, name = str(missing).rpartition("/")
        if group and options is not None:
            return unknown(group, name, [str(option) for option in options])
    text = str(error)
    found = re.search(r"Could not override '([^']+)'|Key '([^']+)' is not in", text)
    if found:
        key = found.group(1) or found.group(2)
        known = _keys(argv)
        matches = near(key, known) or near(key, [k.rpartition(".")[2] for k in known])
        hint = f": did you mean {' or '.join(map(repr, matches))}?" if matches else "."
        siblings = [k for k in known if k.startswith(key.rpartition(".")[0] + ".")]
        listing = f" Known here: {', '.join(sorted(siblings)[:30])}." if siblings else ""
        return (
            f"unknown key {key!r}{hint}{listing} `lra run --cfg job` prints every key "
            "of the composed configuration."
        )
    return "\n".join(line for line in text.splitlines() if line.strip())[:2000]


def _keys(argv: Sequence[str]) -> list[str]:
    """Return every key, with dots, of the groups that `argv` chooses; of a sweep, the first."""
    from hydra import compose, initialize_config_module
    from hydra.core.global_hydra import GlobalHydra

    chosen = []
    for word in argv:
        group, _, choice = word.partition("=")
        name = choice.split(",")[0]
        if group.isidentifier() and name in names(group):
            chosen.append(f"{group}={name}")
    GlobalHydra.instance().clear()
    with initialize_config_module("conf", version_base="1.3"):
        tree = OmegaConf.to_container(compose("config", chosen), resolve=False)
    GlobalHydra.instance().clear()
    keys: list[str] = []

    def walk(node: Any, prefix: str) -> None:
        for key, value in node.items():
            keys.append(prefix + str(key))
            if isinstance(value, dict):
                walk(value, f"{prefix}{key}.")

    walk(tree, "")
    return keys
