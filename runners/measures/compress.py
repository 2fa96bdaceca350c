"""Compression of a trained model: how much quality it loses, and what it saves.

A cell is one method with some amounts: heads removed by importance, weights pruned by magnitude,
linear maps in 8 bits, heads on shared columns, a student with fewer layers. Each variant, and first
the model as it was trained, has its scores, the bytes of its file, its numbers, its operations, and
its time next to that of the uncompressed model. With `steps`, a copy of each variant is fine-tuned
by the one training loop and measured again.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum, auto
from importlib.util import find_spec
from typing import ClassVar

import torch

from lra.conf.bounds import check_least, check_positive
from lra.conf.choices import by_name
from lra.models.backbone.model import Backbone, Outcome
from lra.models.compression.head_importance import (
    Examples,
    attention_layers,
    head_importance,
    heads_of,
    least_important,
    remove_heads,
)
from lra.models.compression.int8 import Int8Form, quantise
from lra.models.compression.layers import keep_layers, unshare
from lra.models.compression.magnitude import (
    MagnitudePruning,
    Scope,
    check_sparsity,
    prune_weights,
    share_of_zeros,
)
from lra.models.compression.shared_heads import check_share
from lra.models.idle import Need, defaults, idle
from lra.models.mixer import Unsupported
from lra.runners.isolation.progress import phase, phase_prefix
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measurement.timing import Timing
from lra.runners.measures.compression.collaborative import with_shared_heads
from lra.runners.measures.compression.variants import CompressedModel, VariantMeasurement
from lra.runners.measures.train import train
from lra.runners.measures.trained_runner import TrainedRunner
from lra.runners.records import Measurement
from lra.runners.runner import Work
from lra.runners.training.config import TrainConfig
from lra.runners.training.distillation import Distillation, DistillationLoss
from lra.runners.training.prefetch import masks_of, rows_of, to_device
from lra.tasks.task import SPLITS, Task

STAGE, COMPRESSED, TUNED = "stage", "compressed", "fine-tuned"


class CompressionMethod(StrEnum):
    """How the model is compressed."""

    heads = auto()
    """Heads removed by importance (arXiv:1905.10650)."""
    magnitude = auto()
    """Small weights set to zero (arXiv:1506.02626, arXiv:1710.01878)."""
    int8 = auto()
    """Linear maps in 8 bits."""
    shared_heads = auto()
    """Queries and keys on columns that all heads share (arXiv:2006.16362)."""
    distillation = auto()
    """A student with fewer layers (with `weights`: the run's new model) learns the answers of the
    trained model (arXiv:1503.02531)."""
    unshare = auto()
    """Layers that share one module (arXiv:1909.11942) become separate copies."""


USUAL = {
    CompressionMethod.heads: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
    CompressionMethod.magnitude: [0.5, 0.75, 0.9, 0.95],
    CompressionMethod.shared_heads: [0.25, 0.5, 0.75, 1.0],
}
"""Default amounts of the methods that have amounts."""
TRAINED_ON = (CompressionMethod.distillation, CompressionMethod.unshare)
"""Other methods whose models can be trained."""
NEEDS = (
    Need("amounts", method=tuple(USUAL)),
    Need("steps", "learning_rate", method=(*USUAL, *TRAINED_ON)),
    Need("importance_examples", method=CompressionMethod.heads),
    Need("scope", "gradual", method=CompressionMethod.magnitude),
    Need("prune_every", gradual=True),
    Need("form", method=CompressionMethod.int8),
    Need(
        "student_layers",
        "temperature",
        "taught_share",
        "hidden_weight",
        "attention_weight",
        method=CompressionMethod.distillation,
    ),
    Need("student_layers", words="weights=null", holds=lambda _, options: options.weights is None),
    Need(
        "learning_rate",
        "gradual",
        words="steps above 0",
        holds=lambda _, options: options.steps > 0,
    ),
)


@by_name
@dataclass(frozen=True, kw_only=True)
class Compress(Timing, TrainedRunner):
    """How the trained model is compressed, and how the result is measured."""

    incidental: ClassVar[frozenset[str]] = Timing.incidental | TrainedRunner.incidental
    trains: ClassVar[bool] = True
    timed: ClassVar[bool] = True

    method: CompressionMethod = CompressionMethod.heads
    amounts: list[float] | None = None
    """Fractions of heads or weights to remove; None: the usual ones of the method, as far as every
    layer keeps a head."""
    importance_examples: int = 256
    """Training examples on which importance is estimated before each removal."""
    scope: Scope = Scope.overall
    gradual: bool = False
    """Whether sparsity rises over three quarters of the fine-tuning; False: it is full at once."""
    prune_every: int = 10
    """Steps between two choices of weights in gradual pruning."""
    form: Int8Form = Int8Form.weight_only
    student_layers: int | None = None
    """Layers of the student, copied from the trained model; None: half of them."""
    temperature: float = 2.0
    """Temperature of both answers: see `lra.runners.training.distillation.DistillationLoss`."""
    taught_share: float = 0.5
    """Weight of the teacher in the loss: 0 = labels alone, 1 = the teacher's answers alone."""
    hidden_weight: float = 0.0
    """Weight of the distance between hidden states."""
    attention_weight: float = 0.0
    """Weight of the divergence between attention weights."""
    steps: int = 0
    """Fine-tuning steps of a copy of each variant; 0: none, but a student trains as long as the
    model."""
    learning_rate: float = 3e-4
    """Peak learning rate of fine-tuning. All else (and this, for a student with steps=0) is as in
    training."""
    evaluate_splits: list[str] = field(default_factory=lambda: ["validation", "test"])
    evaluation_batch: int = 64
    batch_size: int = 8
    """Sequences of the timed and counted pass, each as long as the task's longest."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        super().__post_init__()
        for sentence in idle(NEEDS, vars(self), defaults(Compress)).values():
            raise ValueError(sentence)
        check_least(
            1,
            importance_examples=self.importance_examples,
            prune_every=self.prune_every,
            evaluation_batch=self.evaluation_batch,
            batch_size=self.batch_size,
        )
        check_least(0, steps=self.steps)
        check_positive(learning_rate=self.learning_rate)
        for split in self.evaluate_splits:
            if split not in SPLITS[1:]:
                raise ValueError(
                    f"evaluate_splits: got {split!r}; wanted some of {', '.join(SPLITS[1:])}"
                )
        self._check_amounts()
        _ = self.taught

    def check_packages(self) -> None:
        """Refuse 8 bits if torchao is missing. Raises ValueError."""
        if self.method is CompressionMethod.int8 and find_spec("torchao") is None:
            raise ValueError(
                "runner.method=int8: torchao is not installed: pip install 'lra[quantisation]'"
            )

    @property
    def taught(self) -> DistillationLoss:
        """What a student learns from its teacher."""
        return DistillationLoss(
            temperature=self.temperature,
            share=self.taught_share,
            hidden=self.hidden_weight,
            attention=self.attention_weight,
        )

    def _check_amounts(self) -> None:
        """Refuse amounts that the method cannot remove. Raises ValueError."""
        if self.amounts is None:
            return
        if not self.amounts or sorted(set(self.amounts)) != self.amounts:
            raise ValueError(
                f"amounts must be one or more numbers in ascending order: got {self.amounts}"
            )
        for share in self.amounts:
            if self.method is CompressionMethod.magnitude:
                check_sparsity(share)
            elif self.method is CompressionMethod.shared_heads:
                check_share(share)
            elif not 0 < share < 1:
                raise ValueError(
                    "amounts of method=heads are fractions of all heads, above 0 and below 1: "
                    f"got {share}; every layer needs one head, and model=identity is a model "
                    "without heads"
                )

    @property
    def shares(self) -> list[float]:
        """The amounts, ascending."""
        return self.amounts if self.amounts is not None else USUAL[self.method]

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield everything about the trained model and each of its variants.

        Raises:
            Unsupported: The method has nothing to act on in this model, or its library or
                processor is not there.
            ValueError: An amount leaves a layer without a head.
        """
        model, origins = self.model_of(work)
        yield from origins
        measurement = VariantMeasurement(
            model,
            work.task,
            work.facts(),
            splits=self.evaluate_splits,
            sequences=self.batch_size,
            evaluation_batch=self.evaluation_batch,
            timing=self,
            hardware=work.hardware,
            seed=work.seed,
        )
        named = {"method": self.method.value}
        whole = CompressedModel(model=model, labels={**named, "amount": "0", STAGE: "trained"})
        yield from measurement.rows(whole)
        if self.steps and self.method in USUAL:  # for comparison: fine-tuning without compression
            tuned = self.trained(copy_model(model), work)
            labels = {**whole.labels, STAGE: TUNED}
            yield from measurement.rows(CompressedModel(model=tuned, labels=labels))
        for item in self.variants(model, work):
            if isinstance(item, Measurement):
                yield item
                continue
            variant = replace(item, labels={**named, **item.labels, STAGE: COMPRESSED})
            yield from measurement.rows(variant)
            for way, tuned in self.tuned(model, variant, work):  # `way` is "" if there is only one
                labels = {**variant.labels, **({"way": way} if way else {}), STAGE: TUNED}
                yield from measurement.rows(CompressedModel(model=tuned, labels=labels))

    def model_of(self, work: Work) -> tuple[Backbone, Iterator[Measurement]]:
        """Return the trained model; for distillation with `weights`, the teacher unchanged.

        Raises:
            Unsupported: The teacher was trained on another task.
        """
        if self.method is not CompressionMethod.distillation or self.stored_weights is None:
            return super().model_of(work)
        if work.stored_task() != work.task.spec.name:
            raise Unsupported(
                f"the teacher was trained on task={work.stored_task()}, and this run has "
                f"task={work.task.spec.name}: name a training on this task in runner.weights"
            )
        return work.stored(), iter(())

    def variants(self, model: Backbone, work: Work) -> Iterator[CompressedModel | Measurement]:
        """Yield the models that the method makes."""
        match self.method:
            case CompressionMethod.heads:
                yield from without_heads(model, work.task, self, work.hardware)
            case CompressionMethod.magnitude:
                yield from without_weights(model, self)
            case CompressionMethod.int8:
                yield in_eight_bits(model, self.form, work.hardware)
            case CompressionMethod.shared_heads:
                yield from with_shared_columns(model, self)
            case CompressionMethod.unshare:
                yield with_separate_layers(model)
            case CompressionMethod.distillation if self.weights is None:
                yield with_fewer_layers(model, self)
            case CompressionMethod.distillation:
                student, numbers = work.build(), [*model.parameters()]
                share = 1 - sum(p.numel() for p in student.parameters()) / sum(
                    p.numel() for p in numbers
                )
                yield CompressedModel(model=student, labels={"amount": f"{share:.4g}"})

    def tuned(
        self, whole: Backbone, item: CompressedModel, work: Work
    ) -> Iterator[tuple[str, Backbone]]:
        """Yield fine-tuned models for a variant, each after the name of how it was trained.

        Args:
            whole: The uncompressed model: the teacher of a student, and the start of gradual
                pruning.
            item: The variant, which is copied.
            work: The cell.

        Yields:
            A name, such as "taught", and the model. The name is "" if there is one way only.
        """
        if self.method is CompressionMethod.distillation:
            for way in ("labels alone", "taught"):
                student = copy_model(item.model)
                judge = None
                if way == "taught":
                    teacher = copy_model(whole).to(torch.device(str(work.hardware.device)))
                    judge = Distillation(student, teacher, self.taught)
                yield way, self.trained(student, work, judge)
        elif self.steps and self.gradual:
            yield (
                "gradual",
                self.trained(copy_model(whole), work, share=float(item.labels["amount"])),
            )
        elif self.steps and self.method is CompressionMethod.magnitude:
            model = copy_model(item.model)
            yield "", self.trained(model, work, share=float(item.labels["amount"]))
        elif self.steps:
            yield "", self.trained(copy_model(item.model), work)

    def trained(
        self,
        model: Backbone,
        work: Work,
        judge: Callable[..., Outcome] | None = None,
        share: float | None = None,
    ) -> Backbone:
        """Train a model in the one training loop, and return it.

        Args:
            model: Is trained in place.
            work: The cell.
            judge: Is called instead of the model on training batches; None: the model.
            share: Fraction of the weights that stay zero, or become zero if pruning is gradual;
                None: all weights are trained.
        """
        if share is not None:
            steps = max(1, 3 * self.steps // 4) if self.gradual else 0
            model.add_module(
                PRUNING,
                MagnitudePruning(model, share, self.scope, steps=steps, every=self.prune_every),
            )
        optim = work.optim
        if self.steps:
            optim = replace(
                optim,
                steps=self.steps,
                peak_learning_rate=self.learning_rate,
                warmup_steps=min(optim.warmup_steps, self.steps // 10),
            )
        with phase_prefix("fine-tuning"):
            for _ in train(
                model,
                work.task,
                optim=optim,
                config=TrainConfig(evaluate_splits=[]),
                hardware=work.hardware,
                seed=work.seed,
                checkpoints=None,
                judge=judge,
            ):
                pass
        if share is not None:
            delattr(model, PRUNING)
        return model

    @classmethod
    def headline(cls, rows: Sequence[Measurement]) -> str:
        """Return the accuracy and the size of the trained model and of the last variant."""
        sizes, scores = dict[tuple[str, ...], float](), dict[tuple[str, ...], float]()
        for row in rows:
            if row.labels.get("storage") == "sparse":
                sizes[_amount_and_stage(row)] = row.value or 0.0
            elif row.metric == "accuracy" and row.labels.get("split") == "test":
                scores[_amount_and_stage(row)] = row.value or 0.0
        ends = [key for key in sizes if key in scores]
        words = []
        for key in (ends[0], ends[-1]) if len(ends) > 1 else ends:
            name = " ".join(key)
            words.append(f"{name}: accuracy {scores[key]:.3f}, {sizes[key] / 1024:,.0f} KiB")
        return "; ".join(words)


def _amount_and_stage(row: Measurement) -> tuple[str, ...]:
    return tuple(row.labels.get(name, "") for name in ("amount", STAGE))


PRUNING = "pruning"
"""Name of the part of a fine-tuned model that holds pruned weights at zero."""


def copy_model(model: Backbone) -> Backbone:
    """Return a copy of a model, weights included."""
    return copy.deepcopy(model)


def examples_of(
    task: Task, model: Backbone, number: int, hardware: HardwareProfile, *, batch_size: int
) -> Iterator[Examples]:
    """Yield the first `number` examples of the training split, in its order of seed 0, in batches.

    Args:
        task: Prepared.
        model: Is moved to the device.
        number: Examples; fewer if the split has fewer.
        hardware: Its device gets the batches.
        batch_size: Most examples in a batch.

    Raises:
        Unsupported: The split is smaller than one batch.
    """
    device, remaining = torch.device(str(hardware.device)), number
    model.to(device)
    split_size = task.spec.sizes.get("train", number)
    rows = min(batch_size, number, split_size)
    for batch in task.batches("train", batch_size=rows, seed=0):
        part = rows_of(to_device(batch, device), slice(0, remaining))
        yield Examples(part.tokens, part.target, part.keep, part.weight, masks_of(part))
        remaining -= len(batch.tokens)
        if remaining <= 0:
            return
    if remaining == number:  # the split has given no batch at all
        raise Unsupported(
            f"the training split of {task.spec.name} is smaller than one batch of {rows}: lower "
            "runner.evaluation_batch"
        )


def without_heads(
    model: Backbone, task: Task, config: Compress, hardware: HardwareProfile
) -> Iterator[CompressedModel | Measurement]:
    """Yield models with fewer and fewer heads, and the importance that decided which ones.

    Raises:
        ValueError: A share leaves a layer without a head.
    """
    pruned = copy_model(model)
    layers = attention_layers(pruned)
    total = sum(heads_of(mixer) for mixer in layers.values())
    removed = 0
    for share in config.shares:
        count = round(share * total)
        if config.amounts is None:  # default amounts leave every layer a head; others are refused
            count = min(count, total - len(layers))
        if count == removed:  # the same model as before: a small model has few heads
            continue
        phase("importance of heads")
        examples = examples_of(
            task, pruned, config.importance_examples, hardware, batch_size=config.evaluation_batch
        )
        importance = head_importance(pruned, examples)
        if not removed:  # the importance in the whole model; later ones are of pruned models
            yield from importance_rows(importance)
        remove_heads(pruned, least_important(importance, count - removed))
        removed = count
        yield CompressedModel(
            model=copy_model(pruned),
            labels={"amount": f"{count / total:.4g}", "heads": f"{total - count} of {total}"},
        )


def importance_rows(importance: Mapping[int, torch.Tensor]) -> Iterator[Measurement]:
    """Yield the importance of every head of the whole model."""
    for layer, scores in importance.items():
        for head, score in enumerate(scores.tolist()):
            labels = {"method": "heads", "layer": str(layer), "head": str(head)}
            yield Measurement(metric="head_importance", value=score, labels=labels)


def without_weights(model: Backbone, config: Compress) -> Iterator[CompressedModel]:
    """Yield models without their smallest weights."""
    for share in config.shares:
        pruned = copy_model(model)
        prune_weights(pruned, share, config.scope)
        yield CompressedModel(
            model=pruned,
            labels={
                "amount": f"{share:g}",
                "sparsity": f"{share_of_zeros(pruned):.4f}",
                "scope": config.scope.value,
                "products": "dense",  # zeros are multiplied, too, so no time is saved
            },
        )


def with_shared_columns(
    model: Backbone, config: Compress
) -> Iterator[CompressedModel | Measurement]:
    """Yield models whose heads share queries and keys, and the errors of decomposition."""
    for share in config.shares:
        phase("decomposing heads")
        shared = copy_model(model)
        errors = with_shared_heads(shared, share)
        labels = {"amount": f"{share:g}", "rank": str(max(rank for rank, _ in errors.values()))}
        for layer, (_, error) in errors.items():
            row_labels = {"method": "shared_heads", **labels, "layer": str(layer)}
            yield Measurement(metric="decomposition_error", value=error, labels=row_labels)
        yield CompressedModel(model=shared, labels=labels)


def with_fewer_layers(model: Backbone, config: Compress) -> CompressedModel:
    """Return a student: the model with some of its layers."""
    student, depth = copy_model(model), model.config.depth
    layers = max(1, depth // 2) if config.student_layers is None else config.student_layers
    keep_layers(student, layers)
    labels = {"amount": f"{1 - layers / depth:.4g}", "kept_layers": f"{layers} of {depth}"}
    return CompressedModel(model=student, labels=labels)


def with_separate_layers(model: Backbone) -> CompressedModel:
    """Return the model with separate weights in every layer."""
    unshared = copy_model(model)
    unshare(unshared)
    return CompressedModel(model=unshared, labels={"amount": "0"})


def in_eight_bits(model: Backbone, form: Int8Form, hardware: HardwareProfile) -> CompressedModel:
    """Return the model with 8-bit linear maps."""
    coded = copy_model(model).eval()
    with torch.no_grad():
        quantise(coded, form, torch.device(str(hardware.device)))
    labels = {"amount": "8", "bits": "8", "form": form.value, "library": "torchao"}
    return CompressedModel(model=coded, labels=labels)
