"""Shortformer against its equations, and its cache against tokens read anew."""

import pytest
import torch

from lra.models.contract.counting import count_operations
from lra.models.families.compressive_transformer import CompressiveTransformer
from lra.models.families.sdpa import SDPA
from lra.models.families.shortformer import Shortformer
from lra.models.families.transformer_xl import TransformerXL
from lra.models.mixer import Flow, Layout, Positions, Site
from tests.attention import builder, drawn, streamed

WIDTH, HEADS = 12, 3
build = builder(Shortformer, causal=True, positions=Positions.position_infused, moved=0.3)


def test_without_a_cache_positions_are_infused_as_elsewhere() -> None:
    mixer = build()
    infused = Positions.position_infused
    site = Site(width=WIDTH, heads=HEADS, max_length=64, causal=True, positions=infused)
    plain = SDPA(site).double()
    plain.load_state_dict(mixer.state_dict())
    x = drawn(2, 9, WIDTH)
    torch.testing.assert_close(mixer(x, Layout()), plain(x, Layout()), atol=1e-13, rtol=0)
    # only queries and keys carry positions: a token alone gives the same wherever it stands
    late = torch.tensor([5, 9])
    torch.testing.assert_close(
        plain(x[:, :1], Layout(start=late)), plain(x[:, :1], Layout()), atol=1e-13, rtol=0
    )


def test_without_positions_the_cache_is_a_set() -> None:
    x, order = drawn(2, 12, WIDTH), torch.tensor([3, 0, 6, 2, 5, 1, 4, *range(7, 12)])

    def now(mixer):
        return [streamed(mixer, tokens, [7, 5], 7)[0][:, 7:] for tokens in (x, x[:, order])]

    torch.testing.assert_close(*now(build(positions=Positions.none)), atol=1e-13, rtol=0)
    one, other = now(build())
    assert (one - other).abs().max() > 1e-3


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
    x = drawn(2, 33, WIDTH)
    begun = Flow(x[:, :32], mixer.initial_state(2, memory))
    read = mixer.extend(begun, Layout())
    cut = family is TransformerXL and memory < 32  # each token sees `memory` keys and no more
    if not cut:
        torch.testing.assert_close(read.x, mixer(x[:, :32], Layout()), atol=1e-13, rtol=0)
        alone = count_operations(lambda: mixer(x[:, :32], Layout()))
        assert count_operations(lambda: mixer.extend(begun, Layout())) < 1.3 * alone
    if memory > 32:
        after = mixer.extend(Flow(x[:, 32:], read.state), Layout())
        torch.testing.assert_close(after.x, mixer(x, Layout())[:, 32:], atol=1e-13, rtol=0)
    else:
        pieces, _ = streamed(mixer, x[:, :32], 1, memory)
        assert torch.allclose(pieces[:, :memory], read.x[:, :memory], atol=1e-13)
        assert not cut or torch.allclose(pieces, read.x, atol=1e-13)
