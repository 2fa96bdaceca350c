"""The Compressive Transformer's losses against the paper's algorithms, and its memories."""

import pytest
import torch
from torch import Tensor

from lra.models.families.compressive_transformer import CompressiveTransformer, Reconstruction
from lra.models.mixer import Flow, Layout, Positions
from lra.models.ops.compression import Compression, most_used
from lra.models.state import detach
from tests.attention import builder, drawn
from tests.literal.compressive_transformer import algorithms

WIDTH, RATE, LENGTH = 12, 3, 6
PLACE = {"causal": True, "positions": Positions.transformer_xl}


def build(**options) -> CompressiveTransformer:
    usual = builder(CompressiveTransformer, **PLACE, rate=RATE)
    return usual(**options).train()


def read(mixer, pieces: list[Tensor], memory: int) -> tuple[Tensor, list, list[Tensor]]:
    state, out, penalties = mixer.initial_state(len(pieces[0]), memory), [], []
    for piece in pieces:
        flow = mixer.extend(Flow(piece, state), Layout())
        state = detach(flow.state)
        out.append(flow.x)
        penalties += [flow.penalties[key] for key in ("reconstruction",) if key in flow.penalties]
    return torch.cat(out, dim=1), state, penalties


@pytest.mark.parametrize(("compression", "reconstruction"), [
    *((kind, Reconstruction.attention) for kind in (Compression.convolution, Compression.dilated)),
    *((kind, Reconstruction.autoencoding) for kind in (Compression.convolution,)),
    *((kind, None) for kind in (Compression.mean, Compression.max, Compression.most_used)),
])  # fmt: skip
def test_equals_the_algorithms(compression: Compression, reconstruction) -> None:
    given = {} if reconstruction is None else {"reconstruction": reconstruction}
    mixer = build(compression=compression, compressed=5, **given).train()
    pieces = list(drawn(2, 5 * LENGTH, WIDTH).split(LENGTH, dim=1))
    found, _, penalties = read(mixer, pieces, LENGTH)
    wanted, losses = algorithms(mixer, pieces, LENGTH, 5)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)
    if reconstruction is None:
        assert penalties == []
        return
    # the first segment fills the memory and gives nothing up
    assert penalties[0].item() == 0
    assert len(losses) == len(penalties) - 1
    for one, other in zip(penalties[1:], losses, strict=True):
        torch.testing.assert_close(one, other, atol=1e-13, rtol=0)
    taught = {n for n, _ in mixer.named_parameters() if n.startswith(("compressor", "decoder"))}
    assert taught == mixer.traits.in_streams
    named = dict(mixer.named_parameters())
    by_loss = torch.autograd.grad(sum(penalties), [*named.values()], allow_unused=True)
    assert {n for n, g in zip(named, by_loss, strict=True) if g is not None} == taught
    there = torch.autograd.grad(sum(losses), [named[n] for n in taught])
    for name, other in zip(taught, there, strict=True):
        torch.testing.assert_close(by_loss[[*named].index(name)], other, atol=1e-12, rtol=0)
    by_task = torch.autograd.grad(found.sum(), [*named.values()], allow_unused=True)
    assert {n for n, g in zip(named, by_task, strict=True) if g is None} == taught


def test_the_most_used_are_as_many_as_wanted() -> None:
    rows = torch.arange(6.0)[None, :, None].expand(2, -1, 1)
    used = torch.tensor([[0.1, 0.9, 0.3, -1, -1, -1], [0.1, 0.9, 0.3, 0.2, 0.8, 0.95]])
    found = most_used(rows, used, 3, torch.tensor([1, 2]))
    assert found[0, 0].item() == 1
    assert found[1, :, 0].tolist() == [1, 5]


def test_evaluation_has_a_compressed_memory_of_its_own() -> None:
    mixer = build(compressed=4, evaluation_compressed=9)
    assert mixer.train().initial_state(2, 6)[1].shape == (2, 4, WIDTH)
    assert mixer.eval().initial_state(2, 6)[1].shape == (2, 9, WIDTH)
    assert build().initial_state(2, 6)[1].shape == (2, 6, WIDTH)
