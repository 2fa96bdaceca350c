"""The Backbone beside a module written by hand, at short lengths: a training step, and evaluation.

    python tests/benchmarks/backbone.py step|evaluation --json ROWS

The module is that of `plain_training.py`, with the Backbone's weights: two pre-norm layers of width
64, a CLS vector, learned positions. Both read the same batches: 32 rows of 50 to 150 tokens in
buckets, as trainings have them. Before anything is timed, losses are compared. A step is forward,
backward, clipping and AdamW; evaluation is forward without gradients.

Sides take turns, batch by batch. Measured is processor time on one thread; a sample is a pass
through all batches, and ratios, Backbone over module, are those of one pass.
"""

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from lra.models.families.linear import LinearAttention
from lra.models.families.sdpa import SDPA
from lra.models.families.softmax import SoftmaxAttention
from tests.benchmarks.frame import append, command_line, ratios, say_machine
from tests.benchmarks.plain_training import (
    BATCH,
    CLASSES,
    CLIP,
    DEPTH,
    HEADS,
    WIDTH,
    Classifier,
    optimiser_of,
)  # fmt: skip

FAMILIES: dict[str, Any] = {"sdpa": SDPA, "softmax": SoftmaxAttention, "linear": LinearAttention}
SHORTEST, LONGEST, VOCABULARY = 50, 150, 16
NEAR = 1e-5


class Batch(NamedTuple):
    """Rows of one bucket."""

    tokens: Tensor
    keep: Tensor
    labels: Tensor


class Pair(NamedTuple):
    """Two models of equal weights."""

    backbone: Backbone
    by_hand: Classifier

    def losses(self, batch: Batch) -> tuple[Callable[[], Tensor], Callable[[], Tensor]]:
        """Return what computes the mean loss of a batch, by each."""
        rows = batch.tokens[:, None], batch.labels, batch.keep[:, None]
        return (
            lambda: self.backbone(*rows).nll.mean(),
            lambda: self.by_hand(batch.tokens, batch.keep, batch.labels)["loss"],
        )


def pair(family: str) -> Pair:
    """Return the Backbone of a family, and the module."""
    config = BackboneConfig(
        depth=DEPTH, width=WIDTH, heads=HEADS, feed_forward_width=2 * WIDTH, positions="learned"
    )
    facts = TaskFacts(
        head=Head.classification, vocabulary=VOCABULARY, classes=CLASSES, max_length=LONGEST,
        padded=True,
    )  # fmt: skip
    backbone = Backbone(config, facts, [FAMILIES[family]], seed=0)
    return Pair(backbone, Classifier(backbone.state_dict(), family))


def buckets(count: int) -> list[Batch]:
    """Return batches, each of rows of like lengths."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(SHORTEST, LONGEST + 1, (count * BATCH,), generator=generator)
    found = []
    for part in lengths.sort().values.split(BATCH):
        keep = torch.arange(int(part.max())) < part[:, None]
        tokens = torch.randint(1, VOCABULARY, keep.shape, generator=generator) * keep
        labels = torch.randint(CLASSES, (BATCH,), generator=generator)
        found.append(Batch(tokens, keep, labels))
    return found


def stepping(model: nn.Module) -> Callable[[Callable[[], Tensor]], None]:
    """Return what takes a step on a loss."""
    optimiser = optimiser_of(model)

    def step(loss: Callable[[], Tensor]) -> None:
        torch.autograd.backward(loss())
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimiser.step()
        optimiser.zero_grad()

    return step


def measured(part: str, models: Pair, batches: list[Batch], samples: int) -> list[list[float]]:
    """Return the processor seconds of each pass, of both."""
    calls = [stepping(model) if part == "step" else (lambda loss: loss()) for model in models]
    taken: list[list[float]] = [[], []]
    for number in range(samples + 1):
        spent = [0.0, 0.0]
        for place, batch in enumerate(batches):
            losses = models.losses(batch)
            for side in (0, 1) if (number + place) % 2 else (1, 0):
                begun = time.process_time()
                calls[side](losses[side])
                spent[side] += time.process_time() - begun
        for side in (0, 1) if number else ():  # the first pass warms up
            taken[side].append(spent[side])
    return taken


def main() -> None:
    """Measure one part."""
    parser = command_line(__doc__, ("step", "evaluation"))
    parser.add_argument("--samples", type=int, default=11)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--families", nargs="+", default=[*FAMILIES], choices=FAMILIES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    say_machine()
    batches, rows = buckets(options.batches), []
    for family in options.families:
        models = pair(family)
        ours, theirs = (loss().item() for loss in models.losses(batches[0]))
        if abs(ours - theirs) > NEAR:
            raise RuntimeError(f"{family}: losses {ours} and {theirs}: not one model")
        for model in models:
            model.train(options.part == "step")
        torch.set_grad_enabled(options.part == "step")
        taken = measured(options.part, models, batches, options.samples)
        each = ratios(*taken)
        backbone, hand = (1e3 * statistics.median(s) / len(batches) for s in taken)
        print(
            f"{family:8} {options.part} {backbone:.2f} ms, by hand {hand:.2f}: "
            f"{statistics.median(each):.3f} [{min(each):.3f}, {max(each):.3f}]",
            flush=True,
        )
        rows.append(
            {
                "family": family, "part": options.part, "processor_s": taken, "ratios": each,
                "torch": torch.__version__,
            }
        )  # fmt: skip
    append(options.json, rows)


if __name__ == "__main__":
    main()
