"""`lra run --cfg` and `--info`: print the configurations of a command, and start no run."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import OmegaConf

from lra.composition.composer import Composer
from lra.composition.unread_options import without_unread
from lra.errors import ConfigError, unknown
from lra.runners.records import Memo

MOST = 100
"""The most configurations that one command prints; each takes Hydra a tenth of a second."""


def print_configurations(
    composer: Composer, flags: argparse.Namespace, runs: Sequence[Sequence[str]], *, sweep: bool
) -> None:
    """Print one YAML document for each run; in a sweep, its arguments precede it.

    Args:
        composer: Composes the configurations.
        flags: `cfg` says which part to print, and `package` a key in it; `resolve`: replace
            references by their values.
        runs: The arguments of each run.
        sweep: Whether the runs are a sweep.
    """
    for number, words in enumerate(runs[:MOST]):
        if sweep:
            print(f"---\n# run {number + 1} of {len(runs)}: {shlex.join(words)}")
        sys.stdout.write(_write_document(composer, flags, words))
    if len(runs) > MOST:
        print(
            f"# … and {len(runs) - MOST:,} more runs. To see their configurations, make the sweep "
            "smaller; runner.dry_run=true lists all runs"
        )


def explain(composer: Composer, what: str, runs: Sequence[Sequence[str]]) -> None:
    """Print the folders of files, the files of the first run, and its configuration.

    Args:
        composer: Composes the configuration.
        what: The part to print: `searchpath`, `defaults`, `config`, or `all` of them.
        runs: The arguments of each run.
    """
    if len(runs) > 1:
        note = f"--info explains the first of {len(runs):,} combinations: {shlex.join(runs[0])}"
        composer.notes[note] = None
    if what in ("searchpath", "all"):
        print("# lra reads files from these folders; if two have the same file, the first wins:")
        print(*composer.files.folders, sep="\n")
    if what in ("defaults", "all"):
        print("# lra merges these files in this order; a later file overrides an earlier one:")
        print(*composer.sources(runs[0]), sep="\n")
    if what in ("config", "all"):
        print("# The resulting configuration:")
        sys.stdout.write(OmegaConf.to_yaml(OmegaConf.create(_compose_run(composer, runs[0]))))


def _compose_run(composer: Composer, words: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of one run without unread options, and with the part `search`."""
    tree = composer.compose(words)
    return tree | without_unread({k: v for k, v in tree.items() if k != "search"}, words, Memo())


def _write_document(composer: Composer, flags: argparse.Namespace, words: Sequence[str]) -> str:
    """Return the configuration of one run, or the part that `flags` choose, as YAML."""
    config = composer.whole(words, _compose_run(composer, words))
    HydraConfig.instance().set_config(config)  # needed to resolve `${hydra:...}`
    OmegaConf.set_readonly(config.hydra, None)  # otherwise nothing in it could be resolved
    if flags.resolve:
        OmegaConf.resolve(config)
    if flags.cfg != "all":
        of_hydra = flags.cfg == "hydra"
        keys = [str(key) for key in config if (key == "hydra") is of_hydra]
        config = OmegaConf.masked_copy(config, keys)
    if flags.package in (None, "_global_"):
        return OmegaConf.to_yaml(config)
    node: Any = OmegaConf.select(config, flags.package)
    if node is None:
        raise ConfigError("--package: " + unknown("package", flags.package, map(str, config)))
    if not OmegaConf.is_config(node):
        return f"{node}\n"
    return f"# @package {flags.package}\n{OmegaConf.to_yaml(node)}"
