"""Products with decaying states against the loop over tokens: values, gradients, cuts, costs."""

import pytest
import torch

from models.ops.gated.decayed_product import Reads, decayed_product
from models.ops.gated.pairs import decays
from models.ops.gated.reference import decayed_product as literal
from tests.attention import Largest, drawn, holes

CHUNK = 8
LENGTHS = pytest.mark.parametrize("length", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
GATES = pytest.mark.parametrize("vector", [False, True], ids=["scalar", "vector"])
READS = pytest.mark.parametrize("reads", [*Reads])


def inputs(length, *, vector, strength=1.0, k=3, v=5):
    """Return q, k, v, g and a state of two rows and two heads."""
    shape = (2, 2, length)
    q, key, value = (drawn(*shape, width, seed=seed) for seed, width in ((1, k), (2, k), (3, v)))
    g = -strength * drawn(*shape, *([k] if vector else []), seed=4).abs()
    return [q, key, value, g, drawn(2, 2, k, v, seed=5)]


def compare(length, *, vector, chunk=CHUNK, keep=None, reads=Reads.after, given=None):
    """Compare outputs, states and the gradients of all five with the loop."""
    given = given or inputs(length, vector=vector)
    leaves = [x.clone().requires_grad_() for x in given]
    *qkvg, state = leaves
    before = reads == Reads.before
    seen = decayed_product(*qkvg, state=state, chunk=chunk, keep=keep, reads=reads)
    wanted = literal(*qkvg, state=state, keep=keep, before=before)
    directions = [drawn(*x.shape, seed=9) for x in wanted]
    if keep is not None:
        real = keep[:, None, :, None]
        seen, wanted = ((o * real, last) for o, last in (seen, wanted))
    torch.testing.assert_close(seen, wanted, atol=1e-10, rtol=0)
    here, there = (torch.autograd.grad(both, leaves, directions) for both in (seen, wanted))
    torch.testing.assert_close(here, there, atol=1e-10, rtol=0)


@LENGTHS
@GATES
@READS
def test_it_is_the_loop(length, vector, reads):
    compare(length, vector=vector, reads=reads)


@GATES
@pytest.mark.parametrize("chunk", [1, 3, 16, 100])
def test_chunks_of_any_size_change_nothing(chunk, vector):
    compare(67, vector=vector, chunk=chunk)


@GATES
def test_long_sequences_are_worked_on_in_several_blocks(vector, monkeypatch):
    monkeypatch.setattr("models.ops.linear.features.CPU_BLOCK", 1)
    monkeypatch.setattr("models.ops.linear.features.MINIMUM_ROWS", 16)
    compare(75, vector=vector)


@GATES
@READS
def test_padding_anywhere_leaves_the_state_as_it_was(vector, reads):
    compare(29, vector=vector, keep=holes(29, end=20), reads=reads)


@GATES
def test_what_stands_in_padding_is_never_looked_at(vector):
    keep, (*given, state) = holes(21), inputs(21, vector=vector)
    spoilt = [x.clone() for x in given]
    for x in spoilt[1:]:
        x.movedim(2, 1)[~keep] = torch.nan
    wanted = decayed_product(*given, state=state, chunk=CHUNK, keep=keep)
    seen = decayed_product(*spoilt, state=state, chunk=CHUNK, keep=keep)
    torch.testing.assert_close(seen, wanted, atol=0, rtol=0)


@GATES
@READS
def test_minus_infinity_forgets_all(vector, reads):
    """Where a document begins: alone, twice in a row, first and last of a chunk."""
    given = inputs(29, vector=vector)
    given[3][0, :, [0, 7, 8, 13, 14]] = -torch.inf
    given[3][1, 0, 5] = -torch.inf
    compare(29, vector=vector, given=given, reads=reads)
    q, k, v, g, state = given
    whole = decayed_product(*given[:4], state=state, chunk=CHUNK)[0][0, :, 14:]
    document = [x[:1, :, 14:] for x in (q, k, v, g)]
    document[3] = document[3].clamp(min=-100)
    alone = decayed_product(*document, chunk=CHUNK)[0][0]
    torch.testing.assert_close(whole, alone, atol=1e-12, rtol=0)


@GATES
@READS
@pytest.mark.parametrize("cut", [1, 7, 8, 13])
def test_segments_with_the_state_handed_on_are_one_pass(cut, vector, reads):
    *given, state = inputs(29, vector=vector)
    whole = decayed_product(*given, state=state, chunk=CHUNK, reads=reads)
    outputs = []
    for segment in zip(*(x.split(cut, 2) for x in given), strict=True):
        o, state = decayed_product(*segment, state=state, chunk=CHUNK, reads=reads)
        outputs.append(o)
    torch.testing.assert_close((torch.cat(outputs, 2), state), whole, atol=1e-12, rtol=0)


@GATES
@pytest.mark.parametrize("strength", [1e-3, 1.0, 60.0])
def test_float32_is_finite_and_close(strength, vector):
    """Of decays down to exp(-60) a token and below, some of them beside tokens that keep all."""
    given = inputs(150, vector=vector, strength=strength, k=16, v=16)
    given[3][:, :, ::5] *= 1e-3
    results = []
    for dtype in (torch.float32, torch.float64):
        leaves = [x.to(dtype).requires_grad_() for x in given]
        o, last = decayed_product(*leaves[:4], state=leaves[4], chunk=64)
        direction = drawn(*o.shape, seed=9).to(dtype)
        results.append([o, last, *torch.autograd.grad([o, last], leaves, [direction, last])])
    for seen, wanted in zip(*results, strict=True):
        assert (seen - wanted).abs().max() < 1e-5 * wanted.abs().max()


@GATES
def test_small_decays_behind_strong_ones_are_not_lost_in_float32(vector):
    """Sums are added up where they are needed: differences of long sums lose what small g say."""
    g = torch.full((1, 64, 1), -0.01)
    g[:, ::16] = -8000.0
    one = torch.ones(1, 64, 1)
    table = decays(g if vector else g[..., 0]).weights(one, one)
    torch.testing.assert_close(table[0, 62, 48:63], torch.arange(14, -1, -1).mul(-0.01).exp())


@GATES
def test_values_come_back_in_their_dtype_and_the_state_in_float32(vector):
    given = [x.bfloat16() for x in inputs(9, vector=vector)]
    o, last = decayed_product(*given[:4], state=given[4].float(), chunk=4)
    assert (o.dtype, last.dtype) == (torch.bfloat16, torch.float32)
    wide = [x.float() for x in given]
    wanted = decayed_product(*wide[:4], state=wide[4], chunk=4)
    torch.testing.assert_close((o, last), (wanted[0].bfloat16(), wanted[1]))


@GATES
def test_no_tensor_grows_beyond_a_block(vector, monkeypatch):
    """The largest is the output, or a table of a block; not a state for every token."""
    monkeypatch.setattr("models.ops.linear.features.CPU_BLOCK", 1)
    *given, state = inputs(4096, vector=vector, k=16, v=16)
    leaves = [x.requires_grad_() for x in given]
    with Largest() as seen:
        o, _ = decayed_product(*leaves, state=state)
        o.sum().backward()
    assert seen.elements == o.numel()


@GATES
def test_autograd_keeps_what_came_in_and_a_state_for_each_block(vector):
    *given, state = inputs(2048, vector=vector, k=16, v=16)
    leaves = [x.requires_grad_() for x in given]
    kept = []

    def pack(x):
        kept.append(x)
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        decayed_product(*leaves, state=state)
    sizes = [x.numel() for x in kept]
    assert sizes[:4] == [x.numel() for x in leaves]
    assert len(sizes) <= 4 + 2048 // 64
    assert set(sizes[4:]) == {state.numel()}
