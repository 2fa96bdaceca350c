"""Peers in flash-linear-attention: its literal forms, each file loaded by itself.

The package imports kernels that want a GPU; these files want torch and einops alone.
"""

import importlib.util
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from lra.models.families.based import Based
from lra.models.families.forgetting import Forgetting
from lra.models.families.mesa_net import least_squares
from lra.models.families.rwkv6 import bonus_product
from lra.models.ops.gated.delta_product import delta_product
from lra.models.ops.gated.head_norm import unit_heads
from lra.models.ops.gated.layer import Borders
from lra.models.ops.gated.precondition import Preconditioner
from lra.models.ops.gated.slot_product import slot_attention
from lra.models.ops.reflections import path_attention, reflections
from peers.peer import Missing, Peer, PeerCase, PeerPair, core_of

BY_ITSELF = "no extra brings it: pip install --no-deps fla-core, and einops"
OPEN = 3.0
"""Added to the logits of forget gates: a half of each would leave a query a few keys."""


def file_of(name: str, file: str = "naive") -> Any:
    """Load one file of the package. Raises `Missing` where that or einops is absent."""
    package = importlib.util.find_spec("fla")
    if package is None or package.origin is None or importlib.util.find_spec("einops") is None:
        raise Missing(f"fla or einops is not installed; {BY_ITSELF}")
    path = Path(package.origin).parent / "ops" / name / f"{file}.py"
    spec = importlib.util.spec_from_file_location(f"fla_{name}_{file}", path)
    if spec is None or spec.loader is None:
        raise Missing(f"{path} is no module; {BY_ITSELF}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def forgetting(case: PeerCase) -> PeerPair:
    """`naive_forgetting_attn`, whose sums and products are in float32."""
    peer = file_of("forgetting_attn")
    core = core_of(Forgetting(replace(case.site(), causal=True)), case)

    def gates(x: Tensor) -> Tensor:
        return F.logsigmoid(x[..., :1] + OPEN)

    def ours(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        return core(q, torch.cat((k, gates(x)), -1), v)

    def theirs(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        q, k, v, g = (each.transpose(1, 2) for each in (q, k, v, gates(x)))
        out: Tensor = peer.naive_forgetting_attn(q, k, v, g[..., 0])
        return out.transpose(1, 2).to(q.dtype)

    return PeerPair(ours, theirs, case.heads_of_inputs(4))


def based(case: PeerCase) -> PeerPair:
    """`naive_parallel_based`, with all weights."""
    peer = file_of("based")
    site = replace(case.site(), causal=True)
    ours = core_of(Based(site, feature_width=case.head_width), case)
    return PeerPair(ours, peer.naive_parallel_based, case.heads_of_inputs())


def mesa_net(case: PeerCase) -> PeerPair:
    """`naive_mesa_net_exact`, by elimination, a matrix for each token."""
    peer = file_of("mesa_net")
    shape = case.heads, case.head_width
    ridge = torch.linspace(0.25, 1, shape[0] * shape[1], dtype=case.dtype, device=case.device)

    def parts(*streams: Tensor) -> tuple[Tensor, ...]:
        q, k, v, x = streams
        gates = F.logsigmoid(x[..., 0] + OPEN)
        return unit_heads(q), unit_heads(k), v, x[..., 1].sigmoid(), gates

    def ours(*streams: Tensor) -> Tensor:
        return least_squares(*parts(*streams), ridge=ridge.view(shape))[0]

    def theirs(*streams: Tensor) -> Tensor:
        q, k, v, beta, g = (each.transpose(1, 2) for each in parts(*streams))
        o: Tensor = peer.naive_mesa_net_exact(q, k, v, g, ridge.view(shape), beta)[0]
        return o.transpose(1, 2).to(v.dtype)

    return PeerPair(ours, theirs, case.heads_of_inputs(4))


def path(case: PeerCase) -> PeerPair:
    """`naive_path_attn`, whose gates are divided by the root of the head width like scores."""
    peer, scale = file_of("path_attn"), case.head_width**-0.5

    def parts(*streams: Tensor) -> tuple[Tensor, ...]:
        q, k, v, w, x = streams
        beta, g = 2 * x[..., 0].sigmoid(), F.logsigmoid(x[..., 1] + OPEN)
        return q, k, v, unit_heads(w), beta, g

    def ours(*streams: Tensor) -> Tensor:
        q, k, v, w, beta, g = parts(*streams)
        return path_attention(reflections(q, k, w, beta, chunk=64), v, g=g * scale)

    def theirs(*streams: Tensor) -> Tensor:
        out: Tensor = peer.naive_path_attn(*(x.transpose(1, 2) for x in parts(*streams)), scale)
        return out.transpose(1, 2)

    return PeerPair(ours, theirs, case.heads_of_inputs(5))


def rwkv6(case: PeerCase) -> PeerPair:
    """`naive_recurrent_rwkv6`, a loop over tokens."""
    peer = file_of("rwkv6", "recurrent_naive")
    shape = case.heads, case.head_width
    bonus = torch.linspace(-1, 1, shape[0] * shape[1], dtype=case.dtype, device=case.device)

    def ours(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        g = F.logsigmoid(x + OPEN)
        return bonus_product(q, k, v, g, bonus, borders=Borders(None, None))[0]

    def theirs(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        g = F.logsigmoid(x + OPEN)
        o: Tensor = peer.naive_recurrent_rwkv6(q, k, v, g, bonus.view(shape), scale=1.0)[0]
        return o.to(v.dtype)

    return PeerPair(ours, theirs, case.heads_of_inputs(4))


def gated_delta_net2(case: PeerCase, form: str) -> PeerPair:
    """`naive_recurrent_gdn2` and `naive_chunk_gdn2`, in float32."""
    peer = getattr(file_of("gdn2"), f"naive_{form}_gdn2")

    def parts(*streams: Tensor) -> list[Tensor]:
        q, k, v, g, b, w = streams
        return [unit_heads(q), unit_heads(k), v, F.logsigmoid(g + OPEN), b.sigmoid(), w.sigmoid()]

    def ours(*streams: Tensor) -> Tensor:
        q, k, v, g, b, w = parts(*streams)
        return delta_product(q * case.head_width**-0.5, b * k, k, w * v, g)[0]

    def theirs(*streams: Tensor) -> Tensor:
        o: Tensor = peer(*(each.transpose(1, 2) for each in parts(*streams)))[0]
        return o.transpose(1, 2)

    return PeerPair(ours, theirs, case.heads_of_inputs(6))


def slots(case: PeerCase) -> PeerPair:
    """`naive_recurrent_gsa`, two loops over tokens; as many slots as channels of a head."""
    peer = file_of("gsa")

    def ours(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        g = F.logsigmoid(x + OPEN)
        return slot_attention(q, k, v, -torch.expm1(g), g)[0]

    def theirs(q: Tensor, k: Tensor, v: Tensor, x: Tensor) -> Tensor:
        g = F.logsigmoid(x + OPEN)
        streams = [each.transpose(1, 2) for each in (q, k, v, -torch.expm1(g), g)]
        o: Tensor = peer.naive_recurrent_gsa(*streams, scale=1.0)[0]
        return o.transpose(1, 2).to(v.dtype)

    return PeerPair(ours, theirs, case.heads_of_inputs(4))


def preconditioned(case: PeerCase, name: str, vector: bool) -> PeerPair:
    """`naive_recurrent_precond_gated_delta_rule` and `naive_recurrent_precond_kda`."""
    peer = getattr(file_of(name), f"naive_recurrent_{name}")
    site = replace(case.site(), causal=True)
    layer = case.placed(Preconditioner(site, 1.5, slowest=1))
    borders = Borders(None, None)

    def parts(*streams: Tensor) -> tuple[Tensor, ...]:
        q, k, v, x = streams
        g = F.logsigmoid(x + OPEN)
        return unit_heads(q), unit_heads(k), v, x[..., 1].sigmoid(), g if vector else g[..., 0]

    def ours(*streams: Tensor) -> Tensor:
        q, k, v, beta, g = parts(*streams)
        x = streams[3].transpose(1, 2).flatten(2)
        factors, _ = layer(x, k, layer.empty(len(k)), borders)
        w = beta[..., None] * factors * k
        return delta_product(q * case.head_width**-0.5, k, w, v, g)[0]

    def theirs(*streams: Tensor) -> Tensor:
        x = streams[3].transpose(1, 2).flatten(2)
        g_atk = -layer.log_rate.exp() * F.softplus(layer.decay_map(x) + layer.step_bias)
        q, k, v, beta, g = (each.transpose(1, 2) for each in parts(*streams))
        o: Tensor = peer(
            q=q, k=k, v=v, g=g, beta=beta, g_atk=g_atk, beta_atk=layer.rate_map(x).sigmoid(),
            log_atk_scale=layer.centre,
        )[0]  # fmt: skip
        return o.to(v.dtype)

    return PeerPair(
        ours, lambda *streams: theirs(*streams).transpose(1, 2), case.heads_of_inputs(4)
    )


def comba(case: PeerCase) -> PeerPair:
    """`naive_chunk_comba`, whose error is against the undecayed state, as the paper's."""
    peer = file_of("comba")

    def parts(*streams: Tensor) -> tuple[Tensor, ...]:
        q, k, v, x = streams
        k = unit_heads(k)
        p = 0.73 * k
        return unit_heads(q) - p, k, v, p, x[..., 0].sigmoid(), F.logsigmoid(x[..., 1])

    def ours(*streams: Tensor) -> Tensor:
        q, k, v, p, beta, g = parts(*streams)
        return delta_product(q * case.head_width**-0.5, p, beta[..., None] * k, v, g, early=True)[0]

    def theirs(*streams: Tensor) -> Tensor:
        q, k, v, p, beta, g = (each.transpose(1, 2) for each in parts(*streams))
        o: Tensor = peer.naive_chunk_comba(q, k, v, p, g=g, beta=beta)[0]
        return o.transpose(1, 2).to(v.dtype)

    return PeerPair(ours, theirs, case.heads_of_inputs(4))


of_fla = partial(
    Peer, distribution="fla-core", causal=True, tolerance=1e-5, rounding=2e-4, way_out=BY_ITSELF
)
"""A peer in that package: all compute in float32, looking back."""

PEERS = (
    of_fla(
        name="fla naive_forgetting_attn",
        family="forgetting",
        setting="gates about 0.95, looking back",
        make=forgetting,
        note="its literal form, in float32",
    ),
    of_fla(
        name="fla naive_parallel_based",
        family="based",
        setting="features of whole heads, looking back",
        make=based,
        note="its literal form, with 1e-6 added to sums of weights",
    ),
    of_fla(
        name="fla naive_mesa_net_exact",
        family="mesa_net",
        setting="gates about 0.95, 30 steps",
        make=mesa_net,
        bidirectional=False,
        note="its literal form, solved by elimination in float32",
    ),
    of_fla(
        name="fla naive_path_attn",
        family="path",
        setting="gates about 0.95, beta to 2, looking back",
        make=path,
        bidirectional=False,
        note="its literal form, in float32, with gates divided by the root of the head width",
    ),
    of_fla(
        name="fla naive_recurrent_rwkv6",
        family="rwkv6",
        setting="gates about 0.95, with a bonus",
        make=rwkv6,
        bidirectional=False,
        note="its literal form, a loop over tokens in float32",
    ),
    *(
        of_fla(
            name=f"fla naive_{form}_gdn2",
            family="gated_delta_net2",
            setting="gates about 0.95",
            make=partial(gated_delta_net2, form=form),
            bidirectional=False,
            note=note,
        )
        for form, note in (
            ("recurrent", "its literal form, a loop over tokens in float32"),
            ("chunk", "its form in chunks, in float32"),
        )
    ),
    of_fla(
        name="fla naive_recurrent_gsa",
        family="slots",
        setting="gates about 0.95, a slot for each channel",
        make=slots,
        bidirectional=False,
        note="its literal form, two loops over tokens in float32",
    ),
    of_fla(
        name="fla naive_chunk_comba",
        family="gated_delta_net",
        setting="comba, gates about a half",
        make=comba,
        bidirectional=False,
        note="its form in chunks, in float32; its loop over tokens decays before it reads",
    ),
    *(
        of_fla(
            name=f"fla naive_recurrent_{name}",
            family=family,
            setting="precondition 1.5, gates about 0.95",
            make=partial(preconditioned, name=name, vector=family == "kimi_delta"),
            bidirectional=False,
            note="its literal form, a loop over tokens in float32",
        )
        for family, name in (
            ("gated_delta_net", "precond_gated_delta_rule"),
            ("kimi_delta", "precond_kda"),
        )
    ),
)
