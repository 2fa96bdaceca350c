"""Talking heads against loops over heads, and what they are with maps that do nothing."""

import torch

from lra.models.families.talking_heads import TalkingHeads
from lra.models.mixer import Layout
from tests.attention import builder, drawn

LENGTH = 9
built = builder(TalkingHeads)


def test_permuted_weights_are_permuted_values():
    mixer, other, x = built(), built(), drawn(2, LENGTH, 12)
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        mixer.core.weights_map.copy_(torch.eye(3)[order])
        for name in ("q_proj", "k_proj"):
            for part in ("weight", "bias"):
                parameter = getattr(getattr(other, name), part)
                parameter.copy_(parameter.unflatten(0, (3, -1))[order].flatten(0, 1))
    torch.testing.assert_close(mixer(x, Layout()), other(x, Layout()), atol=1e-12, rtol=0)
