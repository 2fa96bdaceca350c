"""`--cfg` and `--info`: what runs, printed instead of run, for one run or a whole sweep."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import OmegaConf, open_dict

from lra.composition.giving_way import fitting
from lra.errors import ConfigError, unknown
from lra.runners.records import Memo

MOST = 100
"""Documents of one command; each takes Hydra a tenth of a second."""


def print_configurations(
    hydra: Any, flags: argparse.Namespace, runs: Sequence[Sequence[str]], *, sweep: bool
) -> None:
    """Print one YAML document for each run; of a sweep each is headed by its words.

    Args:
        hydra: Hydra.
        flags: `cfg` says which part, `package` a place in it; `resolve` puts values in the place
            of references.
        runs: The words of each.
        sweep: Whether it is one.
    """
    for number, words in enumerate(runs[:MOST]):
        if sweep:
            print(f"---\n# {number + 1} of {len(runs)}: {shlex.join(words)}")
        sys.stdout.write(_document(hydra, flags, words))
    if len(runs) > MOST:
        print(
            f"# … and {len(runs) - MOST:,} more: narrow the sweep to see them, or list the cells "
            "by runner.dry_run=true"
        )


def explain(hydra: Any, flags: argparse.Namespace, runs: Sequence[Sequence[str]]) -> None:
    """Have Hydra explain how a run is composed; of a sweep the first, and say so."""
    if len(runs) > 1:
        note = f"--info explains the first of {len(runs):,} combinations: {shlex.join(runs[0])}"
        hydra.config_loader.notes[note] = None
    of_hydra = hydra.config_loader.words_of_hydra
    hydra.show_info(flags.info, flags.config_name, [*of_hydra, *runs[0]])


def _document(hydra: Any, flags: argparse.Namespace, words: Sequence[str]) -> str:
    """Return a configuration, or what lies at a place in it, as YAML."""
    loader = hydra.config_loader
    config = loader.load_configuration(
        flags.config_name, [*loader.words_of_hydra, *words], RunMode.RUN
    )
    tree = loader.compose(words)
    with open_dict(config):
        config.merge_with(fitting({k: v for k, v in tree.items() if k != "search"}, words, Memo()))
    HydraConfig.instance().set_config(config)  # what `${hydra:...}` refers to
    OmegaConf.set_readonly(config.hydra, None)
    printed = hydra.get_sanitized_cfg(config, flags.cfg)
    head = ""
    if flags.package not in (None, "_global_"):
        node: Any = OmegaConf.select(printed, flags.package)
        if node is None:
            raise ConfigError(
                "--package: " + unknown("package", flags.package, [str(key) for key in printed])
            )
        if not OmegaConf.is_config(node):
            return f"{node}\n"
        printed, head = node, f"# @package {flags.package}\n"
    if flags.resolve:
        OmegaConf.resolve(printed)
    return head + OmegaConf.to_yaml(printed)
