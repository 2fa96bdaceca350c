"""The Compressive Transformer against the paper's algorithms, and against Transformer-XL."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lra.models.families.compressive_transformer import CompressiveTransformer, Reconstruction
from lra.models.families.transformer_xl import SameLength, TransformerXL
from lra.models.mixer import Flow, Layout, Positions, Unsupported
from lra.models.ops.compression import Compression, most_used
from lra.models.state import detach, join, select
from tests.attention import builder, drawn, site

WIDTH, HEADS, K, RATE, LENGTH = 12, 3, 4, 3, 6
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


def weights_of(mixer, q_in: Tensor, rows: Tensor) -> Tensor:
    """Softmax weights of Transformer-XL's scores, [b, h, i, j], each row a step from the next."""
    q = mixer.q_proj(q_in).view(*q_in.shape[:2], HEADS, K).transpose(1, 2)
    k = mixer.k_proj(rows).view(*rows.shape[:2], HEADS, K).transpose(1, 2)
    relative, before = mixer.core.relative, rows.shape[1] - q_in.shape[1]
    scores = rows.new_zeros(len(rows), HEADS, q_in.shape[1], rows.shape[1])
    for i in range(q_in.shape[1]):
        for j in range(rows.shape[1]):
            t = before + i - j
            if t < 0:
                scores[:, :, i, j] = -math.inf
                continue
            angles = [t * 10_000.0 ** (-2 * p / WIDTH) for p in range(WIDTH // 2)]
            r = torch.tensor(
                [math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64
            )
            keys = (relative.r_proj.weight @ r).view(HEADS, K)
            content = ((q[:, :, i] + relative.biases.content) * k[:, :, j]).sum(-1)
            position = ((q[:, :, i] + relative.biases.position) * keys).sum(-1)
            scores[:, :, i, j] = (content + position) / math.sqrt(K)
    return scores.softmax(-1)


def compressed(mixer, old: Tensor, used: Tensor) -> Tensor:
    """The paper's functions, row by row."""
    layers, kind = mixer.compressor.layers, mixer.compressor.kind
    groups = [old[:, at : at + RATE] for at in range(0, old.shape[1], RATE)]
    if kind == Compression.mean:
        return torch.stack([group.mean(1) for group in groups], 1)
    if kind == Compression.max:
        return torch.stack([group.max(1).values for group in groups], 1)
    if kind == Compression.convolution:
        return torch.stack([layers[0](group.flatten(1)) for group in groups], 1)
    if kind == Compression.most_used:
        chosen = []
        for row in used.tolist():
            best = sorted(range(len(row)), key=lambda i, row=row: (-row[i], i))
            chosen.append(sorted(best[: len(groups)]))
        return torch.stack([row[index] for row, index in zip(old, chosen, strict=True)])
    zero = torch.zeros_like(old[:, 0])

    def at(rows: list[Tensor], index: int) -> Tensor:
        return rows[index] if 0 <= index < len(rows) else zero

    rows = list(old.unbind(1))
    first = (RATE - 1) // 2
    inner = [
        layers[0](torch.cat([at(rows, i - first + step) for step in range(RATE)], -1))
        for i in range(len(rows))
    ]
    left = (2 * (RATE - 1) + 1 - RATE) // 2
    return torch.stack(
        [
            layers[1](torch.cat([at(inner, i - left + 2 * step) for step in range(RATE)], -1))
            for i in range(0, len(rows), RATE)
        ],
        1,
    )


def literal(mixer, pieces: list[Tensor], memory: int, size: int) -> tuple[Tensor, list[Tensor]]:
    """Algorithms 1 and 2, segments as long as the memory is a multiple of."""
    rows = len(pieces[0])
    inputs, small = pieces[0].new_zeros(rows, 0, WIDTH), pieces[0].new_zeros(rows, 0, WIDTH)
    used, out, losses = pieces[0].new_zeros(rows, 0), [], []
    for x in pieces:
        context = torch.cat((small, inputs, x), 1)
        weights = weights_of(mixer, x, context)
        v = mixer.v_proj(context).view(*context.shape[:2], HEADS, K).transpose(1, 2)
        out.append(mixer.out_proj((weights @ v).transpose(1, 2).flatten(2)))
        received = weights.detach().mean((1, 2))[:, small.shape[1] :]
        used = F.pad(used, (0, x.shape[1])) + received
        every = torch.cat((inputs, x), 1).detach()
        gone = max(0, every.shape[1] - memory)
        if gone:
            old = every[:, :gone]
            new = compressed(mixer, old, used[:, :gone])
            losses.append(loss(mixer, x, old, new))
            small = torch.cat((small, new.detach()), 1)[
                :, max(0, small.shape[1] + new.shape[1] - size) :
            ]
        inputs, used = every[:, gone:], used[:, gone:]
    return torch.cat(out, 1), losses


def loss(mixer, x: Tensor, old: Tensor, new: Tensor) -> Tensor:
    if mixer.reconstruction == Reconstruction.none:
        return old.new_zeros(())
    if mixer.decoder is not None:
        return (old - mixer.decoder(new).view_as(old)).square().mean()

    def by_heads(layer, rows: Tensor) -> Tensor:
        return F.linear(rows, layer.weight.detach()).view(*rows.shape[:2], HEADS, K).transpose(1, 2)

    def look(rows: Tensor) -> Tensor:
        q, k = by_heads(mixer.q_proj, x.detach()), by_heads(mixer.k_proj, rows)
        return (q @ k.mT / math.sqrt(K)).softmax(-1) @ by_heads(mixer.v_proj, rows)

    return (look(old) - look(new)).square().mean()


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
    wanted, losses = literal(mixer, pieces, LENGTH, 5)
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


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="rate must be at least 1: got 0"):
        build(rate=0)
    with pytest.raises(Unsupported, match="compression=convolution or dilated"):
        build(compression=Compression.mean, reconstruction=Reconstruction.autoencoding)
    with pytest.raises(Unsupported, match="a causal model"):
        CompressiveTransformer(site(**PLACE | {"causal": False}), rate=2)
