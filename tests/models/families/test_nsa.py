"""Native sparse attention against its paper, written out, and its branches by themselves."""

import pytest
import torch
from torch import Tensor

from lra.models.contract.counting import count_operations, pretending, saved_bytes
from lra.models.families.nsa import NativeSparseAttention
from lra.models.mixer import Flow, Layout, Site
from lra.models.ops.banded.sliding_window import window_attention
from tests.attention import DIRECTIONS, Largest, builder, compare, drawn, holes, streamed
from tests.literal.sparse import attention_in_sight, nsa_branches

WIDTH, HEADS = 16, 4
CASES = pytest.mark.parametrize(
    "options",
    [
        {"block": 4, "top": 4, "window": 6, "key_value_heads": 2},
        {"block": 3, "top": 3, "first": 0, "local": 1, "window": 1},
        {"block": 4, "top": 3, "window": 9, "key_value_heads": 4, "own_keys": False},
        {"block": 4, "top": 5, "window": 5, "key_value_heads": 2, "compression": "network"},
        {"block": 1, "top": 6, "first": 2, "local": 3, "window": 4},
        {"block": 64, "top": 3, "window": 40},
        {"block": 4, "compressed_block": 4, "stride": 2, "top": 4, "window": 6},
        {"block": 6, "compressed_block": 4, "stride": 2, "compression": "network"},
        {"block": 4, "compressed_block": 2, "key_value_heads": 2, "own_keys": False},
        {"block": 8, "compressed_block": 6, "stride": 2, "local": 1, "top": 2},
        {"block": 3, "compressed_block": 3, "stride": 1, "window": 5},
    ],
    ids=lambda options: "-".join(map(str, options.values())),
)


built = builder(NativeSparseAttention, width=WIDTH, heads=HEADS, moved=0.3)


def compressed(mixer: NativeSparseAttention, x: Tensor, *, keys: bool) -> Tensor:
    """Return one key or value every `stride` of a row, [g n k] -> [g m k], by the definitions."""
    network = mixer.compress_keys if keys else mixer.compress_values
    whole = []
    for start in range(0, x.shape[1], mixer.stride):
        block = x[:, start : start + mixer.compressed_block]
        if not [*network.parameters()]:
            whole.append(block.mean(1))
            continue
        placed = block + network.positions[:, : block.shape[1]]
        missing = mixer.compressed_block - block.shape[1]
        flat = torch.nn.functional.pad(placed, (0, 0, 0, missing)).flatten(1)
        inner = (flat @ network.inner.weight.mT + network.inner.bias).clamp(min=0)
        whole.append(inner @ network.outer.weight.mT + network.outer.bias)
    return torch.stack(whole, 1)


def literal(mixer: NativeSparseAttention, x: Tensor) -> Tensor:
    """Return what the layer makes of one row, [n d]."""
    width, groups = WIDTH // HEADS, mixer.groups
    q = (x @ mixer.q_proj.weight.mT).view(-1, HEADS, width).transpose(0, 1)
    both = (x @ mixer.key_value_proj.weight.mT).view(len(x), 2, -1, groups, width)
    (keys, values) = both.permute(1, 2, 3, 0, 4)  # [branches g n k]
    pick = [0, 1, 2] if len(keys) == 3 else [0, 0, 0]
    blocks = (
        compressed(mixer, keys[0], keys=True),
        compressed(mixer, values[0], keys=False),
    )
    top, first, local = mixer.numbers
    branches = nsa_branches(
        q, [keys[pick[1]], keys[pick[2]]], [values[pick[1]], values[pick[2]]], blocks,
        block=mixer.block, width=mixer.compressed_block, stride=mixer.stride, top=top, first=first,
        local=local, window=mixer.window, causal=mixer.traits.causal,
    )  # fmt: skip
    gates = (x @ mixer.gates.weight.mT).sigmoid().view(len(x), 3, HEADS)
    o = sum(gates[:, b].mT[..., None] * each for b, each in enumerate(branches))
    return o.transpose(0, 1).flatten(1) @ mixer.out_proj.weight.mT


def of_parts(mixer: NativeSparseAttention, x: Tensor, parts: Tensor) -> Tensor:
    """Return the literal form of the tokens with each number alone; 0 where it is negative."""
    y = torch.zeros_like(x)
    for row, numbers in enumerate(parts):
        for number in numbers[numbers >= 0].unique():
            here = (numbers == number).nonzero()[:, 0]
            y = y.index_put((torch.tensor(row), here), literal(mixer, x[row, here]))
    return y


@DIRECTIONS
@CASES
@pytest.mark.parametrize(("length", "padded"), [(18, True), (20, False)])
def test_it_is_the_paper(causal, options, padded, length):
    mixer, x = built(causal=causal, **options), drawn(2, length, WIDTH).requires_grad_()
    keep, parts = None, torch.zeros(2, length, dtype=torch.int64)
    if padded:
        keep = holes(length, real=0.8)
        keep[1, :5] = False
        parts -= 1 - keep.long()
    seen = mixer(x, Layout(keep=keep)).masked_fill(parts[..., None] < 0, 0)
    compare(seen, of_parts(mixer, x, parts), [x, *mixer.parameters()], atol=1e-10)


@DIRECTIONS
@CASES
def test_each_document_gives_what_it_gives_alone_under_padding(causal, options):
    mixer, x = built(causal=causal, **options), drawn(2, 23, WIDTH).requires_grad_()
    document = torch.tensor([[5] * 10 + [0] * 13, [1] + [9] * 14 + [1] * 8])
    keep = holes(23, real=0.8)
    parts = document.where(keep, -1)
    seen = mixer(x, Layout(document=document, keep=keep)).masked_fill(parts[..., None] < 0, 0)
    compare(seen, of_parts(mixer, x, parts), [x, *mixer.parameters()], atol=1e-10)


def branches(mixer: NativeSparseAttention, x: Tensor, monkeypatch) -> tuple[list[Tensor], Tensor]:
    """Return what each branch gives, and the operands."""
    seen = []
    inner = mixer.outputs

    def outputs(*given):
        seen.append(inner(*given))
        return seen[-1]

    monkeypatch.setattr(mixer, "outputs", outputs)
    mixer(x, Layout())
    return seen[0], mixer.project(x, Layout())


@pytest.mark.parametrize("window", [1, 3, 8, 30])
@DIRECTIONS
def test_the_third_branch_is_a_window(causal, window, monkeypatch):
    mixer = built(causal=causal, block=4, window=window, key_value_heads=4)
    (*_, near), (q, k, v) = branches(mixer, drawn(2, 22, WIDTH), monkeypatch)
    k, v = k[:, 8:], v[:, 8:]
    i, j = torch.arange(22)[:, None], torch.arange(22)
    sees = ((i - j).abs() < window) & ((j <= i) | (not causal))
    torch.testing.assert_close(near, attention_in_sight(q, k, v, sees), atol=1e-12, rtol=0)
    if window > 1:
        same = window_attention(q, k, v, window=window - 1, block=4, causal=causal)
        torch.testing.assert_close(near, same, atol=1e-12, rtol=0)


@pytest.mark.parametrize(("block", "top"), [(4, 6), (4, 60), (100, 3)])
@DIRECTIONS
def test_with_all_blocks_the_second_branch_is_exact_attention(causal, block, top, monkeypatch):
    mixer = built(causal=causal, block=block, top=top, key_value_heads=2)
    (_, inside, _), (q, k, v) = branches(mixer, drawn(2, 22, WIDTH), monkeypatch)
    k, v = (x[:, 2:4].repeat_interleave(2, 1) for x in (k, v))
    everything = torch.ones(22, 22, dtype=torch.bool)
    wanted = attention_in_sight(q, k, v, everything.tril() if causal else everything)
    torch.testing.assert_close(inside, wanted, atol=1e-12, rtol=0)


def test_the_first_branch_is_0_until_a_block_is_whole(monkeypatch):
    mixer = built(causal=True, block=5)
    (whole, *_), (_, _, v) = branches(mixer, drawn(2, 13, WIDTH), monkeypatch)
    assert not whole[:, :, :4].any()
    mean = v[:, :1, :5].mean(2)
    torch.testing.assert_close(whole[:, :, 4:9], mean[:, :, None].expand(-1, 4, 5, -1))
    assert not torch.allclose(whole[:, 0, 9], mean[:, 0])


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
