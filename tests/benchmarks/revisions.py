"""Two revisions on one machine, interleaved: how many times as fast is the present one?

    git worktree add BEFORE REVISION
    python tests/benchmarks/revisions.py pass --checkout BEFORE --model linear --length 4096
    python tests/benchmarks/revisions.py step|evaluation --checkout BEFORE --json ROWS

`pass` is a forward and a backward pass of any model in the default backbone, on random tokens of
ListOps. `step` and `evaluation` are those of `task=mqar` with its defaults (64 tokens, 4 questions,
8,192 ids) and two layers of exact attention of width 64; a step is all that a training does with a
batch of 64 rows: forward, backward, clipping and AdamW.

Each revision runs in a process, with one thread. Both read the same batches, and sides take turns.
Losses of each sample are compared. Measured is processor time; a sample is a few batches.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
SERVE = "serve"
NEAR = 1e-4


def serve(root: str, data: str, part: str, sized: tuple[int, str, int]) -> None:
    """Answer each line of stdin with the processor seconds and the mean loss of some batches."""
    sys.path.insert(0, root)
    import os

    os.environ["LRA_DATA"] = data
    import torch

    torch.set_num_threads(1)
    batches, model, length = sized
    sample = pass_of(model, length, batches) if part == "pass" else training_of(part, batches)
    for number, _ in enumerate(sys.stdin):
        begun = time.process_time()
        loss = sample(number)
        print(json.dumps([time.process_time() - begun, loss]), flush=True)


def pass_of(name: str, length: int, batches: int) -> Callable[[int], float]:
    """Return what runs some passes of a model, and returns their mean loss."""
    import torch

    import lra

    model = lra.model(name, **{"task.max_length": length})
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(1, 10, (max(1, 4096 // length), 1, length), generator=draw)
    target = torch.randint(10, (len(tokens),), generator=draw)

    def sample(_: int) -> float:
        losses = []
        for _ in range(batches):
            model.zero_grad()
            loss = model(tokens, target).nll.mean()
            loss.backward()
            losses.append(float(loss.detach()))
        return sum(losses) / batches

    return sample


def training_of(part: str, batches: int) -> Callable[[int], float]:
    """Return what trains on, or evaluates, some batches, and returns their mean loss."""
    from lra.models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
    from lra.models.families.sdpa import SDPA
    from lra.runners.measurement.hardware import HardwareProfile
    from lra.runners.training.checkpoint import Checkpoints
    from lra.runners.training.config import TrainConfig
    from lra.runners.training.evaluate import evaluate
    from lra.runners.training.loop import Trainer
    from lra.runners.training.optim import OptimConfig
    from lra.tasks.diagnostics.mqar import MQAR

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

    def sample(number: int) -> float:
        if part == "step":
            first = number * batches
            chosen = [steps[(first + each) % len(steps)] for each in range(batches)]
            return sum(float(trainer.advance(batch)) for batch in chosen) / batches
        scores = evaluate(trainer.model, task, "validation", batch_size=64, device=trainer.device)
        return float(scores.measured["loss"])

    return sample


class Side:
    """A revision that runs in a process of its own."""

    def __init__(self, root: Path, data: Path, options: Any) -> None:
        words = [sys.executable, str(HERE), SERVE, str(root.resolve()), str(data), options.part]
        words += [str(options.batches), options.model, str(options.length)]
        self.process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
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
        root, data, part, batches, model, length = sys.argv[2:]
        serve(root, data, part, (int(batches), model, int(length)))
        return
    import tempfile

    sys.path.insert(0, str(HERE.parents[2]))
    from tests.benchmarks.frame import append, command_line, quartiles, ratios, say_machine

    parser = command_line(__doc__, ("pass", "step", "evaluation"))
    parser.add_argument("--checkout", type=Path, required=True, help="a clone of an older revision")
    parser.add_argument("--model", default="linear", help="the model of `pass`")
    parser.add_argument("--length", type=int, default=1024, help="the tokens of `pass`")
    parser.add_argument("--samples", type=int, default=21)
    parser.add_argument("--batches", type=int, default=4, help="batches of a sample")
    options: Any = parser.parse_args()
    say_machine()
    with tempfile.TemporaryDirectory() as folder:
        places = {"before": options.checkout, "after": HERE.parents[2]}
        sides = {name: Side(root, Path(folder, name), options) for name, root in places.items()}
        taken = measured(sides, options.samples)
        for side in sides.values():
            side.process.communicate()
    faster = ratios(taken["before"], taken["after"])
    what = f"{options.model} at {options.length}" if options.part == "pass" else "mqar"
    print(f"{options.part} of {what}: {quartiles(faster)} times as fast, by processor time")
    append(
        options.json,
        [{"what": f"{options.part} of {what}", "ratios": faster, "processor_s": taken,
          "batches": options.batches}],
    )  # fmt: skip


if __name__ == "__main__":
    main()
