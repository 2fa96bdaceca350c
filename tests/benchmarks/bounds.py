"""How near each family's layer comes to what this machine could do.

    python tests/benchmarks/bounds.py --json rows.jsonl
    python tests/benchmarks/bounds.py --models reformer big_bird --directions causal --rounds 3

Measured is forward plus backward of one mixer with its projections, batch 1, float32, no padding.
Its bound is max(operations / rate of a large matrix product, bytes / rate of a large copy): both
rates are measured in turns with it, operations are counted, and the bytes are those that no
implementation of this form avoids, input, output and their gradients, parameters read twice and
their gradients written, and what autograd keeps written once and read once. Printed are medians of
paired samples: time over bound, and time over that of exact attention through SDPA in the same
direction, the reference of every speed table.

A family that declares a dense mask in place of sparsity is left out. Nothing is asserted: this is
not a test.
"""

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from lra.composition.compose import mixer_factory
from lra.models.contract.counting import count_operations, saved_bytes
from lra.models.mixer import Layout, MixerFactory, Site, Unsupported
from lra.runners.measurement.measure import in_turns, observe, timed, warm_up
from lra.runners.measurement.timing import REPEAT_LIMIT_S
from lra.runners.measurement.watch import Watch
from tests.benchmarks.frame import append

CONF = Path(__file__).resolve().parents[2] / "conf" / "model"
CPU = torch.device("cpu")
MATRIX = 1024
COPY = 1 << 24


def families() -> dict[str, MixerFactory]:
    """Return every family that is a mixer, by name, with its default options."""
    found = {}
    for path in sorted(CONF.glob("*.yaml")):
        node = yaml.safe_load(path.read_text())
        if "mixer" in node:
            found[path.stem] = mixer_factory(node["mixer"], ())[0]
    return found


def build(make: MixerFactory, options: argparse.Namespace, causal: bool) -> nn.Module:
    """Build the layer that is measured."""
    site = Site(
        width=options.width,
        heads=options.heads,
        max_length=options.length,
        causal=causal,
        generator=torch.Generator().manual_seed(0),
    )
    torch.manual_seed(0)
    mixer = make(site)
    if not isinstance(mixer, nn.Module):
        raise TypeError("a mixer is a module")
    return mixer.train()


def step(layer: nn.Module, x: torch.Tensor, gradient: torch.Tensor) -> Callable[[], None]:
    """Return one forward and backward pass as a call."""

    inputs = [x, *layer.parameters()]

    def once() -> None:
        torch.autograd.backward(layer(x, Layout()), gradient)
        for tensor in inputs:
            tensor.grad = None

    return once


def traffic(layer: nn.Module, x: torch.Tensor) -> int:
    """Return the bytes that one step must move."""
    own = [*layer.parameters(), *layer.buffers()]
    kept = saved_bytes(lambda: layer(x, Layout()), [x, *own])
    parameters = sum(p.nbytes for p in layer.parameters())
    return 4 * x.nbytes + 3 * parameters + 2 * kept


def rates() -> tuple[Callable[[], object], Callable[[], object]]:
    """Return the calls whose times give the rates of products and of copies."""
    a, b = torch.randn(2, MATRIX, MATRIX).unbind(0)
    source, target = torch.randn(2, COPY).unbind(0)
    return (lambda: torch.mm(a, b)), (lambda: target.copy_(source))


def measure(
    make: MixerFactory, exact: MixerFactory, options: argparse.Namespace, causal: bool
) -> dict[str, Any]:
    """Measure one family in one direction."""
    layer = build(make, options, causal)
    x = torch.randn(1, options.length, options.width, requires_grad=True)
    gradient = torch.randn_like(x)
    once = step(layer, x, gradient)
    if (first := timed(once, CPU)) > options.limit:
        return {"reason": f"one step took {first:.1f} s, the limit is {options.limit:g} s"}
    warm_up(once, CPU, least=2, long_s=1.0)
    operations, moved = count_operations(once), traffic(layer, x)
    peak = observe(once, CPU).peak_tensor_bytes
    reference = step(build(exact, options, causal), x, gradient)
    product, copy = rates()
    for call in (reference, product, copy):
        warm_up(call, CPU, least=2, long_s=1.0)
    calls = {"own": once, "sdpa": reference, "product": product, "copy": copy}
    watched = in_turns(calls, Watch(CPU), options.rounds, repeat_s=REPEAT_LIMIT_S)
    samples = {name: watched.samples(name) for name in calls}
    bounds = [
        (operations * product_s / (2 * MATRIX**3), moved * copy_s / (2 * 4 * COPY))
        for product_s, copy_s in zip(samples["product"], samples["copy"], strict=True)
    ]
    over = [own / max(bound) for own, bound in zip(samples["own"], bounds, strict=True)]
    faster = [sdpa / own for own, sdpa in zip(samples["own"], samples["sdpa"], strict=True)]
    bound_by = "operations" if statistics.median(a - b for a, b in bounds) > 0 else "bytes"
    return {
        "disturbed": watched.disturbed, "discarded": watched.discarded,
        "seconds": samples["own"], "operations": operations, "bytes": moved,
        "peak_tensor_bytes": peak, "bound_seconds": [max(bound) for bound in bounds],
        "bound_by": bound_by, "over_bound": statistics.median(over),
        "times_sdpa": statistics.median(faster), "sdpa_seconds": samples["sdpa"],
    }  # fmt: skip


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    add = parser.add_argument
    add("--models", nargs="+", help="families; all by default")
    add("--directions", nargs="+", default=["bidirectional", "causal"])
    add("--length", type=int, default=8192)
    add("--width", type=int, default=256)
    add("--heads", type=int, default=4)
    add("--rounds", type=int, default=5)
    add("--threads", type=int, default=2)
    add("--limit", type=float, default=20.0, help="seconds; a slower step is left out")
    add("--json", type=Path, help="append rows, one JSON object a line")
    return parser.parse_args()


def main() -> None:
    """Print the table."""
    options = parse()
    torch.set_num_threads(options.threads)
    known = families()
    print(f"{'family':<20}{'direction':<15}{'ms':>8}{'bound':>8}{'ratio':>7}  bound by  x SDPA")
    for name in options.models or known:
        for direction in options.directions:
            causal = direction == "causal"
            row: dict[str, Any] = {
                "model": name, "direction": direction, "length": options.length,
                "width": options.width, "heads": options.heads, "threads": options.threads,
                "torch": torch.__version__,
            }  # fmt: skip
            try:
                if build(known[name], options, causal).traits.simulated:
                    raise Unsupported("a dense mask stands for sparsity (traits.simulated)")
                row |= measure(known[name], known["sdpa"], options, causal)
            except Unsupported as refusal:
                row["reason"] = str(refusal)
            if "reason" in row:
                print(f"{name:<20}{direction:<15}left out: {row['reason'][:90]}", flush=True)
            else:
                milliseconds = 1e3 * statistics.median(row["seconds"])
                bound = 1e3 * statistics.median(row["bound_seconds"])
                print(
                    f"{name:<20}{direction:<15}{milliseconds:8.1f}{bound:8.1f}"
                    f"{row['over_bound']:7.2f}  {row['bound_by']:<10}{row['times_sdpa']:6.2f}",
                    flush=True,
                )
            append(options.json, [row])


if __name__ == "__main__":
    main()
