"""Eight bits beside torchao: the same codes and scales, and the same outputs to rounding."""

import pytest
import torch
from torch import nn

from models.compression.int8 import Int8Form, Int8Linear
from runners.external.peer import package

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),  # of its import: kernels of other machines
]


@pytest.mark.parametrize("form", [Int8Form.weight_only, Int8Form.dynamic])
@pytest.mark.parametrize("bias", [True, False])
def test_our_eight_bits_are_torchao_s(form: Int8Form, bias: bool) -> None:
    library = package("torchao.quantization")
    torch.manual_seed(0)
    theirs = nn.Sequential(nn.Linear(96, 48, bias=bias))
    ours = Int8Linear(theirs[0], form)
    kind = (
        library.Int8WeightOnlyConfig
        if form is Int8Form.weight_only
        else library.Int8DynamicActivationInt8WeightConfig
    )
    library.quantize_(theirs, kind())
    assert torch.equal(ours.codes, theirs[0].weight.qdata)
    assert torch.equal(ours.scale, theirs[0].weight.scale[:, 0])
    x = torch.randn(3, 7, 96)
    torch.testing.assert_close(ours(x), theirs(x), rtol=1e-5, atol=1e-5)
