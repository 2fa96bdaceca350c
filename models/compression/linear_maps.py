"""The linear maps of a model that a compression acts on.

They are the projections of queries, keys, values and output, both maps of the networks, and those
of the head. What a family has besides (spans, gates, mixing maps, recurrences, the parameters of an
attention core) keeps its precision, as do norms, embeddings and positions; a head that answers by
the embedding is one.
"""

from torch import nn

from lra.models.backbone.model import Backbone
from lra.models.mixer import Unsupported

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "qk_proj", "out_proj")
CORE = "core"


def linear_maps(model: Backbone) -> dict[str, nn.Linear]:
    """Return the linear maps by name; a shared map appears once.

    Raises:
        Unsupported: There is none.
    """
    maps = {
        name: part
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear) and _ordinary(name)
    }
    if not maps:
        raise Unsupported(
            "compression changes linear maps in projections, feed-forward networks and the head, "
            "and this model has none: choose a family with projections, or "
            "model.backbone.feed_forward=gelu"
        )
    return maps


def _ordinary(name: str) -> bool:
    first, *path = name.split(".")
    if first == "head":
        return True
    return CORE not in path and (path[-1:] != [] and (path[-1] in PROJECTIONS or "network" in path))
