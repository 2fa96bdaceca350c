"""Our adaptive head against PyTorch's own module: `python tests/benchmarks/heads.py --json ROWS`.

A training step of each (losses, gradients of inputs and weights) over 267,735 words, the same
weights, interleaved; the ratio of paired samples is printed with its quartiles.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from models.backbone.heads import AdaptiveHead

VOCABULARY, CUTOFFS, SHRINK = 267_735, [20_000, 40_000, 200_000], 4.0


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--samples", type=int, default=15)
    parser.add_argument("--json", type=Path, help="append rows, one JSON object a line")
    arguments = parser.parse_args()
    rows = []
    for batch, length in ((4, 128), (8, 256), (16, 512)):
        ratios = compare(arguments.width, batch, length, arguments.samples)
        low, middle, high = statistics.quantiles(ratios, n=4)
        print(
            f"{batch} x {length} tokens, width {arguments.width}: ours / torch {middle:.3f} "
            f"[{low:.3f}, {high:.3f}]",
            flush=True,
        )
        rows.append({"batch": batch, "length": length, "width": arguments.width, "ratios": ratios})
    if arguments.json:
        with arguments.json.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def compare(width: int, batch: int, length: int, samples: int) -> list[float]:
    """Return the ratios of paired samples."""
    torch.manual_seed(0)
    ours = AdaptiveHead(width, VOCABULARY, CUTOFFS, SHRINK).train()
    theirs = copy.deepcopy(ours.groups)
    x = torch.randn(batch, length, width)
    # Words as frequent as in a text: log-uniform ids.
    target = (torch.rand(batch, length) * torch.tensor(float(VOCABULARY)).log()).exp().long()
    target.clamp_(max=VOCABULARY - 1)

    def step(loss: Callable[[Tensor], Tensor], module: torch.nn.Module) -> float:
        module.zero_grad()
        given = x.clone().requires_grad_()
        began = time.perf_counter()
        loss(given).backward()
        return time.perf_counter() - began

    def own(given: Tensor) -> Tensor:
        return ours.judge(given, target)[0].mean()

    def other(given: Tensor) -> Tensor:
        return theirs(given.flatten(0, 1), target.flatten()).loss

    torch.testing.assert_close(own(x), other(x))
    pairs = [(step(own, ours), step(other, theirs)) for _ in range(samples + 2)][2:]
    return [mine / torchs for mine, torchs in pairs]


if __name__ == "__main__":
    main()
