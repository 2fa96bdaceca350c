"""The Compressive Transformer: Rae et al. 2019, arXiv:1911.05507, algorithms 1 and 2."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

USUAL = {"causal": [True], "positions": ["transformer_xl"], "rate": [3], "segment": [6],
         "memory": [6], "length": [30], "compressed": [5, 4]}  # fmt: skip
GRIDS = [
    {**USUAL, "compression": ["convolution"],
     "reconstruction": ["attention", "autoencoding", "none"]},
    {**USUAL, "compression": ["dilated"]},
    {**USUAL, "compression": ["mean", "max", "most_used"]},
]  # fmt: skip


def weights_of(mixer: Any, q_in: Tensor, rows: Tensor) -> Tensor:
    """Softmax weights of Transformer-XL's scores, [b, h, i, j], each row a step from the next."""
    q = mixer.q_proj(q_in).view(*q_in.shape[:2], 3, 4).transpose(1, 2)
    k = mixer.k_proj(rows).view(*rows.shape[:2], 3, 4).transpose(1, 2)
    relative, before = mixer.core.relative, rows.shape[1] - q_in.shape[1]
    scores = rows.new_zeros(len(rows), 3, q_in.shape[1], rows.shape[1])
    for i in range(q_in.shape[1]):
        for j in range(rows.shape[1]):
            t = before + i - j
            if t < 0:
                scores[:, :, i, j] = -math.inf
                continue
            angles = [t * 10_000.0 ** (-2 * p / 12) for p in range(12 // 2)]
            r = torch.tensor(
                [math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64
            )
            keys = (relative.r_proj.weight @ r).view(3, 4)
            content = ((q[:, :, i] + relative.biases.content) * k[:, :, j]).sum(-1)
            position = ((q[:, :, i] + relative.biases.position) * keys).sum(-1)
            scores[:, :, i, j] = (content + position) / math.sqrt(4)
    return scores.softmax(-1)


def compressed(mixer: Any, old: Tensor, used: Tensor) -> Tensor:
    """The paper's functions, row by row."""
    layers, kind = mixer.compressor.layers, mixer.compressor.kind
    groups = [old[:, at : at + 3] for at in range(0, old.shape[1], 3)]
    if kind == "mean":
        return torch.stack([group.mean(1) for group in groups], 1)
    if kind == "max":
        return torch.stack([group.max(1).values for group in groups], 1)
    if kind == "convolution":
        return torch.stack([layers[0](group.flatten(1)) for group in groups], 1)
    if kind == "most_used":
        chosen = []
        for row in used.tolist():
            best = sorted(range(len(row)), key=lambda i, row=row: (-row[i], i))
            chosen.append(sorted(best[: len(groups)]))
        return torch.stack([row[index] for row, index in zip(old, chosen, strict=True)])
    zero = torch.zeros_like(old[:, 0])

    def at(rows: list[Tensor], index: int) -> Tensor:
        return rows[index] if 0 <= index < len(rows) else zero

    rows = list(old.unbind(1))
    first = (3 - 1) // 2
    inner = [
        layers[0](torch.cat([at(rows, i - first + step) for step in range(3)], -1))
        for i in range(len(rows))
    ]
    left = (2 * (3 - 1) + 1 - 3) // 2
    return torch.stack(
        [
            layers[1](torch.cat([at(inner, i - left + 2 * step) for step in range(3)], -1))
            for i in range(0, len(rows), 3)
        ],
        1,
    )


def algorithms(
    mixer: Any, pieces: Sequence[Tensor], memory: int, size: int
) -> tuple[Tensor, list[Tensor]]:
    """Algorithms 1 and 2, segments as long as the memory is a multiple of."""
    rows = len(pieces[0])
    inputs, small = pieces[0].new_zeros(rows, 0, 12), pieces[0].new_zeros(rows, 0, 12)
    used, out, losses = pieces[0].new_zeros(rows, 0), [], []
    for x in pieces:
        context = torch.cat((small, inputs, x), 1)
        weights = weights_of(mixer, x, context)
        v = mixer.v_proj(context).view(*context.shape[:2], 3, 4).transpose(1, 2)
        out.append(mixer.out_proj((weights @ v).transpose(1, 2).flatten(2)))
        received = weights.detach().mean((1, 2))[:, small.shape[1] :]
        used = F.pad(used, (0, x.shape[1])) + received
        every = torch.cat((inputs, x), 1).detach()
        gone = max(0, every.shape[1] - memory)
        if gone:
            old = every[:, :gone]
            new = compressed(mixer, old, used[:, :gone])
            losses.append(loss(mixer, x, old, new))
            small = torch.cat((small, new.detach()), 1)[
                :, max(0, small.shape[1] + new.shape[1] - size) :
            ]
        inputs, used = every[:, gone:], used[:, gone:]
    return torch.cat(out, 1), losses


def loss(mixer: Any, x: Tensor, old: Tensor, new: Tensor) -> Tensor:
    if mixer.reconstruction == "none":
        return old.new_zeros(())
    if mixer.decoder is not None:
        return (old - mixer.decoder(new).view_as(old)).square().mean()

    def by_heads(layer: Any, rows: Tensor) -> Tensor:
        return F.linear(rows, layer.weight.detach()).view(*rows.shape[:2], 3, 4).transpose(1, 2)

    def look(rows: Tensor) -> Tensor:
        q, k = by_heads(mixer.q_proj, x.detach()), by_heads(mixer.k_proj, rows)
        return (q @ k.mT / math.sqrt(4)).softmax(-1) @ by_heads(mixer.v_proj, rows)

    return (look(old) - look(new)).square().mean()


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Return a stream of segments."""
    return algorithms(mixer, x.split(case.segment, dim=1), case.memory, case.compressed)[0]
