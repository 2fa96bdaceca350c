"""The window against a dense band: outputs, gradients, passes."""

import pytest
import torch
from torch import Tensor

from lra.models.families.sliding_window import SlidingWindow
from lra.models.ops.banded import layout as banded
from lra.models.ops.banded.sliding_window import best_block, window_attention
from tests import attention
from tests.attention import DIRECTIONS, builder, heads, holes
from tests.literal.windows import window_attention as dense


def compare(qkv: list[Tensor], *, window: int, block: int, causal: bool, keep=None) -> None:
    facts = {"window": window, "causal": causal, "keep": keep}
    seen, wanted = window_attention(*qkv, block=block, **facts), dense(*qkv, **facts)
    attention.compare(seen, wanted, qkv)


@DIRECTIONS
@pytest.mark.parametrize("length", [2, 64, 101])
@pytest.mark.parametrize("window", [1, 40, 200])
@pytest.mark.parametrize("block", [1, 8])
def test_equals_the_dense_band(length: int, window: int, block: int, causal: bool) -> None:
    compare(heads(length), window=window, block=block, causal=causal)


@DIRECTIONS
@pytest.mark.parametrize("window", [1, 5, 40, 200])
def test_padding_is_hidden_and_rows_without_keys_are_zero(window: int, causal: bool) -> None:
    keep = holes(63, real=0.3, end=20)
    compare(heads(63), window=window, block=8, causal=causal, keep=keep)
    o = window_attention(*heads(63), window=5, block=8, causal=causal, keep=keep)
    assert (o[1, :, 26:] == 0).all()
    nothing = torch.zeros(2, 63, dtype=torch.bool)
    qkv = heads(63)
    o = window_attention(*qkv, window=window, block=8, causal=causal, keep=nothing)
    assert (o == 0).all()
    assert all((g == 0).all() for g in torch.autograd.grad(o.sum(), qkv))


@DIRECTIONS
@pytest.mark.parametrize("elements", [1, 500])
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


built = builder(SlidingWindow)


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
