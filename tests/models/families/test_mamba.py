"""Mamba token by token, what its scan keeps, and its counts."""

import pytest
import torch
from torch.nn import functional as F

from lra.models.families.mamba import Mamba
from lra.models.mixer import Layout
from lra.models.ops.recurrent.selective_scan import selective_scan
from tests.attention import builder, compare, drawn

LENGTH, WIDTH = 21, 12
built = builder(Mamba, causal=True)


def literal(mixer, x):
    """Return the layer's output, one state after the other."""
    u = mixer.input_proj(x)
    if len(mixer.convolutions):
        (layer,) = mixer.convolutions
        padded = F.pad(u.mT, (layer.weight.shape[1] - 1, 0))
        u = F.silu(F.conv1d(padded, layer.weight[:, None], layer.bias, groups=u.shape[-1]).mT)
    rank, write, read = mixer.choice_map(u).split((mixer.rank, mixer.states, mixer.states), -1)
    dt = (1 + (mixer.step_map(rank) + mixer.step_bias).exp()).log()
    rates, rows = -mixer.log_rate.exp(), []
    for b in range(len(x)):
        h, outputs = torch.zeros_like(rates), []
        for t in range(x.shape[1]):
            h = (dt[b, t, :, None] * rates).exp() * h
            h = h + (dt[b, t] * u[b, t])[:, None] * write[b, t]
            outputs.append((h * read[b, t]).sum(1) + mixer.skip * u[b, t])
        rows.append(torch.stack(outputs))
    return mixer.out_proj(torch.stack(rows) * F.silu(mixer.gate_proj(x)))


@pytest.mark.parametrize(
    "options", [{}, {"states": 3, "step_rank": 5, "expansion": 1}, {"convolution": None}]
)
@pytest.mark.parametrize("block", [7, 10_000])
def test_it_is_the_paper_token_by_token(options, block, monkeypatch):
    monkeypatch.setattr("lra.models.ops.recurrent.selective_scan.BLOCK", block)
    mixer, x = built(**options), drawn(2, LENGTH, WIDTH).requires_grad_()
    seen, wanted = mixer(x, Layout()), literal(mixer, x)
    compare(seen, wanted, [x, *mixer.parameters()], atol=1e-10)


def test_it_starts_from_the_rates_of_the_paper():
    mixer = built()
    torch.testing.assert_close(mixer.log_rate.exp(), torch.arange(1.0, 17).double().repeat(24, 1))


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
