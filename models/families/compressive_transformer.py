"""Compressive Transformer: Transformer-XL with a second, compressed memory of older inputs.

A segment of n tokens attends to the layer's last m inputs (the memory) and to the compressed
memory, which stores one row for every `rate` older inputs. Scores are those of Transformer-XL, with
one step of distance from each row to the next:

    context = (compressed, memory, x)
    new = f(the oldest inputs that the segment pushes out of the memory)
    compressed' = (compressed, new), the last ones;    memory' = (memory, x), the last m

Where the runner cuts the gradient between segments, the loss of the task cannot train f. Instead, f
learns to preserve what attention reads: `reconstruction=attention` is the squared difference of

    softmax(q k(old)) v(old)    and    softmax(q k(f(old))) v(f(old))

without positions, with fixed weights of queries, keys and values. `reconstruction=autoencoding` is
the squared difference of old and g(f(old)), where g is a transposed convolution.

Cost: a segment takes 6 n (c + m + n) D operations, with c compressed rows and m inputs, and those
for the projections of all these rows. All layers together reach depth * (m + rate * c) tokens back.

Source: Rae et al. 2020, arXiv:1911.05507, algorithms 1 and 2. Notation: n, m and c are the paper's
n_s, n_m and n_cm; D is the width of all heads.

Differences: memories start empty and masked; in the paper they start with zeros that are attended
to. The reconstruction loss is a mean over elements instead of a norm, which only scales the rate at
which f learns. Segments can have any length. `compression=dilated` has two convolutions (the paper
gives no number). Back-propagation over two segments, the paper's alternative, is unsupported.
"""

from dataclasses import replace
from enum import StrEnum, auto
from typing import cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from lra.models.linear_map import projection
from lra.models.mixer import SCORED, Count, Flow, Growth, Layout, Need, Site, State, Whole
from lra.models.ops.compression import LEARNED, Compression, Compressor, masked_error
from lra.models.ops.exact import ExactCore, refuse_in_stream, sdpa
from lra.models.ops.segment_memory import Segment, none_if_full
from lra.models.ops.segment_recurrence import SegmentRecurrence, attend


class Reconstruction(StrEnum):
    """Loss that trains the compression."""

    attention = auto()
    autoencoding = auto()
    none = auto()


class CompressiveTransformer(SegmentRecurrence):
    """Multi-head attention to a segment, to the memory before it and to a compressed one.

    Args:
        rate: Number of inputs that become one row of the compressed memory.
        compressed: Number of rows of the compressed memory; null: as many as the memory has inputs.
        evaluation_compressed: Number of rows of the compressed memory in evaluation; null: as in
            training.
        compression: How several inputs are compressed to one row of the memory.
        reconstruction: Loss that trains the compression, where it has parameters.
    """

    needs = (
        Need(
            "rate", "compressed", "evaluation_compressed", "compression", "reconstruction",
            causal=True,
        ),
        Need("reconstruction", compression=LEARNED),
    )  # fmt: skip

    def __init__(
        self,
        site: Site,
        *,
        rate: Count = 3,
        compressed: Whole | None = None,
        evaluation_compressed: Whole | None = None,
        compression: Compression = Compression.convolution,
        reconstruction: Reconstruction = Reconstruction.attention,
        bias: bool = False,
    ) -> None:
        """Make projections, the compression, and a decoder if its loss needs one."""
        # Attention with positions in the scores stores all scores for backward.
        memory = Growth(2.0 if site.positions in SCORED else 1.0)
        core = ExactCore(site, attend, memory=memory)
        super().__init__(site, core, bias=bias, bias_default=False)
        self.rate, self.sizes = rate, (compressed, evaluation_compressed)
        self.most_used = compression == Compression.most_used
        learned = site.causal and compression in LEARNED
        self.compressor = Compressor(site.width, rate, compression) if site.causal else None
        self.reconstruction = reconstruction if learned else Reconstruction.none
        self.decoder: nn.Linear | None = None
        if self.reconstruction == Reconstruction.autoencoding:
            self.decoder = projection(site.width, rate * site.width)
        taught = frozenset(
            name
            for name, _ in self.named_parameters()
            if name.startswith(("compressor", "decoder"))
        )
        # Only streams, which have a memory, train the compressor; its loss is a penalty in `Flow`.
        self.traits = replace(
            self.traits,
            in_streams=taught,
            by_segment=True,
            summarises=True,
            reversible=self.reconstruction == Reconstruction.none,
        )

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Return the empty state: inputs, compressed rows, and the number of tokens read so far.

        `compression=most_used` also stores the attention that each input has received. Up to
        `rate` - 1 inputs beyond the memory wait until they form a whole group to compress.
        """
        training, evaluation = self.sizes
        size = training if self.training or evaluation is None else evaluation
        like = self.q_proj.weight
        waiting, width = self.rate - 1, like.shape[1]
        inputs = like.new_zeros(batch_size, waiting + memory, width)
        rows = like.new_zeros(batch_size, memory if size is None else size, width)
        read_count = torch.zeros(batch_size, dtype=torch.int64, device=like.device)
        used = (like.new_zeros(inputs.shape[:2]),) if self.most_used else ()
        return (inputs, rows, read_count, *used)

    def extend(self, flow: Flow, layout: Layout) -> Flow:
        """Read a segment after `flow.state`; if the state is None, call `forward`."""
        if flow.state is None:
            return flow.with_x(self.forward(flow.x, layout))
        refuse_in_stream(layout)
        x = flow.x
        inputs, rows, read_count, *used = cast(tuple[Tensor, ...], flow.state)
        waiting = self.rate - 1
        memory, capacity = inputs.shape[1] - waiting, rows.shape[1]
        if not used and self.begins(x, read_count, memory):
            y = self.forward(x, layout)
        else:
            context = torch.cat((rows.to(x.dtype), inputs[:, waiting:].to(x.dtype), x), dim=1)
            # Number of real compressed rows, and of empty places at the start of the context: rows,
            # then inputs of the memory.
            compressed = ((read_count - memory).clamp(min=0) // self.rate).clamp(max=capacity)
            vacant = none_if_full(memory - read_count.clamp(max=memory) + capacity - compressed)
            segment = Segment((context,), vacant, None)
            q = self.split(self.q_proj(x))
            k, v = (self.split(layer(context)) for layer in (self.k_proj, self.v_proj))
            placed = self.placed(q, k, vacant)
            y = self.merge(self.read(*placed, v, segment))
        all_inputs = torch.cat((inputs, x.to(inputs.dtype)), dim=1)
        received = None
        if used:  # rows get no counts, and waiting inputs no attention
            added = self.received(*placed, segment)[:, capacity:].to(used[0].dtype)
            received = F.pad(used[0], (0, x.shape[1]))
            received = torch.cat((received[:, :waiting], received[:, waiting:] + added), dim=1)
        old, new, groups = self.given_up(all_inputs, received, read_count, memory, x.shape[1])
        all_rows = torch.cat((rows, new.to(rows.dtype)), dim=1)
        # As many of the oldest rows are dropped as real groups were added.
        remaining = torch.arange(capacity, device=x.device) + groups.sum(1, keepdim=True)
        after = (
            all_inputs[:, x.shape[1] :].clone(),
            all_rows.gather(1, remaining[..., None].expand(-1, -1, all_rows.shape[2])),
            read_count + x.shape[1],
            *(() if received is None else (received[:, x.shape[1] :].clone(),)),
        )
        flow = flow._replace(x=y, state=after)
        if self.training and self.reconstruction != Reconstruction.none:
            flow = flow.add_penalty("reconstruction", self.penalty(x, old, groups))
        return flow

    def given_up(
        self,
        every: Float[Tensor, "b s d"],
        used: Float[Tensor, "b s"] | None,
        seen: Int[Tensor, " b"],
        memory: int,
        length: int,
    ) -> tuple[Float[Tensor, "b o d"], Float[Tensor, "b g d"], Bool[Tensor, "b g"]]:
        """Return the inputs that leave the memory, their compressed rows, and which rows are real.

        Inputs leave in g groups of `rate`, fewer in examples that have read fewer tokens.

        Args:
            every: Waiting inputs, then those of the memory, then those of the segment.
            used: Attention that each input has received.
            seen: Number of tokens read before the segment.
            memory: Number of inputs in the memory.
            length: Number of tokens of the segment.
        """
        # Groups given up before the segment, up to its end, and at most during it.
        before = (seen - memory).clamp(min=0) // self.rate
        after = (seen + length - memory).clamp(min=0) // self.rate
        number = (length + self.rate - 1) // self.rate
        groups = torch.arange(number, device=every.device) < (after - before)[:, None]
        token = before[:, None] * self.rate + torch.arange(number * self.rate, device=every.device)
        # Token number `seen` of the text, the segment's first, is in column rate - 1 + memory.
        column = (self.rate - 1 + memory - seen)[:, None] + token
        column = column.clamp(0, every.shape[1] - 1)
        real = groups.repeat_interleave(self.rate, dim=1)
        old = every.gather(1, column[..., None].expand(-1, -1, every.shape[2]))
        old = old * real[..., None]
        # Inputs that are not real must never be chosen as the most used: -1 is below all others.
        usage = None if used is None else used.gather(1, column).masked_fill(~real, -1.0)
        new: Tensor = cast(Compressor, self.compressor)(old, usage, groups.sum(1))
        return old, new, groups

    def received(
        self, q: Float[Tensor, "b h l k"], k: Float[Tensor, "b h s k"], segment: Segment
    ) -> Float[Tensor, "b s"]:
        """Return the mean attention, over heads and queries, to each row of the context."""
        with torch.no_grad():
            # With the rows of an identity matrix as values, the outputs are the weights.
            keys = k.shape[2]
            eye = torch.eye(keys, dtype=q.dtype, device=q.device).expand(*q.shape[:2], -1, -1)
            return self.read(q, k, eye, segment).mean((1, 2))

    def penalty(
        self, x: Float[Tensor, "b l d"], old: Float[Tensor, "b o d"], groups: Bool[Tensor, "b g"]
    ) -> Float[Tensor, ""]:
        """Return the loss that trains the compressor and the decoder, and no other weights.

        With a decoder, it is the error of rebuilding `old` from its compression. Without one, it is
        the difference between what queries read from `old` and from its compression.

        Args:
            x: The layer's input, from which queries are computed.
            old: The inputs that are compressed, `rate` for each of g groups; padding is 0.
            groups: True for real groups.
        """
        old, has_groups = old.detach().to(x.dtype), groups.any(1)
        compressed = cast(Compressor, self.compressor)(old)
        real = groups.repeat_interleave(self.rate, dim=1)
        if self.decoder is not None:
            rebuilt = self.decoder(compressed).unflatten(2, (self.rate, -1)).flatten(1, 2)
            # Padding is 0 on both sides; the scale makes the mean one over real tokens.
            scale = (real.shape[1] / real.sum(1).clamp(min=1)).sqrt()[:, None, None]
            return masked_error(scale * old, scale * rebuilt * real[..., None], has_groups)
        q = self.untaught(self.q_proj, x.detach())
        outputs = []
        for rows, visible in ((old, real), (compressed, groups)):
            k, v = self.untaught(self.k_proj, rows), self.untaught(self.v_proj, rows)
            allowed = visible | ~has_groups[:, None]  # softmax needs a key, also without groups
            outputs.append(sdpa(q, k, v, visible=allowed[:, None, None]))
        return masked_error(outputs[0], outputs[1], has_groups)

    def untaught(self, layer: nn.Linear, x: Float[Tensor, "b s d"]) -> Float[Tensor, "b h s k"]:
        """Apply `layer` to `x` with detached weights, so that they get no gradient from it."""
        bias = None if layer.bias is None else layer.bias.detach()
        return self.split(F.linear(x, layer.weight.detach(), bias))
