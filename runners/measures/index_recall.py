"""How much attention an index recalls: that to what it chooses, against the best choice, by length.

Exact attention of each query, a mean over heads, is summed over the chosen tokens or blocks, and
over as many with the most attention. Queries that may read everything do not count. The others are
grouped by the number of tokens up to the query, between powers of 2.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, cast

import torch
from torch import Tensor

from lra.conf.bounds import check_least
from lra.conf.choices import by_name
from lra.models.backbone.model import Backbone
from lra.models.mixer import Flow, Layout, Unsupported
from lra.models.ops.sparse.index_recall import Recalls
from lra.runners.isolation.progress import so_far
from lra.runners.measurement.device import autocast
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.trained_runner import TrainedRunner
from lra.runners.records import Measurement
from lra.runners.runner import Passes, Work
from lra.runners.training.prefetch import first_of, masks_of, to_device
from lra.tasks.task import SPLITS, Task

NO_INDEX = "no layer of this model has an index: choose model=indexed"


@by_name
@dataclass(frozen=True, kw_only=True)
class IndexRecall(TrainedRunner):
    """How many examples are read."""

    outcome: ClassVar[str] = "index_recall"

    split: str = "validation"
    examples: int = 32
    """How many examples are read: the first ones of the split."""
    batch_size: int = 4

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        if self.split not in SPLITS[1:]:
            raise ValueError(f"split: got {self.split!r}; wanted one of {', '.join(SPLITS[1:])}")
        check_least(1, examples=self.examples, batch_size=self.batch_size)

    def passes(self, work: Work) -> list[Passes]:
        """Return the passes; exact attention takes at least as long as a pass."""
        length = work.task.spec.max_length
        return [Passes(2 * self.examples / self.batch_size, self.batch_size, length, False)]

    def unfit(self, task: Task, families: Sequence[object]) -> str:
        """Return that no layer has an index; "" if one has, or if one class builds all layers."""
        del task
        indexed = (isinstance(kind, type) and issubclass(kind, Recalls) for kind in families)
        return NO_INDEX if families and not any(indexed) else ""

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield the recall of every layer and length."""
        model, origins = self.model_of(work)
        yield from origins
        yield from index_recall(model, work.task, config=self, hardware=work.hardware)

    @classmethod
    def headline(cls, rows: Sequence[Measurement]) -> str:
        """Return the mean recall over layers and lengths."""
        values = [row.value for row in rows if row.metric == cls.outcome and row.value is not None]
        return f"the index recalls {sum(values) / len(values):.3f} of the best choice"


def index_recall(
    model: Backbone, task: Task, *, config: IndexRecall, hardware: HardwareProfile
) -> Iterator[Measurement]:
    """Read examples, and yield the share of attention that the index of each layer recalls.

    Args:
        model: A trained model.
        task: The task, with prepared data.
        config: Which examples are read.
        hardware: The device, and the number format of computations.

    Raises:
        Unsupported: No layer has an index, or no query has a choice.
    """
    blocks = list(cast(Any, getattr(model.stack, "blocks", ())))
    mixers = {n: b.mixer for n, b in enumerate(blocks) if isinstance(b.mixer, Recalls)}
    if not mixers:
        raise Unsupported(NO_INDEX)
    if len(set(map(id, mixers.values()))) < len(mixers):
        raise Unsupported(
            "several layers share one module, so lra cannot distinguish their calls: set "
            "model.backbone.layer_groups=null"
        )
    device = torch.device(str(hardware.device))
    model = model.to(device).eval()
    found = defaultdict[tuple[int, int], list[Tensor]](list)
    with torch.no_grad(), autocast(hardware):
        batches = first_of(task.batches(config.split, batch_size=config.batch_size, seed=0),
                           config.examples)  # fmt: skip
        for turn, batch in enumerate(batches):
            so_far("reading", turn * config.batch_size, config.examples, "example")
            moved = to_device(batch, device)
            for layer, (x, layout) in _inputs(model, moved, mixers).items():
                recall = mixers[layer].recall(x, layout)
                real = torch.ones_like(x[..., 0], dtype=torch.bool)
                real = real if layout.keep is None else layout.keep
                length = real.cumsum(1).clamp(min=1).log2().ceil().int()
                counted = recall.chose & real[:, None]
                for power in sorted({*length[counted.any(1)].tolist()}):
                    here = counted & (length == power)[:, None]
                    pair = torch.stack((recall.chosen[here], recall.best[here])).double().cpu()
                    found[layer, power].append(pair)
    if not found:
        raise Unsupported(
            "no query has more tokens than it may read: lower model.mixer.budget, or choose a task "
            "with longer examples"
        )
    for (layer, power), pairs in sorted(found.items()):
        chosen, best = torch.cat(pairs, 1)
        labels = {"split": config.split, "layer": str(layer), "length": str(2**power)}
        labels["queries"] = str(len(chosen))
        recalled = float((chosen / best).mean().clamp(max=1))  # sums may round above 1
        yield Measurement(metric="index_recall", value=recalled, labels=labels)
        mass = float(chosen.mean().clamp(max=1))
        yield Measurement(metric="index_mass", value=mass, labels=labels)


def _inputs(
    model: Backbone, batch: Any, mixers: dict[int, Any]
) -> dict[int, tuple[Tensor, Layout]]:
    """Run the model, and return what the mixers read: tokens and their layout, by layer."""
    read: dict[int, tuple[Tensor, Layout]] = {}

    def recorder(layer: int, extend: Any) -> Any:
        def record(flow: Flow, layout: Layout) -> Flow:
            read[layer] = flow.x, layout
            return cast(Flow, extend(flow, layout))

        return record

    for layer, mixer in mixers.items():
        mixer.extend = recorder(layer, mixer.extend)
    try:
        model.run(batch.tokens, batch.keep, None, masks_of(batch))
    finally:
        for mixer in mixers.values():
            del mixer.extend  # the method of the class remains
    return read
