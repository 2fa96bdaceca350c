"""Time and memory of attention cores against exact attention and against other implementations.

    python tests/benchmarks/mixers.py          # other implementations, then crossovers with SDPA
    python tests/benchmarks/mixers.py --cases linear --length 8192 --rounds 9 --json rows.jsonl

What is measured: one forward and backward pass of the core alone (q, k, v in, their gradients
out), batch 1, float32, the same inputs for both sides. Both sides take turns, every other round
backwards, and the printed ratio is the median over rounds of other / ours with its 20th to 80th
percentile: above 1, ours is faster. Peak bytes come from a pass of their own.

Before anything is timed, outputs and gradients are compared. Where they differ the other side
computes another function, and no ratio is printed. Nothing is asserted: this is not a test.

Other implementations are used where they can be imported and never needed by the project. Use a
virtual environment of its own for them.
"""

import argparse
import importlib
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from models.families.causal_product import causal_product
from models.families.feature_product import feature_product
from models.families.linear import linear_attention
from models.families.performer import draw_projection, performer_maps
from models.families.sliding_window import best_block, window_attention
from runners.measure import in_turns, peak_tensor_bytes, warm_up

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]

DIRECTIONS = ("bidirectional", "causal")
CASES = ("linear", "performer", "window")
SAME = 1e-3
"""Largest error, relative to the largest value, at which two sides compute one function."""
INSTALL = {
    "performer_pytorch": "pip install performer-pytorch",
    "linear_attention_transformer": "pip install linear-attention-transformer",
    "local_attention": "pip install local-attention",
    "fast_transformers": "build pytorch-fast-transformers from source, without its CUDA extensions",
}


class Peer(NamedTuple):
    """Another implementation."""

    name: str
    make: Callable[[], Attend]
    """Imports what it needs."""


class Setting(NamedTuple):
    """What all sides share."""

    length: int
    heads: int
    width: int
    features: int
    window: int
    device: torch.device

    def inputs(self) -> list[Tensor]:
        """Draw q, k, v and the gradient of the output."""
        generator = torch.Generator().manual_seed(0)
        shape = (1, self.heads, self.length, self.width)
        drawn = [torch.randn(shape, generator=generator).to(self.device) for _ in range(4)]
        return [x.requires_grad_(number < 3) for number, x in enumerate(drawn)]

    def projection(self) -> Tensor:
        """Draw the Performer's projection."""
        drawn = draw_projection(self.features, self.width, torch.Generator().manual_seed(1))
        return drawn.float().to(self.device)


def ours(case: str, causal: bool, setting: Setting) -> Attend:
    """Return this project's core."""
    if case == "linear":
        return partial(linear_attention, causal=causal)
    if case == "window":
        return partial(
            window_attention,
            window=setting.window, block=best_block(setting.window), causal=causal,
        )  # fmt: skip
    projection = setting.projection()

    def performer(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        maps = performer_maps(projection)
        if not causal:
            return feature_product(q, k, v, maps)
        return causal_product(q, k, v, maps, chunk=64)[0]

    return performer


def sdpa(causal: bool) -> Attend:
    """Return exact attention."""
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=causal)


# Other implementations, each under the conditions in which it computes the same function.


def elu1(x: Tensor) -> Tensor:
    """Return elu(x) + 1."""
    return F.elu(x) + 1


def performer_pytorch_linear(causal: bool) -> Attend:
    """The package's product of features, fed with elu + 1; its epsilon, if any, set to 0."""
    package = importlib.import_module("performer_pytorch.performer_pytorch")
    if causal:
        product = partial(package.causal_linear_attention_noncuda, eps=0.0)
    else:
        product = package.linear_attention
    return lambda q, k, v: product(elu1(q), elu1(k), v)


def performer_pytorch_favor(causal: bool, setting: Setting) -> Attend:
    """FastAttention with the same projection, and its two epsilons set to 0."""
    package = importlib.import_module("performer_pytorch.performer_pytorch")
    attention: Any = package.FastAttention(setting.width, setting.features, causal=causal)
    attention.projection_matrix = setting.projection()
    if causal:
        attention.causal_linear_fn = partial(package.causal_linear_attention_noncuda, eps=0.0)
    kernel = partial(package.softmax_kernel, eps=0.0)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with mock.patch.object(package, "softmax_kernel", kernel):
            out: Tensor = attention(q, k, v)
        return out

    return run


def lucidrains_linear(causal: bool) -> Attend:
    """linear-attention-transformer: softmax feature maps, and blind to the own bucket if causal."""
    package = importlib.import_module("linear_attention_transformer.linear_attention_transformer")
    product: Attend = package.causal_linear_attn if causal else package.linear_attn
    return product


def fast_transformers_linear(causal: bool, setting: Setting) -> Attend:
    """(Causal)LinearAttention, which takes the length before the heads."""
    attention = importlib.import_module("fast_transformers.attention")
    masking = importlib.import_module("fast_transformers.masking")
    length = setting.length
    kind = attention.CausalLinearAttention if causal else attention.LinearAttention
    module = kind(setting.width)
    square = masking.TriangularCausalMask(length) if causal else masking.FullMask(length, length)
    lengths = masking.LengthMask(torch.tensor([length]), max_len=length)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
        out: Tensor = module(q, k, v, square, lengths, lengths)
        return out.transpose(1, 2)

    return run


def local_attention(causal: bool, setting: Setting) -> Attend:
    """LocalAttention with an exact window and without its rotary positions."""
    package = importlib.import_module("local_attention")
    module = package.LocalAttention(
        setting.window, causal=causal, exact_windowsize=True, use_rotary_pos_emb=False,
        autopad=True,
    )  # fmt: skip
    return lambda q, k, v: module(q, k, v)


def peers(case: str, causal: bool, setting: Setting) -> list[Peer]:
    """Return the other implementations of a case."""
    if case == "linear":
        return [
            Peer("fast_transformers", partial(fast_transformers_linear, causal, setting)),
            Peer("performer_pytorch", partial(performer_pytorch_linear, causal)),
            Peer("linear_attention_transformer", partial(lucidrains_linear, causal)),
        ]
    if case == "performer":
        return [Peer("performer_pytorch", partial(performer_pytorch_favor, causal, setting))]
    return [Peer("local_attention", partial(local_attention, causal, setting))]


# Measuring


def step(attend: Attend, inputs: list[Tensor]) -> list[Tensor]:
    """Return the output and the gradients of q, k, v."""
    q, k, v, cotangent = inputs
    out = attend(q, k, v)
    return [out.detach(), *torch.autograd.grad(out, (q, k, v), cotangent)]


def largest_error(found: list[Tensor], wanted: list[Tensor]) -> tuple[float, float]:
    """Return the largest absolute error of the outputs, and that of all relative to the largest."""
    errors = [(a - b).abs().max().item() for a, b in zip(found, wanted, strict=True)]
    scales = [b.abs().max().item() for b in wanted]
    return errors[0], max(e / s for e, s in zip(errors, scales, strict=True))


def percentiles(ratios: list[float]) -> tuple[float, float, float]:
    """Return the median, the 20th and the 80th percentile."""
    if len(ratios) == 1:
        return ratios[0], ratios[0], ratios[0]
    tenths = statistics.quantiles(ratios, n=10, method="inclusive")
    return statistics.median(ratios), tenths[1], tenths[7]


def compare(
    mine: Attend, other: Attend, setting: Setting, *, rounds: int, same: bool = True
) -> dict[str, Any]:
    """Return one row: equality if wanted, then times in turns, their ratio, and peak bytes."""
    inputs = setting.inputs()
    row: dict[str, Any] = {"length": setting.length, "heads": setting.heads}
    if same:
        row["max_error"], relative = largest_error(step(mine, inputs), step(other, inputs))
        row["same_function"] = relative <= SAME
        row["max_relative_error"] = relative
    calls = {"ours": partial(step, mine, inputs), "other": partial(step, other, inputs)}
    for call in calls.values():
        warm_up(call, setting.device, least=2, most=3)
    samples = in_turns(calls, setting.device, rounds)
    for name, call in calls.items():
        row[f"{name}_time"] = statistics.median(samples[name])
        row[f"{name}_samples"] = samples[name]
        row[f"{name}_peak_tensor_bytes"] = peak_tensor_bytes(call, setting.device)
    if row.get("same_function", True):
        pairs = zip(samples["other"], samples["ours"], strict=True)
        row["ratio"], row["ratio_p20"], row["ratio_p80"] = percentiles([a / b for a, b in pairs])
    return row


def text(row: dict[str, Any]) -> str:
    """Return one printed line."""
    times = [row[f"{side}_time"] * 1e3 for side in ("ours", "other")]
    megabytes = [row[f"{side}_peak_tensor_bytes"] / 1e6 for side in ("ours", "other")]
    numbers = "{:9.1f} {:9.1f} ms {:8.0f} {:8.0f} MB ".format(*times, *megabytes)
    if "ratio" in row:
        numbers += f" x{row['ratio']:.2f} ({row['ratio_p20']:.2f} … {row['ratio_p80']:.2f})"
    if "max_error" in row:
        numbers += f"  max error {row['max_error']:.1e}"
    if not row.get("same_function", True):
        numbers += "  ANOTHER FUNCTION: no ratio"
    name = f"{row['case']} {row['direction']}"
    return f"{name:24} {row['length']:6}  {row['other']:29}{numbers}"


def rows_of_peers(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Compare with other implementations at one length."""
    setting = Setting(
        options.length, options.heads, options.width, options.features, options.window,
        options.device,
    )  # fmt: skip
    for case in options.cases:
        for direction in options.directions:
            causal = direction == "causal"
            for peer in peers(case, causal, setting):
                try:
                    other = peer.make()
                except ImportError as error:
                    print(f"missing: {peer.name} ({error}); to compare: {INSTALL[peer.name]}")
                    continue
                mine = ours(case, causal, setting)
                row = compare(mine, other, setting, rounds=options.rounds)
                yield {"case": case, "direction": direction, "other": peer.name, **row}


def rows_of_crossover(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Compare with exact attention of the same direction over lengths: 4 heads, as printed."""
    for case in options.cases:
        for direction in options.directions:
            causal = direction == "causal"
            for length in options.lengths:
                setting = Setting(
                    length, 4, options.width, options.features, options.window, options.device
                )
                mine = ours(case, causal, setting)
                row = compare(mine, sdpa(causal), setting, rounds=options.rounds, same=False)
                yield {"case": case, "direction": direction, "other": "sdpa", **row}


def crossover(rows: list[dict[str, Any]]) -> str:
    """Return, in words, from which of the lengths on the family is faster than exact attention."""
    lengths = [row["length"] for row in rows]
    slower = [index for index, row in enumerate(rows) if row["ratio"] < 1]
    name = f"{rows[0]['case']} {rows[0]['direction']}"
    if not slower:
        return f"{name}: faster than sdpa from {lengths[0]} (the shortest tried) or below"
    if slower[-1] == len(rows) - 1:
        return f"{name}: not faster than sdpa at {lengths[-1]}"
    return f"{name}: faster than sdpa from {lengths[slower[-1] + 1]} on"


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--cases", nargs="+", choices=CASES, default=list(CASES))
    add("--directions", nargs="+", choices=DIRECTIONS, default=list(DIRECTIONS))
    add("--length", type=int, default=4096, help="for other implementations")
    add("--heads", type=int, default=8, help="for other implementations; crossovers use 4")
    add("--width", type=int, default=64, help="of one head")
    add("--features", type=int, default=256, help="of the Performer")
    add("--window", type=int, default=128, help="tokens seen to each side")
    add("--lengths", type=int, nargs="*", default=[256, 512, 1024, 2048, 4096, 8192],
        help="for crossovers; none: leave them out")  # fmt: skip
    add("--no-peers", action="store_true", help="crossovers only")
    add("--rounds", type=int, default=7)
    add("--threads", type=int, default=0, help="CPU threads; 0: torch's own choice")
    add("--device", type=torch.device, default=torch.device("cpu"))
    add("--json", type=Path, help="append rows, one JSON object a line")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    options = parse()
    if options.threads:
        torch.set_num_threads(options.threads)
    facts: dict[str, Any] = {
        "torch": torch.__version__, "threads": torch.get_num_threads(),
        "device": str(options.device), "width": options.width,
    }  # fmt: skip
    print(f"torch {facts['torch']}, {facts['threads']} threads, {facts['device']}")
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load + facts["threads"] > cores + 0.5:
        # Threads wait for each other after every operation: one kept from running stops all.
        print(f"load {load:.1f} on {cores} cores: busy, many small operations will look slow; "
              "wait, or use --threads 1")  # fmt: skip
    columns = "{:24} {:>6}  {:29}{:>9} {:>9}    {:>8} {:>8}"
    print(columns.format("core", "length", "other", "ours", "other", "ours", "other"))

    def record(row: dict[str, Any]) -> dict[str, Any]:
        print(text(row), flush=True)
        if options.json:
            with options.json.open("a") as file:
                file.write(json.dumps(facts | row) + "\n")
        return row

    if not options.no_peers:
        for row in rows_of_peers(options):
            record(row)
    if options.lengths:
        found = [record(row) for row in rows_of_crossover(options)]
        for start in range(0, len(found), len(options.lengths)):
            print(crossover(found[start : start + len(options.lengths)]))


if __name__ == "__main__":
    main()
