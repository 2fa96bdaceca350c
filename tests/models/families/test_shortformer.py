"""Shortformer against its equations, and its cache against tokens read anew."""

import math

import pytest
import torch
from torch import Tensor

from lra.models.families.sdpa import SDPA
from lra.models.families.shortformer import Shortformer
from lra.models.mixer import Layout, Positions, Site
from tests.attention import builder, compare, drawn, streamed

WIDTH, HEADS, LENGTH, MEMORY = 12, 3, 5, 7
build = builder(Shortformer, causal=True, positions=Positions.position_infused, moved=0.3)


def table(place: int) -> Tensor:
    angles = [place * 10_000.0 ** (-2 * i / WIDTH) for i in range(WIDTH // 2)]
    found = [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    return torch.tensor(found, dtype=torch.float64)


def literal(mixer: Shortformer, pieces: tuple[Tensor, ...], memory: int) -> Tensor:
    """Every segment by itself: cached inputs get places 0 to m - 1, its tokens those behind."""
    cache, out = pieces[0].new_zeros(len(pieces[0]), 0, WIDTH), []
    for x in pieces:
        y, heads = torch.cat((cache, x), 1), []
        m = cache.shape[1]
        placed = torch.stack([y[:, j] + table(j) for j in range(y.shape[1])], 1)
        q, k, v = mixer.q_proj(placed[:, m:]), mixer.k_proj(placed), mixer.v_proj(y)
        for q_h, k_h, v_h in zip(*(part.chunk(HEADS, -1) for part in (q, k, v)), strict=True):
            rows = []
            for i in range(x.shape[1]):
                scores = (k_h[:, : m + i + 1] @ q_h[:, i, :, None])[..., 0] / math.sqrt(4)
                rows.append((scores.softmax(-1)[..., None] * v_h[:, : m + i + 1]).sum(1))
            heads.append(torch.stack(rows, 1))
        out.append(mixer.out_proj(torch.cat(heads, -1)))
        cache = y[:, -memory:].detach()
    return torch.cat(out, 1)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("memory", [LENGTH, MEMORY])
def test_equals_the_equations(training: bool, memory: int) -> None:
    mixer = build().train(training)
    x = drawn(2, 4 * LENGTH, WIDTH)
    found, _ = streamed(mixer, x, LENGTH, memory, detached=True)
    wanted = literal(mixer, x.split(LENGTH, dim=1), memory)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
    if training:
        compare(found, wanted, mixer.parameters(), looser=10)


def test_without_a_cache_positions_are_infused_as_elsewhere() -> None:
    mixer = build()
    infused = Positions.position_infused
    site = Site(width=WIDTH, heads=HEADS, max_length=64, causal=True, positions=infused)
    plain = SDPA(site).double()
    plain.load_state_dict(mixer.state_dict())
    x = drawn(2, 9, WIDTH)
    torch.testing.assert_close(mixer(x, Layout()), plain(x, Layout()), atol=1e-13, rtol=0)
    torch.testing.assert_close(literal(mixer, (x,), 1), plain(x, Layout()), atol=1e-12, rtol=0)
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
