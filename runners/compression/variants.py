"""The variants of a trained model that each method makes."""

import copy
from collections.abc import Iterator, Mapping
from itertools import islice
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
from models.compression.magnitude import prune_weights, share_of_zeros
from models.mixer import Unsupported
from runners.compression.measured import CompressedModel
from runners.isolation.progress import phase
from runners.measurement.hardware import HardwareProfile
from runners.records import Measurement
from runners.training.prefetch import to_device
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
        there = to_device(batch, device)
        some = slice(0, left)
        keep = None if there.keep is None else there.keep[some]
        weight = None if there.weight is None else there.weight[some]
        yield Examples(there.tokens[some], there.target[some], keep, weight)
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
        calls = [lambda own=own: coded.predict(own.tokens, own.keep) for own in islice(given, None)]
    with torch.no_grad():
        quantise(coded, config.form, library=config.library, calibration=calls, device=device)
    labels = {"amount": "8", "bits": "8", "form": config.form.value}
    yield CompressedModel(model=coded, labels={**labels, "library": config.library.value})


def with_codebooks(model: Backbone) -> Iterator[CompressedModel]:
    """Yield the model with a codebook of 256 numbers for each linear map."""
    coded = copied(model)
    code_weights(coded)
    yield CompressedModel(model=coded, labels={"amount": "8", "bits": "8", "form": "codebook"})
