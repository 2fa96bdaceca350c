"""The variants of a trained model that each method makes."""

import copy
from collections.abc import Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING

import torch

from models.backbone.model import Backbone
from models.compression.codebook import code_weights
from models.compression.head_importance import (
    Examples,
    attention_layers,
    head_importance,
    heads_of,
    least_important,
    remove_heads,
)
from models.compression.int8 import Int8Form, quantise
from models.compression.layers import keep_layers, unshare
from models.compression.magnitude import prune_weights, share_of_zeros
from models.mixer import Unsupported
from runners.compression.collaborative import with_shared_heads
from runners.compression.measured import CompressedModel
from runners.isolation.progress import phase
from runners.measurement.hardware import HardwareProfile
from runners.records import Measurement
from runners.training.prefetch import masks_of, rows_of, to_device
from tasks.task import Task

if TYPE_CHECKING:
    from runners.compress import Compress

STAGE, COMPRESSED, TUNED = "stage", "compressed", "fine-tuned"


def copied(model: Backbone) -> Backbone:
    """Return a model of its own with the same weights."""
    return copy.deepcopy(model)


def examples_of(
    task: Task, model: Backbone, number: int, hardware: HardwareProfile, *, batch_size: int
) -> Iterator[Examples]:
    """Yield the first examples of the training split, in its order of seed 0.

    Raises:
        Unsupported: The split has no batch of so many.
    """
    device, left = torch.device(str(hardware.device)), number
    model.to(device)
    there_are = task.spec.sizes.get("train", number)
    rows = min(batch_size, number, there_are)
    for batch in task.batches("train", batch_size=rows, seed=0):
        there = rows_of(to_device(batch, device), slice(0, left))
        yield Examples(there.tokens, there.target, there.keep, there.weight, masks_of(there))
        left -= len(batch.tokens)
        if left <= 0:
            return
    if left == number:
        raise Unsupported(
            f"the training split of {task.spec.name} has no batch of {rows}: lower "
            "runner.evaluation_batch"
        )


def without_heads(
    model: Backbone, task: Task, config: "Compress", hardware: HardwareProfile
) -> Iterator[CompressedModel | Measurement]:
    """Yield models with fewer and fewer heads, and the importance that decided which go.

    Raises:
        ValueError: A share leaves a layer without a head.
    """
    pruned = copied(model)
    layers = attention_layers(pruned)
    total = sum(heads_of(mixer) for mixer in layers.values())
    removed = 0
    for share in config.shares:
        count = round(share * total)
        if config.amounts is None:
            count = min(count, total - len(layers))
        if count == removed:
            continue
        phase("importance of heads")
        given = examples_of(
            task, pruned, config.importance_examples, hardware, batch_size=config.evaluation_batch
        )
        importance = head_importance(pruned, given)
        if not removed:
            yield from importance_rows(importance)
        remove_heads(pruned, least_important(importance, count - removed))
        removed = count
        yield CompressedModel(
            model=copied(pruned),
            labels={"amount": f"{count / total:.4g}", "heads": f"{total - count} of {total}"},
        )


def importance_rows(importance: Mapping[int, torch.Tensor]) -> Iterator[Measurement]:
    """Yield the importance of every head of the whole model."""
    for layer, scores in importance.items():
        for head, score in enumerate(scores.tolist()):
            labels = {"method": "heads", "layer": str(layer), "head": str(head)}
            yield Measurement(metric="head_importance", value=score, labels=labels)


def without_weights(model: Backbone, config: "Compress") -> Iterator[CompressedModel]:
    """Yield models without their smallest weights."""
    for share in config.shares:
        pruned = copied(model)
        prune_weights(pruned, share, config.scope)
        yield CompressedModel(
            model=pruned,
            labels={
                "amount": f"{share:g}",
                "sparsity": f"{share_of_zeros(pruned):.4f}",
                "scope": config.scope.value,
                "products": "dense",  # no product is left out, and no time is saved
            },
        )


def with_shared_columns(
    model: Backbone, config: "Compress"
) -> Iterator[CompressedModel | Measurement]:
    """Yield models whose heads share queries and keys, and the errors of the decompositions."""
    for share in config.shares:
        phase("decomposing heads")
        shared = copied(model)
        found = with_shared_heads(shared, share)
        labels = {"amount": f"{share:g}", "rank": str(max(rank for rank, _ in found.values()))}
        for layer, (_, error) in found.items():
            own = {"method": "shared_heads", **labels, "layer": str(layer)}
            yield Measurement(metric="decomposition_error", value=error, labels=own)
        yield CompressedModel(model=shared, labels=labels)


def with_fewer_layers(model: Backbone, config: "Compress") -> CompressedModel:
    """Return the model with some of its layers: a student of the whole one."""
    student, depth = copied(model), model.config.depth
    layers = max(1, depth // 2) if config.student_layers is None else config.student_layers
    keep_layers(student, layers)
    labels = {"amount": f"{1 - layers / depth:.4g}", "kept_layers": f"{layers} of {depth}"}
    return CompressedModel(model=student, labels=labels)


def with_own_layers(model: Backbone) -> CompressedModel:
    """Return the model with weights of its own in every layer."""
    own = copied(model)
    unshare(own)
    return CompressedModel(model=own, labels={"amount": "0"})


def in_eight_bits(
    model: Backbone, task: Task, config: "Compress", hardware: HardwareProfile
) -> Iterator[CompressedModel]:
    """Yield the model with 8-bit linear maps."""
    coded = copied(model).eval()
    device = torch.device(str(hardware.device))
    calls = []
    if config.form is Int8Form.static:
        given = examples_of(
            task, coded, config.calibration_examples, hardware, batch_size=config.evaluation_batch
        )
        calls = [partial(coded.predict, own.tokens, own.keep, None, own.layout) for own in given]
    with torch.no_grad():
        quantise(coded, config.form, library=config.library, calibration=calls, device=device)
    labels = {"amount": "8", "bits": "8", "form": config.form.value}
    yield CompressedModel(model=coded, labels={**labels, "library": config.library.value})


def with_codebooks(model: Backbone) -> Iterator[CompressedModel]:
    """Yield the model with a codebook of 256 numbers for each linear map."""
    coded = copied(model)
    code_weights(coded)
    yield CompressedModel(model=coded, labels={"amount": "8", "bits": "8", "form": "codebook"})
