"""Eight bits beside torchao, the decomposition of heads beside tensorly."""

import pytest
import torch
from torch import nn

from lra.models.compression.canonical import CanonicalFactors, decompose_heads
from lra.models.compression.int8 import Int8Form, Int8Linear
from peers.peer import package

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


@pytest.mark.parametrize("rank", [6, 16])
def test_our_decomposition_is_tensorly_s(rank: int) -> None:
    """The same errors from the same start, and smaller ones from ours."""
    library, decompositions = package("tensorly"), package("tensorly.decomposition")
    library.set_backend("pytorch")
    draw = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    q, k = drawn(4, 8, 24), drawn(4, 8, 24)
    whole = torch.stack([q[head].T @ k[head] for head in range(4)], dim=1)
    factors = [drawn(side, rank) for side in (24, 4, 24)]
    ours = decompose_heads(
        q, k, rank, sweeps=30, tolerance=0.0, start=CanonicalFactors(*factors, errors=())
    )
    start = package("tensorly.cp_tensor").CPTensor((torch.ones(rank).double(), factors))
    _, errors = decompositions.parafac(
        whole, rank=rank, init=start, n_iter_max=30, tol=0, return_errors=True
    )
    assert ours.errors[-1] == pytest.approx(float(errors[-1]), rel=1e-6)
    from_heads = decompose_heads(q, k, rank, sweeps=30, tolerance=0.0)
    assert from_heads.errors[-1] < ours.errors[-1]
