"""What makes the mixers of layers that have options of the backbone for themselves."""

from collections.abc import Mapping
from functools import partial
from typing import Any

PER_LAYER = (
    "heads", "head_width", "qkv_bias", "output_bias", "positions", "rotary_base", "rotary_share",
    "feed_forward", "feed_forward_width", "feed_forward_bias", "residual",
)  # fmt: skip
"""Options of the backbone that a layer may set for itself."""


class LayerFactory(partial[Any]):
    """A mixer's class with its options, for layers with other options of the backbone."""

    backbone: Mapping[str, Any] = {}
    """These options, among `PER_LAYER`."""


def layer_factory(mixer: Any, backbone: Mapping[str, Any]) -> Any:
    """Return `mixer`, which is a `functools.partial`, for layers with these options."""
    if not backbone:
        return mixer
    factory = LayerFactory(mixer.func, *mixer.args, **mixer.keywords)
    factory.backbone = dict(backbone)
    return factory
