"""A pass without contents: operations, bytes and peak memory, by hand and beside a real pass."""

import time

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from lra.models.contract.counting import count_operations
from lra.models.contract.trace import CAUSAL, Operator, Tracer
from lra.models.device_kind import assume_device_kind, device_kind
from lra.runners.measurement.measure import peak_tensor_bytes

CPU = torch.device("cpu")


def traced(build, shape, *, kind="cpu", train=True):
    """Trace a module on an input of a shape, and the same with contents: the two as a pair."""
    with torch.device("meta"):
        layer, x = build(), torch.empty(shape)

    def call(layer, x):
        with torch.set_grad_enabled(train):
            out = layer(x).sum()
            if train:
                torch.autograd.backward(out)

    real, y = build(), torch.randn(shape)
    return Tracer(kind).trace(lambda: call(layer, x)), lambda: call(real, y)


def test_a_linear_layer_by_hand():
    with torch.device("meta"):
        layer, x = nn.Linear(3, 5), torch.empty(7, 3)
    trace = Tracer("cpu").trace(lambda: layer(x))
    # input, weight and bias are read, the output is written, 4 bytes each
    moved = 4 * (7 * 3 + 3 * 5 + 5 + 7 * 5)
    assert trace.calls == {Operator("addmm", 2 * 7 * 3 * 5, moved): 1}
    assert (trace.operations, trace.moved, trace.views) == (2 * 7 * 3 * 5, moved, 1)
    assert trace.peak_bytes == 4 * 7 * 5


def test_what_is_freed_makes_room():
    x = torch.empty(1000, device="meta")

    def chain():
        y = x
        for _ in range(10):
            y = y + 1.0

    trace = Tracer("cpu").trace(chain)
    assert trace.calls == {Operator("add", 0, 8000): 10}
    assert trace.peak_bytes == 2 * 4000  # the one that is read and the one that is written


def test_an_expanded_tensor_is_read_once():
    x = torch.empty(1, 10, device="meta").expand(1000, 10)
    (call,) = Tracer("cpu").trace(lambda: x * 2.0).calls
    assert call.moved == 4 * (10 + 1000 * 10)


def block():
    """A layer with a norm, two products, a nonlinearity and a sum."""
    return nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, activation="gelu", batch_first=True)


@pytest.mark.parametrize("train", [True, False])
def test_operations_and_peak_are_those_of_a_real_pass(train):
    trace, real = traced(block, (3, 50, 16), train=train)
    assert trace.operations == count_operations(real)
    if not train:
        assert trace.peak_bytes == pytest.approx(peak_tensor_bytes(real, CPU), rel=0.05)


def test_the_peak_of_a_training_step_is_the_allocators():
    def step(x):
        y = (x.relu() * x).softmax(-1)
        torch.autograd.backward((y.cumsum(0) @ x.detach().T).sum())

    real, meta = (torch.zeros(500, 64, requires_grad=True, device=d) for d in (CPU, "meta"))
    trace = Tracer("cpu").trace(lambda: step(meta))
    assert trace.peak_bytes == pytest.approx(peak_tensor_bytes(lambda: step(real), CPU), rel=0.02)


def test_what_was_seen_before_is_counted_again_as_it_is():
    with torch.device("meta"):
        layer, x = block(), torch.empty(3, 50, 16)
    tracer = Tracer("cpu")

    def step():
        layer.zero_grad(set_to_none=True)
        torch.autograd.backward(layer(x).sum())

    assert tracer.trace(step) == tracer.trace(step) == Tracer("cpu").trace(step)


def test_numbers_of_other_types_make_other_tensors():
    x = torch.empty(3, dtype=torch.long, device="meta")
    made = []
    tracer = Tracer("cpu")
    tracer.trace(lambda: made.extend((x * 1, x * 1.0, x * True)))
    assert [each.dtype for each in made] == [torch.long, torch.float32, torch.long]


def test_a_pass_that_takes_too_long_is_given_up():
    x, until = torch.empty(4, device="meta"), time.monotonic() + 0.05

    def forever():
        while True:
            x.mul(2.0)

    with pytest.raises(TimeoutError, match="too many operators to record in time"):
        Tracer("cpu").trace(forever, until=until)


def test_in_place_operators_return_what_they_changed():
    x = torch.empty(4, device="meta")
    tracer = Tracer("cpu")
    for _ in range(2):
        found = []
        trace = tracer.trace(lambda found=found: found.append(x.add_(1.0)))
        assert found[0] is x or found[0].data_ptr() == x.data_ptr()
        assert trace.peak_bytes == 0


@pytest.mark.parametrize(("kind", "dropout", "fused"), [
    ("cpu", 0.0, True), ("cpu", 0.1, False), ("cuda", 0.1, True),
])  # fmt: skip
def test_fused_attention_is_taken_where_a_device_takes_it(kind, dropout, fused):
    before = F.scaled_dot_product_attention
    q = torch.empty(2, 2, 100, 8, device="meta", requires_grad=True)
    trace = Tracer(kind).trace(lambda: F.scaled_dot_product_attention(q, q, q, None, dropout))
    assert any("flash" in call.name for call in trace.calls) == fused
    assert (trace.peak_bytes < 4 * 2 * 2 * 100 * 100) == fused
    assert F.scaled_dot_product_attention is before


@pytest.mark.parametrize("causal", [False, True])
def test_fused_attention_says_that_it_is_causal(causal):
    """In both passes; the operations are those of all pairs."""
    q = torch.empty(2, 2, 100, 8, device="meta", requires_grad=True)

    def step():
        F.scaled_dot_product_attention(q, q, q, is_causal=causal).sum().backward()

    trace = Tracer("cpu").trace(step)
    names = [call.name for call in trace.calls if call.operations]
    assert [name.endswith(CAUSAL) for name in names] == 2 * [causal]
    assert trace.operations == (2 + 5) * 2 * 2 * 2 * 100 * 100 * 8


def test_a_shape_that_depends_on_contents_is_an_error():
    x = torch.empty(4, device="meta")
    with pytest.raises((RuntimeError, NotImplementedError)):
        Tracer("cpu").trace(lambda: x.nonzero())


def test_work_is_cut_as_on_the_device_that_is_meant():
    meta = torch.device("meta")
    assert device_kind(meta) == "meta"
    with assume_device_kind("cpu"):
        assert (device_kind(meta), device_kind(CPU)) == ("cpu", "cpu")
        with assume_device_kind("cuda"):
            assert device_kind(meta) == "cuda"
        assert device_kind(meta) == "cpu"
