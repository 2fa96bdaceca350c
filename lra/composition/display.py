"""`--cfg` and `--info`: what runs, printed instead of run, for one run or a whole sweep."""

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
"""Documents of one command; each takes Hydra a tenth of a second."""


def print_configurations(
    composer: Composer, flags: argparse.Namespace, runs: Sequence[Sequence[str]], *, sweep: bool
) -> None:
    """Print one YAML document for each run; of a sweep each is headed by its words.

    Args:
        composer: What composes them.
        flags: `cfg` says which part, `package` a place in it; `resolve` puts values in the place
            of references.
        runs: The words of each.
        sweep: Whether it is one.
    """
    for number, words in enumerate(runs[:MOST]):
        if sweep:
            print(f"---\n# {number + 1} of {len(runs)}: {shlex.join(words)}")
        sys.stdout.write(_document(composer, flags, words))
    if len(runs) > MOST:
        print(
            f"# … and {len(runs) - MOST:,} more. To see them, narrow the sweep, or list all "
            "runs by runner.dry_run=true"
        )


def explain(composer: Composer, what: str, runs: Sequence[Sequence[str]]) -> None:
    """Print where files are, which ones a run is made of, and what it is; of a sweep the first."""
    if len(runs) > 1:
        note = f"--info explains the first of {len(runs):,} combinations: {shlex.join(runs[0])}"
        composer.notes[note] = None
    if what in ("searchpath", "all"):
        print("# Folders of files; of two files with one name, the first is read:")
        print(*composer.files.folders, sep="\n")
    if what in ("defaults", "all"):
        print("# Files in order; later files override earlier ones:")
        print(*composer.sources(runs[0]), sep="\n")
    if what in ("config", "all"):
        print("# The resulting configuration:")
        sys.stdout.write(OmegaConf.to_yaml(OmegaConf.create(_fitted(composer, runs[0]))))


def _fitted(composer: Composer, words: Sequence[str]) -> dict[str, Any]:
    """Return the configuration of one run, and of a search."""
    tree = composer.compose(words)
    return tree | without_unread({k: v for k, v in tree.items() if k != "search"}, words, Memo())


def _document(composer: Composer, flags: argparse.Namespace, words: Sequence[str]) -> str:
    """Return a configuration, or what lies at a place in it, as YAML."""
    config = composer.whole(words, _fitted(composer, words))
    HydraConfig.instance().set_config(config)  # what `${hydra:...}` refers to
    OmegaConf.set_readonly(config.hydra, None)
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
