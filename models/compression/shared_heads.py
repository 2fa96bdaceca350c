"""Heads of a trained model on shared queries and keys: each layer's products decomposed.

The scores of a layer of softmax attention go by the products Q_i' K_i of its heads and by what the
biases of its queries add, W_K,i' b_Q,i for each key; the biases of its keys add the same to every
key of a query, which the softmax takes out. So the products are decomposed
(`lra.models.compression.canonical`), the content biases computed, and values and output taken as
they are. Scores keep their scale 1 / sqrt(d_k), that of the heads they stand for.

Source: Cordonnier et al. 2020, arXiv:2006.16362, section 3. Its released code divides converted
scores by another number, sqrt(D~ / h), although what is decomposed is the unscaled product.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from lra.models.backbone.model import Backbone
from lra.models.backbone.stack import family
from lra.models.compression.canonical import decompose_heads
from lra.models.compression.head_importance import attention_layers, heads_of
from lra.models.mixer import Positions, Site, Unsupported
from lra.models.multi_head import MultiHead


class SharedScores(NamedTuple):
    """What a layer's scores are made of, to be divided by sqrt(head_width)."""

    queries: Float[Tensor, "r d"]
    keys: Float[Tensor, "r d"]
    mixing: Float[Tensor, "h r"]
    content: Float[Tensor, "h d"]
    """What a token as a key adds to the scores of each head."""
    head_width: int


Make = Callable[[Site, SharedScores, MultiHead], nn.Module]
"""Builds the mixer of shared heads at a site, with values and output of the one it replaces."""


def share_heads(
    model: Backbone,
    share: float,
    make: Make,
    *,
    families: tuple[type, ...],
) -> dict[int, tuple[int, float]]:
    """Put shared heads in the place of a model's layers of softmax attention.

    Args:
        model: Changed.
        share: Shared columns, as a share of the columns of all heads; 1 is exact.
        make: Builds a mixer.
        families: Whose layers are softmax attention.

    Returns:
        By layer, the shared columns and the relative error of the products.

    Raises:
        ValueError: The share is none, or leaves no column.
        Unsupported: A layer is not softmax attention of heads with keys of their own, or has
            positions inside; nothing was changed.
    """
    check_share(share)
    layers = attention_layers(model)
    blocks = cast(Any, model.stack).blocks
    if len({*blocks}) != len(layers):
        raise Unsupported(
            "shared heads need attention heads in every layer: this model has layers without "
            "heads; choose one family of softmax attention for all layers"
        )
    for at, mixer in layers.items():
        _check(at, mixer, families)
    achieved = {}
    for at, mixer in layers.items():
        heads, width = heads_of(mixer), mixer.key_width
        rank = max(1, round(share * heads * width))
        scores, error = shared_scores(mixer, rank)
        site = Site(
            width=model.config.width,
            heads=heads,
            own_head_width=mixer.head_width,
            max_length=model.facts.max_length + model.has_cls,
            causal=model.causal,
            layer=at,
            depth=len(blocks),
            attention_dropout=model.config.attention_dropout,
            cls=model.has_cls,
            qkv_bias=mixer.v_proj.bias is not None,
            output_bias=mixer.out_proj.bias is not None,
        )
        replacement = make(site, scores, mixer).to(mixer.out_proj.weight).train(mixer.training)
        for block in blocks:
            if block.mixer is mixer:
                block.mixer = replacement
        achieved[at] = (rank, error)
    return achieved


def check_share(share: float) -> None:
    """Raise ValueError unless `share` is a possible share of the columns of all heads."""
    if not 0 < share <= 1:
        raise ValueError(
            "the amount of shared columns is a fraction of the width of all heads, above 0 and "
            f"at most 1, which is exact: got {share}"
        )


def shared_scores(mixer: MultiHead, rank: int) -> tuple[SharedScores, float]:
    """Return a layer's scores through `rank` shared columns, and the relative error."""
    heads, width = heads_of(mixer), mixer.key_width
    q, k = (
        layer.weight.detach().double().view(heads, width, -1)
        for layer in (mixer.q_proj, mixer.k_proj)
    )
    decomposition = decompose_heads(q, k, rank)
    # Each factor of a term gets a part of its weight: a gradient then moves all alike.
    weight = decomposition.mixing.norm(dim=0).clamp_min(1e-12)
    content = torch.zeros(heads, q.shape[-1], dtype=q.dtype, device=q.device)
    if mixer.q_proj.bias is not None:
        content = torch.einsum("hk,hkd->hd", mixer.q_proj.bias.detach().double().view(heads, -1), k)
    scores = SharedScores(
        queries=(decomposition.queries * weight.sqrt()).T,
        keys=(decomposition.keys * weight.sqrt()).T,
        mixing=decomposition.mixing / weight,
        content=content,
        head_width=width,
    )
    return scores, decomposition.errors[-1]


def _check(at: int, mixer: MultiHead, families: tuple[type, ...]) -> None:
    names = " or ".join(each.__name__ for each in families)
    if type(mixer) not in families or mixer.mean_at_padding:
        raise Unsupported(
            f"shared heads need softmax attention in every layer: got {family(mixer)} in layer "
            f"{at}; choose one of {names} with variant=faithful"
        )
    extras = {"output_gate": mixer.gate_proj, "qk_norm": mixer.q_norm}
    if present := [name for name, part in extras.items() if part is not None]:
        raise Unsupported(
            f"layer {at} has {' and '.join(present)}, which shared heads do not support: train "
            "with model.mixer.output_gate=false and qk_norm=false"
        )
    if mixer.positions_inside:
        where = [p.value for p in (Positions.rotary, Positions.position_infused)]
        raise Unsupported(
            f"layer {at} applies positions to queries and keys or to scores, and shared heads can "
            "only approximate scores that depend on tokens alone: train with "
            f"model.backbone.positions=learned, sinusoidal or none, and not {', '.join(where)} or "
            "those added to scores"
        )
