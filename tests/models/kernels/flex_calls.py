"""Calls of our operations that FlexAttention computes, with everything that changes their masks."""

from dataclasses import replace
from itertools import product

import torch

from lra.models.kernels.flex_attention import KERNELS
from lra.models.ops.banded.scores import GlobalKeys
from lra.models.ops.banded.sliding_window import window_attention
from lra.models.ops.sparse.big_bird_plan import BigBirdPlan, PlanChoice
from lra.models.ops.sparse.block_attention import block_attention
from lra.models.ops.sparse.block_lists import list_attention
from lra.models.ops.sparse.key_sets import Blocks, Rectangles
from lra.models.ops.sparse.strided_and_fixed import SparsePattern, Sparsity
from lra.models.ops.sparse.union import union_attention

OPERATIONS = {
    each.__name__: each.__wrapped__
    for each in (window_attention, union_attention, block_attention, list_attention)
}
"""Our own forms, without their doors."""
BATCH, HEADS, LENGTH, WIDTH = 2, 2, 170, 16
EAGER = "torch.nn.attention.flex_attention:flex_attention"
DENSE = "tests.models.kernels.literal_flex:dense_flex"


def on_a_cpu(operation, function=DENSE):
    """Return the adapter of an operation with another function in the kernel's place."""
    kernel = next(each for each in KERNELS if each.operation == operation)
    return replace(kernel, devices=("cpu",), function=function)


def rows(length=LENGTH, keys=None, *, seed=0, batch=BATCH, dtype=torch.float32):
    """Return queries, keys and values that need gradients."""
    generator = torch.Generator().manual_seed(seed)
    lengths = (length, keys or length, keys or length)
    drawn = (torch.randn(batch, HEADS, n, WIDTH, generator=generator) for n in lengths)
    return [x.to(dtype).requires_grad_() for x in drawn]


def holes(length, *, batch=BATCH):
    """Return padding: holes, and for the last example hardly any keys."""
    keep = torch.rand(batch, length, generator=torch.Generator().manual_seed(1)) > 0.3
    keep[-1, length // 4 :] = False
    return keep


SLOPES = torch.tensor([0.0625, 0.015625])


def global_keys(*, keep, length=LENGTH):
    """Return three global keys, which `keep` says to be real or not, one of them late."""
    generator = torch.Generator().manual_seed(2)
    k, v = torch.randn(2, BATCH, HEADS, 3, WIDTH, generator=generator)
    positions = torch.tensor([[0, 90, length - 4], [1, 2, 140]])
    real = torch.tensor([[True, True, False], [True, True, True]]) if keep else None
    return GlobalKeys(k.requires_grad_(), v.requires_grad_(), positions, real)


def window_calls():
    """Yield every window: dilation, direction, asymmetry, padding, slopes, global keys, past."""
    for dilation, causal, behind, padded, sloped, beyond, past in product(
        (1, 3), (False, True), (None, 7), (False, True), (False, True),
        (None, "plain", "padded"), (0, 15),
    ):  # fmt: skip
        q, k, v = rows(keys=LENGTH + past)
        yield {
            "q": q, "k": k, "v": v, "window": 20, "block": 16, "causal": causal,
            "keep": holes(LENGTH + past) if padded else None, "dropout": 0.0,
            "dilation": dilation, "behind": behind, "slopes": SLOPES if sloped else None,
            "beyond": None if beyond is None else global_keys(keep=beyond == "padded"),
        }  # fmt: skip


def key_sets(causal):
    """Yield unions of every kind of set, each with the number of keys before the first query."""
    size = {"rows": BATCH * HEADS, "length": LENGTH}
    for back, ahead in ((0, 0), (1, 0 if causal else 2)):
        yield (Blocks(**size, block=48, look_back=back, look_forward=ahead, causal=causal),), 0
    for pattern, stride in product(SparsePattern, (16, 130)):
        sparsity = Sparsity(pattern=pattern, stride=stride, summary=3, causal=causal)
        for first in (0, 1):
            yield sparsity.union(BATCH * HEADS, LENGTH, first=first), first
        yield (sparsity.near(BATCH * HEADS, LENGTH),), 0
        yield (sparsity.far(BATCH * HEADS, LENGTH, alone=True, part=1),), 0
    if not causal:
        yield (Rectangles(**size, classes=7, keys_length=189),), 19


def set_calls():
    """Yield calls of `union_attention`, with and without padding and slopes."""
    for causal, padded, sloped in product((False, True), repeat=3):
        for sets, more in key_sets(causal):
            q, k, v = rows(keys=LENGTH + more)
            keep = holes(LENGTH + more) if padded else None
            slopes = SLOPES if sloped else None
            yield {
                "q": q, "k": k, "v": v, "sets": sets, "keep": keep, "slopes": slopes,
                "dropout": 0.0,
            }  # fmt: skip


def list_calls():
    """Yield calls of `list_attention`: blocks of several sizes, whole and cut batches of lists."""
    generator = torch.Generator().manual_seed(3)
    for block, causal, padded, sloped in product(
        (32, 128, 256), (False, True), (False, True), (False, True)
    ):
        count = 9 if block == 32 else 7
        draws = torch.randint(1 << 20, (HEADS, count, 2), generator=generator)
        plan = BigBirdPlan(block=block, drawn=2, causal=causal, plan=PlanChoice.uniform)
        start = 0 if causal else 1
        counts = torch.tensor([count, count - 1] if padded and not causal else [count])
        lists = plan.lists(draws, counts, torch.arange(start, count))
        q, k, v = rows((count - start) * block, count * block)
        keep = holes(count * block) if padded else None
        yield {
            "q": q, "k": k, "v": v, "lists": lists, "keep": keep,
            "slopes": SLOPES if sloped else None, "dropout": 0.0,
        }  # fmt: skip


CALLS = {
    "window_attention": window_calls,
    "union_attention": set_calls,
    "list_attention": list_calls,
}
