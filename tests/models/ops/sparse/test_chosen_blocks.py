"""What attention to lists of blocks costs."""

import torch

from lra.models.contract.counting import count_operations
from lra.models.mixer import Layout
from lra.models.ops.sparse.block_table import laid_out
from lra.models.ops.sparse.chosen_blocks import chosen_attention


def test_a_step_works_on_its_blocks_alone():
    table = laid_out(Layout(), 4096, 64, causal=True, like=torch.empty(0))
    last = table._replace(place=table.place[:, -1:])
    k = torch.randn(1, 1, 4096, 8)
    chosen = torch.tensor([[[[63, 5, 9]]]])
    done = count_operations(lambda: chosen_attention(k[:, :, -1:], k, k, chosen, last, causal=True))
    assert done == 3 * 64 * 2 * (8 + 8)
