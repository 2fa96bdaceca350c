"""How long the command line takes: `python tests/benchmarks/startup.py --json rows.jsonl`.

`lra list`, and `lra run` of one training step without a dashboard, each in a fresh process. From
the second the imports that it cannot do without are taken off: an empty process that only imports
torch, Hydra and pandas runs before each run, and the paired difference is printed. A run of one
step ends with writing its rows, so the first step comes before what is printed.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SIDES = {
    "lra list": ["-m", "lra", "list"],
    "lra --help": ["-m", "lra", "--help"],
    "imports": ["-c", "import torch, hydra, pandas"],
    "lra run": [
        "-m", "lra", "run", "model=linear", "size=tiny", "task.train_examples=1000",
        "optim.steps=1", "optim.warmup_steps=0", "runner.evaluate_splits=[]", "logger=none",
    ],
}  # fmt: skip
"""What the interpreter is called with."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="append rows, one JSON object a line")
    arguments = parser.parse_args()
    samples: dict[str, list[float]] = {name: [] for name in SIDES}
    for number in range(arguments.rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            environment = {**os.environ, "LRA_DATA": str(Path(tempfile.gettempdir()) / "lra-data")}
            for name, words in SIDES.items():
                last = [f"results={folder}"] if name == "lra run" else []
                began = time.perf_counter()
                subprocess.run(
                    [sys.executable, *words, *last],
                    check=True,
                    env=environment,
                    stdout=subprocess.DEVNULL,
                )
                if number:  # the first round makes the data and warms the disk
                    samples[name].append(time.perf_counter() - began)
    pairs = zip(samples["lra run"], samples["imports"], strict=True)
    samples["lra run, imports off"] = [run - imports for run, imports in pairs]
    for name, found in samples.items():
        print(
            f"{name:<24}{statistics.median(found):6.2f} s  ({min(found):.2f} to {max(found):.2f})"
        )
        if arguments.json:
            with arguments.json.open("a") as file:
                file.write(json.dumps({"what": name, "seconds": found}) + "\n")


if __name__ == "__main__":
    main()
