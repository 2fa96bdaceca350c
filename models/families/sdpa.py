"""Exact softmax attention through PyTorch's `scaled_dot_product_attention` (FlashAttention).

The function is that of `lra.models.families.softmax`. PyTorch chooses the kernel: on a CPU the
flash kernel, on a GPU flash, memory-efficient, cuDNN or plain mathematics.

Cost: the forward pass takes 4 n^2 D operations; backward takes about 2.5 times as many, because
flash kernels compute the scores again. Memory grows as n. It grows as n^2 with dropout on a CPU,
with a mask that differs between queries (causal with padding, documents, prefixes), and with
positions that are added to scores (ALiBi, T5).

Source: Dao et al. 2022, arXiv:2205.14135, for the flash kernels. See `softmax` for notation,
function and `variant: lra`.
"""

from lra.models.mixer import Growth
from lra.models.ops.exact import ExactAttention, sdpa


class SDPA(ExactAttention):
    """Multi-head softmax attention through the fastest kernel that PyTorch has here."""

    attend_by = staticmethod(sdpa)
    kept = Growth(1.0)
