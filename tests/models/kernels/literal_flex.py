"""FlexAttention over all pairs, as its documentation says it; unlike PyTorch's, with gradients."""

import torch
from torch.nn.attention.flex_attention import AuxOutput


def listed(counts, columns, rows, keys, size):
    """Return True for pairs in the blocks that a `BlockMask` lists."""
    some = torch.arange(columns.shape[-1]) < counts[..., None]
    blocks = torch.zeros_like(some).scatter(-1, columns.long(), some)
    pairs = blocks.repeat_interleave(size[0], -2).repeat_interleave(size[1], -1)
    return pairs[..., :rows, :keys]


def visible_pairs(block_mask, shape):
    """Return the pairs that a kernel computes and does not mask, for `shape` = (b, h, l, s)."""
    b, h, q, k = (
        torch.arange(size).view([-1 if i == dim else 1 for i in range(4)])
        for dim, size in enumerate(shape)
    )
    some = listed(
        block_mask.kv_num_blocks, block_mask.kv_indices, *shape[2:], block_mask.BLOCK_SIZE
    )
    seen = some & block_mask.mask_mod(b, h, q, k)
    if block_mask.full_kv_num_blocks is not None:
        counts, columns = block_mask.full_kv_num_blocks, block_mask.full_kv_indices
        seen = seen | listed(counts, columns, *shape[2:], block_mask.BLOCK_SIZE)
    return seen, (b, h, q, k)


def dense_flex(q, k, v, score_mod, block_mask, *, return_aux):
    """Return what `flex_attention` returns for these arguments."""
    shape = *q.shape[:3], k.shape[2]
    assert block_mask.seq_lengths == shape[2:]
    seen, places = visible_pairs(block_mask, shape)
    scores = q.float() @ k.float().mT * q.shape[-1] ** -0.5
    if score_mod is not None:
        scores = score_mod(scores, *places)
    has_key = seen.any(-1, keepdim=True)
    # Rows without a key keep their scores at first, so that no gradient is NaN.
    logs = scores.masked_fill(~seen & has_key, -torch.inf).logsumexp(-1, keepdim=True)
    weights = (scores - logs).masked_fill(~seen, -torch.inf).exp()
    logs = logs.masked_fill(~has_key, -torch.inf)[..., 0]
    return (weights @ v.float()).to(q.dtype), AuxOutput(lse=logs if return_aux.lse else None)
