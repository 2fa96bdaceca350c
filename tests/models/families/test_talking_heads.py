"""Talking heads against loops over heads, and what they are with maps that do nothing."""

import pytest
import torch

from lra.models.families.talking_heads import TalkingHeads
from lra.models.mixer import Layout, Positions
from lra.models.positions import alibi_slopes
from tests.attention import builder, compare, drawn, holes

LENGTH = 9
built = builder(TalkingHeads)


def literal(mixer, x, *, causal=False, keep=None, slopes=None) -> torch.Tensor:
    """Compute the paper's equations, one head, one query and one key at a time."""
    width = mixer.head_width
    q, k, v = (
        layer(x).unflatten(-1, (-1, width)) for layer in (mixer.q_proj, mixer.k_proj, mixer.v_proj)
    )
    p, r = mixer.core.logits_map, mixer.core.weights_map
    rows = []
    for row in range(len(x)):
        out = []
        for i in range(x.shape[1]):
            seen = [
                j for j in range(x.shape[1])
                if not (causal and j > i) and (keep is None or keep[row, j])
            ]  # fmt: skip
            o = x.new_zeros(r.shape[0], width)
            if seen:
                logits = []
                for head in range(p.shape[0]):
                    scores = []
                    for j in seen:
                        s = sum(
                            p[head, a] * (q[row, i, a] @ k[row, j, a]) / width**0.5
                            for a in range(p.shape[1])
                        )
                        if slopes is not None:
                            s = s - slopes[head] * abs(i - j)
                        scores.append(s)
                    logits.append(torch.stack(scores).softmax(0))
                o = torch.stack([
                    sum(
                        sum(r[c, head] * logits[head][at] for head in range(p.shape[0]))
                        * v[row, j, c]
                        for at, j in enumerate(seen)
                    )
                    for c in range(r.shape[0])
                ])  # fmt: skip
            out.append(o.flatten())
        rows.append(torch.stack(out))
    return mixer.out_proj(torch.stack(rows))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("heads", [{}, {"key_heads": 4, "value_heads": 2}])
@pytest.mark.parametrize("padded", [False, True])
def test_it_is_the_equations(causal, heads, padded):
    mixer = built(causal=causal, mixing="normal", **heads)
    x, keep = drawn(2, LENGTH, 12).requires_grad_(), holes(LENGTH) if padded else None
    found = mixer(x, Layout(keep=keep))
    blank = x if keep is None else x.masked_fill(~keep[..., None], 0)  # a query is its bias there
    wanted = literal(mixer, blank, causal=causal, keep=keep)
    compare(found, wanted, [x, *mixer.parameters()])


def test_permuted_weights_are_permuted_values():
    mixer, other, x = built(), built(), drawn(2, LENGTH, 12)
    order = torch.tensor([2, 0, 1])
    with torch.no_grad():
        mixer.core.weights_map.copy_(torch.eye(3)[order])
        for name in ("q_proj", "k_proj"):
            for part in ("weight", "bias"):
                parameter = getattr(getattr(other, name), part)
                parameter.copy_(parameter.unflatten(0, (3, -1))[order].flatten(0, 1))
    torch.testing.assert_close(mixer(x, Layout()), other(x, Layout()), atol=1e-12, rtol=0)


def test_positions_are_added_behind_the_first_map():
    mixer = built(causal=True, positions=Positions.alibi, mixing="normal")
    x = drawn(1, LENGTH, 12)
    wanted = literal(mixer, x, causal=True, slopes=alibi_slopes(3).double())
    torch.testing.assert_close(mixer(x, Layout()), wanted, atol=1e-12, rtol=0)
