"""What a whole `lra run` takes beside the same training written by hand, by Trainer and by Fabric.

    pip install transformers accelerate lightning    # in an environment of your own: for all sides
    python tests/benchmarks/whole_run.py run --steps 60 300 --pairs 5 --json ROWS

`command` is `lra run` as typed, with its dashboard; `quiet` is the same with `logger=none`; the
others are `plain_training.py`, which knows nothing of lra. All train one model from equal weights
on equal batches of one prepared split of ListOps, and evaluate it once. Before anything is timed
the losses on the test split are compared; a side that is not installed is left out, by name.

Sides take turns. Measured is processor time of all processes of a side, on one thread, imports and
start included. Two numbers of steps tell the cost of a step from what is spent once: both are
printed, as medians with their range. A busy machine lends no rows: keep those of a quiet one alone.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lra.runners.isolation.descendants import adopt_orphans
from tests.benchmarks.frame import append, command_line, processor_seconds, say_machine

HERE = Path(__file__).resolve().parent
WORDS = (
    "model=sdpa", "task=listops", "task.min_length=50", "task.max_length=150", "task.max_depth=4",
    "task.train_examples=20000", "task.validation_examples=100", "task.test_examples=1000",
    "optim.schedule=constant", "optim.warmup_steps=0", "runner.evaluate_splits=[test]",
)  # fmt: skip
NEEDS = {"hand": ("torch",), "trainer": ("transformers", "accelerate"), "fabric": ("lightning",)}
"""Packages of each script."""
NEAR = 1e-3
"""Of losses: sums are taken in another order."""


def prepare(folder: Path, steps: int) -> None:
    """Write what the scripts begin with: weights, the rows of every batch, the place of data."""
    import numpy as np
    import torch

    from lra.composition.compose import build_model, typed
    from lra.composition.hydra_entry import entries
    from lra.runners.training.prefetch import BatchPosition, endless

    run = typed(entries([*WORDS, f"optim.steps={steps}"])[0].config)
    task: Any = run.task
    task.prepare()
    torch.save(build_model(run).state_dict(), folder / "start.pt")
    source = endless(task, run.optim.batch_size, run.seed, BatchPosition(0, 0))
    np.save(folder / "order.npy", np.stack([next(source)[1].index.numpy() for _ in range(steps)]))
    (folder / "data.txt").write_text(str(task.folder))


def measured(side: str, folder: Path, steps: int) -> tuple[float, dict[str, float]]:
    """Return the processor seconds of one side, and its scores on the test split."""
    if side in NEEDS:
        words = [str(HERE / "plain_training.py"), side, str(folder), str(steps)]
    else:
        results = tempfile.mkdtemp(dir=folder)
        words = ["-m", "lra", "run", *WORDS, f"optim.steps={steps}", f"results={results}"]
        words += ["logger=none"] if side == "quiet" else []
    begun = processor_seconds()
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    with suppress(ChildProcessError):
        while True:
            os.wait()  # for what a side leaves to end by itself, as a fork server is
    spent = processor_seconds() - begun
    if done.returncode:
        raise RuntimeError(f"{side}: {done.stderr[-2000:]}")
    if side in NEEDS:
        return spent, json.loads(done.stdout.splitlines()[-1])
    rows = [json.loads(line) for file in Path(results).glob("cells/*/*/rows*.jsonl")
            for line in file.read_text().splitlines()]  # fmt: skip
    tested = (row for row in rows if row["labels"].get("split") == "test")
    return spent, {row["metric"]: row["value"] for row in tested}


def text_of(values: list[float]) -> str:
    """Return median and range."""
    return f"{statistics.median(values):.2f} [{min(values):.2f}, {max(values):.2f}]"


def main() -> None:
    """Compare losses, then take turns."""
    parser = command_line(__doc__, ("run",))
    parser.add_argument("--steps", type=int, nargs=2, default=[60, 300])
    parser.add_argument("--pairs", type=int, default=5)
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    adopt_orphans()  # else the time of cells would be nobody's
    sides = [
        "command",
        "quiet",
        *(side for side, names in NEEDS.items() if all(map(find_spec, names))),
    ]
    for side in NEEDS.keys() - {*sides}:
        print(f"{side} is left out: {' and '.join(NEEDS[side])} would be needed")
    say_machine()
    few, many = sorted(options.steps)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["LRA_DATA"] = str(folder / "data")
        prepare(folder, many)
        scores = {side: measured(side, folder, few)[1] for side in sides}
        losses = {side: score["loss"] for side, score in scores.items()}
        print("loss on the test split: " + ", ".join(f"{s} {x:.6f}" for s, x in losses.items()))
        if max(losses.values()) - min(losses.values()) > NEAR:
            raise RuntimeError("these are not the same training: nothing is timed")
        spent: dict[tuple[str, int], list[float]] = {}
        for _ in range(options.pairs):
            for steps in (few, many):
                for side in sides:
                    seconds, _ = measured(side, folder, steps)
                    spent.setdefault((side, steps), []).append(seconds)
    rows: list[dict[str, Any]] = []
    for side in sides:
        short, long = spent[side, few], spent[side, many]
        pairs = [*zip(short, long, strict=True)]
        step = [(b - a) / (many - few) for a, b in pairs]
        once = [a - few * each for (a, _), each in zip(pairs, step, strict=True)]
        each_ms = text_of([1e3 * seconds for seconds in step])
        ratio = [a / b for a, b in zip(long, spent["hand", many], strict=True)]
        print(
            f"{side:8} {many} steps {text_of(long)} s, once {text_of(once)} s, "
            f"a step {each_ms} ms, over hand {text_of(ratio)}"
        )
        row = {"side": side, "steps": [few, many], "processor_s": pairs, "loss": losses[side]}
        rows.append(row)
    append(options.json, rows)


if __name__ == "__main__":
    main()
