"""The linear maps of a model that compression changes.

They are the projections of queries, keys, values and output, both maps of feed-forward networks,
and those of the head. Other parts of a family (spans, gates, mixing maps, recurrences, parameters
of an attention core) keep their precision, as do norms, embeddings and positions. A head that
shares the embedding's matrix counts as an embedding.
"""

from torch import nn

from lra.models.backbone.model import Backbone
from lra.models.mixer import Unsupported

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "qk_proj", "out_proj")
CORE = "core"


def linear_maps(model: Backbone) -> dict[str, nn.Linear]:
    """Return the linear maps of `model` by name; a shared map appears once.

    Raises:
        Unsupported: The model has no such map.
    """
    maps = {
        name: part
        for name, part in model.named_modules()
        if isinstance(part, nn.Linear) and _is_compressed(name)
    }
    if not maps:
        raise Unsupported(
            "compression changes linear maps in projections, feed-forward networks and the head, "
            "and this model has none: choose a family with projections, or "
            "model.backbone.feed_forward=gelu"
        )
    return maps


def _is_compressed(name: str) -> bool:
    """Return whether the module `name` is a projection, or part of a network or the head.

    `name` has parts joined by dots; modules inside the core of an attention layer are excluded.
    """
    first, *path = name.split(".")
    if first == "head":
        return True
    return CORE not in path and (path[-1:] != [] and (path[-1] in PROJECTIONS or "network" in path))
