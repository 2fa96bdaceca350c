"""Families whose own backward passes torch.compile takes as one graph, with equal gradients."""

import pytest
import torch

from lra.models.families.big_bird import BigBird
from lra.models.families.cosformer import Cosformer
from lra.models.families.linear import LinearAttention
from lra.models.families.performer import Performer
from lra.models.mixer import Layout, Site


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # dynamo does
@pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
@pytest.mark.parametrize(
    ("family", "options"),
    [
        (LinearAttention, {}),
        (Cosformer, {}),
        (Performer, {"features": 12}),
        (BigBird, {"block": 8, "random_blocks": 1}),
    ],
)
def test_it_compiles_as_one_graph(family, options, causal):
    torch.manual_seed(0)
    mixer = family(Site(width=16, heads=2, max_length=200, causal=causal), **options)
    x = torch.randn(2, 150, 16)
    compiled = torch.compile(lambda x: mixer(x, Layout()), fullgraph=True, backend="aot_eager")
    compiled(x).square().sum().backward()
    found, mixer.q_proj.weight.grad = mixer.q_proj.weight.grad, None
    mixer(x, Layout()).square().sum().backward()
    torch.testing.assert_close(found, mixer.q_proj.weight.grad)
