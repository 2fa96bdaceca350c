"""Eight bits by torchao, and the decomposition of heads beside tensorly."""

import pytest
import torch

from lra.models.compression.canonical import CanonicalFactors, decompose_heads
from lra.models.compression.int8 import Int8Form
from lra.models.compression.linear_maps import linear_maps
from lra.runners.measures.compress import CompressionMethod
from peers.peer import package
from tests.runners.measures.test_compress import build, by_variant, rows

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


def test_zeros_of_eight_bits_stand_next_to_those_of_floats() -> None:
    package("torchao.quantization")
    measured = rows(method=CompressionMethod.int8, amounts=[0.25, 0.9])
    by_method = {
        method: [row for row in measured if row.labels["method"] == method]
        for method in ("int8", "magnitude", "int8+magnitude")
    }
    maps = sum(layer.weight.numel() for layer in linear_maps(build()).values())
    zeros, sizes = dict[tuple[str, str], float](), dict[tuple[str, str], float]()
    for method, of_method in by_method.items():
        numbers, nonzero = (by_variant(of_method, m) for m in ("parameters", "nonzero_parameters"))
        files = by_variant(of_method, "disk_bytes", storage="sparse")
        assert len(by_variant(of_method, "loss", split="test")) == len(files) == len(nonzero)
        assert len(by_variant(of_method, "compressed_time_ratio")) == len(files)
        zeros |= {(method, key[0]): numbers[key] - nonzero[key] for key in numbers}
        sizes |= {(method, key[0]): files[key] for key in files}
    assert zeros.keys() == {
        ("int8", "0"), ("int8", "8"),
        *((method, amount) for method in ("magnitude", "int8+magnitude")
          for amount in ("0.25", "0.9")),
    }  # fmt: skip
    for amount in ("0.25", "0.9"):
        added = zeros["magnitude", amount] - zeros["int8", "0"]
        coded = zeros["int8+magnitude", amount] - zeros["int8", "0"]
        assert added == pytest.approx(float(amount) * maps, abs=13)
        assert coded >= added
    # The header names all tensors of a quantised model, so only files of its kind compare.
    coded_sizes = [sizes["int8", "8"], *(sizes["int8+magnitude", a] for a in ("0.25", "0.9"))]
    assert coded_sizes == sorted(coded_sizes, reverse=True)
    assert coded_sizes[0] - coded_sizes[2] > 0.6 * maps


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
