"""The window against a dense band: outputs, gradients, memory, support, cost."""

import math

import pytest
import torch
from torch import Tensor

from models.contract.counting import count_operations, pretending, saved_bytes
from models.families.sliding_window import SlidingWindow
from models.mixer import Flow, Layout, Site, Unsupported
from models.ops.banded import layout as banded
from models.ops.banded.reference import band, window_attention as dense
from models.ops.banded.sliding_window import best_block, window_attention
from models.state import reset, size_bytes
from tests.attention import Largest, drawn

DIRECTIONS = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])


def heads(length: int, width: int = 4) -> list[Tensor]:
    return [drawn(2, 3, length, width, seed=s).requires_grad_() for s in range(3)]


def compare(qkv: list[Tensor], *, window: int, block: int, causal: bool, keep=None) -> None:
    facts = {"window": window, "causal": causal, "keep": keep}
    seen, wanted = window_attention(*qkv, block=block, **facts), dense(*qkv, **facts)
    torch.testing.assert_close(seen, wanted, atol=1e-12, rtol=0)
    g = drawn(*seen.shape, seed=7)
    pairs = zip(torch.autograd.grad(seen, qkv, g), torch.autograd.grad(wanted, qkv, g), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


@DIRECTIONS
@pytest.mark.parametrize("length", [1, 2, 63, 64, 101])
@pytest.mark.parametrize("window", [1, 5, 40, 200])
@pytest.mark.parametrize("block", [1, 8, 64])
def test_equals_the_dense_band(length: int, window: int, block: int, causal: bool) -> None:
    compare(heads(length), window=window, block=block, causal=causal)


@DIRECTIONS
@pytest.mark.parametrize("window", [1, 5, 40, 200])
def test_padding_is_hidden_and_rows_without_keys_are_zero(window: int, causal: bool) -> None:
    keep = torch.rand(2, 63, generator=torch.Generator().manual_seed(5)) < 0.3
    keep[1, 20:] = False
    compare(heads(63), window=window, block=8, causal=causal, keep=keep)
    o = window_attention(*heads(63), window=5, block=8, causal=causal, keep=keep)
    assert (o[1, :, 26:] == 0).all()
    nothing = torch.zeros(2, 63, dtype=torch.bool)
    qkv = heads(63)
    o = window_attention(*qkv, window=window, block=8, causal=causal, keep=nothing)
    assert (o == 0).all()
    assert all((g == 0).all() for g in torch.autograd.grad(o.sum(), qkv))


@DIRECTIONS
@pytest.mark.parametrize("elements", [1, 500, 8 * 8 * 24, 1 << 20])
def test_the_size_of_a_pass_changes_nothing(elements: int, causal: bool, monkeypatch) -> None:
    monkeypatch.setitem(banded.PASS_ELEMENTS, "cpu", elements)
    compare(heads(101), window=6, block=8, causal=causal)


@DIRECTIONS
def test_rows_long_enough_for_passes_of_their_own(causal: bool) -> None:
    fold = banded.Fold(6, 900, 0, 100, 64, causal)
    passes = list(fold.passes(torch.device("cpu")))
    assert len(passes) == 6  # as many as rows
    assert sum(p.stop - p.start for p in passes) == 6 * 15 < fold.blocks
    compare(heads(900), window=100, block=64, causal=causal)


@DIRECTIONS
def test_gradients_equal_finite_differences(causal: bool) -> None:
    qkv = [drawn(1, 1, 8, 2, seed=s).requires_grad_() for s in range(3)]
    keep = torch.ones(1, 8, dtype=torch.bool)
    keep[0, [0, 4]] = False

    def run(*qkv: Tensor, dropout: float = 0.0) -> Tensor:
        torch.manual_seed(1)  # the same weights dropped every time
        facts = {"window": 3, "block": 2, "causal": causal, "keep": keep, "dropout": dropout}
        return window_attention(*qkv, **facts)

    assert torch.autograd.gradcheck(run, qkv)
    assert torch.autograd.gradcheck(lambda *qkv: run(*qkv, dropout=0.4), qkv)


@DIRECTIONS
def test_a_window_that_covers_the_sequence_is_full_attention(causal: bool) -> None:
    qkv = heads(30)
    options = {"block": 8, "causal": causal}
    full = dense(*qkv, window=10**6, causal=causal)
    for window in (29, 30, 10**6):
        seen = window_attention(*qkv, window=window, **options)
        torch.testing.assert_close(seen, full, atol=1e-12, rtol=0)
    assert not torch.allclose(window_attention(*qkv, window=28, **options), full)


@DIRECTIONS
def test_weights_sum_to_one_inside_the_band_and_are_zero_outside(causal: bool) -> None:
    q, k, _ = heads(40, width=40)
    identity = torch.eye(40, dtype=torch.float64).expand(2, 3, 40, 40)
    weights = window_attention(q, k, identity, window=7, block=8, causal=causal)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 3, 40, dtype=torch.float64))
    assert torch.equal(weights > 0, band(40, 7, causal=causal).expand(2, 3, 40, 40))


@DIRECTIONS
def test_far_tokens_move_neither_outputs_nor_gradients(causal: bool) -> None:
    mixer = built(causal=causal, window=[6], block=4)
    x = drawn(2, 50, 12).requires_grad_()
    moved = x.detach().clone()
    moved[:, 25] *= 1e4
    apart = ~band(50, 6, causal=causal)[:, 25]
    seen, wanted = mixer(moved, Layout()), mixer(x, Layout())
    assert torch.equal(seen[:, apart], wanted[:, apart])
    assert not torch.allclose(seen[:, ~apart], wanted[:, ~apart])
    gradient = torch.autograd.grad(wanted[:, 25].sum(), x)[0]
    assert torch.equal(gradient.abs().sum((0, 2)) > 0, band(50, 6, causal=causal)[25])


def built(**facts) -> SlidingWindow:
    options = {name: facts.pop(name) for name in ("window", "block") if name in facts}
    site = Site(**({"width": 12, "heads": 3, "max_length": 64} | facts))
    return SlidingWindow(site, **options).double().eval()


def test_dropout_acts_in_training_alone_and_keeps_the_mean() -> None:
    core = built(heads=1, attention_dropout=0.25, window=[20], block=8).core
    q, k = drawn(1, 1, 64, 4), drawn(1, 1, 64, 4, seed=1)
    identity = torch.eye(64, dtype=torch.float64)[None, None]
    weights = dense(q, k, identity, window=20, causal=False)
    torch.testing.assert_close(core.eval()(q, k, identity, Layout()), weights)
    torch.manual_seed(0)
    dropped = core.train()(q, k, identity, Layout())
    alive = dropped != 0
    assert 0.72 < alive.sum() / (weights > 0).sum() < 0.78
    torch.testing.assert_close(dropped[alive], (weights / 0.75)[alive])


@pytest.mark.parametrize("cuts", [[40], [11, 17, 12], [1, 38, 1], [2] * 20, [1] * 40])
@pytest.mark.parametrize("window", [3, 16, 100])
def test_every_partition_equals_one_pass(window: int, cuts: list[int]) -> None:
    mixer = built(causal=True, window=[window], block=4)
    x = drawn(2, 40, 12)
    state, seen = mixer.initial_state(2, 40), []
    size = size_bytes(state)
    for piece in x.split(cuts, dim=1):
        flow = mixer.extend(Flow(piece, state), Layout())
        state, seen = flow.state, [*seen, flow.x]
        assert size_bytes(state) == size
    torch.testing.assert_close(torch.cat(seen, 1), mixer(x, Layout()), atol=1e-12, rtol=0)


def test_gradients_reach_through_the_state() -> None:
    mixer = built(causal=True, window=[5], block=4)
    x = drawn(2, 30, 12).requires_grad_()
    first = mixer.extend(Flow(x[:, :13], mixer.initial_state(2, 30)), Layout())
    second = mixer.extend(Flow(x[:, 13:], first.state), Layout())
    by_pieces = torch.autograd.grad(second.x.square().sum(), x)[0]
    at_once = torch.autograd.grad(mixer(x, Layout())[:, 13:].square().sum(), x)[0]
    torch.testing.assert_close(by_pieces, at_once, atol=1e-12, rtol=0)
    assert (by_pieces[:, :8] == 0).all()
    assert (by_pieces[:, 8:13] != 0).any()


@pytest.mark.parametrize("length", [1, 20])
def test_a_row_that_begins_anew_forgets(length: int) -> None:
    mixer = built(causal=True, window=[5], block=4)
    x = drawn(2, 7 + length, 12)
    old = mixer.extend(Flow(x[:, :7], mixer.initial_state(2, 30)), Layout()).state
    mixed = reset(old, mixer.initial_state(2, 30), torch.tensor([True, False]))
    y = mixer.extend(Flow(x[:, 7:], mixed), Layout()).x
    torch.testing.assert_close(y[:1], mixer(x[:1, 7:], Layout()), atol=1e-12, rtol=0)
    torch.testing.assert_close(y[1:], mixer(x[1:], Layout())[:, 7:], atol=1e-12, rtol=0)


@DIRECTIONS
def test_half_precision_is_summed_in_float32(causal: bool) -> None:
    q, k, v = ((4 * x.detach()).bfloat16() for x in heads(101))
    exact = dense(q.double(), k.double(), v.double(), window=9, causal=causal)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = window_attention(*leaves, window=9, block=8, causal=causal)
    gradients = torch.autograd.grad(o.float().square().sum(), leaves)
    assert {x.dtype for x in (o, *gradients)} == {torch.bfloat16}
    # one rounding of the result, half a unit in its last place, is all that may be lost
    torch.testing.assert_close(o.double(), exact, atol=1e-5, rtol=2**-8)


def cost(length: int, causal: bool) -> tuple[int, int, int]:
    """Operations forward and backward, bytes kept, bytes of the largest tensor made."""

    with pretending():
        qkv = [torch.randn(1, 2, length, 64, requires_grad=True) for _ in range(3)]

        def run() -> Tensor:
            return window_attention(*qkv, window=128, block=64, causal=causal)

        operations, kept = count_operations(lambda: run().sum().backward()), saved_bytes(run, qkv)
        with Largest() as largest:
            run()
    return operations, kept, largest.nbytes


@DIRECTIONS
def test_operations_and_saved_bytes_grow_with_the_length(causal: bool) -> None:
    small, large = cost(8192, causal), cost(16384, causal)
    reach = 192 if causal else 320
    assert small[0] == 3 * 4 * 2 * 8192 * reach * 64
    for before, after in zip(small[:2], large[:2], strict=True):
        assert abs(math.log2(after / before) - 1) < 0.02
    # never a mask or a matrix of length x length
    assert small[2] < large[2] < 4 * 2 * 16384 * reach


@pytest.mark.parametrize("layer", [0, 1])
def test_each_layer_has_its_own_window(layer: int) -> None:
    core = built(layer=layer, depth=2, window=[16, 200]).core
    assert (core.window, core.block) == ((16, 32), (200, 64))[layer]
    assert best_block(128) == 64


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="got 0; for none choose model=identity"):
        built(window=[0])
    with pytest.raises(ValueError, match="block must be at least 1"):
        built(block=0)
    with pytest.raises(Unsupported, match="set causal"):
        built().initial_state(2, 30)


def test_builds_and_runs_on_the_meta_device() -> None:
    with torch.device("meta"):
        mixer = SlidingWindow(Site(width=12, heads=3, max_length=64), window=[4])
        assert mixer(torch.empty(2, 50, 12), Layout()).shape == (2, 50, 12)
