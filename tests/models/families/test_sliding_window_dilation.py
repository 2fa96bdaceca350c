"""The window dilated, sloped, uneven, and with keys beyond it: against a dense form."""

import pytest
import torch
from torch import Tensor

from lra.models.families.sliding_window import SlidingWindow
from lra.models.mixer import Layout, Positions
from lra.models.ops.banded.scores import GlobalKeys
from lra.models.ops.banded.sliding_window import window_attention
from lra.models.positions import alibi_slopes
from tests import attention
from tests.attention import DIRECTIONS, builder, drawn, holes
from tests.literal.windows import window_attention as dense

SLOPES = pytest.mark.parametrize("sloped", [False, True], ids=["plain", "alibi"])


def heads(length: int, total: int | None = None) -> list[Tensor]:
    sizes = (length, total or length, total or length)
    return [drawn(2, 3, n, 4, seed=s).requires_grad_() for s, n in enumerate(sizes)]


def compare(qkv: list[Tensor], *, block: int = 8, **facts) -> None:
    seen, wanted = window_attention(*qkv, block=block, **facts), dense(*qkv, **facts)
    beyond = facts.get("beyond")
    leaves = qkv if beyond is None else [*qkv, beyond.keys, beyond.values]
    attention.compare(seen, wanted, leaves)


def slopes(sloped: bool) -> Tensor | None:
    return alibi_slopes(3) if sloped else None


@DIRECTIONS
@SLOPES
@pytest.mark.parametrize("length", [2, 101])
@pytest.mark.parametrize("dilation", [5, 70])
@pytest.mark.parametrize("window", [1, 7])
def test_equals_the_dense_dilated_band(length, window, dilation, sloped, causal) -> None:
    facts = {"window": window, "dilation": dilation, "causal": causal, "slopes": slopes(sloped)}
    compare(heads(length), **facts)
    compare(heads(length), **facts, keep=holes(length, real=0.4, end=length // 3))


@DIRECTIONS
@SLOPES
@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("length", [1, 75])
def test_keys_beyond_the_window_share_its_softmax(length, dilation, sloped, causal) -> None:
    keep = holes(length, real=0.4, end=length // 3)
    place = torch.tensor([[-9, 0, 12], [-2, -1, length - 1]])
    real = torch.tensor([[True, False, True], [True, True, True]])
    facts = {"window": 6, "dilation": dilation, "causal": causal, "slopes": slopes(sloped)}
    for chosen in (None, real):
        far = [drawn(2, 3, 3, 4, seed=8 + i).requires_grad_() for i in range(2)]
        beyond = GlobalKeys(*far, place, chosen)
        compare(heads(length), **facts, beyond=beyond)
        compare(heads(length), **facts, beyond=beyond, keep=keep)


@DIRECTIONS
@pytest.mark.parametrize("window", [1, 6, 20, 200])
def test_a_window_may_be_smaller_behind(window: int, causal: bool) -> None:
    for keep in (None, holes(21, real=0.4, end=7)):
        compare(heads(21), window=window, behind=window - 1, causal=causal, keep=keep)


@SLOPES
@pytest.mark.parametrize("dilation", [1, 3])
@pytest.mark.parametrize("length", [1, 2, 40])
def test_the_past_is_seen(length: int, dilation: int, sloped: bool) -> None:
    facts = {"window": 5, "dilation": dilation, "causal": True, "slopes": slopes(sloped)}
    for past in (5 * dilation, 2 * dilation):
        compare(heads(length, past + length), **facts)
        compare(
            heads(length, past + length), **facts, keep=holes(past + length, real=0.4, end=length)
        )
    if dilation > 1:
        with pytest.raises(ValueError, match="multiple of dilation=3 tokens: got 4; pad it"):
            window_attention(*heads(length, 4 + length), block=8, **facts)


built = builder(SlidingWindow)


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


def test_each_layer_has_its_own_dilation() -> None:
    assert built(layer=1, depth=2, dilation=[1, 3]).core.dilation == 3
    with pytest.raises(ValueError, match="at least 1: got 0"):
        built(dilation=[0])
