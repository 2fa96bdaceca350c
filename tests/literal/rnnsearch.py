"""RNNsearch: Bahdanau, Cho and Bengio 2015, appendix A; one row and one step after another."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


def unit(
    mapped: Tensor, state: Tensor, gates: Float[Tensor, "h two_h"], maps: Float[Tensor, "h h"]
) -> Tensor:
    """Give the next state; `mapped` has W x of z, r and the candidate."""
    of_z, of_r, of_candidate = mapped.chunk(3)
    u_z, u_r = gates.chunk(2, dim=1)
    z = torch.sigmoid(of_z + state @ u_z)
    r = torch.sigmoid(of_r + state @ u_r)
    candidate = torch.tanh(of_candidate + (r * state) @ maps)
    return (1 - z) * state + z * candidate


def literal(
    stack: Any, source: Float[Tensor, "s d"], target: Float[Tensor, "t d"]
) -> Float[Tensor, "t d"]:
    """Give t_i of each token of a target; neither has padding, and the source may be empty."""
    zeros = source.new_zeros(stack.hidden)
    read: list[list[Tensor]] = [[], []]
    for way, places in enumerate((range(len(source)), reversed(range(len(source))))):
        state, encoder = zeros, stack.encoder
        for j in places:
            mapped = stack.source_maps[way](source[j])
            state = unit(mapped, state, encoder.gate_maps[way], encoder.state_maps[way])
            read[way].append(state)
    backward = read[1][::-1]
    annotations = [torch.cat(pair) for pair in zip(read[0], backward, strict=True)]
    s = torch.tanh(stack.first_map(backward[0] if backward else zeros))
    outputs = []
    for y in target:
        scores = [
            stack.score_map(torch.tanh(stack.query_map(s) + stack.key_map(h))).squeeze(0).exp()
            for h in annotations
        ]
        context = source.new_zeros(2 * stack.hidden)
        for score, h in zip(scores, annotations, strict=True):
            context = context + score / sum(scores) * h
        mapped = stack.target_map(y) + stack.context_map(context)
        s = unit(mapped, s, stack.decoder.gate_maps[0], stack.decoder.state_maps[0])
        t = stack.readout(torch.cat((s, y, context)))
        outputs.append(torch.stack([torch.maximum(t[k], t[k + 1]) for k in range(0, len(t), 2)]))
    return torch.stack(outputs)
