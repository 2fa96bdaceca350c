"""`--cfg` and `--info`: what runs, printed instead of run, for one run or a whole sweep."""

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, OmegaConf

from lra.errors import ConfigError, unknown

MOST = 100
"""Documents of one command; each takes Hydra a tenth of a second."""


def print_configurations(
    hydra: Any,
    flags: argparse.Namespace,
    master: DictConfig,
    combinations: Sequence[Sequence[str]] | None,
) -> None:
    """Print one YAML document; of a sweep one for each combination, headed by its words.

    Args:
        hydra: Hydra.
        flags: `cfg` says which part, `package` a place in it; `resolve` puts values in the place
            of references.
        master: The configuration of the run, or of the sweep as a whole.
        combinations: The words of each run of the sweep; None where there is one run.
    """
    if combinations is None:
        sys.stdout.write(_document(hydra, flags, master))
        return
    for number, words in enumerate(combinations[:MOST]):
        config = hydra.config_loader.load_sweep_config(master, list(words))
        print(f"---\n# {number + 1} of {len(combinations)}: {shlex.join(words)}")
        sys.stdout.write(_document(hydra, flags, config))
    if len(combinations) > MOST:
        print(
            f"# … and {len(combinations) - MOST:,} more: narrow the sweep to see them, or list "
            "the cells by runner.dry_run=true"
        )


def explain(
    hydra: Any, flags: argparse.Namespace, combinations: Sequence[Sequence[str]] | None
) -> None:
    """Have Hydra explain how a run is composed; of a sweep the first, and say so."""
    words = list(flags.overrides)
    if combinations:
        words = list(combinations[0])
        if len(combinations) > 1:
            hydra.config_loader.notes[
                f"--info explains the first of {len(combinations):,} combinations: "
                f"{shlex.join(words)}"
            ] = None
    hydra.show_info(flags.info, flags.config_name, words)


def _document(hydra: Any, flags: argparse.Namespace, config: DictConfig) -> str:
    """Return a configuration, or what lies at a place in it, as YAML."""
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
