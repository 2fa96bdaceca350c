"""Adaptive attention span: every head learns the length of its window.

    s_ij = q_i . (k_j + p_{i-j}) / sqrt(d),    1 <= i - j <= S
    m_z(x) = clamp((R + z - x) / R, 0, 1),     z = S z', z' in [0, 1] learned by each head
    a_ij = m_z(i - j - 1) exp(s_ij) / sum_j' m_z(i - j' - 1) exp(s_ij')

S is `span`, R `ramp`, and p one table of positions for all heads and layers. A token attends to
earlier tokens and not to itself. In the bidirectional form, an addition of this project, |i - j| <=
S, each sign of i - j has separate vectors, and a token attends to itself, too. Spans start at
`initial` S. Every layer adds `penalty` S mean(z') to the loss, and z' is clamped after each step. A
layer computes keys only up to its longest span with the ramp, rounded up to a multiple of 64.

With `persistent=N` every head has N additional learned keys and values, without position and span,
in the same softmax (all-attention). In the paper they replace the feed-forward networks: set
`model.backbone.feed_forward=none`.

Cost: the layer takes 6 n W D operations, where W is the longest span with its ramp.

Source: Sukhbaatar et al. 2019, arXiv:1905.07799, and the code published with it; arXiv:1907.01470
for all-attention. Notation: D is the width of all heads, d that of one.

Differences: memory starts empty and masked; in the released code it starts with zeros that are
attended to. Sums of weights omit the 1e-8 of that code, so that a key of weight 0 at the end of a
ramp adds nothing to the gradient of its span. The mask is taken at i - j - 1, as in the code (the
paper has i - j). Spans that depend on the token (section 2.3) are unsupported.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import ClassVar, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes

from lra.models.mixer import Growth, Layout, Roles, Site, State, Traits, Tuning, check_least
from lra.models.ops.segment_memory import Segment
from lra.models.ops.segment_recurrence import SegmentRecurrence
from lra.models.ops.span_attention import empty_slots, ramps, span_attention, window_of


class SpanTable(Roles):
    """One learned vector for each distance, drawn from N(0, 1), in the order of the keys."""

    no_matrices = ("weight",)

    def __init__(self, span: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(span, width))
        nn.init.normal_(self.weight)


class SpanCore(nn.Module):
    """Attention within the learned spans of all heads, and to persistent keys and values."""

    def __init__(
        self,
        site: Site,
        *,
        span: int,
        ramp: int,
        initial: float,
        persistent: int,
    ) -> None:
        """Make the learned spans, the table of distances, and persistent keys and values."""
        super().__init__()
        self.limit, self.ramp, self.dropout = span, ramp, site.attention_dropout
        self.initial = initial
        width = site.head_width
        self.spans = nn.Parameter(torch.full((site.heads,), initial))
        rows = span if site.causal else 2 * span + 1
        self.table = site.share(f"adaptive_span.{span}", lambda: SpanTable(rows, width))
        shape = (site.heads, persistent, width)
        self.keys: nn.Parameter | None = None
        self.values: nn.Parameter | None = None
        if persistent:
            self.keys, self.values = (nn.Parameter(torch.empty(shape)) for _ in range(2))
            nn.init.normal_(self.keys, std=width**-0.5)
            nn.init.normal_(self.values, std=persistent**-0.5)
        self.traits = Traits(
            causal=site.causal,
            operations=Growth(1.0),
            memory=Growth(1.0),
            reach=span,
            weight_dropout=True,
        )

    @property
    def reach(self) -> Float[Tensor, " h"]:
        """The span z of each head in tokens, without its ramp."""
        return self.limit * self.spans

    def window(self) -> int:
        """Return how many tokens back the longest span reaches, a multiple of 64 or `limit`.

        For meta and fake tensors, which have no values, use the initial spans.
        """
        if self.spans.device.type == "meta" or isinstance(self.spans, FakeTensor):
            return window_of(self.limit * self.initial, self.ramp, self.limit)
        # A mode that counts operations must not intercept this read of real values.
        with _disable_current_modes():
            return window_of(float(self.reach.detach().max()), self.ramp, self.limit)

    def forward(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        layout: Layout,
    ) -> Float[Tensor, "b h l v"]:
        """Let each query attend to the keys within the span of its head.

        The l queries are at the last l of s keys. `layout.keep`, [b s], is False for hidden keys.
        """
        window = min(self.window(), k.shape[2])
        columns = window if self.traits.causal else 2 * window + 1
        first = self.limit - window  # the table has rows for the longest possible window
        persistent = None
        if self.keys is not None and self.values is not None:
            persistent = (self.keys.to(q.dtype), self.values.to(v.dtype))
        table = self.table.weight[first : first + columns].to(q.dtype)
        return span_attention(
            q, k, v, table, ramps(self.reach, columns, window, self.ramp), behind=window,
            visible=layout.keep, dropout=self.dropout if self.training else 0.0,
            persistent=persistent,
        )  # fmt: skip


class AdaptiveSpan(SegmentRecurrence):
    """Multi-head attention whose heads learn their windows.

    Args:
        span: Longest window in tokens, S.
        ramp: Number of tokens over which a window fades out, R.
        initial: Initial window, as a fraction of `span`.
        penalty: Number that each layer adds to the loss per token of its span, averaged over heads.
        persistent: Number of learned keys and values per head, to which every token attends
            (all-attention).
    """

    begins_as_forward: ClassVar[bool] = False  # a segment costs what its spans hold

    def __init__(
        self,
        site: Site,
        *,
        span: int = 1024,
        ramp: int = 32,
        initial: float = 0.0,
        penalty: float = 2e-6,
        persistent: int = 0,
        bias: bool = False,
    ) -> None:
        """Check the options, and make the core."""
        check_least(1, span=span, ramp=ramp)
        check_least(0, persistent=persistent)
        if not 0 <= initial <= 1:
            raise ValueError(
                f"initial, the first window as a fraction of span, must be 0 to 1: got {initial}"
            )
        if not penalty >= 0:
            raise ValueError(f"penalty (loss per token of span) must be 0 or more: got {penalty}")
        core = SpanCore(site, span=span, ramp=ramp, initial=initial, persistent=persistent)
        super().__init__(site, core, bias=bias, bias_default=False)
        # The core adds a vector for each distance to the keys, so it supports no other encoding of
        # positions. All tokens of a segment read the whole memory before it: by_segment.
        self.traits = replace(self.traits, positions=frozenset(), by_segment=True)
        self.penalty = penalty

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return an empty memory of at most `span` tokens, because no head reaches further."""
        return super().initial_state(batch_size, min(memory, self.span_core.limit))

    @property
    def span_core(self) -> SpanCore:
        """The core, with its type."""
        return cast(SpanCore, self.core)

    def read(
        self,
        q: Float[Tensor, "b h l k"],
        k: Float[Tensor, "b h s k"],
        v: Float[Tensor, "b h s v"],
        segment: Segment,
    ) -> Float[Tensor, "b h l v"]:
        """Let the new tokens attend to the memory and the segment, within the heads' spans."""
        visible = empty_slots(segment.empty, k.shape[2], k.device)
        return cast(Tensor, self.core(q, k, v, Layout(keep=visible)))

    def penalties(self) -> Mapping[str, Float[Tensor, ""]]:
        """Return the penalty of this layer: `penalty` times the mean span in tokens."""
        return {"span": self.penalty * self.span_core.reach.mean()}

    def learned_spans(self) -> Float[Tensor, " h"]:
        """Return the span of each head in tokens, without its ramp."""
        return self.span_core.reach.detach()

    @contextmanager
    def widest(self) -> Iterator[None]:
        """Set every span to its maximum inside the context; restore the learned spans after it."""
        spans = self.span_core.spans.detach()
        learned = spans.clone()
        try:
            spans.fill_(1.0)
            yield
        finally:
            spans.copy_(learned)

    def after_step(self, step: int, generator: torch.Generator) -> None:
        """Clamp the learned fractions z' to the range from 0 to 1."""
        del step, generator
        self.span_core.spans.clamp_(0, 1)

    def tuning(self) -> Mapping[str, Tuning]:
        """Exclude the spans from weight decay."""
        return {"core.spans": Tuning(weight_decay=0.0)}
