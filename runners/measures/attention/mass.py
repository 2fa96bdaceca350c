"""How a mixer with a memory divides its attention between the memory and the segment.

The weights A of a mixer are read by passing unit vectors as values: its output is then
o[q, j] = A[q, j].
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.backbone.stack import Stack, family
from lra.models.mixer import Unsupported
from lra.models.ops.segment_memory import Segment
from lra.models.ops.segment_recurrence import SegmentRecurrence

KEYS_AT_ONCE = 256
"""The weights of so many keys are read in one call, which limits memory."""


def recurrent_mixers(stack: nn.Module) -> dict[int, SegmentRecurrence]:
    """Return the mixers that read a segment together with a memory, by layer.

    Raises:
        Unsupported: There is no such mixer, or several layers share one module.
    """
    blocks = list(stack.blocks) if isinstance(stack, Stack) else []
    mixers = {layer: cast(Any, block).mixer for layer, block in enumerate(blocks)}
    recurrent = {n: mixer for n, mixer in mixers.items() if isinstance(mixer, SegmentRecurrence)}
    if not recurrent:
        names = ", ".join(sorted({family(mixer) for mixer in mixers.values()})) or family(stack)
        raise Unsupported(
            f"{names} has no memory of earlier segments that could receive attention; "
            "choose transformer_xl, compressive_transformer, shortformer or adaptive_span"
        )
    if len(set(map(id, recurrent.values()))) < len(recurrent):
        raise Unsupported(
            "several layers share one module, so lra cannot distinguish their calls: set "
            "model.backbone.layer_groups=null"
        )
    return recurrent


@contextmanager
def recorded_masses(
    mixers: Mapping[int, SegmentRecurrence],
) -> Iterator[dict[int, Float[Tensor, "b s"]]]:
    """Record, by layer, the mean attention that each key gets from all heads and queries.

    The next segment that the model reads inside the `with` block is recorded, if its memory is
    full. Clear the mapping to record another segment. Keys are in the order compressed memory,
    memory, segment.
    """
    masses: dict[int, Tensor] = {}

    def recorder(layer: int, read: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def read_and_record(q: Tensor, k: Tensor, v: Tensor, *rest: Any) -> Tensor:
            (segment,) = rest  # the only further argument of `read`
            # `empty` counts the empty rows of each sequence's memory; None: there are none.
            is_full = segment.empty is None or not bool(segment.empty.any())
            if is_full and layer not in masses:
                masses[layer] = _average_weights(read, q, k, segment)
            return read(q, k, v, *rest)

        return read_and_record

    for layer, mixer in mixers.items():
        cast(Any, mixer).read = recorder(layer, mixer.read)
    try:
        yield masses
    finally:
        for mixer in mixers.values():
            del cast(Any, mixer).read  # the method of the class remains


def _average_weights(
    read: Callable[..., Tensor],
    q: Float[Tensor, "b h l k"],
    k: Float[Tensor, "b h s k"],
    segment: Segment,
) -> Float[Tensor, "b s"]:
    """Return the mean weight of each of the s keys over h heads and l queries.

    `read(q, k, v, segment)` is the function of the mixer that attends.
    """
    keys, pieces = k.shape[2], []
    for first in range(0, keys, KEYS_AT_ONCE):
        last = min(first + KEYS_AT_ONCE, keys)
        unit = torch.zeros(keys, last - first, dtype=k.dtype, device=k.device)
        unit[first:last].fill_diagonal_(1.0)
        weights = read(q, k, unit.expand(*k.shape[:2], -1, -1), segment)
        pieces.append(weights.double().mean((1, 2)))
    return torch.cat(pieces, dim=1)
