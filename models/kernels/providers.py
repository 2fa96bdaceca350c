"""The table of public kernels: every operation that has one, and which is tried first."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib import import_module

from lra.models.kernels.kernel import PublicKernel

PROVIDERS = (
    "fla_gated",
    "fla_delta",
    "fla_features",
    "fla_levels",
    "fla_mesa",
    "fla_slots",
    "fla_attention",
    "convolution",
    "mamba_scan",
    "flex_attention",
)
"""Modules of adapters; each has a tuple `KERNELS`. Kernels of an operation are tried in order."""
WITHOUT: Mapping[str, str] = {
    "exponential_product": "chunk_simple_gla computes its decayed_product, of one more channel",
    "trapezoid_product": "chunk_simple_gla computes its decayed_product",
    "decayed_solve": "chunk_mesa_net returns what is read by the solution; least_squares has it",
    "slot_product": "chunk_gsa computes slot_attention as a whole",
    "log_linear_steps": "chunk_log_linear_attn has no gradient behind a state",
    "lstm": "PyTorch's LSTM already runs cuDNN",
    "chunk_linear_attn": "it is chunk_simple_gla without decays, which causal_product calls",
    "chunk_retention": "it is chunk_simple_gla with fixed decays; ours are `g_gamma`",
    "chunk_delta_rule": "chunk_gated_delta_rule computes it with decays of 1, in float32 too",
    "chunk_gated_delta_product": "delta_product knows no tokens: chunk_gated_delta_rule takes the "
    "rows of a token one after another",
    "chunk_gdn2": "delta_product knows keys, not gates of keys: chunk_dplr_delta_rule takes them",
    "chunk_rwkv6": "the family adds its bonus of the current key: decayed_product reads before "
    "the key by chunk_gla",
    "chunk_rwkv7": "it is chunk_dplr_delta_rule with a bound of the decays that borders of "
    "documents break",
    "parallel_moba": "it chooses blocks by itself, while our operation gets them chosen, and it "
    "waits for the device; parallel_nsa computes calls that it can",
    "flash-attn": "PyTorch's SDPA already runs flash or cuDNN attention, and FlexAttention has "
    "windows and slopes",
    "natten": "its windows keep their size at both ends of a sequence, and ours become shorter "
    "there; FlexAttention computes ours",
    "mlstm-kernels": "its NXAI Community License binds its users; chunk_simple_gla computes the "
    "same",
    "flashrnn": "its NXAI Community License binds its users, and it compiles by nvcc at the first "
    "call of each shape",
}
"""Why an operation, or a public kernel that could be named here, has no adapter."""


@lru_cache
def all_kernels() -> Mapping[str, Sequence[PublicKernel]]:
    """Return the kernels of each operation, first choice first. Imports no foreign package."""
    table: dict[str, list[PublicKernel]] = {}
    for name in PROVIDERS:
        for kernel in import_module(f"lra.models.kernels.{name}").KERNELS:
            table.setdefault(kernel.operation, []).append(kernel)
    return table


def sources() -> list[str]:
    """Return the modules that decide which form computes an operation."""
    return [f"models.kernels.{name}" for name in ("session", *PROVIDERS)]


def installed_versions() -> dict[str, str]:
    """Return the versions of the packages of kernels that are installed, by name."""
    every = [kernel for kernels in all_kernels().values() for kernel in kernels]
    return {kernel.package: kernel.version for kernel in every if kernel.version}
