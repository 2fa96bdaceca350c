"""Longformer against a literal form with one mask per head: values and gradients."""

import pytest
import torch
from torch import Tensor

from lra.models.families.longformer import STARTS, Longformer
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Flow, Layout, Positions, Site, Unsupported, Variant
from lra.models.positions import alibi_slopes, rotate
from tests import attention
from tests.attention import DIRECTIONS, builder, drawn
from tests.literal.windows import longformer_attention

PLACES = [Positions.none, Positions.rotary, Positions.alibi]
SITE = {"width": 16, "heads": 4, "max_length": 64}


def some(rate: float, length: int, seed: int = 5) -> Tensor:
    return torch.rand(2, length, generator=torch.Generator().manual_seed(seed)) < rate


def built(*, apart: bool = True, **given) -> Longformer:
    """Return a mixer whose global projections have moved away from the others, if `apart`."""
    usual = builder(Longformer, **SITE, window=[5], block=4)
    return usual(**given, moved=0.3 if apart else 0.0)


def literal(mixer: Longformer, x: Tensor, layout: Layout, *, window=5, dilation=(1,) * 4) -> Tensor:
    """The definition, from the mixer's projections."""
    is_global = torch.zeros(x.shape[:2], dtype=torch.bool)
    if layout.is_global is not None:
        is_global |= layout.is_global
    if mixer.sees_cls:
        is_global[:, 0] = True

    def heads(names: list[str]) -> tuple[Tensor, ...]:
        q, k, v = (mixer.split(getattr(mixer, name)(x)) for name in names)
        if mixer.rotary:
            q, k = rotate(q, layout.start), rotate(k, layout.start)
        return q, k, v

    o = longformer_attention(
        heads([*STARTS.values()]), heads([*STARTS]), is_global,
        window=window, dilation=dilation, causal=mixer.traits.causal, keep=layout.keep,
        slopes=None if mixer.slopes is None else alibi_slopes(4),
    )  # fmt: skip
    return mixer.merge(o)


def compare(mixer: Longformer, x: Tensor, layout: Layout, **shape) -> None:
    """Outputs at real tokens, and all gradients."""
    x = x.clone().requires_grad_()
    seen, wanted = mixer(x, layout), literal(mixer, x, layout, **shape)
    if layout.keep is not None:
        seen, wanted = seen[layout.keep], wanted[layout.keep]
    attention.compare(seen, wanted, [x, *mixer.parameters()], looser=10)


@DIRECTIONS
@pytest.mark.parametrize("positions", PLACES)
@pytest.mark.parametrize("length", [1, 6, 37])
def test_a_cls_vector_sees_all_and_is_seen_by_all(length: int, positions, causal: bool) -> None:
    mixer = built(cls=True, causal=causal, positions=positions)
    x, keep = drawn(2, length, 16), some(0.6, length)
    keep[0, 0], keep[1, 0] = True, False
    compare(mixer, x, Layout())
    compare(mixer, x, Layout(keep=keep))
    if length == 37 and not causal:
        far = torch.autograd.grad(mixer(x.requires_grad_(), Layout())[:, 0].sum(), x)[0]
        assert (far[:, -1] != 0).all()


@DIRECTIONS
@pytest.mark.parametrize("positions", PLACES)
@pytest.mark.parametrize("cls", [False, True])
def test_the_layout_may_name_any_tokens(cls: bool, positions, causal: bool) -> None:
    mixer = built(cls=cls, causal=causal, positions=positions, global_mask=True)
    x, keep = drawn(2, 29, 16), some(0.7, 29)
    for rate in (0.0, 0.1, 0.5):
        is_global = some(rate, 29, seed=8)
        is_global[1, 20:] = False
        for kept in (None, keep):
            compare(mixer, x, Layout(keep=kept, is_global=is_global))
    start = torch.tensor([3, 11])
    compare(mixer, x, Layout(is_global=some(0.2, 29), start=start))
    compare(mixer, x, Layout(start=start))


@DIRECTIONS
@pytest.mark.parametrize("heads", [None, 0, 1])
def test_some_heads_are_dilated(heads: int | None, causal: bool) -> None:
    mixer = built(cls=True, causal=causal, dilation=[3], dilated_heads=heads, global_mask=True)
    dilated = 4 if heads is None else heads
    dilation = (1,) * (4 - dilated) + (3,) * dilated
    x = drawn(2, 40, 16)
    compare(mixer, x, Layout(), dilation=dilation)
    layout = Layout(keep=some(0.7, 40), is_global=some(0.1, 40, seed=8))
    compare(mixer, x, layout, dilation=dilation)


@DIRECTIONS
def test_all_tokens_global_is_full_attention_with_their_projections(causal: bool) -> None:
    mixer = built(causal=causal, global_mask=True)
    full = SoftmaxAttention(Site(**SITE, causal=causal)).double()
    weights = mixer.state_dict()
    for name, start in STARTS.items():
        for kind in ("weight", "bias"):
            weights[f"{start}.{kind}"] = weights.pop(f"{name}.{kind}")
    full.load_state_dict(weights)
    x = drawn(2, 30, 16)
    seen = mixer(x, Layout(is_global=torch.ones(2, 30, dtype=torch.bool)))
    torch.testing.assert_close(seen, full(x, Layout()), atol=1e-12, rtol=0)


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
    with pytest.raises(ValueError, match="0 to heads=4, or be null for all: got 5"):
        built(dilated_heads=5)
    with pytest.raises(ValueError, match="variant=lra fixes global_mask at false: got true"):
        built(variant=Variant.lra, global_mask=True)
    with pytest.raises(ValueError, match="window is the number of tokens"):
        built(window=[0])
    with pytest.raises(Unsupported, match="global_mask=true"):
        built()(drawn(2, 9, 16), Layout(is_global=some(0.5, 9)))
    with pytest.raises(Unsupported, match="set global_cls=false"):
        built(causal=True, cls=True).initial_state(2, 30)
    mixer = built(causal=True, global_mask=True)
    with pytest.raises(Unsupported, match="pass is_global=None"):
        mixer.extend(
            Flow(drawn(2, 9, 16), mixer.initial_state(2, 9)), Layout(is_global=some(0.5, 9))
        )
