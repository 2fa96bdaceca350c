"""What reading a prompt costs with a state of segments, against a pass without one."""

import pytest
import torch

from lra.models.contract.counting import count_operations
from lra.models.families.compressive_transformer import CompressiveTransformer
from lra.models.families.shortformer import Shortformer
from lra.models.families.transformer_xl import TransformerXL
from lra.models.mixer import Flow, Layout, Positions
from tests.attention import builder, drawn, streamed

WIDTH = 12


@pytest.mark.parametrize("memory", [40, 20])
@pytest.mark.parametrize(
    ("family", "positions"),
    [
        (Shortformer, Positions.position_infused),
        (TransformerXL, Positions.transformer_xl),
        (CompressiveTransformer, Positions.transformer_xl),
    ],
)
def test_a_prompt_costs_what_it_costs_without_a_state(family, positions, memory: int) -> None:
    mixer = builder(family, causal=True, positions=positions, moved=0.3)()
    x = drawn(2, 32, WIDTH)
    begun = Flow(x, mixer.initial_state(2, memory))
    read = mixer.extend(begun, Layout())
    cut = family is TransformerXL and memory < 32  # each token sees `memory` keys and no more
    if not cut:
        torch.testing.assert_close(read.x, mixer(x, Layout()), atol=1e-13, rtol=0)
        alone = count_operations(lambda: mixer(x, Layout()))
        assert count_operations(lambda: mixer.extend(begun, Layout())) < 1.3 * alone
    if memory < 32:
        pieces, _ = streamed(mixer, x, 1, memory)
        assert torch.allclose(pieces[:, :memory], read.x[:, :memory], atol=1e-13)
        assert not cut or torch.allclose(pieces, read.x, atol=1e-13)
