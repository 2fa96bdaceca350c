"""The choice of blocks among equal scores."""

import torch

from lra.models.ops.sparse.block_choice import block_selection


def test_equal_scores_give_the_earlier_block():
    scores = torch.tensor([[[[1.0, 3.0, 3.0, 2.0, 3.0], [0.0, 0.0, 0.0, 0.0, 0.0]]]])
    assert block_selection(scores, 3).tolist() == [[[[1, 2, 4], [0, 1, 2]]]]
