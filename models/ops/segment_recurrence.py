"""Attention along a stream of segments, each of which sees what its layer read before.

In front of a segment's n tokens stand the layer's last m inputs; queries are made of the segment
alone, keys and values of both. Positions belong to this row of m + n: distances, or places in it.
"""

from typing import Any, ClassVar, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from lra.models.mixer import SCORED, Flow, Layout, Positions, Site, State
from lra.models.multi_head import Core, MultiHead
from lra.models.ops import segment_memory
from lra.models.ops.exact import ExactCore, refuse_in_stream, sdpa, softmax_attention
from lra.models.positions import precise, rotate, sinusoid


def attend(q: Tensor, k: Tensor, v: Tensor, **given: Any) -> Tensor:
    """Attend by the faster way: explicit scores if a CPU needs gradients of a bias, else `sdpa`."""
    explicit = q.device.type == "cpu" and torch.is_grad_enabled() and given.get("bias") is not None
    return softmax_attention(q, k, v, **given) if explicit else sdpa(q, k, v, **given)


class SegmentRecurrence(MultiHead):
    """Multi-head attention of a segment to itself and to the inputs remembered before it.

    Args:
        core: Exact attention, with the scores by distance; a subclass with another one has another
            `read`.
        bias_default: What the family's option says where nobody chooses.
    """

    begins_as_forward: ClassVar[bool] = True
    """Whether a segment behind nothing is read by `forward`, where that is known."""

    def __init__(self, site: Site, core: Core, *, bias: bool, bias_default: bool = True) -> None:
        super().__init__(site, core, bias=bias, bias_default=bias_default)
        self.positions = site.positions

    @property
    def same_length(self) -> bool:
        """Whether each token of a segment sees as many keys as memory holds, and no more."""
        return False

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return an empty memory: of inputs while training, of keys and values in evaluation.

        Raises:
            Unsupported: The mixer looks ahead.
        """
        like = self.q_proj.weight
        if self.training:
            return segment_memory.empty_memory((like.new_zeros(batch_size, memory, like.shape[1]),))
        shape = (batch_size, self.heads, memory, self.head_width)
        return segment_memory.empty_memory((like.new_zeros(shape), like.new_zeros(shape)))

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Read a segment after `flow.state`; with state None, do the same as `forward`."""
        if flow.state is None:
            return flow.with_x(self.forward(flow.x, layout))
        refuse_in_stream(layout)
        x, remembered = flow.x, len(cast(tuple[Tensor, ...], flow.state))
        if remembered == 2:
            segment = segment_memory.append_inputs(flow.state, x)
            (context,) = segment.context
            q = self.split_first(self.q_proj(context[-x.shape[1] :]))
            k, v = (self.split_first(layer(context)) for layer in (self.k_proj, self.v_proj))
        else:
            q = self.split(self.q_proj(x))
            keys_values = tuple(self.split(layer(x)) for layer in (self.k_proj, self.v_proj))
            segment = segment_memory.append_segment(flow.state, keys_values)
            k, v = segment.context
            if self.begins(x, cast(tuple[Tensor, ...], flow.state)[-1], k.shape[2] - x.shape[1]):
                k, v = keys_values
                y = cast(Core, self.core)(*self.placed(q, k, None), v, layout)
                return flow._replace(x=self.merge(y), state=segment.state)
        q, k = self.placed(q, k, segment.empty)
        return flow._replace(x=self.merge(self.read(q, k, v, segment)), state=segment.state)

    def begins(self, x: Float[Tensor, "b l d"], seen: Int[Tensor, " b"], memory: int) -> bool:
        """Tell whether `x` begins a stream in evaluation, so that `forward` can read it."""
        alike = self.begins_as_forward and not (self.same_length and x.shape[1] > memory)
        return alike and not self.training and segment_memory.begins(seen, x.shape[1])

    def split_first(self, x: Float[Tensor, "l b d"]) -> Float[Tensor, "b h l k"]:
        """Fold the width of all heads into heads; the length is the first axis."""
        return x.view(*x.shape[:2], self.heads, self.head_width).permute(1, 2, 0, 3)

    def read(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        segment: segment_memory.Segment,
    ) -> Float[Tensor, "b h l v"]:
        """Let the new tokens attend to all visible rows of memory and segment."""
        length, keys, core = q.shape[2], k.shape[2], cast(ExactCore, self.core)
        visible = segment_memory.visibility(
            length, keys, segment.empty, same_length=self.same_length, device=q.device
        )
        q, bias = core.in_order(q, keys, later=False)
        return attend(q, k, v, causal=True, visible=visible, dropout=core.rate(), bias=bias)

    def placed(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        empty: Int[Tensor, " b"] | None,
    ) -> tuple[Float[Tensor, "b h l k"], Float[Tensor, "b h s k"]]:
        """Apply positions to queries and keys, counted from the first non-empty key."""
        if not self.positions_inside or self.positions in SCORED:
            return q, k
        keys, memory = k.shape[2], k.shape[2] - q.shape[2]
        if self.positions == Positions.rotary:
            # Distances alone matter: places may count from the memory's first row, empty or not.
            return rotate(q, torch.full((len(q),), memory, device=q.device)), rotate(k)
        ids = torch.arange(keys, device=q.device)[None]
        if empty is not None:
            ids = (ids - empty[:, None]).clamp(min=0)
        dtype = self.q_proj.weight.dtype
        table = sinusoid(ids, self.q_proj.in_features, halves=True, dtype=precise(dtype)).to(dtype)
        q_table, k_table = (
            self.split(torch.nn.functional.linear(part, layer.weight)).to(k.dtype)
            for part, layer in ((table[:, memory:], self.q_proj), (table, self.k_proj))
        )
        return q + q_table, k + k_table
