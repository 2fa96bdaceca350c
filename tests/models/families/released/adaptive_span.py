"""Run the attention layer of the released code of adaptive spans, and store what it gives.

    python tests/models/families/released/adaptive_span.py CHECKOUT

CHECKOUT is a clone of github.com/facebookresearch/adaptive-span (commit 27b815f); its code is run
as it stands, in float64. Spans end between two tokens, where their slope is one number. Stored are
the last block's outputs, behind a full span.
"""

import importlib
import sys
from pathlib import Path

import numpy as np
import torch

OUTPUTS = Path(__file__).with_suffix(".npz")
WIDTH, HEADS, BLOCK, ROWS, SPAN, RAMP = 12, 3, 7, 2, 20, 4
CASES = {
    f"{name}, {persistent} persistent": (spans, persistent)
    for name, spans in {"short": [0.02, 0.17, 0.41], "long": [0.99, 0.52, 0.87]}.items()
    for persistent in (0, 3)
}


def drawn(*shape: int, seed: int) -> torch.Tensor:
    """Return N(0, 1) in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def tokens() -> torch.Tensor:
    """Return a span of tokens and a block behind it, batch first."""
    return drawn(ROWS, SPAN + BLOCK, WIDTH, seed=1)


def weights(persistent: int) -> dict[str, torch.Tensor]:
    """Return the layer's weights under their names there, and the table of positions."""
    made = {
        f"proj_{name}.weight": drawn(WIDTH, WIDTH, seed=seed) / 3
        for seed, name in enumerate(("query", "key", "val", "out"), 2)
    }
    made["key_pe"] = drawn(1, WIDTH // HEADS, SPAN, seed=6)
    if persistent:
        made["attn.persistent_memory.key"] = drawn(HEADS, WIDTH // HEADS, persistent, seed=7)
        made["attn.persistent_memory.val"] = drawn(HEADS, persistent, WIDTH // HEADS, seed=8)
    return made


def direction() -> torch.Tensor:
    """Return what gradients are taken along."""
    return drawn(ROWS, BLOCK, WIDTH, seed=9)


def main(checkout: Path) -> None:
    """Store outputs and gradients of every case."""
    sys.path.insert(0, str(checkout))
    layers = importlib.import_module("models")  # theirs

    torch.set_default_dtype(torch.float64)
    found = {}
    for case, (spans, persistent) in CASES.items():
        layer = layers.MultiHeadSeqAttention(
            hidden_size=WIDTH, nb_heads=HEADS, attn_span=SPAN, dropout=0.0,
            adapt_span_params={
                "adapt_span_enabled": True, "adapt_span_loss": 0.0, "adapt_span_ramp": RAMP,
                "adapt_span_init": 0.0, "adapt_span_cache": False,
            },
            pers_mem_params={"pers_mem_size": persistent},
        )  # fmt: skip
        given = weights(persistent)
        key_pe, x = given.pop("key_pe").requires_grad_(), tokens().requires_grad_()
        layer.load_state_dict(given, strict=False)
        mask = layer.attn.adaptive_span._mask
        mask.current_val.data.copy_(torch.tensor(spans)[:, None, None])
        y = layer(x[:, SPAN:], x, x, key_pe)
        leaves = {"x": x, "key_pe": key_pe, "spans": mask.current_val}
        leaves |= {name: dict(layer.named_parameters())[name] for name in given}
        gradients = torch.autograd.grad(y, [*leaves.values()], direction())
        found[f"{case}: y"] = y.detach().numpy()
        found |= {f"{case}: {name}": g.numpy() for name, g in zip(leaves, gradients, strict=True)}
    np.savez_compressed(OUTPUTS, **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
