"""Transformer-XL beside its released layer, and evaluation with memory beside windows read anew.

    PYTHONPATH=. python tests/benchmarks/segments.py --layer CHECKOUT --json ROWS
    PYTHONPATH=. python tests/benchmarks/segments.py --evaluation --json ROWS
    PYTHONPATH=. python tests/benchmarks/segments.py --shortformer --json ROWS

CHECKOUT is a clone of github.com/kimiyoung/transformer-xl. `--layer`: one training step of the
attention layer (segment and memory of 512, width 512, 8 heads), the same weights' shapes, and the
bytes that it keeps for backward. `--evaluation`: seconds per token of a model of the size of that
code's enwik8 base, reading segments of 128 behind a memory, and of one without memory that reads a
whole window for every token (the procedures of table 5 of arXiv:1901.02860's appendix). All samples
are interleaved. `--shortformer`: the same with Shortformer, a token and 512 at a time behind 512.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from models.backbone.model import Backbone, BackboneConfig, Head, TaskFacts
from models.families.sdpa import SDPA
from models.families.shortformer import Shortformer
from models.families.transformer_xl import SameLength, TransformerXL
from models.mixer import Flow, Layout, MixerFactory, Positions, Site
from tests.models.families.released.transformer_xl import loaded

ROWS, LENGTH, WIDTH, HEADS = 2, 512, 512, 8
WINDOWS, SEGMENT = (800, 1800, 2800, 3800), 128
VOCABULARY = 256


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layer", type=Path, metavar="CHECKOUT")
    parser.add_argument("--evaluation", action="store_true")
    parser.add_argument("--shortformer", action="store_true")
    parser.add_argument("--samples", type=int, default=5)
    parser.add_argument("--json", type=Path, help="append rows, one JSON object a line")
    arguments = parser.parse_args()
    rows = []
    if arguments.layer:
        rows.append(layer(arguments.layer, arguments.samples))
    if arguments.evaluation:
        kind = (Positions.transformer_xl, TransformerXL)
        rows += [evaluation(window, arguments.samples, kind, SEGMENT) for window in WINDOWS]
    if arguments.shortformer:
        kind = (Positions.position_infused, Shortformer)
        rows += [evaluation(512, arguments.samples, kind, segment) for segment in (1, 512)]
    for row in rows:
        low, middle, high = statistics.quantiles(row["ratios"], n=4)
        print(f"{row['what']}: {middle:.4g} [{low:.4g}, {high:.4g}]", flush=True)
    if arguments.json:
        with arguments.json.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)


def layer(checkout: Path, samples: int) -> dict[str, object]:
    """Return how many times as fast as the released layer ours is, and both layers' bytes."""
    code = loaded(checkout)
    torch.manual_seed(0)
    site = Site(
        width=WIDTH, heads=HEADS, max_length=2 * LENGTH, causal=True,
        positions=Positions.transformer_xl,
    )  # fmt: skip
    ours = TransformerXL(site, same_length=SameLength.never).train()
    theirs = code.RelPartialLearnableMultiHeadAttn(HEADS, WIDTH, WIDTH // HEADS, 0.0).train()
    biases = [torch.nn.Parameter(torch.zeros(HEADS, WIDTH // HEADS)) for _ in range(2)]
    positions, norm = code.PositionalEmbedding(WIDTH), torch.nn.LayerNorm(WIDTH)
    x, memory = torch.randn(ROWS, LENGTH, WIDTH), torch.randn(ROWS, LENGTH, WIDTH)
    seen = torch.full((ROWS,), LENGTH)
    # the same for all layers of that code, and so no part of its layer's time
    hidden = torch.triu(torch.ones(LENGTH, 2 * LENGTH), 1 + LENGTH).bool()[:, :, None]
    places = positions(torch.arange(2 * LENGTH - 1, -1, -1.0))

    def own(given: Tensor) -> Tensor:
        mixed = ours.extend(Flow(given, (memory, seen)), Layout()).x
        return torch.as_tensor(norm(given + mixed))

    def other(given: Tensor) -> Tensor:
        there = given.transpose(0, 1), places, *biases
        y = theirs(*there, attn_mask=hidden, mems=memory.transpose(0, 1))
        return torch.as_tensor(y)

    def step(call: Callable[[Tensor], Tensor]) -> float:
        given = x.clone().requires_grad_()
        began = time.perf_counter()
        call(given).sum().backward()
        return time.perf_counter() - began

    pairs = [(step(own), step(other)) for _ in range(samples + 1)][1:]
    return {
        "what": "training step of the layer, times as fast as the released one",
        "ratios": [there / here for here, there in pairs],
        "seconds": pairs,
        "saved_bytes": [saved(own, x), saved(other, x)],
    }


def saved(call: Callable[[Tensor], Tensor], x: Tensor) -> int:
    """Return the bytes of all storages that are kept for backward."""
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with saved_tensors_hooks(pack, lambda tensor: tensor):
        call(x.clone().requires_grad_())
    return sum(found.values())


def built(positions: Positions, mixer: type, window: int) -> Backbone:
    """Return a model of the size of the base model for enwik8."""
    config = BackboneConfig(
        depth=12, width=WIDTH, heads=HEADS, feed_forward_width=2048, positions=positions,
        feed_forward="relu",
    )  # fmt: skip
    facts = TaskFacts(
        head=Head.language_modelling, vocabulary=VOCABULARY, classes=VOCABULARY,
        max_length=max(window, SEGMENT), memory=window,
    )  # fmt: skip
    return Backbone(config, facts, [mixer], seed=0).eval()


def evaluation(
    window: int, samples: int, kind: tuple[Positions, MixerFactory], segment: int
) -> dict[str, object]:
    """Return how many times as fast a token is with a memory of `window` tokens."""
    with_memory = built(*kind, window)
    without = built(Positions.sinusoidal, SDPA, window)
    generator = torch.Generator().manual_seed(0)
    text = torch.randint(0, VOCABULARY, (1, 1, window + segment), generator=generator)
    with torch.no_grad():
        state = with_memory.initial_state(1, window)
        for piece in text[..., :window].split(SEGMENT, dim=-1):
            _, state = with_memory.predict(piece, state=state)

        def behind() -> float:
            began = time.perf_counter()
            with_memory.predict(text[..., window:], state=state)
            return (time.perf_counter() - began) / segment

        def anew() -> float:
            began = time.perf_counter()
            without.predict(text[..., :window])
            return time.perf_counter() - began

        pairs = [(behind(), anew()) for _ in range(samples + 1)][1:]
    return {
        "what": f"a token with a memory of {window}, times as fast as a window read anew",
        "positions": kind[0].value,
        "segment": segment,
        "window": window,
        "ratios": [there / here for here, there in pairs],
        "seconds": pairs,
    }


if __name__ == "__main__":
    main()
