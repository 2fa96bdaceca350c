"""Kernels of short convolutions: flash-linear-attention's in Triton, causal-conv1d's in CUDA.

The taps of both are ours, (d, k), and the last one is the token's. Both compute in float32 and
round outputs to the dtype of the inputs. Ours returns the last k - 1 inputs, computed as ever.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lra.models.kernels.kernel import PublicKernel
from lra.models.positions import precise
from lra.models.short_convolution import tap_inputs


def _takes(x: Tensor, spacing: int, **_: Any) -> str:
    if spacing != 1:
        return f"its taps are neighbours: got taps {spacing} tokens apart"
    return "it has no float64" if x.dtype == torch.float64 else ""


def _takes_one_document(document: Tensor | None, **call: Any) -> str:
    if document is not None:
        return "its taps do not stop at documents"
    return _takes(**call)


def _takes_few_taps(
    x: Tensor,
    weight: Tensor,
    before: Tensor | None,
    document: Tensor | None,
    spacing: int,
    **_: Any,
) -> str:
    width, taps = weight.shape
    if not 2 <= taps <= 4:
        return f"it has 2, 3 or 4 taps: got {taps}"
    if width % 8:
        return f"it has a multiple of 8 channels: got {width}"
    if document is not None and before is not None:
        return "it has no inputs before the first token where there are documents"
    return _takes(x, spacing)


def _last_inputs(x: Tensor, taps: int, before: Tensor | None, document: Tensor | None) -> Tensor:
    """Return the last k - 1 inputs, as `short_convolution` does."""
    last = slice(1 - taps, None)
    return tap_inputs(x[:, last], taps, before, None if document is None else document[:, last])[1]


def _call_triton(
    function: Callable[..., tuple[Tensor, Tensor | None]],
    *,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    before: Tensor | None,
    document: Tensor | None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    # Their state (b, d, k) has the token's own place, too: its first number is never read.
    state = None if before is None else F.pad(before.mT, (1, 0))
    y, _last = function(x, weight, bias, initial_state=state)
    return y.to(precise(x.dtype)), _last_inputs(x, weight.shape[1], before, document)


def _call_cuda(
    function: Callable[..., Tensor],
    *,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    before: Tensor | None,
    document: Tensor | None,
    **_: Any,
) -> tuple[Tensor, Tensor]:
    # Theirs is (b, d, l), and wants the channels of a token side by side, which they are in ours.
    y = function(
        x.contiguous().mT,
        weight,
        None if bias is None else bias.to(weight.dtype),
        seq_idx=None if document is None else document.int(),
        initial_states=None if before is None else before.to(x.dtype).contiguous().mT,
    )
    return y.mT.to(precise(x.dtype)), _last_inputs(x, weight.shape[1], before, document)


KERNELS = (
    PublicKernel(
        "short_convolution", "fla-core", ("0.6",), "fla.modules.causal_conv1d:causal_conv1d",
        takes=_takes_one_document, call=_call_triton,
    ),
    PublicKernel(
        "short_convolution", "causal-conv1d", ("1.6", "1.7"), "causal_conv1d:causal_conv1d_fn",
        takes=_takes_few_taps, call=_call_cuda,
    ),
)  # fmt: skip
