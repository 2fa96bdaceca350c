"""Draws and small mixers for the tests of Sinkhorn attention, and its literal form."""

import pytest
import torch
from torch import Tensor

from lra.models.families.sinkhorn import Sinkhorn, Sort, SortNet
from tests.attention import builder
from tests.literal.sinkhorn import sinkhorn_attention

SORTS = pytest.mark.parametrize("sort", list(Sort))
NETS = pytest.mark.parametrize("sort_net", list(SortNet))
BLOCK = 4


built = builder(Sinkhorn, block=BLOCK)


def padding(length: int) -> Tensor:
    keep = torch.rand(2, length, generator=torch.Generator().manual_seed(5)) > 0.4
    keep[0, :BLOCK] = keep[0, 2 * BLOCK : 3 * BLOCK] = False  # whole blocks
    return keep


def literal(mixer: Sinkhorn, qkv: list[Tensor], scores: Tensor, keep: Tensor | None = None):
    core = mixer.core
    null = (core.null_key, core.null_value) if mixer.causal else None
    return sinkhorn_attention(
        *qkv, scores, block=BLOCK, sort=core.options.sort, null=null, keep=keep
    )
