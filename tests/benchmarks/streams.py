"""How fast windows of a stream are fed: `python tests/benchmarks/streams.py --json rows.jsonl`.

A stream of two billion tokens of two bytes, as many as PG-19 has words, is written block by block
into a temporary folder and read for one epoch in random order; its own memory (what no file backs)
is looked at along the way. Needs 4.1 GB of disk; `--tokens` makes it smaller.
"""

import argparse
import json
import os
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.data import own_memory

BLOCK = 1 << 24
SHAPES = ((256, 32), (512, 32), (1024, 16), (4096, 8))
"""Tokens of a window, and windows of a batch."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=2_000_000_000)
    parser.add_argument("--json", type=Path, help="append rows, one JSON object a line")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["LRA_DATA"] = folder
        rows = run(arguments.tokens)
    if arguments.json:
        with arguments.json.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def run(tokens: int) -> list[dict[str, Any]]:
    """Measure, print, and return what was printed."""
    from tasks.data.sources import data_root
    from tasks.data.storage import Ragged
    from tasks.language.base import LanguageTask, Regime
    from tasks.task import TaskSpec

    def blocks(number: int) -> Iterator[Ragged]:
        generator = np.random.default_rng(0)
        for first in range(0, number, BLOCK):
            part = generator.integers(0, 32_768, min(BLOCK, number - first), dtype=np.uint16)
            yield Ragged(part, np.array([0, len(part)]), np.zeros(1, np.uint8))

    class Stream(LanguageTask):
        """Random tokens."""

        @property
        def spec(self) -> TaskSpec:
            return self.stream_spec(
                name="stream",
                version=1,
                vocabulary=32_768,
                metric="perplexity",
                source="random",
                data_hash="none",
            )

        @property
        def folder(self) -> Path:
            return data_root() / "stream"

        def make(self) -> None:
            sizes = {"train": tokens, "validation": 10_000, "test": 10_000}
            self.write({split: blocks(number) for split, number in sizes.items()})

    found: list[dict[str, Any]] = []
    for length, rows in SHAPES:
        task = Stream()
        task.read_as(
            length=length,
            regime=Regime.non_overlapping,
            stride=None,
            memory=0,
            contiguous=False,
        )
        began = time.perf_counter()
        task.prepare()
        task.split("train")
        opened = time.perf_counter() - began
        if length == SHAPES[0][0]:
            print(f"written and opened: {tokens:,} tokens in {opened:.1f} s")
        seen, memory = 0, []
        began = time.perf_counter()
        for number, batch in enumerate(task.batches("train", batch_size=rows, seed=1)):
            seen += batch.target.numel()
            if number % 20_000 == 0:
                memory.append(own_memory())
        spent = time.perf_counter() - began
        memory.append(own_memory())
        growth = (memory[-1] - memory[min(1, len(memory) - 1)]) / 2**20
        print(
            f"{rows} windows of {length:,}: {seen / spent / 1e6:.0f} M tokens/s over an epoch of "
            f"{seen:,} tokens; {growth:+.1f} MiB of own memory from batch 20,000 to its end",
            flush=True,
        )
        found.append(
            {
                "what": f"{rows} windows of {length} from a stream of {tokens} tokens",
                "tokens_per_s": seen / spent,
                "tokens": seen,
                "own_memory_bytes": memory,
            }
        )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(f"peak of resident memory, mapped pages included: {peak / 2**20:.2f} GiB")
    return found


if __name__ == "__main__":
    main()
