"""Luna against its equations written out by head, and its causal form against a loop over time."""

import math

import pytest
import torch
from torch import Tensor, nn

from models.backbone.stack import FeedForward, Stack, TransformerBlock
from models.contract import check_mixer
from models.contract.counting import count_operations, pretending, saved_bytes
from models.families.luna import Activation, Luna, causal_luna
from models.mixer import Flow, Layout, Site, Unsupported
from models.ops.exact import softmax_attention
from models.ops.linear.running_product import running_product
from models.state import size_bytes
from tests.attention import Largest, drawn

DIRECTIONS = pytest.mark.parametrize("causal", [False, True], ids=["bidirectional", "causal"])


def built(*, seed: int = 0, **facts) -> Luna:
    place = {"width": 12, "heads": 3, "max_length": 64}
    names = ("width", "heads", "max_length", "causal", "layer", "depth", "attention_dropout")
    place |= {name: facts.pop(name) for name in (*names, "shared") if name in facts}
    torch.manual_seed(seed)
    mixer = Luna(Site(**place), **({"slots": 5} | facts)).double().eval()
    with torch.no_grad():
        for parameter in mixer.parameters():
            if not parameter.any():
                parameter.normal_(std=0.3)  # biases count
    return mixer


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
@pytest.mark.parametrize("length", [1, 3, 5, 21])
def test_outputs_and_gradients_equal_the_equations(length, options):
    mixer = built(**options)
    x, p = drawn(2, length, 12).requires_grad_(), drawn(2, 5, 12, seed=1).requires_grad_()
    flow = mixer.extend(Flow(x, stream=p), Layout())
    pairs = [nested(mixer, *row) for row in zip(x, p, strict=True)]
    wanted = [torch.stack(part) for part in zip(*pairs, strict=True)]
    inputs = [x, p, *(w for name, w in mixer.named_parameters() if not name.startswith("slots"))]
    cotangents = [drawn(*each.shape, seed=2) for each in wanted]
    for found, want in zip((flow.x, flow.stream), wanted, strict=True):
        torch.testing.assert_close(found, want, rtol=0, atol=1e-12)
    for found, want in zip(
        torch.autograd.grad((flow.x, flow.stream), inputs, cotangents),
        torch.autograd.grad(wanted, inputs, cotangents),
        strict=True,
    ):
        torch.testing.assert_close(found, want, rtol=0, atol=1e-11)


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


def test_recomputation_gives_identical_gradients_through_the_slots():
    plain = stack(attention_dropout=0.2).train()
    again = stack(attention_dropout=0.2, checkpointing=True).train()
    found = []
    for model in (plain, again):
        x = drawn(2, 9, 12).requires_grad_()
        torch.manual_seed(3)
        y = model(Flow(x), Layout()).x.square().sum()
        found.append(torch.autograd.grad(y, [x, *model.parameters()]))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


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


@pytest.mark.parametrize("dynamic", [True, False])
def test_padding_is_as_if_it_were_not_there_for_slots_too(dynamic):
    mixer = built(dynamic_projection=dynamic)
    x, keep = drawn(3, 20, 12), torch.arange(20) < torch.tensor([[20], [11], [2]])
    flow = mixer.extend(Flow(x), Layout(keep=keep))
    for row, length in enumerate((20, 11, 2)):
        short = mixer.extend(Flow(x[row : row + 1, :length]), Layout())
        torch.testing.assert_close(flow.x[row, :length], short.x[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(flow.stream[row], short.stream[0], rtol=0, atol=1e-12)


@DIRECTIONS
def test_a_row_of_padding_alone_learns_nothing_and_is_finite(causal):
    mixer, x = built(causal=causal), drawn(2, 9, 12).requires_grad_()
    keep = torch.tensor([[False], [True]]).expand(2, 9)
    flow = mixer.extend(Flow(x), Layout(keep=keep))
    torch.testing.assert_close(flow.x[0], mixer.out_proj.bias.expand(9, -1))
    gradient = torch.autograd.grad(flow.x.sum(), x)[0]
    assert not gradient[0].any()
    assert gradient[1].any()
    assert gradient.isfinite().all()


def heads(length: int, slots: int = 4) -> list[Tensor]:
    widths = (5, 5, 6, slots)
    found = [drawn(2, 3, length, w, seed=s) for s, w in enumerate(widths)]
    found[3] = found[3].abs()
    return [x.requires_grad_() for x in found]


@pytest.mark.parametrize("chunk", [1, 3, 8, 64])
@pytest.mark.parametrize("length", [1, 7, 24])
def test_the_running_product_is_that_with_a_triangle(length, chunk):
    x, y, z = heads(length)[:3]
    sums = drawn(2, 3, 5, 6, seed=7).requires_grad_()
    out, after = running_product(x, y, z, chunk, sums)
    wanted = (x @ y.mT).tril() @ z + x @ sums, sums + y.mT @ z
    cotangents = [drawn(*each.shape, seed=8) for each in wanted]
    inputs = (x, y, z, sums)
    for found, want in zip(
        (out, after, *torch.autograd.grad((out, after), inputs, cotangents)),
        (*wanted, *torch.autograd.grad(wanted, inputs, cotangents)),
        strict=True,
    ):
        torch.testing.assert_close(found, want, rtol=0, atol=1e-12)


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
@pytest.mark.parametrize("length", [1, 2, 23, 40])
def test_the_causal_form_equals_the_recurrence(length, padded):
    inputs, keep = heads(length), None
    if padded:
        keep = torch.rand(2, length, generator=torch.Generator().manual_seed(3)) > 0.4
        keep[0, : length // 3] = False  # rows that find nothing
    found, _ = causal_luna(*inputs, chunk=8, keep=keep)
    wanted = step_by_step(*inputs, keep)
    cotangent = drawn(*wanted.shape, seed=9)
    for a, b in zip(
        (found, *torch.autograd.grad(found, inputs, cotangent)),
        (wanted, *torch.autograd.grad(wanted, inputs, cotangent)),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


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


def test_a_later_outlier_moves_nothing_before_it():
    mixer, x = built(causal=True, chunk=8), drawn(1, 40, 12)
    before = mixer(x, Layout())
    for cut in (1, 17, 32):
        loud = torch.cat((x[:, :cut], 1e6 * x[:, cut:]), 1)
        after = mixer(loud, Layout())
        assert torch.equal(after[:, :cut], before[:, :cut])
        assert not torch.allclose(after[:, cut:], before[:, cut:])
        short = mixer(x[:, :cut], Layout())
        torch.testing.assert_close(short, before[:, :cut], rtol=0, atol=1e-12)


@pytest.mark.parametrize("cuts", [[40], [11, 17, 12], [1, 38, 1], [1] * 40])
def test_every_partition_equals_one_pass_with_a_state_of_one_size(cuts):
    mixer, x = built(causal=True, chunk=8), drawn(2, 40, 12)
    state, seen = mixer.initial_state(2, 40), []
    size = size_bytes(state)
    assert size == size_bytes(mixer.initial_state(2, 10**6))
    for piece in x.split(cuts, dim=1):
        flow = mixer.extend(Flow(piece, state), Layout())
        state, seen = flow.state, [*seen, flow.x]
        assert size_bytes(state) == size
    torch.testing.assert_close(torch.cat(seen, 1), mixer(x, Layout()), rtol=0, atol=1e-12)


def test_padding_in_the_middle_of_a_causal_sequence_is_as_if_it_were_not_there():
    mixer, x = built(causal=True, chunk=8), drawn(1, 40, 12)
    keep = torch.rand(1, 40, generator=torch.Generator().manual_seed(3)) > 0.4
    found = mixer(x, Layout(keep=keep))[keep]
    torch.testing.assert_close(found, mixer(x[keep][None], Layout())[0], rtol=0, atol=1e-12)


@DIRECTIONS
def test_dropout_acts_in_training_alone(causal):
    mixer, x = built(causal=causal, attention_dropout=0.3), drawn(2, 20, 12)
    assert torch.equal(mixer(x, Layout()), built(causal=causal)(x, Layout()))
    mixer.train()
    torch.manual_seed(0)
    first = mixer(x, Layout())
    assert not torch.allclose(first, mixer(x, Layout()))
    torch.manual_seed(0)
    assert torch.equal(first, mixer(x, Layout()))


def test_sums_do_not_round_in_half_precision():
    inputs = [x.detach().float() for x in heads(2000)]
    wanted, _ = causal_luna(*(x.double() for x in inputs), chunk=32)
    found, _ = causal_luna(*inputs, chunk=32)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-6)
    mixer, x = built(causal=True).float(), drawn(1, 500, 12).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = mixer(x, Layout())
    # projections are rounded to 8 bits, sums of 500 terms are not
    torch.testing.assert_close(inside.float(), mixer(x, Layout()), rtol=0.05, atol=0.05)


@DIRECTIONS
def test_operations_and_saved_bytes_grow_with_the_length(causal):

    found = []
    for length in (4096, 16384):
        with pretending(), Largest() as largest:
            place = Site(width=128, heads=2, max_length=length, causal=causal)
            mixer, kept = Luna(place, slots=16), []
            x = torch.empty(1, length, 128, requires_grad=True)

            def run(m=mixer, x=x):
                m(x, Layout())

            parts = [x, *mixer.parameters()]
            forward = count_operations(lambda: kept.append(saved_bytes(run, parts)))  # noqa: B023
            found.append((forward, kept[0]))
    for small, large in zip(*found, strict=True):
        assert math.log(large / small) / math.log(4) == pytest.approx(1, abs=0.02)
    # projections, then two products with 16 slots for pack and unpack, or two running products
    wanted = 6 * 128**2 + 8 * 16 * 128
    if causal:
        wanted = 8 * 128**2 + 10 * 16 * 128 + 2 * 2 * 32 * (64 + 16) * 2
    assert found[1][0] / 16384 == pytest.approx(wanted, rel=0.01)
    assert largest.nbytes <= 4 * 16384 * 128 * 2  # never length x width x slots


@pytest.mark.parametrize(
    ("causal", "options"),
    [
        (False, {"tie_kv": False, "pack_heads": 4, "slots": 7, "dynamic_projection": False}),
        (True, {"tie_kv": False, "activation": Activation.elu1, "slots": 7, "chunk": 9}),
    ],
    ids=["bidirectional", "causal"],
)
def test_other_options_keep_the_contract(causal, options):
    found = check_mixer(lambda site: Luna(site, **options), causal=causal, max_length=70)
    assert len(found) > 1
    assert [finding for finding in found if not finding.passed] == []


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
    with pytest.raises(Unsupported, match="no state: build Luna causal"):
        built().initial_state(2, 30)
    with pytest.raises(Unsupported, match="no state: build Luna causal"):
        built().extend(Flow(drawn(1, 3, 12), state=(drawn(1),)), Layout())
    causal = built(causal=True)
    keep, state = torch.ones(1, 3, dtype=torch.bool), causal.initial_state(1, 3)
    with pytest.raises(ValueError, match="takes full rows: pass keep=None"):
        causal.extend(Flow(drawn(1, 3, 12), state), Layout(keep=keep))
    assert not built().traits.reversible
    assert causal.traits.reversible


@DIRECTIONS
def test_builds_and_runs_on_the_meta_device(causal):
    with torch.device("meta"):
        mixer = Luna(Site(width=12, heads=3, max_length=64, causal=causal))
        assert mixer(torch.empty(2, 50, 12), Layout()).shape == (2, 50, 12)
