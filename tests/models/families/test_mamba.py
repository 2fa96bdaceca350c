"""Mamba token by token, what its scan keeps, and its counts."""

import torch

from lra.models.ops.recurrent.selective_scan import selective_scan
from tests.attention import drawn

LENGTH, WIDTH = 21, 12


def test_autograd_keeps_no_state_of_every_token():
    kept = []

    def pack(x):
        kept.append(x)
        return x

    u, dt = (drawn(2, 64, 48, seed=seed).abs().requires_grad_() for seed in (1, 2))
    write, read = (drawn(2, 64, 16, seed=seed) for seed in (3, 4))
    rates = -drawn(48, 16, seed=5).abs()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        selective_scan(u, dt, rates, write, read)
    assert max((x.numel() for x in kept), default=0) <= u.numel()
