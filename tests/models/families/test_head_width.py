"""What the width of a head bounds, and what it does not: arXiv:2002.07028, section 3."""

import pytest
import torch
from torch import nn

from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Layout
from tests.attention import builder, compare, drawn

LENGTH, WIDTH = 9, 12


def built(heads: int, own: int | None) -> SoftmaxAttention:
    return builder(SoftmaxAttention, heads=heads, own_head_width=own, moved=0.3)()


@pytest.mark.parametrize("own", [1, 4, 9, 11])
def test_scores_of_a_head_have_at_most_the_rank_of_its_width(own):
    q, k, _ = built(3, own).project(drawn(2, LENGTH, WIDTH), Layout())
    ranks = torch.linalg.matrix_rank(q @ k.mT, rtol=1e-10)
    assert ranks.unique().tolist() == [min(own, LENGTH)]


@pytest.mark.parametrize("own", [LENGTH, LENGTH + 2])
def test_heads_as_wide_as_the_sequence_give_any_weights(own):
    """Keys are unit vectors and queries the logarithms of the weights: the proof of theorem 1."""
    mixer, x = built(1, own), drawn(1, LENGTH, WIDTH)
    wanted = drawn(LENGTH, LENGTH, seed=2, scale=3.0).softmax(-1)
    inverse = torch.linalg.pinv(x[0])
    with torch.no_grad():
        for layer, rows in ((mixer.q_proj, own**0.5 * wanted.log()), (mixer.k_proj, torch.eye(9))):
            layer.bias.zero_()
            layer.weight.zero_()[:LENGTH] = (inverse @ rows.double()).mT
        values = mixer.v_proj(x[0])
        torch.testing.assert_close(
            mixer(x, Layout())[0], mixer.out_proj(wanted @ values), atol=1e-11, rtol=0
        )


def test_a_share_of_the_width_is_multi_head_attention():
    mixer, usual = built(3, WIDTH // 3), built(3, None)
    theirs = nn.MultiheadAttention(WIDTH, 3, batch_first=True).double()
    with torch.no_grad():
        for one, other in zip(mixer.parameters(), usual.parameters(), strict=True):
            assert torch.equal(one, other)
        inward = (mixer.q_proj, mixer.k_proj, mixer.v_proj)
        theirs.in_proj_weight.copy_(torch.cat([layer.weight for layer in inward]))
        theirs.in_proj_bias.copy_(torch.cat([layer.bias for layer in inward]))
        theirs.out_proj.load_state_dict(mixer.out_proj.state_dict())
    x = drawn(2, LENGTH, WIDTH).requires_grad_()
    compare(mixer(x, Layout()), theirs(x, x, x, need_weights=False)[0], [x])
