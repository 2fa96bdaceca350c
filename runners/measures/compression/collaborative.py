"""Replace softmax attention by attention with shared heads, with weights from the trained heads."""

import torch
from torch import nn

from lra.models.backbone.model import Backbone
from lra.models.compression.shared_heads import SharedScores, share_heads
from lra.models.families.collaborative import CollaborativeAttention, MixingStart
from lra.models.families.sdpa import SDPA
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Site
from lra.models.multi_head import MultiHead
from lra.models.ops.shared_heads import SharedHeads

SOFTMAX = (SoftmaxAttention, SDPA)


def with_shared_heads(model: Backbone, share: float) -> dict[int, tuple[int, float]]:
    """Replace softmax attention by `collaborative`; return rank and error of each layer."""
    return share_heads(model, share, _build_layer, families=SOFTMAX)


@torch.no_grad()
def _build_layer(site: Site, scores: SharedScores, trained: MultiHead) -> nn.Module:
    """Return a layer with shared heads that computes `scores`, the decomposed scores of `trained`.

    Value and output projections are copied from `trained`, a softmax layer.
    """
    rank = len(scores.queries)
    layer = CollaborativeAttention(site, key_width=rank, mixing=MixingStart.ones)
    layer.double()  # `scores` are in float64
    # `scores` are divided by sqrt(head_width), but the layer divides by a root of its own.
    scaled = SharedHeads(*scores[:4]).scaled(scores.head_width)
    layer.q_proj.weight.copy_(scaled.queries)
    layer.k_proj.weight.copy_(scaled.keys)
    layer.mixing.copy_(scaled.mixing)
    if layer.content is not None:
        layer.content.weight.copy_(scaled.content)
    for name in ("v_proj", "out_proj"):
        getattr(layer, name).load_state_dict(getattr(trained, name).state_dict())
    return layer
