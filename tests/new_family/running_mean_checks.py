"""Compared with the sum written out; the copy of the project has it as test_running_mean.py."""

import pytest
import torch

from lra.models.families.running_mean import Gate, RunningMean
from lra.models.mixer import Layout, Site


def literal(mixer: RunningMean, x: torch.Tensor, keep: torch.Tensor, causal: bool) -> torch.Tensor:
    rows = []
    for row, real in zip(x, keep, strict=True):
        outputs = []
        for i in range(len(row)):
            past = [j for j in range(len(row)) if real[j] and (j <= i or not causal)]
            mean = sum(mixer.values(row[j]) for j in past) / len(past)
            gate = 1.0 if mixer.gate is None else torch.sigmoid(mixer.gate(row[i]))
            outputs.append(mixer.out(gate * mean))
        rows.append(torch.stack(outputs))
    return torch.stack(rows)


@pytest.mark.parametrize("gate", [*Gate])
@pytest.mark.parametrize("causal", [False, True])
def test_is_the_mean_as_it_is_written(causal: bool, gate: Gate) -> None:
    site = Site(width=6, heads=2, max_length=9, causal=causal)
    mixer = RunningMean(site, gate=gate).double()
    x = torch.randn(2, 9, 6, dtype=torch.float64, requires_grad=True)
    keep = torch.arange(9) < torch.tensor([9, 5])[:, None]
    found, wanted = mixer(x, Layout(keep=keep))[keep], literal(mixer, x, keep, causal)[keep]
    torch.testing.assert_close(found, wanted)
    learned = [x, *mixer.parameters()]
    torch.testing.assert_close(
        torch.autograd.grad(found.square().sum(), learned),
        torch.autograd.grad(wanted.square().sum(), learned),
    )
