"""LightConv and DynamicConv beside the plain forms of their released code, and a depthwise one.

    PYTHONPATH=. python tests/benchmarks/convolutions.py CHECKOUT --json ROWS

CHECKOUT is a clone of github.com/facebookresearch/fairseq. One training step (forward, backward) of
the convolution with the taps' softmax, without the projections around it: 8 heads of width 64, rows
that make 4,096 tokens. Beside ours stand the two forms of that
code (taps as a banded matrix, and the unfolded input) and, for LightConv, PyTorch's depthwise
convolution, which the head's kernel is copied for. Samples are interleaved; ratios are time of the
other form by time of ours, and bytes kept for the backward pass, ours by the other's.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from models.ops.convolution.dynamic import dynamic_convolution
from models.ops.convolution.layer import TapSoftmax
from models.ops.convolution.shared import shared_convolution
from tests.benchmarks.segments import saved
from tests.models.families.released.convolutions import loaded

TOKENS, WIDTH, HEADS = 4096, 512, 8
LENGTHS, KERNELS = (128, 1024), (7, 31)


class Form(NamedTuple):
    """One way to convolve."""

    call: Callable[[Tensor], Tensor]
    """From what is convolved to the outputs."""
    shaped: Tensor
    """What is convolved."""
    batch_first: bool = True


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, metavar="CHECKOUT")
    parser.add_argument("--samples", type=int, default=7)
    parser.add_argument("--json", type=Path, help="append rows, one JSON object a line")
    arguments = parser.parse_args()
    code = loaded(arguments.checkout)
    rows = []
    for name in ("light", "dynamic"):
        for length in LENGTHS:
            for taps in KERNELS:
                labels = {"name": name, "length": length, "taps": taps}
                for row in compared(forms(code, name, length, taps), arguments.samples):
                    rows.append(labels | row)
                    low, middle, high = statistics.quantiles(row["ratios"], n=4)
                    print(
                        f"{name}, {length} tokens, {taps} taps, {row['other']}: {middle:.3g} "
                        f"[{low:.3g}, {high:.3g}] times as fast, {row['bytes']:.3g} of its bytes",
                        flush=True,
                    )
    if arguments.json:
        with arguments.json.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def forms(code: SimpleNamespace, name: str, length: int, taps: int) -> dict[str, Form]:
    """Return every form with the same weights, ours first."""
    torch.manual_seed(0)
    options = {
        "kernel_size": taps,
        "padding_l": taps // 2,
        "num_heads": HEADS,
        "weight_softmax": True,
    }
    made = code.light.LightweightConv1dTBC if name == "light" else code.dynamic.DynamicConv1dTBC
    module = made(WIDTH, **options)
    x = torch.randn(TOKENS // length, length, WIDTH)
    first = x.transpose(0, 1).contiguous()
    (weight,), normalised = module.parameters(), TapSoftmax(taps // 2)

    def own(given: Tensor) -> Tensor:
        heads = given.unflatten(-1, (HEADS, -1)).transpose(1, 2)
        if name == "light":
            y = shared_convolution(heads, normalised(weight[:, 0]), taps // 2)
        else:
            logits = F.linear(given, weight).unflatten(-1, (HEADS, taps)).transpose(1, 2)
            y = dynamic_convolution(heads, normalised(logits), taps // 2)
        return y.transpose(1, 2).flatten(2)

    def depthwise(given: Tensor) -> Tensor:
        kernels = weight.softmax(-1).repeat_interleave(WIDTH // HEADS, 0)
        return F.conv1d(given.mT, kernels, padding=taps // 2, groups=WIDTH).mT

    found = {
        "ours": Form(own, x),
        "unfolded": Form(lambda given: module(given, unfold=True), first, False),
        "banded": Form(lambda given: module(given, unfold=False), first, False),
    }
    if name == "light":
        found["depthwise"] = Form(depthwise, x)
    return found


def step(form: Form) -> float:
    """Return the seconds of one pass, forward and backward."""
    given = form.shaped.clone().requires_grad_()
    began = time.perf_counter()
    form.call(given).sum().backward()
    return time.perf_counter() - began


def compared(found: Mapping[str, Form], samples: int) -> list[dict[str, object]]:
    """Return a row for each other form than ours; the outputs must agree."""
    wanted = found["ours"].call(found["ours"].shaped)
    for form in found.values():
        y = form.call(form.shaped)
        y = y if form.batch_first else y.transpose(0, 1)
        torch.testing.assert_close(y, wanted, atol=1e-4, rtol=1e-4)
    seconds = [{name: step(form) for name, form in found.items()} for _ in range(samples + 1)][1:]
    kept = {name: saved(form.call, form.shaped) for name, form in found.items()}
    return [
        {
            "what": "training step of the convolution",
            "other": name,
            "ratios": [each[name] / each["ours"] for each in seconds],
            "seconds": seconds,
            "bytes": kept["ours"] / kept[name],
            "kept": kept,
        }
        for name in found
        if name != "ours"
    ]


if __name__ == "__main__":
    main()
