"""A kernel that computes something else is refused, with the errors found and allowed."""

import re
from dataclasses import replace
from typing import Any

import pytest
import torch
from fake_kernels import DECAYED, DELTA, WRONG, planted
from torch import Tensor

from lra.models.kernels.comparison import difference, signature
from lra.models.kernels.kernel import PublicKernel
from lra.models.ops.gated.decayed_product import Reads, decayed_product
from lra.models.ops.gated.delta_product import delta_product

OWN = {"decayed_product": decayed_product.__wrapped__, "delta_product": delta_product.__wrapped__}
NUMBERS = r"differs by \S+ of the largest value and by \S+ in the mean \(allowed: \S+ and \S+\)"


def call_of(
    kernel: PublicKernel,
    dtype: torch.dtype = torch.float32,
    *,
    grad: bool = True,
    channels: bool = False,
) -> dict[str, Any]:
    """Return the arguments of a call: zeros, because the comparison draws its inputs."""

    def zeros(*shape: int) -> Tensor:
        return torch.zeros(2, 3, 300, *shape, dtype=dtype).requires_grad_(grad)

    call = {"q": zeros(8), "k": zeros(8), "v": zeros(8), "g": zeros(8) if channels else zeros()}
    options: dict[str, Any] = {"state": None, "chunk": 32, "keep": None}
    if kernel.operation == "decayed_product":
        return {**call, **options, "reads": Reads.after}
    order = {name: call[name] for name in ("q", "k")} | {"w": zeros(8)}
    return {**order, "v": call["v"], "g": call["g"], "u": None, **options, "early": False}


def found(kernel: PublicKernel, **call: Any) -> str:
    return difference(kernel, OWN[kernel.operation], call_of(kernel, **call))


@pytest.mark.parametrize("kernel", [DECAYED, DELTA], ids=lambda kernel: kernel.operation)
@pytest.mark.parametrize("call", [{}, {"grad": False}, {"channels": True}], ids=str)
def test_a_kernel_that_agrees_is_accepted(kernel: PublicKernel, call: dict[str, bool]) -> None:
    assert found(kernel, **call) == ""


def test_a_kernel_in_bfloat16_may_round() -> None:
    assert found(DECAYED, dtype=torch.bfloat16) == ""


@pytest.mark.share(2)
@pytest.mark.parametrize("kernel", [DECAYED, DELTA], ids=lambda kernel: kernel.operation)
@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_wrong_kernel_is_refused(kernel: PublicKernel, wrong: str, dtype: torch.dtype) -> None:
    why = found(planted(kernel, wrong), dtype=dtype)
    if wrong == "shape":
        assert "output 1 has shape (1, 256, 3, 8), ours (1, 3, 256, 8)" in why
        return
    assert re.search(NUMBERS, why), why
    assert ("output" in why) is (wrong != "gradient")
    if wrong == "state":
        assert why.startswith("output 2 differs")
    if wrong == "gradient":
        assert why.startswith("gradient of g differs")


def test_a_kernel_that_stops_is_refused_with_its_error() -> None:
    def stop(function: Any, **_: Any) -> None:
        raise RuntimeError("no shared memory left\nat line 3")

    assert found(replace(DECAYED, call=stop)) == "stopped with RuntimeError: no shared memory left"


def test_one_comparison_holds_for_other_lengths_and_batches_alone() -> None:
    call = call_of(DECAYED)

    def kind(**changed: Any) -> object:
        return signature("decayed_product", {**call, **changed})

    longer = {name: torch.zeros(4, 3, 999, 8).requires_grad_() for name in "qkv"}
    longer["g"] = torch.zeros(4, 3, 999).requires_grad_()
    assert kind(**longer) == kind()
    for changed in (
        {"reads": Reads.before},
        {"q": call["q"].bfloat16()},
        {"q": call["q"].detach()},
        {"v": torch.zeros(2, 3, 300, 16).requires_grad_()},
        {"keep": torch.ones(2, 300, dtype=torch.bool)},
        {"state": torch.zeros(2, 3, 8, 8)},
    ):
        assert kind(**changed) != kind(), changed
    with_gradients = kind()
    with torch.no_grad():
        assert kind() != with_gradients


def test_inputs_of_a_comparison_leave_random_numbers_of_a_run_alone() -> None:
    torch.manual_seed(3)
    wanted = torch.rand(4)
    torch.manual_seed(3)
    assert found(DECAYED) == ""
    assert torch.equal(torch.rand(4), wanted)
