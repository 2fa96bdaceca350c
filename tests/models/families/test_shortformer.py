"""Shortformer against its equations, and its cache against tokens read anew."""

import torch

from lra.models.families.sdpa import SDPA
from lra.models.families.shortformer import Shortformer
from lra.models.mixer import Layout, Positions, Site
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
