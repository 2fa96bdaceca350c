"""Compression of a trained model: how much quality it loses, and what it saves.

A run uses one method with several amounts: it removes the least important heads, prunes small
weights, stores linear maps in 8 bits (and prunes their codes), lets heads share queries and keys,
or trains a student with fewer layers. The trained model and each compressed variant are scored; the
size of their files, their parameters, operations and times are measured. With `steps` above 0, a
copy of each variant is fine-tuned and measured again.
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
from lra.models.compression.int8 import Int8Form, prune_codes, quantise
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
    """The least important heads are removed (arXiv:1905.10650)."""
    magnitude = auto()
    """Small weights are set to 0 (arXiv:1506.02626, arXiv:1710.01878)."""
    int8 = auto()
    """Linear maps are stored in 8 bits; with amounts, the smallest codes of each map become zeros,
    and the same fraction of float weights in a model for comparison."""
    shared_heads = auto()
    """All heads share the columns of queries and keys (arXiv:2006.16362)."""
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
"""Methods without amounts that can train their models."""
NEEDS = (
    Need("amounts", method=(*USUAL, CompressionMethod.int8)),
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
"""Options that need a certain value of another option."""


@by_name
@dataclass(frozen=True, kw_only=True)
class Compress(Timing, TrainedRunner):
    """How the trained model is compressed, and how the result is measured."""

    incidental: ClassVar[frozenset[str]] = Timing.incidental | TrainedRunner.incidental
    trains: ClassVar[bool] = True
    timed: ClassVar[bool] = True
    version: ClassVar[int] = 2  # zeros among the integers of int8 count

    method: CompressionMethod = CompressionMethod.heads
    amounts: list[float] | None = None
    """Fractions of heads or weights to remove; None: the usual fractions of the method, reduced so
    that every layer keeps a head, and none of int8."""
    importance_examples: int = 256
    """Training examples on which importance is estimated before each removal."""
    scope: Scope = Scope.overall
    gradual: bool = False
    """Whether sparsity rises during the first three quarters of fine-tuning; False: weights are
    pruned before it."""
    prune_every: int = 10
    """Gradual pruning chooses the pruned weights again each time after this many steps."""
    form: Int8Form = Int8Form.weight_only
    student_layers: int | None = None
    """How many layers of the trained model the student copies; None: half of them."""
    temperature: float = 2.0
    """Temperature by which the logits of teacher and student are divided: see
    `lra.runners.training.distillation.DistillationLoss`."""
    taught_share: float = 0.5
    """Weight of the teacher in the loss: with 0 the student learns from labels alone, with 1 from
    the teacher's answers alone."""
    hidden_weight: float = 0.0
    """Weight in the loss of the distance between hidden states of student and teacher."""
    attention_weight: float = 0.0
    """Weight in the loss of the divergence between attention weights of student and teacher."""
    steps: int = 0
    """How many steps a copy of each variant is fine-tuned; 0: variants are not fine-tuned, and a
    student trains for as many steps as the model."""
    learning_rate: float = 3e-4
    """Peak learning rate of fine-tuning; a student with steps=0 uses that of the training. All
    other options are those of the training."""
    evaluate_splits: list[str] = field(default_factory=lambda: ["validation", "test"])
    evaluation_batch: int = 64
    batch_size: int = 8
    """Sequences in the timed batch; their length is the longest of the task."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        super().__post_init__()
        for sentence in idle(NEEDS, vars(self), defaults(Compress)).values():
            raise ValueError(sentence)  # the first option without effect
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
                    f"evaluate_splits: got {split!r}; wanted a list of {', '.join(SPLITS[1:])}"
                )
        self._check_amounts()
        _ = self.taught  # its constructor checks the options of the loss

    def check_packages(self) -> None:
        """Raise ValueError if the method is `int8` and its package torchao is missing."""
        if self.method is CompressionMethod.int8 and find_spec("torchao") is None:
            raise ValueError(
                "runner.method=int8: this method needs torchao, which is not installed; type "
                "pip install 'lra[quantisation]'"
            )

    @property
    def taught(self) -> DistillationLoss:
        """Return the loss with which a student learns from its teacher."""
        return DistillationLoss(
            temperature=self.temperature,
            share=self.taught_share,
            hidden=self.hidden_weight,
            attention=self.attention_weight,
        )

    def _check_amounts(self) -> None:
        """Raise ValueError if the method cannot remove one of the amounts."""
        if self.amounts is None:
            return
        if not self.amounts or sorted(set(self.amounts)) != self.amounts:
            raise ValueError(
                f"amounts must be one or more numbers in ascending order: got {self.amounts}"
            )
        for share in self.amounts:
            if self.method in (CompressionMethod.magnitude, CompressionMethod.int8):
                check_sparsity(share)
            elif self.method is CompressionMethod.shared_heads:
                check_share(share)
            elif not 0 < share < 1:
                raise ValueError(
                    "amounts of method=heads are fractions of all heads, above 0 and below 1: "
                    f"got {share}; every layer needs a head (to compare with a model without "
                    "attention, use model=identity)"
                )

    @property
    def shares(self) -> list[float]:
        """Return the amounts of the method, ascending."""
        return self.amounts if self.amounts is not None else USUAL.get(self.method, [])

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield the rows of the trained model and of each of its variants.

        Raises:
            Unsupported: The method cannot compress this model, or needs a library or processor
                that is missing.
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
        method = {"method": self.method.value}
        whole = CompressedModel(model=model, labels={**method, "amount": "0", STAGE: "trained"})
        yield from measurement.rows(whole)
        if self.steps and self.method in USUAL:  # for comparison: fine-tuning without compression
            tuned = self.trained(copy_model(model), work)
            labels = {**whole.labels, STAGE: TUNED}
            yield from measurement.rows(CompressedModel(model=tuned, labels=labels))
        for item in self.variants(model, work):
            if isinstance(item, Measurement):
                yield item
                continue
            variant = replace(item, labels={**method, **item.labels, STAGE: COMPRESSED})
            yield from measurement.rows(variant)
            for way, tuned in self.tuned(model, variant, work):  # `way` is "" if there is only one
                labels = {**variant.labels, **({"way": way} if way else {}), STAGE: TUNED}
                yield from measurement.rows(CompressedModel(model=tuned, labels=labels))

    def model_of(self, work: Work) -> tuple[Backbone, Iterator[Measurement]]:
        """Return the model that is compressed, and rows that say where its weights come from.

        For distillation with `weights`, it is the named model itself: the teacher.

        Raises:
            Unsupported: The teacher was trained on another task.
        """
        if self.method is not CompressionMethod.distillation or self.stored_weights is None:
            return super().model_of(work)
        if work.stored_task() != work.task.spec.name:
            raise Unsupported(
                f"the teacher was trained on task={work.stored_task()}, but this run has "
                f"task={work.task.spec.name}: set runner.weights to a training on this task"
            )
        return work.stored(), iter(())

    def variants(self, model: Backbone, work: Work) -> Iterator[CompressedModel | Measurement]:
        """Yield the compressed models of the method, and rows about the compression."""
        match self.method:
            case CompressionMethod.heads:
                yield from without_heads(model, work.task, self, work.hardware)
            case CompressionMethod.magnitude:
                yield from without_weights(model, self.shares, self.scope)
            case CompressionMethod.int8:
                yield from in_eight_bits(model, self, work.hardware)
            case CompressionMethod.shared_heads:
                yield from with_shared_columns(model, self)
            case CompressionMethod.unshare:
                yield with_separate_layers(model)
            case CompressionMethod.distillation if self.weights is None:
                yield with_fewer_layers(model, self)
            case CompressionMethod.distillation:
                # The amount is the fraction of the teacher's parameters that the student lacks.
                student, teacher = work.build(), model
                removed = 1 - sum(p.numel() for p in student.parameters()) / sum(
                    p.numel() for p in teacher.parameters()
                )
                yield CompressedModel(model=student, labels={"amount": f"{removed:.4g}"})

    def tuned(
        self, whole: Backbone, item: CompressedModel, work: Work
    ) -> Iterator[tuple[str, Backbone]]:
        """Yield the fine-tuned models of a variant, each with the name of its way of training.

        Args:
            whole: The uncompressed model: the teacher of a student, or the start of gradual
                pruning.
            item: The variant, which is copied.
            work: The run.

        Yields:
            A name, such as "taught", and a model. The name is "" if there is only one way.
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
        """Train a model by the same loop as `runner=train`, and return it.

        Args:
            model: The model, which is trained in place.
            work: The run.
            judge: Function that is called on training batches instead of the model; None: the
                model.
            share: Fraction of the weights that stay 0, or become 0 if pruning is gradual; None:
                all weights are trained.
        """
        if share is not None:
            steps = max(1, 3 * self.steps // 4) if self.gradual else 0  # while sparsity rises
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
        models = [key for key in sizes if key in scores]
        parts = []
        for key in (models[0], models[-1]) if len(models) > 1 else models:  # trained and last
            name = " ".join(key)
            parts.append(f"{name}: accuracy {scores[key]:.3f}, {sizes[key] / 1024:,.0f} KiB")
        return "; ".join(parts)


def _amount_and_stage(row: Measurement) -> tuple[str, ...]:
    """Return the two labels that identify a model among the rows of a run."""
    return tuple(row.labels.get(name, "") for name in ("amount", STAGE))


PRUNING = "pruning"
"""Name of the part of a fine-tuned model that holds pruned weights at zero."""


def copy_model(model: Backbone) -> Backbone:
    """Return a copy of a model, weights included."""
    return copy.deepcopy(model)


def examples_of(
    task: Task, model: Backbone, number: int, hardware: HardwareProfile, *, batch_size: int
) -> Iterator[Examples]:
    """Yield the first `number` examples of the training split (in the order of seed 0) in batches.

    Args:
        task: The task, with prepared data.
        model: The model, which is moved to the device.
        number: How many examples; fewer are yielded if the split has fewer.
        hardware: The device of model and batches.
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
    if remaining == number:  # the split has yielded no batch
        raise Unsupported(
            f"the training split of {task.spec.name} is smaller than one batch of {rows} "
            "examples: lower runner.evaluation_batch"
        )


def without_heads(
    model: Backbone, task: Task, config: Compress, hardware: HardwareProfile
) -> Iterator[CompressedModel | Measurement]:
    """Yield models with fewer and fewer heads, and before them the importance of each head.

    Raises:
        ValueError: An amount leaves a layer without a head.
    """
    pruned = copy_model(model)
    layers = attention_layers(pruned)
    total = sum(heads_of(mixer) for mixer in layers.values())
    removed = 0
    for amount in config.shares:
        count = round(amount * total)
        if config.amounts is None:  # default amounts always leave each layer a head
            count = min(count, total - len(layers))
        if count == removed:  # a small model has few heads, so this is the model before
            continue
        phase("importance of heads")
        examples = examples_of(
            task, pruned, config.importance_examples, hardware, batch_size=config.evaluation_batch
        )
        importance = head_importance(pruned, examples)
        if not removed:  # only the importance in the whole model is reported
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


def without_weights(
    model: Backbone, amounts: Sequence[float], scope: Scope
) -> Iterator[CompressedModel]:
    """Yield one model for each amount, with the smallest weights set to 0."""
    for amount in amounts:
        pruned = copy_model(model)
        prune_weights(pruned, amount, scope)
        yield CompressedModel(
            model=pruned,
            labels={
                "amount": f"{amount:g}",
                "sparsity": f"{share_of_zeros(pruned):.4f}",
                "scope": scope.value,
                "products": "dense",  # zeros are multiplied like other numbers: no time is saved
            },
        )


def with_shared_columns(
    model: Backbone, config: Compress
) -> Iterator[CompressedModel | Measurement]:
    """Yield the error of each layer, then the model with shared queries and keys, by amount."""
    for amount in config.shares:
        phase("decomposing heads")
        shared = copy_model(model)
        errors = with_shared_heads(shared, amount)
        labels = {"amount": f"{amount:g}", "rank": str(max(rank for rank, _ in errors.values()))}
        for layer, (_, error) in errors.items():
            row_labels = {"method": "shared_heads", **labels, "layer": str(layer)}
            yield Measurement(metric="decomposition_error", value=error, labels=row_labels)
        yield CompressedModel(model=shared, labels=labels)


def with_fewer_layers(model: Backbone, config: Compress) -> CompressedModel:
    """Return a student: a copy of the model that has fewer layers."""
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


def in_eight_bits(
    model: Backbone, config: Compress, hardware: HardwareProfile
) -> Iterator[CompressedModel]:
    """Yield the model in 8 bits; for each amount, it with zeros, and the float model with as many.

    Codes of different maps have different scales, so every map loses the same fraction.
    """
    facts = {"form": config.form.value, "library": "torchao"}
    yield CompressedModel(
        model=quantised_copy(model, config.form, hardware),
        labels={"amount": "8", "bits": "8", **facts},
    )
    for item in without_weights(model, config.shares, Scope.layer):
        yield replace(item, labels={"method": CompressionMethod.magnitude.value, **item.labels})
        coded = quantised_copy(model, config.form, hardware)
        sparsity = prune_codes(coded, float(item.labels["amount"]))
        labels = {"method": "int8+magnitude", **facts, "sparsity": f"{sparsity:.4f}"}
        yield CompressedModel(model=coded, labels={**item.labels, **labels})


def quantised_copy(model: Backbone, form: Int8Form, hardware: HardwareProfile) -> Backbone:
    """Return a copy of the model with linear maps in 8 bits."""
    quantised = copy_model(model).eval()
    with torch.no_grad():
        quantise(quantised, form, torch.device(str(hardware.device)))
    return quantised
