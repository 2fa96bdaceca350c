"""RNNsearch: a recurrent encoder and decoder with additive attention between them.

Equation   h_j = [f_j; g_j]: gated units that read the source from its beginning (f) and its end (g)
           s_0 = tanh(W_s g_1)
           e_ij = v . tanh(W_a s_{i-1} + U_a h_j);  a_ij = softmax over j;  c_i = sum_j a_ij h_j
           s_i = unit([y_{i-1}; c_i], s_{i-1})
           t_i = max of neighbours in U_o s_i + V_o y_{i-1} + C_o c_i      (maxout)
           unit(x, s):  z, r = sigmoid(W x + U s)
                        s <- (1 - z) s + z tanh(W x + U (r s))
Cost       For n source and m target tokens, 2 n and m steps, which run one after the other, and
           m n scores. Memory: m n h.
Source     Bahdanau, Cho and Bengio 2015, arXiv:1409.0473, appendix A.
Notation   y are embedded tokens of the target, `hidden_width` is n (there also the width n' of the
           scores), and the width of the model is both m and l.
Limits     Only for tasks with a source and a target. It reads whole rows, without a state, so each
           new token needs another pass.
Published  Adadelta, and widths of 1,000 (units), 620 (embedding) and 500 (readout).
Differs    Source and target share an embedding. Maps are drawn Xavier-uniform, maps of states
           orthogonal. t_i reads s_i, as equation 4 does; appendix A.2 has s_{i-1} there. The unit
           multiplies the state by r before the map U, as in the paper; GRUs of cuDNN and PyTorch
           do it after the map. Options of layers, such as depth and heads, have no effect.
"""

from collections.abc import Collection
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from lra.models.backbone.config import BackboneConfig
from lra.models.backbone.encoder_decoder import cut_targets, put_targets, source_mask
from lra.models.linear_map import projection
from lra.models.mixer import ByName, Count, Flow, Growth, Layout, Site, State, Traits, Unsupported


class GatedUnit(nn.Module):
    """The gated unit of the paper, for one or more layers that run at the same time.

    Args:
        hidden: Width h of the states.
        layers: Number n of layers, each with separate maps of its states.
    """

    def __init__(self, hidden: int, layers: int) -> None:
        super().__init__()
        blocks = [nn.init.orthogonal_(torch.empty(hidden, hidden)) for _ in range(3 * layers)]
        maps = torch.stack(blocks).view(layers, 3, hidden, hidden)
        self.gate_maps = nn.Parameter(torch.cat((maps[:, 0], maps[:, 1]), dim=-1))
        self.state_maps = nn.Parameter(maps[:, 2].clone())

    def forward(
        self, x: Float[Tensor, "n b three_h"], state: Float[Tensor, "n b h"]
    ) -> Float[Tensor, "n b h"]:
        """Return the next states; `x` has the mapped inputs of update, reset and candidate."""
        wide = 2 * state.shape[-1]
        gates = (x[..., :wide] + state @ self.gate_maps).sigmoid()
        update, reset = gates[..., : wide // 2], gates[..., wide // 2 :]
        candidate = (x[..., wide:] + (reset * state) @ self.state_maps).tanh()
        after: Tensor = state + update * (candidate - state)
        return after


class RNNSearch(ByName, nn.Module):
    """The whole model between embedding and head; depth and heads of the backbone are unused.

    Args:
        site: Where it is built.
        config: Rate of the dropout of annotations h_j and of t_i.
        hidden_width: Width of a gated unit; None: the width of the model.

    Raises:
        Unsupported: The task has no source and target.
    """

    restarts = True
    """Positions restart after the source."""
    reads: ClassVar[Collection[str]] = ()

    def __init__(
        self, site: Site, config: BackboneConfig, *, hidden_width: Count | None = None
    ) -> None:
        """Make the units and the maps around them."""
        super().__init__()
        if not site.target_length:
            raise Unsupported(
                "RNNSearch reads a source and writes a target, but this task or runner has none: "
                "choose a sequence-to-sequence task, such as reversal, sorting, text_pairs or "
                "task.objective=prefix, and a runner that trains"
            )
        self.source_length, self.target_length = site.source_length, site.target_length
        width, hidden = site.width, hidden_width or site.width
        self.hidden = hidden
        self.source_maps = nn.ModuleList(projection(width, 3 * hidden, bias=True) for _ in "fg")
        self.encoder = GatedUnit(hidden, 2)
        self.first_map = projection(hidden, hidden, bias=True)
        self.key_map = projection(2 * hidden, hidden, bias=False)
        self.query_map = projection(hidden, hidden, bias=True)
        self.score_map = projection(hidden, 1, bias=False)
        self.target_map = projection(width, 3 * hidden, bias=True)
        self.context_map = projection(2 * hidden, 3 * hidden, bias=False)
        self.decoder = GatedUnit(hidden, 1)
        self.readout = projection(3 * hidden + width, 2 * width, bias=True)
        self.dropout = nn.Dropout(config.dropout)
        self.traits = Traits(
            supports=frozenset({"keep", "prefix"}), causal=True, operations=Growth(2.0),
            memory=Growth(2.0),
        )  # fmt: skip

    def forward(self, flow: Flow, layout: Layout) -> Flow:
        """Encode the first `layout.prefix` tokens of each row, and decode the tokens after them."""
        prefix, length = layout.prefix, flow.x.shape[1]
        if prefix is None or flow.state is not None:
            raise Unsupported(
                "RNNSearch reads whole rows, without a state, and needs to know where the source "
                "of each row ends: pass layout.prefix, and no state"
            )
        keep = source_mask(layout, min(self.source_length, length))
        annotations, state = self.encode(flow.x[:, : keep.shape[1]], keep)
        target = cut_targets(flow.x, prefix, self.target_length)
        decoded = self.decode(target, annotations, keep, state)
        return flow.with_x(put_targets(decoded, prefix, length))

    def encode(
        self, x: Float[Tensor, "b s d"], keep: Bool[Tensor, "b s"]
    ) -> tuple[Float[Tensor, "b s two_h"], Float[Tensor, "b h"]]:
        """Return the annotations of a source, and the state with which a decoder starts.

        Padding leaves the states unchanged, so the backward unit begins at the last real token.
        """
        x = x.masked_fill(~keep[..., None], 0.0)
        forwards, backwards = (each(x) for each in self.source_maps)
        inputs = torch.stack((forwards, backwards.flip(1)))
        real = torch.stack((keep, keep.flip(1)))[..., None]
        state, states = inputs.new_zeros(2, len(x), self.hidden), []
        for place in range(x.shape[1]):
            after = self.encoder(inputs[:, :, place], state)
            state = torch.where(real[:, :, place], after, state)
            states.append(state)
        forwards, backwards = torch.stack(states, dim=2)
        annotations = torch.cat((forwards, backwards.flip(1)), dim=-1)
        return self.dropout(annotations), self.first_map(state[1]).tanh()

    def decode(
        self,
        y: Float[Tensor, "b t d"],
        annotations: Float[Tensor, "b s two_h"],
        keep: Bool[Tensor, "b s"],
        state: Float[Tensor, "b h"],
    ) -> Float[Tensor, "b t d"]:
        """Return t_i for each token of a target `y`; the context of an empty source is 0."""
        keys, inputs = self.key_map(annotations), self.target_map(y)
        states, contexts = [], []
        for place in range(y.shape[1]):
            scores = self.score_map((keys + self.query_map(state)[:, None]).tanh())[..., 0]
            scores = scores.masked_fill(~keep, torch.finfo(scores.dtype).min)
            weights = scores.softmax(-1).to(annotations.dtype) * keep
            context = (weights[:, None] @ annotations)[:, 0]
            moved = inputs[:, place] + self.context_map(context)
            state = self.decoder(moved[None], state[None])[0]
            states.append(state)
            contexts.append(context)
        read = torch.cat((torch.stack(states, 1), y, torch.stack(contexts, 1)), dim=-1)
        output: Tensor = self.dropout(self.readout(read).unflatten(-1, (-1, 2)).amax(-1))
        return output

    def initial_state(self, batch_size: int, memory: int) -> State:
        """Raise `Unsupported`, because a target needs its source, which a state lacks."""
        del batch_size, memory
        raise Unsupported(
            "RNNSearch has no state that continues from token to token: pass whole rows"
        )
