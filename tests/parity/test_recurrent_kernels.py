"""Adapters of public kernels, with the package's literal form of each kernel in its place."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from lra.models.kernels.providers import WITHOUT, all_kernels
from peers.flash_linear import file_of
from tests.models.kernels.fla_cases import CASES, Draws, check_equal

pytestmark = pytest.mark.parity

Result = tuple[Any, ...]


def simple_gla(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, g_gamma: Tensor | None = None,
    **options: Any,
) -> Result:  # fmt: skip
    if g is None:
        g = q.new_zeros(q.shape[:3]) if g_gamma is None else g_gamma.expand(q.shape[:3])
    return file_of("simple_gla").naive_recurrent_simple_gla(q, k, v, g, **options)


def gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor, scale: float, **options: Any) -> Result:
    q = q * (scale * q.shape[-1] ** 0.5)  # theirs multiplies by the inverse of the root
    return file_of("gla").naive_recurrent_gla(q, k, v, g, **options)


def gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, **options: Any
) -> Result:
    return file_of("gated_delta_rule").naive_recurrent_gated_delta_rule(q, k, v, beta, g, **options)


def kda(*args: Tensor, **options: Any) -> Result:
    return file_of("kda").naive_recurrent_kda(*args, **options)


def comba(*args: Tensor, **options: Any) -> Result:
    # The recurrent form reads by p after the decay; the kernel, as this form, before.
    return file_of("comba").naive_chunk_comba(*args, **options)


def dplr(*args: Tensor, gk: Tensor, scale: float, **options: Any) -> Result:
    q, *rows = (x.transpose(1, 2) for x in (*args, gk))
    q = q * (scale * q.shape[-1] ** 0.5)
    o, state = file_of("generalized_delta_rule/dplr").dplr_recurrence(q, *rows, **options)
    return o.transpose(1, 2), state


def log_linear(*args: Tensor, **options: Any) -> Result:
    wide = (x.float() for x in args)
    return file_of("log_linear_attn").naive_log_linear_attn(*wide, **options), None


def gsa(*args: Tensor, **options: Any) -> Result:
    return file_of("gsa").naive_recurrent_gsa(*args, **options)


def mesa_net(
    *args: Tensor, output_final_state: bool, max_CG_iteration: int, **options: Any
) -> Result:
    assert output_final_state
    assert max_CG_iteration == 30  # solved exactly here
    return file_of("mesa_net").naive_mesa_net_exact(*args, **options)


NAIVE: dict[str, Callable[..., Result]] = {
    "chunk_simple_gla": simple_gla,
    "chunk_gla": gla,
    "chunk_gated_delta_rule": gated_delta_rule,
    "chunk_kda": kda,
    "chunk_comba": comba,
    "chunk_dplr_delta_rule": dplr,
    "chunk_log_linear_attn": log_linear,
    "chunk_gsa": gsa,
    "chunk_mesa_net": mesa_net,
}
KINDS = [
    pytest.param(name, mask, state, id=f"{name}-{mask}-{'state' if state else 'start'}")
    for name, case in CASES.items()
    for mask in case.masks
    for state in (True, False)
    if case.states or not state
]


@pytest.mark.parametrize(("name", "mask", "state"), KINDS)
def test_our_form_is_the_packages_literal_form(name: str, mask: str, state: bool) -> None:
    case = CASES[name]
    check_equal(case, NAIVE[case.function], Draws(mask=mask, with_state=state))


@pytest.mark.parametrize("name", CASES)
def test_they_agree_in_half_precision(name: str) -> None:
    case = CASES[name]
    check_equal(case, NAIVE[case.function], Draws(torch.bfloat16, with_state=case.states))


def test_features_without_a_logarithm_are_linear_attention() -> None:
    """`chunk_linear_attn` is the kernel that is called here, without decays."""

    def linear_attention(q: Tensor, k: Tensor, v: Tensor, g: None, **options: Any) -> Result:
        return file_of("linear_attn").naive_recurrent_linear_attn(q, k, v, **options)

    check_equal(CASES["feature sums"], linear_attention, Draws())


def test_every_kernel_of_the_package_has_a_literal_form_here() -> None:
    named = {
        kernel.name
        for kernels in all_kernels().values()
        for kernel in kernels
        if kernel.package == "fla-core"
        and kernel.operation in {c.own.__name__ for c in CASES.values()}
    }
    assert named == set(NAIVE)
    assert not named & set(WITHOUT)
