"""Families whose operations public kernels compute: the same outputs as by our forms."""

from typing import Any
from unittest import mock

import pytest
import torch

from lra.models.families.cosformer import Cosformer
from lra.models.families.delta_net import DeltaNet
from lra.models.families.gated_delta_net import GatedDeltaNet
from lra.models.families.gla import GLA
from lra.models.families.hgrn2 import HGRN2
from lra.models.families.kimi_delta import KimiDelta
from lra.models.families.linear import LinearAttention
from lra.models.families.mamba2 import Mamba2
from lra.models.families.mamba3 import Mamba3
from lra.models.families.mesa_net import MesaNet
from lra.models.families.mlstm import MLSTM
from lra.models.families.performer import Performer
from lra.models.families.retnet import RetNet
from lra.models.families.rwkv6 import RWKV6
from lra.models.families.rwkv7 import RWKV7
from lra.models.families.slots import GatedSlots
from lra.models.kernels.providers import all_kernels
from lra.models.kernels.session import public_kernels
from lra.models.mixer import Layout
from tests.attention import builder, drawn, holes
from tests.models.kernels import literal_fla
from tests.models.kernels.fla_cases import in_place

LITERAL = {
    operation: [in_place(kernel, getattr(literal_fla, kernel.name)) for kernel in kernels]
    for operation, kernels in all_kernels().items()
    if all(hasattr(literal_fla, kernel.name) for kernel in kernels)
}
"""Kernels on a CPU."""
FAMILIES = [
    (RetNet, {}, "chunk_simple_gla"),
    (GLA, {}, "chunk_gla"),
    (HGRN2, {}, "chunk_gla"),
    (RWKV6, {}, "chunk_gla"),
    (Mamba2, {}, "chunk_simple_gla"),
    (Mamba3, {}, "chunk_simple_gla"),
    (MLSTM, {}, "chunk_simple_gla"),
    (DeltaNet, {}, "chunk_gated_delta_rule"),
    (DeltaNet, {"householders": 2}, "chunk_gated_delta_rule"),
    (GatedDeltaNet, {"negative_eigenvalues": True}, "chunk_gated_delta_rule"),
    (GatedDeltaNet, {"comba": True}, "chunk_comba"),
    (GatedDeltaNet, {"precondition": 1.5}, "own"),
    (KimiDelta, {}, "chunk_kda"),
    (RWKV7, {}, "own"),
    (GatedSlots, {}, "chunk_gsa"),
    (MesaNet, {}, "chunk_mesa_net"),
    (LinearAttention, {}, "chunk_simple_gla"),
    (Cosformer, {}, "chunk_simple_gla"),
    (Performer, {}, "chunk_simple_gla"),
]  # fmt: skip


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("family", "options", "form"),
    [pytest.param(*case, id=f"{case[0].__name__}-{'-'.join(case[1])}") for case in FAMILIES],
)
def test_a_family_computes_the_same_by_kernels(
    family: Any, options: dict[str, Any], form: str, causal: bool
) -> None:
    features = family in {LinearAttention, Cosformer, Performer}
    if not causal and (features or family is MesaNet):
        pytest.skip("reads in both directions by no recurrence")
    mixer = builder(family, causal=causal, moved=0.3, **options)().float()
    x, layout = drawn(2, 24, 12).float(), Layout(keep=holes(24))
    with (
        mock.patch("lra.models.ops.linear.feature_core.is_cheaper", return_value=False),
        torch.no_grad(),
    ):
        wanted = mixer(x, layout)
        with public_kernels(kernels=LITERAL) as session:
            found = mixer(x, layout)
    assert f" {form}" in session.description()
    real = layout.keep
    torch.testing.assert_close(found[real], wanted[real], atol=2e-3, rtol=2e-3)
