"""Converts the heads of a trained model to shared query and key projections.

The scores of a layer of softmax attention depend on the products Q_i' K_i of its heads, and on
W_K,i' b_Q,i from the biases of queries. The biases of keys add the same number to all keys of a
query, which the softmax ignores. So the products are decomposed
(`lra.models.compression.canonical`), the biases of queries become content biases, and the
projections of values and outputs are copied. Scores keep their scale 1 / sqrt(d_k).

Source: Cordonnier et al. 2020, arXiv:2006.16362, section 3. Its released code divides converted
scores by another number, sqrt(D~ / h), although it decomposes the unscaled products.
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
    """The weights of a layer's scores, which must be divided by sqrt(head_width)."""

    queries: Float[Tensor, "r d"]
    keys: Float[Tensor, "r d"]
    mixing: Float[Tensor, "h r"]
    content: Float[Tensor, "h d"]
    """Its product with a key's token is added to all scores of that key, by head."""
    head_width: int


Make = Callable[[Site, SharedScores, MultiHead], nn.Module]
"""Builds a mixer with shared heads, which copies values and outputs of the mixer it replaces."""


def share_heads(
    model: Backbone, share: float, make: Make, *, families: tuple[type, ...]
) -> dict[int, tuple[int, float]]:
    """Replace a model's layers of softmax attention by layers with shared heads.

    Args:
        model: The model, which is changed.
        share: Number of shared columns, as a fraction of the columns of all heads; 1 is exact.
        make: Builds a mixer with shared heads.
        families: The families of softmax attention that can be replaced.

    Returns:
        For each layer, the number of shared columns and the relative error of the products.

    Raises:
        ValueError: `share` is not above 0 and at most 1.
        Unsupported: A layer is not softmax attention with separate keys per head, or has positions
            in its scores. The model is unchanged.
    """
    check_share(share)
    layers = attention_layers(model)
    blocks = cast(Any, model.stack).blocks
    # `layers` has each mixer with heads once, even if several blocks are the same module.
    if len({*blocks}) != len(layers):
        raise Unsupported(
            "shared heads need attention heads in every layer: this model has layers without "
            "heads; choose one family of softmax attention for all layers"
        )
    for layer, mixer in layers.items():
        _check_layer(layer, mixer, families)
    achieved = {}
    for layer, mixer in layers.items():
        heads, width = heads_of(mixer), mixer.key_width
        rank = max(1, round(share * heads * width))
        scores, error = shared_scores(mixer, rank)
        site = Site(
            width=model.config.width,
            heads=heads,
            own_head_width=mixer.head_width,
            max_length=model.facts.max_length + model.has_cls,
            causal=model.causal,
            layer=layer,
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
        achieved[layer] = (rank, error)
    return achieved


def check_share(share: float) -> None:
    """Raise ValueError unless `share` is above 0 and at most 1."""
    if not 0 < share <= 1:
        raise ValueError(
            "the number of shared columns is a fraction of the width of all heads, above 0 and "
            f"at most 1: got {share}; choose 1 for exactly the same scores"
        )


def shared_scores(mixer: MultiHead, rank: int) -> tuple[SharedScores, float]:
    """Return the weights of a layer's scores with `rank` shared columns, and the relative error."""
    heads, width = heads_of(mixer), mixer.key_width
    q, k = (
        layer.weight.detach().double().view(heads, width, -1)
        for layer in (mixer.q_proj, mixer.k_proj)
    )
    decomposition = decompose_heads(q, k, rank)
    # The weight of a term is shared out to its factors, so that gradients change all of them.
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


def _check_layer(layer: int, mixer: MultiHead, families: tuple[type, ...]) -> None:
    """Raise `Unsupported` if the mixer of this `layer` cannot get shared heads."""
    names = " or ".join(kind.__name__ for kind in families)
    if type(mixer) not in families or mixer.mean_at_padding:
        raise Unsupported(
            f"shared heads need softmax attention in every layer: got {family(mixer)} in layer "
            f"{layer}; choose one of {names} with variant=faithful"
        )
    extras = {
        "output_gate": mixer.gate_proj, "qk_norm": mixer.q_norm, "canon": mixer.canon,
        "sink": getattr(mixer.core, "sinks", None),
    }  # fmt: skip
    if present := [name for name, part in extras.items() if part is not None]:
        raise Unsupported(
            f"layer {layer} has {' and '.join(present)}, which shared heads do not support: train "
            "with model.mixer.output_gate=false, qk_norm=false and sink=false, and without B in "
            "model.backbone.canon"
        )
    if mixer.positions_inside:
        where = [p.value for p in (Positions.rotary, Positions.position_infused)]
        raise Unsupported(
            f"layer {layer} applies positions to queries and keys or to scores, but shared heads "
            "need scores that depend only on tokens: train with model.backbone.positions=learned, "
            f"sinusoidal or none, instead of {', '.join(where)} or positions in scores"
        )
