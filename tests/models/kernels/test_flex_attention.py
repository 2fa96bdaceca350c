"""FlexAttention in the place of bands, sets and lists of keys: masks, gradients, refusals."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn.attention import flex_attention as released

from lra.models.kernels import flex_attention, flex_masks
from lra.models.kernels.comparison import difference
from lra.models.kernels.session import public_kernels
from lra.models.ops.banded.sliding_window import window_attention
from lra.models.ops.sparse.block_attention import block_attention
from lra.models.ops.sparse.key_sets import Blocks
from tests.models.kernels import flex_calls
from tests.models.kernels.flex_calls import (
    BATCH,
    CALLS,
    EAGER,
    HEADS,
    OPERATIONS,
    SLOPES,
    holes,
    on_a_cpu,
    rows,
)

STEPS = {"window_attention": 11, "union_attention": 7, "list_attention": 1}
RELEASED_STEPS = {"window_attention": 19, "union_attention": 13, "list_attention": 7}
"""Of the calls whose gradients are compared, and of those that the released function computes,
which takes a hundred times as long. No number of choices is a multiple."""
NEAR = {"atol": 2e-5, "rtol": 1e-4}
"""Of float32: sums are taken in another order."""


@pytest.fixture
def eager(monkeypatch):
    """Let PyTorch's function run as it is written, without compiling each call."""
    monkeypatch.setattr(released, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


def leaves(call):
    """Return the tensors of a call that need gradients, by name."""
    found = {name: call[name] for name in ("q", "k", "v")}
    if call.get("beyond") is not None:
        found |= {"far keys": call["beyond"].keys, "far values": call["beyond"].values}
    return found


def own(operation, call):
    """Return the result of our own form; sets of keys are its positional arguments."""
    sets = call.get("sets")
    if sets is None:
        return OPERATIONS[operation](**call)
    rest = {name: x for name, x in call.items() if name not in {"q", "k", "v", "sets"}}
    return OPERATIONS[operation](call["q"], call["k"], call["v"], *sets, **rest)


@pytest.mark.parametrize("operation", CALLS)
def test_masks_and_blocks_give_what_our_own_form_gives(operation):
    kernel, count = on_a_cpu(operation), 0
    with torch.no_grad():
        for call in CALLS[operation]():
            torch.testing.assert_close(kernel.run(call), own(operation, call), **NEAR)
            count += 1
    assert count >= 24


@pytest.mark.parametrize("operation", CALLS)
def test_released_function_gives_what_our_own_form_gives(operation, eager):
    kernel = on_a_cpu(operation, EAGER)
    for call in [*CALLS[operation]()][:: RELEASED_STEPS[operation]]:
        wanted = own(operation, call)
        plain = call | {name: call[name].detach() for name in "qkv"}  # no gradients on a CPU
        if call.get("beyond") is not None:
            far = {name: getattr(call["beyond"], name).detach() for name in ("keys", "values")}
            plain["beyond"] = call["beyond"]._replace(**far)
        torch.testing.assert_close(kernel.run(plain), wanted, **NEAR)


@pytest.mark.parametrize("operation", CALLS)
def test_gradients_through_masks_and_blocks_are_ours(operation):
    kernel = on_a_cpu(operation)
    for call in [*CALLS[operation]()][:: STEPS[operation]]:
        inputs = leaves(call)
        theirs, ours = kernel.run(call), own(operation, call)
        torch.testing.assert_close(theirs, ours, **NEAR)
        pull = torch.randn(ours.shape, generator=torch.Generator().manual_seed(9))
        found = torch.autograd.grad(theirs, [*inputs.values()], pull)
        wanted = torch.autograd.grad(ours, [*inputs.values()], pull)
        for name, got, gradient in zip(inputs, found, wanted, strict=True):
            torch.testing.assert_close(got, gradient, **NEAR, msg=lambda m, n=name: f"{n}: {m}")


def window_call(**changes):
    """Return a call of `window_attention` with 300 queries of two heads."""
    q, k, v = rows(300)
    call = {
        "q": q, "k": k, "v": v, "window": 20, "block": 16, "causal": False, "keep": None,
        "dropout": 0.0, "dilation": 1, "behind": None, "slopes": None, "beyond": None,
    }  # fmt: skip
    return call | changes


def test_rows_without_keys_give_zeros_and_finite_gradients():
    keep = torch.zeros(BATCH, 300, dtype=torch.bool)
    keep[0, :150] = True
    sets = (Blocks(rows=BATCH * HEADS, length=300, block=32),)
    for operation, call in (
        ("window_attention", window_call(keep=keep)),
        ("union_attention", union_call(*sets, keep=keep)),
        ("union_attention", union_call(*sets, *sets, keep=keep)),
    ):
        o = on_a_cpu(operation).run(call)
        assert torch.equal(o[1], torch.zeros_like(o[1]))
        assert torch.equal(o[0, :, 200:], torch.zeros_like(o[0, :, 200:]))
        for gradient in torch.autograd.grad(o.sum(), [call[name] for name in "qkv"]):
            assert gradient.isfinite().all()
            assert not gradient[1].any()


def union_call(*sets, **changes):
    """Return a call of `union_attention` with 300 queries of two heads."""
    q, k, v = rows(300)
    call = {"q": q, "k": k, "v": v, "sets": sets, "keep": None, "slopes": None, "dropout": 0.0}
    return call | changes


def test_blocks_of_padding_stay_and_others_are_skipped():
    sight = flex_masks.window_sight(0, 64, 64, 1)
    exact, hidden = (
        flex_masks.block_mask_of(
            sight, 1024, 1024, beyond=0, exact=exact, device=torch.device("cpu")
        )
        for exact in (True, False)
    )
    assert exact.kv_num_blocks.flatten().tolist() == [2, 3, 3, 3, 3, 3, 3, 2]
    assert exact.full_kv_num_blocks.sum() == 0
    assert hidden.full_kv_num_blocks is None
    assert torch.equal(hidden.kv_num_blocks, exact.kv_num_blocks)
    wide = flex_masks.window_sight(0, 300, 300, 1)
    mask = flex_masks.block_mask_of(
        wide, 1000, 1000, beyond=5, exact=True, device=torch.device("cpu")
    )
    assert mask.full_kv_num_blocks.flatten().tolist() == [2, 3, 3, 3, 3, 3, 2, 0]


def test_masks_are_listed_once(monkeypatch):
    flex_masks.block_mask_of.cache_clear()
    for _ in range(3):
        on_a_cpu("window_attention").run(window_call(window=33))
        on_a_cpu("window_attention").run(window_call(window=33, keep=holes(300)))
    assert flex_masks.block_mask_of.cache_info().misses == 2


def test_each_kind_of_call_is_compiled_once(monkeypatch):
    compiled, compile_ = [], torch.compile

    def backend(graph, _):
        compiled.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(compile_, backend=backend))
    facts = {"dilation": 3, "causal": True, "keep": holes(300)}
    with torch.no_grad():
        for number in range(10):  # more than torch.compile allows for one function
            function = flex_attention._compiled(released.flex_attention, number)
            for seed in (number, number + 1):
                beyond = flex_calls.global_keys(keep=True, length=300)
                call = window_call(window=20 + number, slopes=SLOPES * (seed + 1), **facts)
                call |= {name: call[name].detach() for name in "qkv"}
                call["beyond"] = beyond._replace(
                    keys=beyond.keys.detach(), values=beyond.values.detach()
                )
                found = flex_attention._call_window(function, **call)
            torch.testing.assert_close(found, own("window_attention", call), **NEAR)
            assert len(compiled) == number + 1


WRONG_MASKS = {
    "band one too wide": ("window_sight", lambda past, behind, ahead, dilation: (
        flex_masks.window_sight(past, behind + 1, ahead, dilation))),
    "causality turned": ("window_sight", lambda past, behind, ahead, dilation: (
        flex_masks.window_sight(past, ahead, behind, dilation))),
    "past forgotten": ("window_sight", lambda past, behind, ahead, dilation: (
        flex_masks.window_sight(0, behind, ahead, dilation))),
    "distances in steps": ("window_sight", lambda past, behind, ahead, dilation: (
        flex_masks.window_sight(past, behind, ahead, 1))),
    "global keys forgotten": ("mask_of", lambda sight, keys, *rest: (
        lambda b, h, q, k: flex_masks.mask_of(sight, keys, *rest)(b, h, q, k) & (k < keys))),
    "later global keys seen": ("GlobalPlace", lambda positions, causal: (
        flex_masks.GlobalPlace(positions, False))),
    "padding ignored": ("mask_of", lambda sight, keys, classes, real, beyond: (
        flex_masks.mask_of(sight, keys, classes, None, beyond))),
    "padding of other classes": ("mask_of", lambda sight, keys, classes, real, beyond: (
        flex_masks.mask_of(sight, keys, classes, real.roll(1, 1), beyond))),
    "slopes forgotten": ("slope_of", lambda *rest: None),
    "slopes of other heads": ("slope_of", lambda sight, keys, classes, slopes, beyond: (
        flex_masks.slope_of(sight, keys, classes, slopes.flip(0), beyond))),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("wrong", WRONG_MASKS)
def test_a_wrong_mask_is_refused(wrong, dtype, monkeypatch):
    q, k, v = rows(300, 315, dtype=dtype)
    call = window_call(
        q=q, k=k, v=v, causal=True, dilation=3, keep=holes(315), slopes=SLOPES,
        beyond=flex_calls.global_keys(keep=True, length=300),
    )  # fmt: skip
    kernel = on_a_cpu("window_attention")
    assert difference(kernel, OPERATIONS["window_attention"], call) == ""
    name, planted = WRONG_MASKS[wrong]
    monkeypatch.setattr(flex_attention, name, planted)
    assert "differs by" in difference(kernel, OPERATIONS["window_attention"], call)


def test_a_window_of_128_that_is_one_wider_is_refused(monkeypatch):
    q, k, v = rows(600, dtype=torch.bfloat16)
    call, kernel = window_call(q=q, k=k, v=v, window=128), on_a_cpu("window_attention")
    assert difference(kernel, OPERATIONS["window_attention"], call) == ""
    monkeypatch.setattr(flex_attention, *WRONG_MASKS["band one too wide"])
    assert "differs by" in difference(kernel, OPERATIONS["window_attention"], call)


@pytest.mark.parametrize(
    ("name", "planted"),
    [
        ("look_back", lambda keyset: replace(keyset, look_back=keyset.look_back + 1)),
        ("causal", lambda keyset: replace(keyset, causal=not keyset.causal)),
        ("least", lambda keyset: replace(keyset, least=keyset.least + 1)),
        ("block", lambda keyset: replace(keyset, block=keyset.block + 1)),
    ],
)
def test_a_wrong_set_is_refused(name, planted, monkeypatch):
    blocks = Blocks(rows=BATCH * HEADS, length=300, block=48, look_back=1, causal=True)
    call, kernel = union_call(blocks), on_a_cpu("union_attention")
    assert difference(kernel, OPERATIONS["union_attention"], call) == ""
    right = flex_masks.set_sight
    monkeypatch.setattr(flex_attention, "set_sight", lambda each, on: right(planted(each), on))
    assert "differs by" in difference(kernel, OPERATIONS["union_attention"], call), name


def test_sums_of_sets_that_are_not_joined_are_refused(monkeypatch):
    call = next(call for call in CALLS["union_attention"]() if len(call["sets"]) == 2)
    kernel = on_a_cpu("union_attention")
    assert difference(kernel, OPERATIONS["union_attention"], call) == ""
    monkeypatch.setattr(flex_attention, "_join", lambda parts: (parts[0][0] + parts[1][0]) / 2)
    assert "differs by" in difference(kernel, OPERATIONS["union_attention"], call)


def test_a_block_twice_on_a_list_is_refused():
    call = next(iter(CALLS["list_attention"]()))
    kernel = on_a_cpu("list_attention")
    assert difference(kernel, OPERATIONS["list_attention"], call) == ""
    lists = call["lists"]
    doubled = torch.cat((lists.blocks, lists.blocks[..., :1]), -1)
    seen = torch.cat((lists.seen, lists.seen[..., :1]), -1)
    twice = call | {"lists": lists._replace(blocks=doubled, seen=seen)}
    assert "differs by" in difference(kernel, OPERATIONS["list_attention"], twice)


LONG = {"rows": BATCH * HEADS, "length": 300}
WIDE = dict(zip("qkv", (x.repeat(1, 1, 1, 17).detach() for x in rows(300)), strict=True))
REFUSED = [
    ("window_attention", window_call(dropout=0.1), "it has no dropout"),
    ("window_attention", window_call(**dict(zip("qkv", rows(300, dtype=torch.float64),
     strict=True))), "it has no float64"),
    ("window_attention", window_call(**{n: WIDE[n][..., :8] for n in "qkv"}),
     "heads must be 16 to 256 wide: got 8 and 8"),
    ("window_attention", window_call(**WIDE), "heads must be 16 to 256 wide: got 272 and 272"),
    ("window_attention", window_call(dilation=3),
     "it computes 128 queries of a row at once: got 100"),
    ("window_attention", window_call(window=299),
     "the window covers all keys, for which scaled_dot_product_attention is used"),
    ("union_attention", union_call(Blocks(**LONG, block=32), dropout=0.5), "it has no dropout"),
    ("block_attention", {**union_call(), "blocks": Blocks(**LONG, block=150)},
     "the sequence is short, for which scaled_dot_product_attention is used"),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "call", "reason"), REFUSED)
def test_each_limit_is_one_sentence(operation, call, reason):
    assert on_a_cpu(operation).refusal(call) == reason


def test_lists_of_other_blocks_and_other_devices_are_refused():
    call = next(iter(CALLS["list_attention"]()))
    odd = call | {"lists": call["lists"]._replace(block=48)}
    reason = "blocks must divide 128 tokens, or be a multiple: got 48"
    assert on_a_cpu("list_attention").refusal(odd) == reason
    for kernel in flex_attention.KERNELS:
        assert kernel.refusal(call) == "it runs on cuda only"
        assert kernel.missing == "", "this version of PyTorch is not among those supported"


def test_a_session_uses_it_and_says_so():
    q, k, v = rows(300)
    kernels = {name: (on_a_cpu(name),) for name in OPERATIONS}
    blocks = Blocks(**LONG, block=32, look_back=1)
    with public_kernels(required=True, kernels=kernels) as session:
        found = [
            window_attention(q, k, v, window=20, block=16, causal=True),
            block_attention(q, k, v, blocks),
        ]
    wanted = [
        window_attention(q, k, v, window=20, block=16, causal=True),
        block_attention(q, k, v, blocks),
    ]
    torch.testing.assert_close(found, wanted, **NEAR)
    assert session.description() == (
        f"window_attention: torch {torch.__version__} dense_flex; "
        f"block_attention: torch {torch.__version__} dense_flex"
    )


@pytest.mark.gpu
@pytest.mark.filterwarnings("default")  # the compiler may warn of what it does
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("operation", CALLS)
def test_the_kernel_agrees_on_a_gpu(operation, dtype):
    kernel = next(each for each in flex_attention.KERNELS if each.operation == operation)
    calls = list(CALLS[operation]())[
        :: {"window_attention": 31, "union_attention": 17}.get(operation, 5)
    ]
    for call in calls:
        here = {name: on_gpu(x, dtype) for name, x in call.items()}
        assert kernel.missing == ""
        assert difference(kernel, OPERATIONS[operation], here) == ""


def on_gpu(x, dtype):
    """Return an argument on the GPU, numbers in `dtype`, needing gradients where it did."""
    if isinstance(x, tuple):
        parts = [on_gpu(part, dtype) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else tuple(parts)
    if not isinstance(x, torch.Tensor):
        return x
    moved = x.detach().to("cuda", dtype if x.is_floating_point() else x.dtype)
    return moved.requires_grad_(x.requires_grad)
