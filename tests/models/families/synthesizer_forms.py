"""Draws and small mixers for the tests of the Synthesizer, and its literal form."""

import torch

from lra.models.families.synthesizer import Component, Synthesizer
from tests.attention import builder

EACH = [[component] for component in Component]
MIXTURES = [
    [Component.random, Component.dot],
    [Component.dense, Component.dot],
    [Component.factorised_random, Component.factorised_dense, Component.fixed_random],
    [Component.factorised_random, Component.random],
    [*Component][:2] + [*Component][3:],
]
COMMON = [Component.random, Component.fixed_random, Component.factorised_random]
LONGEST, WIDTH, HEADS = 23, 12, 3


def built(*components: Component, **options) -> Synthesizer:
    """A mixer all of whose parameters matter: none is near zero."""
    if Component.factorised_random in components:
        options["rank"] = 2
    usual = builder(Synthesizer, width=WIDTH, heads=HEADS, max_length=LONGEST)
    mixer = usual(components=[*components], **options)
    for number, parameter in enumerate(mixer.parameters()):
        torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(number))
    return mixer
