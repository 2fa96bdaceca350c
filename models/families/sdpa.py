"""Softmax attention through PyTorch's `scaled_dot_product_attention`: exact, without the scores.

The function is that of `models.families.softmax`, the kernel PyTorch's own choice: on a CPU the
flash kernel, on a GPU flash, memory-efficient, cuDNN or plain mathematics.

Cost: 4 n^2 D operations; backward about 2.5 times that, because the flash kernels compute the
scores again. Memory grows as n, but as n^2 with dropout on a CPU, a mask that differs from query to
query (causal with padding, documents, prefixes), and positions that add to scores (ALiBi, T5's).

Source: Dao et al. 2022, arXiv:2205.14135, for the flash kernels. Notation, function and `variant:
lra`: `softmax`.
"""

from collections.abc import Mapping
from typing import Any

from models.mixer import Growth, Need, Site, Variant
from models.multi_head import MultiHead
from models.ops.exact import ExactCore, sdpa


class SDPA(MultiHead):
    """Multi-head softmax attention through the fastest kernel that PyTorch has here."""

    needs = (Need("variant", causal=False),)

    @classmethod
    def fixed(cls, options: Any) -> Mapping[str, object]:
        """Return what `variant=lra` fixes."""
        lra = options.variant == Variant.lra
        return {"output_gate": False, "qk_norm": False} if lra else {}

    def __init__(
        self,
        site: Site,
        *,
        variant: Variant = Variant.faithful,
        bias: bool = True,
        output_gate: bool = False,
        qk_norm: bool = False,
    ) -> None:
        super().__init__(
            site,
            ExactCore(site, sdpa, memory=Growth(1.0)),
            bias=bias,
            mean_at_padding=variant == Variant.lra,
            output_gate=output_gate,
            qk_norm=qk_norm,
        )
