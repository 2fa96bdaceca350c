"""Run the lambda layer of the package lambda-networks, and store what it gives.

    pip install lambda-networks==0.4.0
    python tests/models/families/released/lambda_layer.py

Its code is run as it stands, in float64, on images of one row: of its square windows the middle row
alone meets tokens. Its batch norms are left out and the bias of its convolution is 0, neither of
which the paper's equations have. Its form without a window takes square images alone.
"""

from pathlib import Path

import numpy as np
import torch

OUTPUTS = Path(__file__).with_suffix(".npz")
WIDTH, HEADS, KEY_WIDTH, WINDOW, LENGTH, ROWS = 12, 3, 5, 7, 19, 2
CASES = {"one map": 1, "two maps": 2}
"""Intra-depth."""


def drawn(*shape: int, seed: int) -> torch.Tensor:
    """Return N(0, 1) in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def tokens() -> torch.Tensor:
    """Return tokens, batch first."""
    return drawn(ROWS, LENGTH, WIDTH, seed=1)


def weights(depth: int) -> dict[str, torch.Tensor]:
    """Return the maps to queries, keys and values, and the vectors of distances [u, r, k]."""
    return {
        "to_q": drawn(HEADS * KEY_WIDTH, WIDTH, seed=2) / 3,
        "to_k": drawn(depth * KEY_WIDTH, WIDTH, seed=3) / 3,
        "to_v": drawn(depth * WIDTH // HEADS, WIDTH, seed=4) / 3,
        "offsets": drawn(depth, WINDOW, KEY_WIDTH, seed=5),
    }


def direction() -> torch.Tensor:
    """Return what gradients are taken along."""
    return drawn(ROWS, LENGTH, WIDTH, seed=6)


def main() -> None:
    """Store outputs and gradients of every case."""
    from lambda_networks import LambdaLayer

    torch.set_default_dtype(torch.float64)
    found = {}
    for case, depth in CASES.items():
        layer = LambdaLayer(WIDTH, dim_k=KEY_WIDTH, r=WINDOW, heads=HEADS, dim_u=depth)
        layer.norm_q = layer.norm_v = torch.nn.Identity()
        given, x = weights(depth), tokens().requires_grad_()
        middle = (slice(None), slice(None), 0, WINDOW // 2)
        with torch.no_grad():
            for name in ("to_q", "to_k", "to_v"):
                getattr(layer, name).weight.copy_(given[name][:, :, None, None])
            layer.pos_conv.bias.zero_()
            layer.pos_conv.weight[middle] = given["offsets"].permute(2, 0, 1)
        y = layer(x.mT[:, :, None])[:, :, 0].mT
        leaves = [x, *(getattr(layer, n).weight for n in ("to_q", "to_k", "to_v"))]
        leaves.append(layer.pos_conv.weight)
        by_x, *by_maps, by_offsets = torch.autograd.grad(y, leaves, direction())
        found |= {f"{case}: y": y.detach().numpy(), f"{case}: x": by_x.numpy()}
        for name, gradient in zip(("to_q", "to_k", "to_v"), by_maps, strict=True):
            found[f"{case}: {name}"] = gradient[:, :, 0, 0].numpy()
        found[f"{case}: offsets"] = by_offsets[middle].permute(1, 2, 0).numpy()
    np.savez_compressed(OUTPUTS, **found)


if __name__ == "__main__":
    main()
