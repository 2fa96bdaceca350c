"""Native sparse attention against its paper, written out, and its branches by themselves."""

import pytest
import torch
from torch import Tensor

from lra.models.contract.counting import count_operations, pretending, saved_bytes
from lra.models.families.nsa import NativeSparseAttention
from lra.models.mixer import Flow, Layout, Site
from tests.attention import Largest, builder, drawn, streamed

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


def test_no_table_of_all_pairs_is_formed_and_none_of_compressed_blocks_is_kept():
    kept, largest = [], []
    for length in (4096, 8192, 16384):
        with pretending():
            site = Site(width=32, heads=2, max_length=length, causal=True)
            mixer = NativeSparseAttention(site)
            x = torch.randn(1, length, 32, requires_grad=True)
            out: list[Tensor] = []

            def run(mixer=mixer, x=x, out=out):
                out.append(mixer(x, Layout()))

            with Largest() as seen:
                kept.append(saved_bytes(run, mixer.parameters()))
                out[0].sum().backward()
            largest.append(seen.elements)
    assert kept[2] - kept[1] == 2 * (kept[1] - kept[0])
    assert largest[2] <= 4 * largest[0]
    assert largest[2] < 16384**2 / 64


def test_work_is_what_the_numbers_say():
    """Projections, 1 + 3 forced and chosen blocks, 5 of the window, and n / C compressed ones."""
    length, block, width, heads = 2048, 32, 16, 2
    with pretending():
        site = Site(width=32, heads=heads, max_length=length, causal=True)
        mixer, x = NativeSparseAttention(site), torch.randn(1, length, 32)
        done = count_operations(lambda: mixer(x, Layout()))
    maps = 2 * length * 32 * (32 + 6 * width + 6 + 32)
    whole = heads * length * (length // block) * 4 * width
    chunk = block // (2 * heads)
    # Pairs, filled up by a chunk for each block.
    pairs = heads * (length * (4 + 5) + 2 * (length // block) * chunk)
    assert done == maps + whole + pairs * block * 4 * width


def test_a_stream_has_no_documents():
    mixer, document = built(causal=True, block=4), torch.zeros(1, 3, dtype=torch.int64)
    with pytest.raises(ValueError, match="reset rows where documents begin"):
        mixer.extend(Flow(drawn(1, 3, WIDTH), mixer.initial_state(1, 9)), Layout(document=document))
