import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from lra.models.contract.counting import count_operations, fake_tensors, saved_bytes


def test_a_product_counts_two_per_multiply_add():
    assert count_operations(lambda: torch.ones(2, 3) @ torch.ones(3, 5)) == 2 * 2 * 3 * 5


def test_a_linear_layer_and_its_backward():
    layer, x = nn.Linear(3, 5), torch.ones(7, 3, requires_grad=True)
    forward = 2 * 7 * 3 * 5
    assert count_operations(lambda: layer(x)) == forward
    assert count_operations(lambda: layer(x).sum().backward()) == 3 * forward


@pytest.mark.parametrize("length", [64, 2**17])
def test_fused_attention_counts_although_torch_leaves_it_out(length):
    with fake_tensors():
        q, k, v = (torch.empty(2, 3, length, 16, requires_grad=True) for _ in range(3))
        forward = count_operations(lambda: F.scaled_dot_product_attention(q, k, v))
        both = count_operations(lambda: F.scaled_dot_product_attention(q, k, v).sum().backward())
    one_product = 2 * 2 * 3 * length * length * 16
    assert forward == 2 * one_product
    assert both == (2 + 5) * one_product  # backward computes the scores again


@pytest.mark.parametrize(
    ("dtype", "fewer"), [(torch.float32, 0), (torch.float64, 2 * 7 * 4 * 5 * 5)],
    ids=["fused", "by steps"],
)  # fmt: skip
def test_a_recurrent_layer_counts_alike_whatever_computes_it(dtype, fewer):
    """By steps, nothing asks for the gradient of the first state."""
    layer = nn.LSTM(3, 5, batch_first=True, dtype=dtype)
    x = torch.ones(7, 11, 3, requires_grad=True, dtype=dtype)
    forward = 2 * 7 * 11 * 4 * 5 * (3 + 5)
    assert count_operations(lambda: layer(x)) == forward
    assert count_operations(lambda: layer(x)[0].sum().backward()) == 3 * forward - fewer


@pytest.mark.parametrize("length", [48, 2**14])
@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad, torch.inference_mode])
def test_what_torch_knows_is_counted_as_torch_counts_it(mode, length):
    with fake_tensors(), mode():
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        x = torch.empty(2, length, 16, requires_grad=mode is torch.enable_grad)
        filters = torch.empty(16, 4, 3)

        def run() -> None:
            y = F.conv1d(layer(x).mT, filters, groups=4).mT
            y = torch.einsum("bld,bmd->bm", y, torch.baddbmm(y, y @ y.mT, y)) @ y
            if y.requires_grad:
                y.sum().backward()

        with FlopCounterMode(display=False) as known:
            run()
        assert count_operations(run) == known.get_total_flops() > 0


def test_nothing_of_ours_costs_nothing():
    assert count_operations(lambda: torch.ones(100).exp().cumsum(0)) == 0


def test_saved_bytes_counts_each_storage_once():
    x = torch.ones(10, 4, requires_grad=True)
    assert saved_bytes(lambda: x.exp()) == 160  # its own output
    assert saved_bytes(lambda: (x * x.T.T) + x * x) == 160
    assert saved_bytes(lambda: x.sum()) == 0


def test_saved_bytes_leaves_out_what_would_be_there_anyway():
    layer, x = nn.Linear(4, 6), torch.ones(10, 4, requires_grad=True)
    assert saved_bytes(lambda: layer(x)) == 160 + 4 * 24
    assert saved_bytes(lambda: layer(x), layer.parameters()) == 160


def test_pretending_needs_no_memory():
    with fake_tensors():
        weights = torch.empty(2**20, 2**20, requires_grad=True)
        assert saved_bytes(lambda: weights.exp()) == 4 * 2**40
