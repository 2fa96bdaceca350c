"""How well a family approximates attention: error against its budget, its length and its time.

The budget of a family is the option that trades time for accuracy: the number of random features or
landmarks, or the size of a window. For every budget, the approximation and the exact function read
the same queries, keys and values, either random ones or those of a trained softmax model. Their
outputs and matrices are compared in float64, where rounding is negligible. Random features are
drawn several times. The time at each budget is measured interleaved with exact attention (SDPA), on
the same inputs in the precision of the hardware profile.
`lra.runners.measures.attention.errors` has the definitions.
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
"""Exact attention by PyTorch's fused kernel; approximations are timed interleaved with it."""


class QK(StrEnum):
    """Where queries, keys and values come from."""

    random = auto()
    """Independent normal entries."""
    trained = auto()
    """Every layer of a softmax model that was trained on the task and reads its test split."""


@by_name
@dataclass(frozen=True, kw_only=True)
class Approximation(Timing, Runner):
    """Which budgets and lengths are measured, and how error and time are measured."""

    outcome: ClassVar[str] = "output_error"
    data: ClassVar[bool] = False
    timed: ClassVar[bool] = True
    by_length: ClassVar[bool] = True
    mode_option: ClassVar[str] = "qk"

    lengths: list[int] = field(default_factory=lambda: [256, 1024])
    qk: QK = QK.random
    option: str | None = None
    """Option of the mixer that trades time for accuracy; None: the option that the file of the
    model names."""
    budgets: list[int] = field(default_factory=lambda: [16, 32, 64, 128, 256])
    own_budgets: dict[str, list[int]] = field(default_factory=dict)
    """Budgets by the name of a model; they replace `budgets` and the budgets in the model's
    file."""
    target: dict[str, Any] = field(default_factory=dict)
    """Options of the mixer that make it exact; empty: the options in the model's file, or softmax
    attention if the file has none."""
    draws: int = 5
    """How many times random features are drawn; a family without random features is measured
    once."""
    sequences: int = 2
    deviation: float = 1.0
    """Standard deviation of the entries of random queries and keys."""
    top: list[int] = field(default_factory=lambda: [1, 16, 64])
    """Numbers k: how much weight of the k heaviest keys of a query the approximation recalls."""
    matrix_max_length: int = 2048
    """Longest length at which attention matrices are compared; at longer ones, outputs alone."""
    named: list[str] = field(default_factory=lambda: ["kernel", "orthogonal"])
    """Options of the mixer that become labels of the rows, if the family has them."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
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
        """Return the only mode of a run: where its queries and keys come from."""
        return [self.qk]

    @property
    def beside(self) -> Sequence[str]:
        """Return the families that are measured together with the model."""
        return ["softmax", REFERENCE]

    def starts_from(self) -> list[str]:
        """Return the softmax model, which a sweep trains first, unless queries are random."""
        return ["softmax"] if self.qk is QK.trained else []

    def of_model(self, model: str, about: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return option, budgets and target from `about.approximation` in the model's file.

        Options of this runner replace them. Raises ValueError if the entry has other keys.
        """
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
        return {**options, "own_budgets": {}}  # those of other models do not matter

    def budget_option(self, model: str) -> str:
        """Return the name of the budget's option. Raises `Unsupported` if there is none."""
        if self.option is None:
            raise Unsupported(
                f"{model} does not approximate attention: its file has no about.approximation. "
                "Choose a family of model=approximations, or set runner.option to the option of "
                "the mixer that trades time for accuracy"
            )
        return self.option

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield errors and times at every budget."""
        cores = work.cores()
        lab = ApproximationLab(
            cores,
            list(self._read_layers(work)),
            model=work.model,
            config=self,
            hardware=work.hardware,
            labels=cores.labels(),
        )
        yield from lab.rows()

    def _read_layers(self, work: Work) -> Iterator[QueryKeyValue]:
        """Yield queries, keys and values: one random set, or those of each trained layer."""
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
    """Measures the errors and times of one family at one length.

    Args:
        cores: builds the attention functions that are compared.
        layers: the queries, keys and values of each layer, in float64; random ones are one layer.
        model: name of the family.
        config: budgets, draws and timing.
        hardware: the device, and the precision of the timed calls.
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
        self.length = self.layers[0].q.shape[2]  # q is [b, h, l, k]
        self.ranks = sorted(config.top)  # numbers k of heaviest keys

    def rows(self) -> Iterator[Measurement]:
        """Yield the errors at every budget of every layer, then the times of every budget."""
        total = len(self.budgets) * len(self.layers)
        first_cores: dict[str, Core] = {}  # by budget
        for layer in range(len(self.layers)):
            exact = self._compute_exact(layer)
            for number, budget in enumerate(self.budgets):
                measured = layer * len(self.budgets) + number
                so_far("measuring errors", measured, total, "budget")
                try:
                    core = self._build_approximation(budget, layer)
                except Unsupported:  # a kind of ValueError, but one that concerns every budget
                    raise
                except ValueError as error:
                    yield self._make_refusal_row(budget, layer, str(error))
                    continue
                first_cores.setdefault(str(budget), core)
                yield from self._measure_errors(exact, core, budget, layer)
        yield from self._measure_times(first_cores)

    def _compute_exact(self, layer: int) -> Exact:
        """Return the exact outputs (and matrices) for the queries, keys and values of a layer."""
        core = move_core(self.cores.exact(layer=layer), self.device, torch.float64)
        if core.traits.shared_query_key and self.config.qk is QK.trained:
            raise Unsupported(
                "this family uses the same vector as query and as key, but the trained softmax "
                "model has different ones: set runner.qk=random"
            )
        matrices = self.length <= self.config.matrix_max_length
        return Exact(core, self.layers[layer], matrices=matrices, ranks=self.ranks)

    def _build_approximation(self, budget: int, layer: int, draw: int = 0) -> Core:
        """Return the approximation on the device, in float64; see `Cores.approximation`."""
        core = self.cores.approximation(budget, draw=draw, layer=layer)
        return move_core(core, self.device, torch.float64)

    def _labels_of(self, layer: int, budget: int) -> dict[str, str]:
        """Return the labels of a row for a budget; trained layers are named, too."""
        labels = {**self.labels, "budget": str(budget)}
        if self.config.qk is QK.trained:
            labels["layer"] = str(layer)
        return labels

    def _measure_errors(
        self, exact: Exact, core: Core, budget: int, layer: int
    ) -> Iterator[Measurement]:
        """Yield the errors at one budget, as means over random draws; `core` is the first draw."""
        draws = self.config.draws if core.traits.random_draws else 1
        errors = [exact.errors(core)]
        errors += [
            exact.errors(self._build_approximation(budget, layer, draw)) for draw in range(1, draws)
        ]
        labels = self._labels_of(layer, budget)
        yield _average_draws("output_error", [e.output for e in errors], labels)
        matrices = [e.matrix for e in errors if e.matrix is not None]
        if matrices:
            yield _average_draws("matrix_error", matrices, labels)
            yield from self._average_recalls(errors, labels)

    def _average_recalls(
        self, errors: Sequence[CoreErrors], labels: dict[str, str]
    ) -> Iterator[Measurement]:
        """Yield, for each number k of heaviest keys, the mean recalled weight over draws."""
        for number, k in enumerate(self.ranks):
            recalls = [e.recall[number] for e in errors]
            yield _average_draws("topk_mass_recall", recalls, {**labels, "k": str(k)})

    def _make_refusal_row(self, budget: int, layer: int, reason: str) -> Measurement:
        """Return the row which says why the family refuses a budget."""
        labels = self._labels_of(layer, budget)
        return Measurement(
            metric="output_error", status=Status.unsupported, reason=reason, labels=labels
        )

    def _measure_times(self, first_cores: Mapping[str, Core]) -> Iterator[Measurement]:
        """Time each budget interleaved with exact attention, and yield times and their ratios.

        All calls read the queries, keys and values of the first layer.

        Args:
            first_cores: the approximation of the first draw, by budget.
        """
        if not first_cores:
            return
        inputs = self.layers[0].to(DTYPES[self.hardware.precision])
        cores = {**first_cores, REFERENCE: self.cores.reference()}
        cores = {name: move_core(core, self.device, torch.float32) for name, core in cores.items()}

        def call(core: Core) -> object:
            with torch.inference_mode(), autocast(self.hardware):
                return core(inputs.q, inputs.k, inputs.v, Layout())

        watch = Watch(self.device)
        calls = {name: lambda core=core: call(core) for name, core in cores.items()}
        slowest = max(self.config.warm(timed, self.device) for timed in calls.values())
        rounds, repeat_s = self.config.rounds(slowest), self.config.repeat_limit_s
        watched = in_turns(calls, watch, rounds, repeat_s=repeat_s)
        exact_s = watched.samples(REFERENCE)
        for budget in first_cores:
            samples = watched.samples(budget)
            labels = {**self.labels, "budget": budget}
            ratios = tuple(ours / exact for ours, exact in zip(samples, exact_s, strict=True))
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
            value=median(exact_s),
            samples=exact_s,
            labels=mark_labels({"reference": REFERENCE}, watched, exact_s),
        )
        yield from watch_rows(watched)
        yield Measurement(metric="batch_size", value=float(len(inputs.q)))


def _average_draws(metric: str, samples: Sequence[float], labels: dict[str, str]) -> Measurement:
    """Return the row with the mean over draws, or a row which says that it is not finite."""
    if not all(map(math.isfinite, samples)):
        bad_draws = sum(not math.isfinite(sample) for sample in samples)
        return Measurement(
            metric=metric,
            status=Status.diverged,
            reason=f"{metric} is not finite in {bad_draws} of {len(samples)} random draws",
            labels=labels,
        )
    return Measurement(metric=metric, value=fmean(samples), samples=tuple(samples), labels=labels)
