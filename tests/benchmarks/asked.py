"""A training step in which only asked positions reach the head, beside one in which all do.

    git worktree add BEFORE REVISION     # a revision whose head reads all positions
    python tests/benchmarks/asked.py step|evaluation --checkout BEFORE --json ROWS

The task is `mqar` with its defaults: 64 tokens, 4 questions, 8,192 ids. The model has two layers of
exact attention of width 64. A step is all that a training does with a batch of 64 rows: forward,
backward, clipping and AdamW.

Each revision runs in a process, with one thread. Both read the same batches, and sides take turns.
Before anything is timed, losses are compared. Measured is processor time; a sample is a few
batches, and ratios are how many times as fast the present revision is.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
SERVE = "serve"
NEAR = 1e-4


def serve(root: str, part: str, data: str, batches: int) -> None:
    """Answer each line of stdin with the processor seconds and the mean loss of some batches."""
    sys.path.insert(0, root)
    import os

    os.environ["LRA_DATA"] = data
    import torch

    from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
    from lra.models.families.sdpa import SDPA
    from lra.runners.measurement.hardware import HardwareProfile
    from lra.runners.training.checkpoint import Checkpoints
    from lra.runners.training.config import TrainConfig
    from lra.runners.training.evaluate import evaluate
    from lra.runners.training.loop import Trainer
    from lra.runners.training.optim import OptimConfig
    from lra.tasks.diagnostics.mqar import MQAR

    torch.set_num_threads(1)
    rows = 64 * batches
    task = MQAR(train_examples=64 * 16, validation_examples=rows, test_examples=64)
    task.prepare()
    facts = TaskFacts(
        head=Head.language_modelling, vocabulary=task.vocabulary, classes=task.vocabulary,
        max_length=task.length,
    )  # fmt: skip
    frame = BackboneConfig(depth=2, width=64, heads=2, feed_forward="none")
    trainer = Trainer(
        Backbone(frame, facts, [SDPA], seed=0), task, config=TrainConfig(), seed=0,
        optim=OptimConfig(steps=10**6, batch_size=64, clip=1.0), checkpoints=Checkpoints(None),
        hardware=HardwareProfile(name="cpu"),
    )  # fmt: skip
    steps = [*task.batches("train", batch_size=64, seed=0)]
    trainer.model.train()
    for number, _ in enumerate(sys.stdin):
        begun = time.process_time()
        if part == "step":
            first = number * batches
            chosen = [steps[(first + each) % len(steps)] for each in range(batches)]
            loss = sum(float(trainer.advance(batch)) for batch in chosen) / batches
        else:
            scores = evaluate(
                trainer.model, task, "validation", batch_size=64, device=trainer.device
            )
            loss = scores.measured["loss"]
        print(json.dumps([time.process_time() - begun, loss]), flush=True)


class Side:
    """A revision that runs in a process of its own."""

    def __init__(self, root: Path, part: str, data: Path, batches: int) -> None:
        words = [sys.executable, str(HERE), SERVE, str(root.resolve()), part, str(data)]
        self.process = subprocess.Popen(
            [*words, str(batches)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def sample(self) -> tuple[float, float]:
        """Return the processor seconds and the mean loss of the next batches."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        seconds, loss = json.loads(self.process.stdout.readline())
        return seconds, loss


def measured(sides: dict[str, Side], samples: int) -> dict[str, list[float]]:
    """Return processor seconds of each side, taken in turns behind one round that warms up."""
    taken: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(samples + 1):
        order = [*sides] if number % 2 else [*sides][::-1]
        found = {name: sides[name].sample() for name in order}
        (_, before), (_, after) = (found[name] for name in sides)
        if abs(before - after) > NEAR:
            raise RuntimeError(f"losses {before} and {after}: not one training")
        for name in order if number else ():
            taken[name].append(found[name][0])
    return taken


def main() -> None:
    """Measure one part."""
    if sys.argv[1:2] == [SERVE]:
        root, part, data, batches = sys.argv[2:]
        serve(root, part, data, int(batches))
        return
    import tempfile

    sys.path.insert(0, str(HERE.parents[2]))
    from tests.benchmarks.frame import append, command_line, quartiles, ratios, say_machine

    parser = command_line(__doc__, ("step", "evaluation"))
    parser.add_argument("--checkout", type=Path, required=True, help="a clone of an older revision")
    parser.add_argument("--samples", type=int, default=21)
    parser.add_argument("--batches", type=int, default=4, help="batches of a sample")
    options: Any = parser.parse_args()
    say_machine()
    with tempfile.TemporaryDirectory() as folder:
        places = {"before": options.checkout, "after": HERE.parents[2]}
        sides = {
            name: Side(root, options.part, Path(folder, name), options.batches)
            for name, root in places.items()
        }
        taken = measured(sides, options.samples)
        for side in sides.values():
            side.process.communicate()
    faster = ratios(taken["before"], taken["after"])
    print(f"{options.part} of mqar: {quartiles(faster)} times as fast, by processor time")
    append(
        options.json,
        [{"what": f"{options.part} of mqar", "ratios": faster, "processor_s": taken,
          "batches": options.batches}],
    )  # fmt: skip


if __name__ == "__main__":
    main()
