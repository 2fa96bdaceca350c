"""Eight bits by torchao, and the decomposition of heads beside tensorly."""

import pytest
import torch

from lra.models.compression.canonical import CanonicalFactors, decompose_heads
from lra.models.compression.int8 import Int8Form
from lra.runners.measures.compress import CompressionMethod
from peers.peer import package
from tests.runners.measures.test_compress import by_variant, rows

pytestmark = [
    pytest.mark.parity,
    pytest.mark.filterwarnings("ignore"),  # of its import: kernels of other machines
]


@pytest.mark.parametrize("form", list(Int8Form))
def test_torchao_s_eight_bits_are_a_smaller_file_of_the_same_operations(form: Int8Form) -> None:
    package("torchao.quantization")
    found = rows(method=CompressionMethod.int8, form=form)
    one, other = ("0", "trained"), ("8", "compressed")
    sizes = by_variant(found, "disk_bytes", storage="dense")
    maps = 2 * 6 * 16 * 16 + 3 * 16
    assert 2 * maps < sizes[one] - sizes[other] < 3 * maps  # less scales, and names of tensors
    for metric in ("parameters", "flops"):
        counted = by_variant(found, metric)
        assert counted[one] == counted[other]
    losses = by_variant(found, "loss", split="validation")
    assert 0 < abs(losses[one] - losses[other]) < 0.05


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
