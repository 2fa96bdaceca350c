"""Attention to lists of blocks: dropout, and what it costs."""

import torch
from torch import Tensor

from lra.models.contract.counting import count_operations
from lra.models.mixer import Layout
from lra.models.ops.sparse.block_table import BlockTable, laid_out
from lra.models.ops.sparse.chosen_blocks import chosen_attention
from tests.attention import drawn

BLOCK = 4


def lists(length: int, groups: int, top: int, count: int) -> Tensor:
    """Return different blocks in any order, some entries without one."""
    generator = torch.Generator().manual_seed(7)
    chosen = torch.rand(2, groups, length, count, generator=generator).argsort(-1)[..., :top]
    gone = torch.rand(chosen.shape, generator=generator) < 0.3
    return chosen.masked_fill(gone, -1)


def heads(length: int, number: int, groups: int) -> list[Tensor]:
    shapes = [(2, number, length, 5), (2, groups, length, 5), (2, groups, length, 3)]
    return [drawn(*shape, seed=s).requires_grad_() for s, shape in enumerate(shapes)]


def attend(q: Tensor, k: Tensor, v: Tensor, chosen: Tensor, table: BlockTable, **facts) -> Tensor:
    return chosen_attention(q, table.contents(k), table.contents(v), chosen, table, **facts)


def test_a_mean_of_many_draws_is_attention_without_dropout():
    """Of 3,000 in passes of 100 rows of the batch, which draw for themselves."""
    qkv = heads(9, 2, 2)
    table = laid_out(Layout(), 9, BLOCK, causal=True, like=qkv[0])
    chosen = lists(9, 2, 2, table.block_count)
    wanted = attend(*qkv, chosen, table, causal=True)
    *qkv, chosen = (x.detach().repeat(50, 1, 1, 1) for x in (*qkv, chosen))
    table = laid_out(Layout(), 9, BLOCK, causal=True, like=qkv[0])
    torch.manual_seed(0)
    draws = [attend(*qkv, chosen, table, causal=True, dropout=0.3) for _ in range(60)]
    mean = torch.stack(draws).unflatten(1, (50, 2)).mean((0, 1))
    torch.testing.assert_close(mean, wanted, atol=0.05, rtol=0)


def test_a_step_works_on_its_blocks_alone():
    table = laid_out(Layout(), 4096, 64, causal=True, like=torch.empty(0))
    last = table._replace(place=table.place[:, -1:])
    k = torch.randn(1, 1, 4096, 8)
    chosen = torch.tensor([[[[63, 5, 9]]]])
    done = count_operations(lambda: chosen_attention(k[:, :, -1:], k, k, chosen, last, causal=True))
    assert done == 3 * 64 * 2 * (8 + 8)
