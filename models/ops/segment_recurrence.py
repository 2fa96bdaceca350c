"""Attention of each segment to itself and to earlier inputs of the same layer (Transformer-XL).

Queries are made from the n tokens of a segment; keys and values are made from the layer's last m
inputs followed by these tokens. Positions are distances or indices in this row of m + n tokens.
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
    """Return `softmax_attention` if a CPU needs gradients of a bias; else return `sdpa`."""
    explicit = q.device.type == "cpu" and torch.is_grad_enabled() and given.get("bias") is not None
    return softmax_attention(q, k, v, **given) if explicit else sdpa(q, k, v, **given)


class SegmentRecurrence(MultiHead):
    """Multi-head attention of a segment to itself and to the inputs remembered before it.

    Args:
        site: The options of the model and the layer.
        core: Exact attention with scores by distance; a subclass with another core overrides
            `read`.
        bias: Whether projections have biases.
        bias_default: Default of the family's option `bias`.
    """

    begins_as_forward: ClassVar[bool] = True
    """Whether `forward` reads a segment that is known to have no tokens before it."""

    def __init__(self, site: Site, core: Core, *, bias: bool, bias_default: bool = True) -> None:
        super().__init__(site, core, bias=bias, bias_default=bias_default)
        self.positions = site.positions

    @property
    def same_length(self) -> bool:
        """Whether each token of a segment attends to as many keys as the memory has."""
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
        """Return the outputs of a segment after `flow.state`, if given, and the next state."""
        if flow.state is None:
            return flow.with_x(self.forward(flow.x, layout))
        refuse_in_stream(layout)
        x, state_parts = flow.x, len(cast(tuple[Tensor, ...], flow.state))
        if state_parts == 2:  # inputs and their number, as in training
            segment = segment_memory.append_inputs(flow.state, x)
            (context,) = segment.context
            q = self.split_first(self.q_proj(context[-x.shape[1] :]))
            k, v = (self.split_first(layer(context)) for layer in (self.k_proj, self.v_proj))
        else:
            q = self.split(self.q_proj(x))
            keys_values = tuple(self.split(layer(x)) for layer in (self.k_proj, self.v_proj))
            segment = segment_memory.append_segment(flow.state, keys_values)
            k, v = segment.context
            # A first segment is read as by `forward`, without the empty rows of the memory.
            if self.begins(x, cast(tuple[Tensor, ...], flow.state)[-1], k.shape[2] - x.shape[1]):
                k, v = keys_values
                y = cast(Core, self.core)(*self.placed(q, k, None), v, layout)
                return flow._replace(x=self.merge(y), state=segment.state)
        q, k = self.placed(q, k, segment.empty)
        return flow._replace(x=self.merge(self.read(q, k, v, segment)), state=segment.state)

    def begins(self, x: Float[Tensor, "b l d"], seen: Int[Tensor, " b"], memory: int) -> bool:
        """Return whether `forward` can read `x`: in evaluation, if no tokens come before it."""
        as_forward = self.begins_as_forward and not (self.same_length and x.shape[1] > memory)
        return as_forward and not self.training and segment_memory.begins(seen, x.shape[1])

    def split_first(self, x: Float[Tensor, "l b d"]) -> Float[Tensor, "b h l k"]:
        """Split the width d of `x` into h heads; the length is the first axis of `x`."""
        return x.view(*x.shape[:2], self.heads, self.head_width).permute(1, 2, 0, 3)

    def read(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        segment: segment_memory.Segment,
    ) -> Float[Tensor, "b h l v"]:
        """Return the attention of l new queries to the visible rows of memory and segment."""
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
        """Return queries and keys with positions, counted from the first non-empty key."""
        if not self.positions_inside or self.positions in SCORED:
            return q, k
        keys, memory = k.shape[2], k.shape[2] - q.shape[2]
        if self.positions == Positions.rotary:
            # Only distances matter, so positions can count from the memory's first row.
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
