"""Softmax attention through PyTorch's `scaled_dot_product_attention`: exact, without the scores.

The function is that of `lra.models.families.softmax`, the kernel PyTorch's own choice: on a CPU the
flash kernel, on a GPU flash, memory-efficient, cuDNN or plain mathematics.

Cost: 4 n^2 D operations; backward about 2.5 times that, because the flash kernels compute the
scores again. Memory grows as n, but as n^2 with dropout on a CPU, a mask that differs from query to
query (causal with padding, documents, prefixes), and positions that add to scores (ALiBi, T5's).

Source: Dao et al. 2022, arXiv:2205.14135, for the flash kernels. Notation, function and `variant:
lra`: `softmax`.
"""

from lra.models.mixer import Growth
from lra.models.ops.exact import ExactAttention, sdpa


class SDPA(ExactAttention):
    """Multi-head softmax attention through the fastest kernel that PyTorch has here."""

    attend_by = staticmethod(sdpa)
    kept = Growth(1.0)
