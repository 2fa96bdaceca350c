"""Run the attention layer of Transformer-XL's released code, and store what it gives.

    python tests/models/families/released/transformer_xl.py CHECKOUT

CHECKOUT is a clone of github.com/kimiyoung/transformer-xl (commit 44781ed); its code is run as it
stands but for what PyTorch has changed since: masks are boolean, and numbers stay float64, those of
the frequencies too.
"""

import importlib.util
import sys
from pathlib import Path

import numpy as np
import torch

OUTPUTS = Path(__file__).with_suffix(".npz")
WIDTH, HEADS, HEAD_WIDTH, LENGTH, MEMORY, ROWS, SEGMENTS = 10, 2, 4, 5, 7, 3, 4
CASES = {"plain": (False, None), "same_length": (True, None), "clamped": (True, 3)}


def drawn(*shape: int, seed: int) -> torch.Tensor:
    """Return N(0, 1) in float64."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def weights() -> dict[str, torch.Tensor]:
    """Return the layer's weights under their names there."""
    inner = HEADS * HEAD_WIDTH
    return {
        "qkv_net.weight": drawn(3 * inner, WIDTH, seed=1) / 2,
        "o_net.weight": drawn(WIDTH, inner, seed=2) / 2,
        "r_net.weight": drawn(inner, WIDTH, seed=3) / 2,
        "r_w_bias": drawn(HEADS, HEAD_WIDTH, seed=4),
        "r_r_bias": drawn(HEADS, HEAD_WIDTH, seed=5),
    }


def stream() -> list[torch.Tensor]:
    """Return the segments, batch first."""
    return list(drawn(ROWS, SEGMENTS * LENGTH, WIDTH, seed=6).split(LENGTH, dim=1))


def loaded(checkout: Path):
    """Return the module of that code."""
    if torch.version.cuda is None:
        torch.version.cuda = "12.0"  # its import reads the number
    sys.path[:0] = [str(checkout / "pytorch"), str(checkout / "pytorch" / "utils")]
    spec = importlib.util.spec_from_file_location(
        "mem_transformer", checkout / "pytorch" / "mem_transformer.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(checkout: Path) -> None:
    """Store outputs and gradients of every case."""
    code = loaded(checkout)
    torch.Tensor.byte = torch.Tensor.bool  # masks are boolean now
    torch.Tensor.float = lambda tensor: tensor  # and numbers stay float64
    found = {}
    for name, (same_length, clamp) in CASES.items():
        layer = code.RelPartialLearnableMultiHeadAttn(HEADS, WIDTH, HEAD_WIDTH, 0.0).double()
        given = {key: value.clone().requires_grad_() for key, value in weights().items()}
        # what it projects alone: the residual and the norm behind are taken off
        seen = {}
        layer.o_net.register_forward_hook(lambda _, __, out, seen=seen: seen.update(out=out))
        for key in ("qkv_net", "o_net", "r_net"):
            layer.get_submodule(key).weight = torch.nn.Parameter(given[f"{key}.weight"].detach())
        positions, memory, outputs = code.PositionalEmbedding(WIDTH), None, []
        positions.inv_freq = 10_000.0 ** -(torch.arange(0, WIDTH, 2, dtype=torch.float64) / WIDTH)
        for segment in stream():
            x = segment.transpose(0, 1)
            behind = 0 if memory is None else len(memory)
            keys = behind + LENGTH
            ones = x.new_ones(LENGTH, keys)
            mask = torch.triu(ones, 1 + behind)
            if same_length:
                beyond = keys - MEMORY
                mask = mask + torch.tril(ones, -(LENGTH - beyond if beyond > 0 else LENGTH))
            place = torch.arange(keys - 1, -1, -1.0, dtype=torch.float64)
            if clamp is not None:
                place.clamp_(max=clamp)
            layer(
                x, positions(place), given["r_w_bias"], given["r_r_bias"],
                attn_mask=mask.bool()[:, :, None], mems=memory,
            )  # fmt: skip
            outputs.append(seen["out"].transpose(0, 1))
            memory = (x if memory is None else torch.cat((memory, x)))[-MEMORY:].detach()
        y = torch.cat(outputs, dim=1)
        found[f"{name}.y"] = y.detach().numpy()
        nets = ("qkv_net", "o_net", "r_net")
        leaves = {
            **{f"{key}.weight": layer.get_submodule(key).weight for key in nets},
            "r_w_bias": given["r_w_bias"], "r_r_bias": given["r_r_bias"],
        }  # fmt: skip
        gradients = torch.autograd.grad((y * drawn(*y.shape, seed=7)).sum(), [*leaves.values()])
        found |= {f"{name}.{key}": g.numpy() for key, g in zip(leaves, gradients, strict=True)}
    np.savez_compressed(OUTPUTS, **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
