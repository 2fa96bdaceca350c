"""ConvBERT's mixed attention: Jiang et al. 2020, arXiv:2008.02496, token by token, tap by tap."""

from typing import Any

import torch
from torch import Tensor

GRIDS = [{"causal": [False, True], "head_ratio": [1, 2, 4], "kernel": [5], "heads": [4],
          "bias": [True, False]}]  # fmt: skip


def literal(mixer: Any, x: Tensor, case: Any) -> Tensor:
    """Attention beside a convolution whose taps a token's span and its query choose."""
    own, taps, length = mixer.attention, mixer.kernel, x.shape[1]
    left, width = taps - 1 if case.causal else taps // 2, own.head_width
    q, k, v, c = own.q_proj(x), own.k_proj(x), own.v_proj(x), mixer.values_proj(x)
    rows = []
    for i in range(length):
        near = [(t, i + t - left) for t in range(taps) if 0 <= i + t - left < length]
        span = sum(mixer.span[:, 0, t] * x[:, j] for t, j in near)
        logits = mixer.kernel_proj(q[:, i] * mixer.span_proj(span)).view(len(x), -1, taps)
        kernel, seen = logits.softmax(-1), i + 1 if case.causal else length
        attended, convolved = [], []
        for head in range(mixer.heads):
            part = slice(head * width, (head + 1) * width)
            scores = (k[:, :seen, part] @ q[:, i, part, None])[..., 0] / width**0.5
            attended.append((scores.softmax(-1)[..., None] * v[:, :seen, part]).sum(1))
            convolved.append(sum(kernel[:, head, t, None] * c[:, j, part] for t, j in near))
        joined = torch.cat((own.out_proj.weight, mixer.convolved_proj.weight), dim=1)
        y = torch.cat(attended + convolved, dim=-1) @ joined.T
        rows.append(y if own.out_proj.bias is None else y + own.out_proj.bias)
    return torch.stack(rows, dim=1)
