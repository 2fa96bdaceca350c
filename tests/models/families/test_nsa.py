"""Native sparse attention against its paper, written out, and its branches by themselves."""

import pytest
import torch

from lra.models.families.nsa import NativeSparseAttention
from lra.models.mixer import Flow, Layout
from tests.attention import builder, drawn, streamed

WIDTH, HEADS = 16, 4


built = builder(NativeSparseAttention, width=WIDTH, heads=HEADS, moved=0.3)


@pytest.mark.parametrize("more", [{}, {"stride": 2}, {"compressed_block": 2, "stride": 1}])
def test_a_short_memory_gives_the_same_however_the_stream_is_cut(more):
    mixer, x = built(causal=True, block=4, window=6, **more), drawn(2, 40, WIDTH)
    pieces = []
    for cuts in ([40], [1] * 40, [9, 1, 3, 27]):
        pieces.append(streamed(mixer, x, cuts, 11)[0])
    for other in pieces[1:]:
        torch.testing.assert_close(other, pieces[0], atol=1e-11, rtol=0)
    assert not torch.allclose(pieces[0], mixer(x, Layout()))


def test_a_stream_has_no_documents():
    mixer, document = built(causal=True, block=4), torch.zeros(1, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="reset rows where documents begin"):
        mixer.extend(Flow(drawn(1, 3, WIDTH), mixer.initial_state(1, 9)), Layout(document=document))
