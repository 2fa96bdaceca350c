"""The kinds of runner, and how a sweep treats the cells of each.

A new runner is a module in `runners/` with its options as a dataclass, a file in `conf/runner/`, an
entry here, and a function in `lra/sweep/streams.py` that hands it what it needs.
"""

import importlib
from dataclasses import dataclass
from typing import Any

from lra.suggest import UnknownName, unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a sweep must know about a runner; nothing of it changes a number."""

    module: str
    """The runner, whose sources are part of a result's fingerprint."""
    config: str
    """Name of its dataclass of options in that module."""
    outcome: str = "accuracy"
    """Metric of the one row that stands for a cell without a result."""
    models: bool = True
    """Measures a model; False: the task alone."""
    data: bool = True
    """Reads the task's data; False: inputs made for the purpose."""
    trains: bool = False
    """Moves weights: optimiser and data decide the result, and there are checkpoints."""
    timed: bool = False
    """Reads the clock: its cells run alone, and the machine is part of what decides the result."""
    by_length: bool = False
    """A cell for each of `runner.modes` and `runner.lengths`; a length that was too much ends its
    curve."""
    mode_word: str = "runner.modes=[{}]"
    """With `by_length`, the word of the command line that leads to one mode."""

    def options(self) -> Any:
        """Import and return the dataclass of the runner's options."""
        return getattr(importlib.import_module(self.module), self.config)


KINDS = {
    "certify": Kind(module="runners.certify", config="CertifyConfig", models=False),
    "train": Kind(module="runners.train", config="TrainConfig", trains=True),
    "transfer": Kind(module="runners.transfer", config="TransferConfig", trains=True),
    "scaling": Kind(
        module="runners.scaling",
        config="ScalingConfig",
        outcome="time",
        data=False,
        timed=True,
        by_length=True,
    ),
    "decode": Kind(
        module="runners.decode",
        config="DecodeConfig",
        outcome="token_time",
        data=False,
        timed=True,
        by_length=True,
    ),
    "peers": Kind(
        module="runners.peers",
        config="PeersConfig",
        outcome="peer_speedup",
        data=False,
        timed=True,
        by_length=True,
    ),
    "approximation": Kind(
        module="runners.approximation",
        config="ApproximationConfig",
        outcome="output_error",
        data=False,
        timed=True,
        by_length=True,
        mode_word="runner.qk={}",
    ),
    "extrapolate": Kind(module="runners.extrapolate", config="ExtrapolateConfig"),
    "span": Kind(module="runners.span", config="SpanConfig", outcome="span"),
}
"""By name, in the order in which a sweep runs them."""


def kind_of(name: str) -> Kind:
    """Return the kind of a runner. Raises `UnknownName` with near matches."""
    if name not in KINDS:
        raise UnknownName(unknown("runner", name, list(KINDS)))
    return KINDS[name]
