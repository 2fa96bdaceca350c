"""The Compressive Transformer against the paper's algorithms, and against Transformer-XL."""

import pytest
import torch
from torch import Tensor

from lra.models.families.compressive_transformer import CompressiveTransformer, Reconstruction
from lra.models.families.transformer_xl import SameLength, TransformerXL
from lra.models.mixer import Flow, Layout, Positions
from lra.models.ops.compression import Compression, most_used
from lra.models.state import detach, join, select
from tests.attention import builder, drawn, site
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


def with_weights_of(mixer, other):
    other.load_state_dict(mixer.state_dict(), strict=False)
    return other


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("rate", "size"), [(1, 4), (3, 0)])
def test_it_is_transformer_xl_where_nothing_is_compressed(rate, size, training) -> None:
    """Rate 1 only remembers longer; a compressed memory of no rows only forgets."""
    mixer = build(rate=rate, compressed=size, compression=Compression.mean).train(training)
    plain = TransformerXL(site(**PLACE), same_length=SameLength.never).double().train(training)
    with_weights_of(mixer, plain)
    pieces = list(drawn(2, 20, WIDTH).split([5, 1, 7, 3, 4], dim=1))
    found, _, _ = read(mixer, pieces, 5)
    wanted, _, _ = read(plain, pieces, 5 + size)
    torch.testing.assert_close(found, wanted, atol=1e-12, rtol=0)


def test_rows_stand_in_order_whatever_the_segments() -> None:
    """Tokens hold their number: row r of the compressed memory is the mean of three of them."""
    tokens = torch.arange(40.0, dtype=torch.float64)[None, :, None].expand(2, -1, WIDTH)
    mixer = build(compression=Compression.mean, compressed=4)
    for sizes in ([6] * 6 + [4], [1] * 40, [40], [7, 13, 2, 18]):
        _, state, _ = read(mixer, list(tokens.split(sizes, 1)), 6)
        inputs, small, seen = state
        assert seen.tolist() == [40, 40]
        assert inputs[0, 2:, 0].tolist() == [34, 35, 36, 37, 38, 39]
        # 34 tokens have left: 11 groups of three, of which the last four stay, and one that waits
        assert small[0, :, 0].tolist() == [22, 25, 28, 31]


def test_rows_of_a_batch_may_be_anywhere_in_their_streams() -> None:
    mixer, x = build(compressed=4), drawn(2, 31, WIDTH)
    states, wanted = [], []
    for row, behind in enumerate((25, 4)):
        one = x[row : row + 1]
        _, state, _ = read(mixer, [one[:, :behind]], 6)
        states.append(state)
        flow = mixer.extend(Flow(one[:, behind : behind + 6], state), Layout())
        wanted.append(flow)
    now = torch.cat((x[:1, 25:31], x[1:, 4:10]))
    both = mixer.extend(Flow(now, join(*states)), Layout())
    torch.testing.assert_close(both.x, torch.cat([flow.x for flow in wanted]), atol=1e-12, rtol=0)
    for row, flow in enumerate(wanted):
        for one, other in zip(select(both.state, slice(row, row + 1)), flow.state, strict=True):
            torch.testing.assert_close(one, other, atol=1e-12, rtol=0)
    # the loss counts the row that gives something up
    losses = [flow.penalties["reconstruction"] for flow in wanted]
    of = sum(each.item() > 0 for each in losses)
    assert of
    together = both.penalties["reconstruction"]
    torch.testing.assert_close(together, sum(losses) / of, atol=1e-13, rtol=0)


def test_the_most_used_are_as_many_as_wanted() -> None:
    rows = torch.arange(6.0)[None, :, None].expand(2, -1, 1)
    used = torch.tensor([[0.1, 0.9, 0.3, -1, -1, -1], [0.1, 0.9, 0.3, 0.2, 0.8, 0.95]])
    found = most_used(rows, used, 3, torch.tensor([1, 2]))
    assert found[0, 0].item() == 1
    assert found[1, :, 0].tolist() == [1, 5]


def test_constant_memories_lose_nothing() -> None:
    mixer = build(compression=Compression.convolution).train()
    with torch.no_grad():
        layer = mixer.compressor.layers[0]
        layer.weight.copy_(torch.eye(WIDTH, dtype=torch.float64).repeat(1, RATE) / RATE)
        layer.bias.zero_()
    x = drawn(1, 1, WIDTH).expand(2, 18, -1)
    *_, penalties = read(mixer, list(x.split(6, 1)), 6)
    assert all(each.item() < 1e-28 for each in penalties)


def test_evaluation_has_a_compressed_memory_of_its_own() -> None:
    mixer = build(compressed=4, evaluation_compressed=9)
    assert mixer.train().initial_state(2, 6)[1].shape == (2, 4, WIDTH)
    assert mixer.eval().initial_state(2, 6)[1].shape == (2, 9, WIDTH)
    assert build().initial_state(2, 6)[1].shape == (2, 6, WIDTH)
