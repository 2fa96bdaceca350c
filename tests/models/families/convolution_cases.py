"""What the tests of LightConv and DynamicConv share."""

from typing import Any

import numpy as np
import torch

from tests.attention import builder
from tests.models.families.released import convolutions as released

STORED = np.load(released.OUTPUTS)
SITE = {"width": 6, "heads": 2, "max_length": 32}
LENGTH = 13


def built(family: type, *, kernel: int = 5, **options: Any) -> Any:
    """Return a mixer."""
    return builder(family, **SITE, kernel=[kernel])(**options)


def as_released(family: type, case: str) -> None:
    """Compare the convolution of a mixer with what fairseq's gave."""
    name, taps, left = released.CASES[case]
    mixer = built(
        family, kernel=taps, width=released.WIDTH, heads=released.HEADS, causal=left == taps - 1
    )
    weight = mixer.weight if name == "light" else mixer.kernel_proj.weight
    with torch.no_grad():
        weight.copy_(released.weight(name, taps))
    x = released.tokens().requires_grad_()
    heads = x.unflatten(-1, (released.HEADS, -1)).transpose(1, 2)
    y = mixer.convolve(heads, 0).transpose(1, 2).flatten(2)
    by_x, by_weight = torch.autograd.grad(y, (x, weight), released.direction())
    for key, value in {"y": y, "x": by_x, "weight": by_weight}.items():
        np.testing.assert_allclose(value.detach(), STORED[f"{case}: {key}"], atol=1e-12)
