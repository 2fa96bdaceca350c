"""The window dilated, sloped, uneven, and with keys beyond it: against a dense form."""

import math

import pytest
import torch
from torch import Tensor

from models.contract.counting import count_operations, pretending, saved_bytes
from models.families.sliding_window import SlidingWindow
from models.mixer import Flow, Layout, Positions, Site
from models.ops.banded.reference import window_attention as dense
from models.ops.banded.scores import GlobalKeys
from models.ops.banded.sliding_window import window_attention
from models.positions import alibi_slopes
from models.state import size_bytes
from tests.attention import drawn

DIRECTIONS = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])
SLOPES = pytest.mark.parametrize("sloped", [False, True], ids=["plain", "alibi"])


def heads(length: int, total: int | None = None) -> list[Tensor]:
    sizes = (length, total or length, total or length)
    return [drawn(2, 3, n, 4, seed=s).requires_grad_() for s, n in enumerate(sizes)]


def compare(qkv: list[Tensor], *, block: int = 8, **facts) -> None:
    seen, wanted = window_attention(*qkv, block=block, **facts), dense(*qkv, **facts)
    torch.testing.assert_close(seen, wanted, atol=1e-12, rtol=0)
    beyond = facts.get("beyond")
    leaves = qkv if beyond is None else [*qkv, beyond.keys, beyond.values]
    g = drawn(*seen.shape, seed=7)
    found = (torch.autograd.grad(o, leaves, g, materialize_grads=True) for o in (seen, wanted))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=0)


def slopes(sloped: bool) -> Tensor | None:
    return alibi_slopes(3) if sloped else None


def padding(length: int) -> Tensor:
    keep = torch.rand(2, length, generator=torch.Generator().manual_seed(5)) < 0.4
    keep[1, length // 3 :] = False
    return keep


@DIRECTIONS
@SLOPES
@pytest.mark.parametrize("length", [1, 2, 101])
@pytest.mark.parametrize("dilation", [1, 5, 70])
@pytest.mark.parametrize("window", [1, 7, 200])
def test_equals_the_dense_dilated_band(length, window, dilation, sloped, causal) -> None:
    facts = {"window": window, "dilation": dilation, "causal": causal, "slopes": slopes(sloped)}
    compare(heads(length), **facts)
    compare(heads(length), **facts, keep=padding(length))


@DIRECTIONS
@SLOPES
@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("length", [1, 2, 20, 75])
def test_keys_beyond_the_window_share_its_softmax(length, dilation, sloped, causal) -> None:
    keep, place = padding(length), torch.tensor([[-9, 0, 12], [-2, -1, length - 1]])
    real = torch.tensor([[True, False, True], [True, True, True]])
    facts = {"window": 6, "dilation": dilation, "causal": causal, "slopes": slopes(sloped)}
    for chosen in (None, real):
        far = [drawn(2, 3, 3, 4, seed=8 + i).requires_grad_() for i in range(2)]
        beyond = GlobalKeys(*far, place, chosen)
        compare(heads(length), **facts, beyond=beyond)
        compare(heads(length), **facts, beyond=beyond, keep=keep)


@DIRECTIONS
@pytest.mark.parametrize("window", [1, 6, 19, 20, 21, 200])
def test_a_window_may_be_smaller_behind(window: int, causal: bool) -> None:
    for keep in (None, padding(21)):
        compare(heads(21), window=window, behind=window - 1, causal=causal, keep=keep)


@SLOPES
@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("length", [1, 2, 40])
def test_the_past_is_seen(length: int, dilation: int, sloped: bool) -> None:
    facts = {"window": 5, "dilation": dilation, "causal": True, "slopes": slopes(sloped)}
    for past in (5 * dilation, 2 * dilation):
        compare(heads(length, past + length), **facts)
        compare(heads(length, past + length), **facts, keep=padding(past + length))
    if dilation > 1:
        with pytest.raises(ValueError, match="multiple of dilation=3 tokens: got 4; pad it"):
            window_attention(*heads(length, 4 + length), block=8, **facts)


@DIRECTIONS
def test_gradients_equal_finite_differences(causal: bool) -> None:
    leaves = [drawn(1, 2, n, 2, seed=s).requires_grad_() for s, n in enumerate((9, 9, 9, 2, 2))]
    keep = torch.ones(1, 9, dtype=torch.bool)
    keep[0, [0, 4]] = False

    def run(q, k, v, *far, dropout: float = 0.0) -> Tensor:
        torch.manual_seed(1)  # the same weights dropped every time
        facts = {"window": 2, "block": 2, "causal": causal, "keep": keep, "dropout": dropout}
        beyond = GlobalKeys(*far, torch.tensor([[-1, 3]]), torch.tensor([[True, True]]))
        return window_attention(q, k, v, **facts, dilation=2, slopes=alibi_slopes(2), beyond=beyond)

    assert torch.autograd.gradcheck(run, leaves, fast_mode=True)
    assert torch.autograd.gradcheck(lambda *x: run(*x, dropout=0.4), leaves, fast_mode=True)


def built(**facts) -> SlidingWindow:
    names = ("window", "dilation", "block")
    options = {name: facts.pop(name) for name in names if name in facts}
    site = Site(**({"width": 12, "heads": 3, "max_length": 64} | facts))
    return SlidingWindow(site, **options).double().eval()


@DIRECTIONS
def test_two_layers_reach_twice_the_dilated_window_and_no_farther(causal: bool) -> None:
    layers = [
        built(causal=causal, layer=i, depth=2, window=[4, 3], dilation=[2, 3], block=4)
        for i in range(2)
    ]
    x = drawn(1, 60, 12).requires_grad_()
    y = layers[1](layers[0](x, Layout()), Layout())
    moved = torch.autograd.grad(y[0, 30].sum(), x)[0][0].abs().sum(-1) > 0
    # up to 4 steps of 2 tokens, then up to 3 of 3
    ahead = 0 if causal else 1
    steps = [range(-window, ahead * window + 1) for window in (4, 3)]
    wanted = {30 + 2 * a + 3 * b for a in steps[0] for b in steps[1]}
    assert set(moved.nonzero().flatten().tolist()) == wanted


@SLOPES
@pytest.mark.parametrize("cuts", [[40], [11, 17, 12], [2] * 20, [1] * 40])
@pytest.mark.parametrize(("window", "dilation"), [(3, 4), (16, 2), (100, 3)])
def test_every_partition_equals_one_pass(window, dilation, cuts, sloped) -> None:
    positions = Positions.alibi if sloped else Positions.none
    mixer = built(causal=True, window=[window], dilation=[dilation], block=4, positions=positions)
    x = drawn(2, 40, 12)
    state, seen = mixer.initial_state(2, 40), []
    size = size_bytes(state)
    assert state[0].shape[2] == window * dilation
    for piece in x.split(cuts, dim=1):
        flow = mixer.extend(Flow(piece, state), Layout())
        state, seen = flow.state, [*seen, flow.x]
        assert size_bytes(state) == size
    torch.testing.assert_close(torch.cat(seen, 1), mixer(x, Layout()), atol=1e-12, rtol=0)


@DIRECTIONS
def test_a_site_with_alibi_slopes_every_head(causal: bool) -> None:
    facts = {"causal": causal, "window": [6], "block": 4}
    sloped, plain = built(**facts, positions=Positions.alibi), built(**facts)
    sloped.load_state_dict(plain.state_dict())
    x = drawn(2, 30, 12)
    q, k, v = plain.project(x, Layout())
    wanted = plain.merge(dense(q, k, v, window=6, causal=causal, slopes=alibi_slopes(3)))
    torch.testing.assert_close(sloped(x, Layout()), wanted, atol=1e-12, rtol=0)
    assert not torch.allclose(plain(x, Layout()), wanted)
    assert {"alibi", "rotary"} <= sloped.traits.positions


@DIRECTIONS
def test_neither_dilation_nor_slopes_cost_more(causal: bool) -> None:
    def cost(length: int) -> tuple[int, int]:
        with pretending():
            qkv = [torch.randn(1, 2, length, 64, requires_grad=True) for _ in range(3)]
            facts = {"dilation": 3, "slopes": torch.rand(2)}

            def run() -> Tensor:
                return window_attention(*qkv, window=128, block=64, causal=causal, **facts)

            return count_operations(lambda: run().sum().backward()), saved_bytes(run, qkv)

    small, large = cost(3 * 4096), cost(3 * 8192)
    assert small[0] == 3 * 4 * 2 * 3 * 4096 * (192 if causal else 320) * 64
    for before, after in zip(small, large, strict=True):
        assert abs(math.log2(after / before) - 1) < 0.02


def test_half_precision_is_summed_in_float32() -> None:
    q, k, v = ((4 * x.detach()).bfloat16() for x in heads(101))
    far = [drawn(2, 3, 1, 4, seed=9).bfloat16() for _ in range(2)]
    facts = {"window": 9, "dilation": 2, "causal": False, "slopes": alibi_slopes(3)}
    place = torch.full((2, 1), -1)
    exact = dense(
        q.double(),
        k.double(),
        v.double(),
        beyond=GlobalKeys(far[0].double(), far[1].double(), place),
        **facts,
    )
    leaves = [x.requires_grad_() for x in (q, k, v, *far)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        o = window_attention(*leaves[:3], block=8, beyond=GlobalKeys(*far, place), **facts)
    gradients = torch.autograd.grad(o.float().square().sum(), leaves)
    assert {x.dtype for x in (o, *gradients)} == {torch.bfloat16}
    # one rounding of the result, half a unit in its last place, is all that may be lost
    torch.testing.assert_close(o.double(), exact, atol=1e-5, rtol=2**-8)


def test_each_layer_has_its_own_dilation() -> None:
    assert built(layer=1, depth=2, dilation=[1, 3]).core.dilation == 3
    with pytest.raises(ValueError, match="at least 1: got 0"):
        built(dilation=[0])
