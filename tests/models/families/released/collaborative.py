"""Run the attention layer of the released code of collaborative heads, and store what it gives.

    python tests/models/families/released/collaborative.py CHECKOUT

CHECKOUT is a clone of github.com/epfml/collaborative-attention (commit 5b05408); the file of its
layer is run as it stands, in float64, on torch 2.13.0. Stored are weights, outputs and gradients.
Its mixing of ones cannot be made: it calls a method `one_` that tensors do not have.
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import torch

OUTPUTS = Path(__file__).with_suffix(".npz")
WIDTH, HEADS, LENGTH, SOURCE, ROWS = 12, 3, 7, 5, 2
CASES = {
    "concatenated": ("CONCATENATE", 12, False),
    "an uneven share": ("CONCATENATE", 8, False),
    "drawn": ("UNIFORM", 10, False),
    "another source": ("UNIFORM", 4, True),
}
"""Start of the mixing, shared columns, and whether keys are of other tokens."""
NAMES = {
    "query": "q_proj", "key": "k_proj", "content_bias": "content", "value": "v_proj",
    "dense": "out_proj", "mixing": "mixing",
}  # fmt: skip
"""Theirs, and ours."""


def drawn(*shape: int, seed: int) -> torch.Tensor:
    """Return N(0, 1) in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def tokens() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return queries' tokens, another source, and what gradients are taken along."""
    return (
        drawn(ROWS, LENGTH, WIDTH, seed=1),
        drawn(ROWS, SOURCE, WIDTH, seed=2),
        drawn(ROWS, LENGTH, WIDTH, seed=3),
    )


def main(checkout: Path) -> None:
    """Store starting mixings, outputs and gradients of every case."""
    path = checkout / "src/collaborative_attention/collaborative_attention.py"
    spec = importlib.util.spec_from_file_location("collaborative_attention", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    torch.set_default_dtype(torch.float64)
    found = {}
    for case, (start, columns, other) in CASES.items():
        torch.manual_seed(0)
        layer = module.CollaborativeAttention(
            dim_input=WIDTH, dim_value_all=WIDTH, dim_key_query_all=columns, dim_output=WIDTH,
            num_attention_heads=HEADS, output_attentions=False, attention_probs_dropout_prob=0.0,
            use_dense_layer=True, use_layer_norm=False,
            mixing_initialization=module.MixingMatrixInit[start],
        )  # fmt: skip
        x, source, direction = tokens()
        leaves = {"x": x.requires_grad_()} | ({"source": source.requires_grad_()} if other else {})
        (y,) = layer(x, encoder_hidden_states=source if other else None)
        leaves |= dict(layer.named_parameters())
        gradients = torch.autograd.grad(y, [*leaves.values()], direction)
        found[f"{case}: y"] = y.detach().numpy()
        for name, value in layer.named_parameters():
            found[f"{case}: {name}"] = value.detach().numpy()
        for name, gradient in zip(leaves, gradients, strict=True):
            found[f"{case}: gradient of {name}"] = gradient.numpy()
    np.savez_compressed(OUTPUTS, **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
