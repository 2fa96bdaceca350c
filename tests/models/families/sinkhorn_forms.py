"""Draws and small mixers for the tests of Sinkhorn attention, and its literal form."""

import pytest
import torch
from torch import Tensor

from lra.models.families.sinkhorn import Sinkhorn, Sort
from tests.attention import builder

SORTS = pytest.mark.parametrize("sort", list(Sort))
BLOCK = 4


built = builder(Sinkhorn, block=BLOCK)


def padding(length: int) -> Tensor:
    keep = torch.rand(2, length, generator=torch.Generator().manual_seed(5)) > 0.4
    keep[0, :BLOCK] = keep[0, 2 * BLOCK : 3 * BLOCK] = False  # whole blocks
    return keep
