"""Layers of shared heads with the weights of trained ones."""

import torch
from torch import nn

from models.backbone.model import Backbone
from models.compression.shared_heads import SharedScores, share_heads
from models.families.collaborative import CollaborativeAttention, MixingStart
from models.families.sdpa import SDPA
from models.families.softmax import SoftmaxAttention
from models.mixer import Site
from models.multi_head import MultiHead
from models.ops.shared_heads import SharedHeads

SOFTMAX = (SoftmaxAttention, SDPA)


def with_shared_heads(model: Backbone, share: float) -> dict[int, tuple[int, float]]:
    """Put `collaborative` in the place of a model's softmax attention: see `share_heads`."""
    return share_heads(model, share, _layer, families=SOFTMAX)


@torch.no_grad()
def _layer(site: Site, scores: SharedScores, trained: MultiHead) -> nn.Module:
    rank = len(scores.queries)
    own = CollaborativeAttention(site, key_width=rank, mixing=MixingStart.ones)
    own.double()  # as the factors are
    found = SharedHeads(*scores[:4]).scaled(scores.head_width)
    own.q_proj.weight.copy_(found.queries)
    own.k_proj.weight.copy_(found.keys)
    own.mixing.copy_(found.mixing)
    if own.content is not None:
        own.content.weight.copy_(found.content)
    for name in ("v_proj", "out_proj"):
        getattr(own, name).load_state_dict(getattr(trained, name).state_dict())
    return own
