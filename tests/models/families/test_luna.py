"""Luna against its equations written out by head, and its causal form against a loop over time."""

import math

import pytest
import torch
from torch import Tensor, nn

from lra.models.backbone.networks import FeedForward
from lra.models.backbone.stack import Stack, TransformerBlock
from lra.models.families.luna import Activation, Luna, causal_luna
from lra.models.mixer import Flow, Layout, Unsupported
from lra.models.ops.exact import softmax_attention
from lra.models.ops.linear.running_product import running_product
from tests.attention import builder, compare, drawn, joined

built = builder(Luna, slots=5, moved=0.3)


def attention(q: Tensor, k: Tensor, v: Tensor, heads: int) -> Tensor:
    """Softmax attention of (tokens, width), head by head."""
    out = []
    for a, b, c in zip(*(x.chunk(heads, dim=-1) for x in (q, k, v)), strict=True):
        out.append((a @ b.T / math.sqrt(a.shape[-1])).softmax(-1) @ c)
    return torch.cat(out, -1)


def nested(mixer: Luna, x: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """One example through the equations: tokens and slots after the layer."""

    def content(prefix: str, of: Tensor) -> tuple[Tensor, Tensor]:
        names = ["kv_proj"] * 2 if mixer.tied else ["k_proj", "v_proj"]
        k, v = (mixer.get_submodule(prefix + name)(of) for name in names)
        return k, v

    q = mixer.pack_q_proj(mixer.slot_norm(p))
    packed = attention(q, *content("pack_", x), mixer.pack_heads)
    seen = packed[: len(x)] if mixer.dynamic else packed
    y = mixer.out_proj(attention(mixer.q_proj(x), *content("", seen), mixer.heads))
    return y, (mixer.slot_norm(p) if mixer.norm_residual else p) + packed


@pytest.mark.parametrize(
    "options",
    [{}, {"tie_kv": False}, {"pack_heads": 2}, {"tie_kv": False, "norm_residual": True}],
    ids=["usual", "untied", "two heads", "norms"],
)
@pytest.mark.parametrize("length", [1, 5, 21])
def test_outputs_and_gradients_equal_the_equations(length, options):
    mixer = built(**options)
    x, p = drawn(2, length, 12).requires_grad_(), drawn(2, 5, 12, seed=1).requires_grad_()
    flow = mixer.extend(Flow(x, stream=p), Layout())
    pairs = [nested(mixer, *row) for row in zip(x, p, strict=True)]
    wanted = [torch.stack(part) for part in zip(*pairs, strict=True)]
    inputs = [x, p, *(w for name, w in mixer.named_parameters() if not name.startswith("slots"))]
    compare(joined(flow.x, flow.stream), joined(*wanted), inputs, looser=10)


def test_the_first_layer_begins_with_the_parameter():
    mixer, x = built(), drawn(2, 9, 12)
    slots = mixer.slots.weight
    wanted = [nested(mixer, row, slots) for row in x]
    flow = mixer.extend(Flow(x), Layout())
    torch.testing.assert_close(flow.x, torch.stack([y for y, _ in wanted]), rtol=0, atol=1e-12)
    torch.testing.assert_close(flow.stream, torch.stack([p for _, p in wanted]))
    torch.testing.assert_close(mixer(x, Layout()), flow.x)
    (gradient,) = torch.autograd.grad(flow.x.square().sum(), slots)
    assert (gradient != 0).all()


def test_slots_like_the_tokens_give_full_attention_in_two_hops():
    mixer = built(slots=21, dynamic_projection=False, tie_kv=False)
    mixer.slot_norm = nn.Identity()
    x = drawn(2, 21, 12)

    def hop(of: Tensor, prefix: str, content: Tensor) -> Tensor:
        q = mixer.project(f"{prefix}q_proj", of, 3)
        k, v = mixer.content(prefix, content, 3)
        return softmax_attention(q, k, v).transpose(1, 2).flatten(2)

    wanted = mixer.out_proj(hop(x, "", hop(x, "pack_", x)))
    found = mixer.extend(Flow(x, stream=x), Layout()).x
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def stack(depth: int = 3, *, checkpointing: bool = False, **options) -> Stack:
    shared: dict[str, nn.Module] = {}
    mixers = [built(seed=i, layer=i, depth=depth, shared=shared, **options) for i in range(depth)]
    frame = {"width": 12, "feed_forward": FeedForward.none, "feed_forward_width": 12}
    blocks = [TransformerBlock(mixer, dropout=0.0, **frame) for mixer in mixers]
    return Stack(blocks, width=12, checkpointing=checkpointing).double()


def test_a_stack_hands_the_slots_on_and_every_parameter_learns():
    model, x = stack(), drawn(2, 9, 12)
    assert sum(name.endswith("slots.weight") for name, _ in model.named_parameters()) == 1
    flow = model(Flow(x), Layout())
    p, y = model.blocks[0].mixer.slots.weight.expand(2, -1, -1), x
    for block in model.blocks:
        pairs = [nested(block.mixer, *row) for row in zip(block.mixer_norm(y), p, strict=True)]
        y, p = y + torch.stack([a for a, _ in pairs]), torch.stack([b for _, b in pairs])
    torch.testing.assert_close(flow.x, model.norm(y), rtol=0, atol=1e-11)
    torch.testing.assert_close(flow.stream, p, rtol=0, atol=1e-11)
    flow.x.square().sum().backward()
    assert all(w.grad is not None and w.grad.any() for w in model.parameters())


def test_a_sequence_sees_no_more_slots_than_it_has_tokens():
    x, p = drawn(1, 3, 12), drawn(1, 5, 12, seed=1)
    moved = p.clone()
    moved[:, 3:] *= 6

    def seen(slots: Tensor, **options) -> Tensor:
        return built(**options).extend(Flow(x, stream=slots), Layout()).x

    assert torch.equal(seen(p), seen(moved))
    assert not torch.allclose(
        seen(p, dynamic_projection=False), seen(moved, dynamic_projection=False)
    )


def heads(length: int, slots: int = 4) -> list[Tensor]:
    widths = (5, 5, 6, slots)
    found = [drawn(2, 3, length, w, seed=s) for s, w in enumerate(widths)]
    found[3] = found[3].abs()
    return [x.requires_grad_() for x in found]


@pytest.mark.parametrize("chunk", [1, 8])
@pytest.mark.parametrize("length", [1, 7, 24])
def test_the_running_product_is_that_with_a_triangle(length, chunk):
    x, y, z = heads(length)[:3]
    sums = drawn(2, 3, 5, 6, seed=7).requires_grad_()
    out, after = running_product(x, y, z, chunk, sums)
    wanted = (x @ y.mT).tril() @ z + x @ sums, sums + y.mT @ z
    compare(joined(out, after), joined(*wanted), (x, y, z, sums))


def step_by_step(q, k, v, packing, keep=None):
    """The authors' recurrence: two sums, divided by the number of tokens so far."""
    (b, h, n, d), s = q.shape, packing.shape[-1]
    keep = torch.ones(b, n, dtype=torch.bool) if keep is None else keep
    first, second, out = q.new_zeros(b, h, d, s), q.new_zeros(b, h, s, v.shape[-1]), []
    for t in range(n):
        real, count = keep[:, t, None, None, None], keep[:, : t + 1].sum(1).clamp(min=1)
        a = packing[:, :, t, None] * real
        first = first + k[:, :, t, :, None] @ a
        second = second + a.mT @ v[:, :, t, None]
        weights = (q[:, :, t, None] @ first / count[:, None, None, None]).softmax(-1)
        out.append(weights @ second / count[:, None, None, None])
    return torch.cat(out, 2)


@pytest.mark.parametrize("padded", [False, True], ids=["full", "padded"])
@pytest.mark.parametrize("length", [1, 23, 40])
def test_the_causal_form_equals_the_recurrence(length, padded):
    inputs, keep = heads(length), None
    if padded:
        keep = torch.rand(2, length, generator=torch.Generator().manual_seed(3)) > 0.4
        keep[0, : length // 3] = False  # rows that find nothing
    found, _ = causal_luna(*inputs, chunk=8, keep=keep)
    wanted = step_by_step(*inputs, keep)
    compare(found, wanted, inputs)


@pytest.mark.parametrize("activation", list(Activation))
@pytest.mark.parametrize("tie_kv", [True, False], ids=["tied", "untied"])
def test_the_causal_layer_equals_its_equations(tie_kv, activation):
    mixer, x = built(causal=True, tie_kv=tie_kv, activation=activation), drawn(2, 23, 12)

    def by_head(part: Tensor) -> Tensor:
        return part.unflatten(-1, (3, 4)).transpose(-3, -2)

    scores = by_head(mixer.pack_k_proj(x)) @ by_head(mixer.pack_q_proj(mixer.slots.weight)).mT / 2
    packing = (1 + 2**scores).log2() if activation is Activation.softplus else (
        torch.where(scores > 0, scores + 1, scores.exp())
    )  # fmt: skip
    names = ["kv_proj"] * 2 if tie_kv else ["k_proj", "v_proj"]
    k, v = (by_head(mixer.get_submodule(name)(x)) for name in names)
    o = step_by_step(by_head(mixer.q_proj(x)) / 2, k, v, packing)
    wanted = mixer.out_proj(o.transpose(1, 2).flatten(2))
    torch.testing.assert_close(mixer(x, Layout()), wanted, rtol=0, atol=1e-12)


def test_what_cannot_be_is_refused():
    with pytest.raises(ValueError, match=r"slots must be 1 or more: got slots=0"):
        built(slots=0)
    with pytest.raises(ValueError, match=r"chunk must be 1 or more: got chunk=-1"):
        built(chunk=-1)
    with pytest.raises(ValueError, match=r"got pack_heads=5, width=12; use null"):
        built(pack_heads=5)
    with pytest.raises(Unsupported, match=r"got pack_heads=2, heads=3; use pack_heads=null"):
        built(pack_heads=2, causal=True)
    shared: dict[str, nn.Module] = {}
    built(shared=shared)
    with pytest.raises(ValueError, match="got slots=7 after 5 in a layer before; use one number"):
        built(shared=shared, slots=7)
    assert not built().traits.reversible
    assert built(causal=True).traits.reversible
