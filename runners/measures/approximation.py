"""How well a family approximates attention: error against its budget, its length and its time.

Each family that approximates attention spends a budget: features, landmarks, a window. For every
budget its core and the exact function read the same queries, keys and values, random ones or those
of a trained softmax model, and their outputs and matrices are compared in float64, so that what is
seen is the method and not rounding. What a family draws at random is drawn several times. The time
of the core at each budget is taken in turns with exact attention through SDPA, in the profile's
precision, on the same numbers. `lra.runners.measures.attention.errors` holds the definitions.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from statistics import fmean, median
from typing import Any, ClassVar

import torch

from lra.conf.bounds import check_least
from lra.conf.choices import by_name
from lra.models.mixer import Layout, Unsupported
from lra.models.multi_head import Core
from lra.runners.isolation.progress import phase, so_far
from lra.runners.measurement.device import DTYPES, autocast
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measurement.measure import in_turns
from lra.runners.measurement.timing import Timing
from lra.runners.measurement.watch import Watch
from lra.runners.measurement.watched_rows import mark_labels, watch_rows
from lra.runners.measures.attention.cores import move_core
from lra.runners.measures.attention.errors import (
    CoreErrors,
    Exact,
    QueryKeyValue,
    random_heads,
    trained_heads,
)
from lra.runners.records import Measurement, Status
from lra.runners.runner import Cores, Runner, Work

REFERENCE = "sdpa"
"""Exact attention, as fast as PyTorch computes it; cores are timed interleaved with it."""


class QK(StrEnum):
    """Where queries, keys and values come from."""

    random = auto()
    """Independent normal entries."""
    trained = auto()
    """Every layer of a softmax model that was trained on the task, reading its test split."""


@by_name
@dataclass(frozen=True, kw_only=True)
class Approximation(Timing, Runner):
    """What is varied, and how error and time are measured."""

    outcome: ClassVar[str] = "output_error"
    data: ClassVar[bool] = False
    timed: ClassVar[bool] = True
    by_length: ClassVar[bool] = True
    mode_option: ClassVar[str] = "qk"

    lengths: list[int] = field(default_factory=lambda: [256, 1024])
    qk: QK = QK.random
    option: str | None = None
    """Option of the mixer that is its budget; None: the one in the model's file."""
    budgets: list[int] = field(default_factory=lambda: [16, 32, 64, 128, 256])
    own_budgets: dict[str, list[int]] = field(default_factory=dict)
    """Budgets of models that need other values than their files, or than `budgets`, give."""
    target: dict[str, Any] = field(default_factory=dict)
    """Options of the mixer that make it exact; none: those in the model's file, else softmax
    attention."""
    draws: int = 5
    """Repetitions of random draws; a family without draws is measured once."""
    sequences: int = 2
    deviation: float = 1.0
    """Standard deviation of the entries of random queries and keys."""
    top: list[int] = field(default_factory=lambda: [1, 16, 64])
    """Numbers of heaviest keys whose recalled weight is measured."""
    matrix_max_length: int = 2048
    """Longest length at which attention matrices are compared; beyond, outputs alone."""
    named: list[str] = field(default_factory=lambda: ["kernel", "orthogonal"])
    """Options of the mixer that become labels of the rows, if the family has them."""

    def __post_init__(self) -> None:
        """Refuse values that make no sense, each with the way out."""
        super().__post_init__()
        values = {"lengths": self.lengths, "budgets": self.budgets, "top": self.top}
        values |= {f"own_budgets.{name}": budgets for name, budgets in self.own_budgets.items()}
        for name, counts in values.items():
            if not counts or min(counts) < 1 or len(set(counts)) < len(counts):
                raise ValueError(f"{name}: got {counts}; wanted different positive numbers")
        if not (math.isfinite(self.deviation) and self.deviation > 0):
            raise ValueError(f"deviation must be above 0: got {self.deviation}; 1 is usual")
        check_least(1, draws=self.draws, sequences=self.sequences)
        check_least(0, matrix_max_length=self.matrix_max_length)

    @property
    def modes(self) -> list[QK]:
        """The mode of a run: where its queries and keys come from."""
        return [self.qk]

    @property
    def beside(self) -> Sequence[str]:
        """Families whose sources decide the numbers, in addition to the model."""
        return ["softmax", REFERENCE]

    def starts_from(self) -> list[str]:
        """Return the trainings whose weights are read: see `lra.sweep.trainings`."""
        return ["softmax"] if self.qk is QK.trained else []

    def of_model(self, model: str, about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return `about.approximation` of the model's file: option, budgets, target."""
        declared = about.get("approximation") or {}
        if not isinstance(declared, Mapping) or not {*declared} <= {"option", "budgets", "target"}:
            raise ValueError(
                f"approximation: got {declared}; wanted a mapping with the keys option, budgets "
                "and target"
            )
        options = dict(declared)
        if self.option is not None:
            options["option"] = self.option
        if self.target:
            options["target"] = self.target
        if model in self.own_budgets:
            options["budgets"] = self.own_budgets[model]
        return {**options, "own_budgets": {}}

    def budget_option(self, model: str) -> str:
        """Return the option that is the model's budget. `Unsupported` if it has none."""
        if self.option is None:
            raise Unsupported(
                f"{model} does not approximate attention on given queries, keys and values: its "
                "file has no about.approximation. Choose one of model=approximations, or name in "
                "runner.option the option of the mixer that trades time for accuracy"
            )
        return self.option

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield errors and times at every budget."""
        cores = work.cores()
        lab = ApproximationLab(
            cores,
            list(self._layers(work)),
            model=work.model,
            config=self,
            hardware=work.hardware,
            labels=cores.labels(),
        )
        yield from lab.rows()

    def _layers(self, work: Work) -> Iterator[QueryKeyValue]:
        if self.qk is QK.random:
            shape = work.backbone
            width = shape.head_width or shape.width // shape.heads
            yield random_heads(
                self.sequences, shape.heads, work.length, width,
                deviation=self.deviation, seed=work.seed,
            )  # fmt: skip
            return
        phase("preparing data")
        work.task.prepare()
        phase("reading heads")
        yield from trained_heads(
            work.trained("softmax"),
            work.task.batches("test", batch_size=32, seed=work.seed),
            sequences=self.sequences,
            length=work.length,
        )


class ApproximationLab:
    """One family at one length, and the queries, keys and values that it reads.

    Args:
        cores: makes the attention functions that are compared.
        layers: the queries, keys and values of each layer, in float64; random ones have one layer.
        model: the family's name.
        config: how to measure.
        hardware: device, and the precision of the timed calls.
        labels: labels of every row.

    Raises:
        Unsupported: the model has no budget, or cannot read these queries and keys.
    """

    def __init__(
        self,
        cores: Cores,
        layers: Sequence[QueryKeyValue],
        *,
        model: str,
        config: Approximation,
        hardware: HardwareProfile,
        labels: Mapping[str, str],
    ) -> None:
        self.device = torch.device(str(hardware.device))
        self.cores, self.config, self.hardware = cores, config, hardware
        self.layers = [layer.to(self.device, torch.float64) for layer in layers]
        self.budgets = sorted(config.budgets)
        target = ", ".join(f"{k}={v}" for k, v in config.target.items()) or "softmax"
        self.labels = {**labels, "option": config.budget_option(model), "target": target}
        self.length = self.layers[0].q.shape[2]
        self.ranks = sorted(config.top)

    def rows(self) -> Iterator[Measurement]:
        """Measure errors at every budget of every layer, then times."""
        total = len(self.budgets) * len(self.layers)
        firsts: dict[str, Core] = {}
        for layer in range(len(self.layers)):
            exact = self._exact(layer)
            for number, budget in enumerate(self.budgets):
                done = layer * len(self.budgets) + number
                so_far("measuring errors", done, total, "budget")
                try:
                    first = self._approximation(budget, layer)
                except Unsupported:
                    raise
                except ValueError as error:
                    yield self._refused(budget, layer, str(error))
                    continue
                firsts.setdefault(str(budget), first)
                yield from self._errors(exact, first, budget, layer)
        yield from self._times(firsts)

    def _exact(self, layer: int) -> Exact:
        core = move_core(self.cores.exact(layer=layer), self.device, torch.float64)
        if core.traits.shared_query_key and self.config.qk is QK.trained:
            raise Unsupported(
                "this family uses one vector as query and as key, but the trained softmax model "
                "has two: set runner.qk=random"
            )
        matrices = self.length <= self.config.matrix_max_length
        return Exact(core, self.layers[layer], matrices=matrices, ranks=self.ranks)

    def _approximation(self, budget: int, layer: int, draw: int = 0) -> Core:
        core = self.cores.approximation(budget, draw=draw, layer=layer)
        return move_core(core, self.device, torch.float64)

    def _labels_of(self, layer: int, budget: int | None = None) -> dict[str, str]:
        """Return the labels of a row; without a budget, none is named."""
        labels = {**self.labels}
        if budget is not None:
            labels["budget"] = str(budget)
        if self.config.qk is QK.trained:
            labels["layer"] = str(layer)
        return labels

    def _errors(self, exact: Exact, first: Core, budget: int, layer: int) -> Iterator[Measurement]:
        """Yield the errors at one budget: of `first`, and of more draws if it draws at random."""
        draws = self.config.draws if first.traits.random_draws else 1
        errors = [exact.errors(first)]
        errors += [
            exact.errors(self._approximation(budget, layer, draw)) for draw in range(1, draws)
        ]
        labels = self._labels_of(layer, budget)
        yield _row("output_error", [e.output for e in errors], labels)
        matrices = [e.matrix for e in errors if e.matrix is not None]
        if matrices:
            yield _row("matrix_error", matrices, labels)
            yield from self._recalls(errors, labels)

    def _recalls(
        self, errors: Sequence[CoreErrors], labels: dict[str, str]
    ) -> Iterator[Measurement]:
        for number, k in enumerate(self.ranks):
            yield _row(
                "topk_mass_recall", [e.recall[number] for e in errors], {**labels, "k": str(k)}
            )

    def _refused(self, budget: int, layer: int, reason: str) -> Measurement:
        labels = self._labels_of(layer, budget)
        return Measurement(
            metric="output_error", status=Status.unsupported, reason=reason, labels=labels
        )

    def _times(self, firsts: Mapping[str, Core]) -> Iterator[Measurement]:
        """Time each budget interleaved with the reference, on the first layer's queries and keys.

        Args:
            firsts: the core of the first draw, by budget.
        """
        if not firsts:
            return
        inputs = self.layers[0].to(DTYPES[self.hardware.precision])
        cores = {**firsts, REFERENCE: self.cores.reference()}
        cores = {name: move_core(core, self.device, torch.float32) for name, core in cores.items()}

        def call(core: Core) -> object:
            with torch.inference_mode(), autocast(self.hardware):
                return core(inputs.q, inputs.k, inputs.v, Layout())

        watch = Watch(self.device)
        calls = {name: lambda core=core: call(core) for name, core in cores.items()}
        slowest = max(self.config.warm(one, self.device) for one in calls.values())
        rounds, repeat_s = self.config.rounds(slowest), self.config.repeat_limit_s
        watched = in_turns(calls, watch, rounds, repeat_s=repeat_s)
        exact = watched.samples(REFERENCE)
        for budget in firsts:
            samples = watched.samples(budget)
            labels = {**self.labels, "budget": budget}
            ratios = tuple(mine / other for mine, other in zip(samples, exact, strict=True))
            yield Measurement(
                metric="core_time",
                value=median(samples),
                samples=samples,
                labels=mark_labels(labels, watched, samples),
            )
            yield Measurement(
                metric="core_time_ratio",
                value=median(ratios),
                samples=ratios,
                labels=mark_labels({**labels, "reference": REFERENCE}, watched, ratios),
            )
        yield Measurement(
            metric="core_time",
            value=median(exact),
            samples=exact,
            labels=mark_labels({"reference": REFERENCE}, watched, exact),
        )
        yield from watch_rows(watched)
        yield Measurement(metric="batch_size", value=float(len(inputs.q)))


def _row(metric: str, samples: Sequence[float], labels: dict[str, str]) -> Measurement:
    """Return the row with the mean over draws, or with the reason why it is not finite."""
    if not all(map(math.isfinite, samples)):
        bad_draws = sum(not math.isfinite(sample) for sample in samples)
        return Measurement(
            metric=metric,
            status=Status.diverged,
            reason=f"{bad_draws} of {len(samples)} draws gave no finite number",
            labels=labels,
        )
    return Measurement(metric=metric, value=fmean(samples), samples=tuple(samples), labels=labels)
