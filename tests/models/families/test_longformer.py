"""Longformer against a literal form with one mask per head: values and gradients."""

import pytest
import torch
from torch import Tensor

from lra.models.families.longformer import STARTS, Longformer
from lra.models.mixer import Flow, Layout, Unsupported, Variant
from tests.attention import DIRECTIONS, builder, drawn

SITE = {"width": 16, "heads": 4, "max_length": 64}


def some(rate: float, length: int, seed: int = 5) -> Tensor:
    return torch.rand(2, length, generator=torch.Generator().manual_seed(seed)) < rate


def built(*, apart: bool = True, **given) -> Longformer:
    """Return a mixer whose global projections have moved away from the others, if `apart`."""
    usual = builder(Longformer, **SITE, window=[5], block=4)
    return usual(**given, moved=0.3 if apart else 0.0)


@DIRECTIONS
def test_the_variant_of_the_lra_code_is_uneven_and_has_no_global_token(causal: bool) -> None:
    mixer = built(causal=causal, cls=True, window=[4], variant=Variant.lra)
    x, keep = drawn(2, 30, 16), some(0.8, 30)
    distance = torch.arange(30)[:, None] - torch.arange(30)
    sees = (distance <= 3) & (distance >= (0 if causal else -4))
    for kept in (None, keep):
        q, k, v = mixer.project(x, Layout(keep=kept))
        visible = sees if kept is None else sees & kept[:, None, None]
        scores = (q @ k.mT / 2).masked_fill(~visible, -1e300)
        wanted = mixer.merge((scores.softmax(-1) * visible) @ v)
        if kept is not None and not causal:
            mean = mixer.merge(mixer.split(mixer.v_proj(x)).mean(2, keepdim=True))
            wanted = wanted.where(kept[..., None], mean)
        torch.testing.assert_close(mixer(x, Layout(keep=kept)), wanted, atol=1e-12, rtol=0)
    ordinary = built(window=[4])
    assert len([*mixer.parameters()]) == len([*ordinary.parameters()]) + 6
    frozen = {name for name, p in mixer.named_parameters() if not p.requires_grad}
    assert {name.split(".")[0] for name in frozen} == set(STARTS)


def test_no_projection_is_without_use() -> None:
    assert not hasattr(built(), "query_global")
    assert not hasattr(built(cls=True, global_cls=False), "query_global")
    for mixer in (built(apart=False, cls=True), built(apart=False, global_mask=True)):
        for name, start in STARTS.items():
            one, other = getattr(mixer, name), getattr(mixer, start)
            assert one is not other
            assert torch.equal(one.weight, other.weight)
    assert "is_global" in built(global_mask=True).traits.supports
    assert "is_global" not in built(cls=True).traits.supports


def test_dropout_acts_on_every_weight_and_keeps_the_mean() -> None:
    mixer = built(cls=True, attention_dropout=0.25, width=4, heads=1, window=[40])
    x = drawn(1, 30, 4)
    wanted = mixer.eval()(x, Layout())
    mixer.train()
    torch.manual_seed(0)
    tries = torch.stack([mixer(x, Layout()) for _ in range(400)])
    assert (tries.std(0) > 0).all()
    off = (tries.mean(0) - wanted).abs() / (tries.std(0) / 400**0.5)
    assert off.max() < 5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_under_autocast(dtype: torch.dtype) -> None:
    mixer = built(cls=True, global_mask=True, dilation=[2], dilated_heads=2)
    x, is_global = drawn(2, 37, 16), some(0.2, 37)
    for layout in (Layout(), Layout(is_global=is_global)):
        wanted = mixer.double()(x, layout)
        with torch.autocast("cpu", dtype=dtype):
            seen = mixer.float()(x.float(), layout)
        assert (seen.double() - wanted).abs().max() < 0.02 * wanted.abs().max()


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(Unsupported, match="global_mask=true"):
        built()(drawn(2, 9, 16), Layout(is_global=some(0.5, 9)))
    mixer = built(causal=True, global_mask=True)
    with pytest.raises(Unsupported, match="pass is_global=None"):
        mixer.extend(
            Flow(drawn(2, 9, 16), mixer.initial_state(2, 9)), Layout(is_global=some(0.5, 9))
        )
