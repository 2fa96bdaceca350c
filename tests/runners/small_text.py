"""Small texts, and small models of them, for tests of what reads streams."""

from typing import Any
from unittest.mock import patch

from lra.models.backbone.config import BackboneConfig, Head, TaskFacts
from lra.models.backbone.model import Backbone
from lra.models.mixer import MixerFactory, Positions
from lra.tasks.language.characters import CharacterCorpus, Characters, CharacterSource


def text_task(*, sample: int = 900, **options: Any) -> Characters:
    """Return a prepared task of so many bytes of synthetic text: 26 letters and blanks."""
    task = Characters(
        **{"corpus": CharacterCorpus.text8, "source": CharacterSource.sample, **options}
    )
    with patch("lra.tasks.language.characters.SAMPLE_BYTES", sample):
        task.prepare()
    return task


def language_model(
    *mixers: MixerFactory, max_length: int, carried: int = 0, seed: int = 3, **options: Any
) -> Backbone:
    """Return a causal model of that text.

    Args:
        mixers: of its layers, in turn.
        max_length: tokens of a window.
        carried: tokens of the task's memory.
        seed: of its weights.
        options: of `BackboneConfig`.
    """
    small = {"width": 8, "heads": 2, "depth": 2, "feed_forward_width": 8}
    config = BackboneConfig(**{**small, "positions": Positions.none, **options})
    facts = TaskFacts(
        head=Head.language_modelling, vocabulary=27, classes=27, max_length=max_length,
        memory=carried,
    )  # fmt: skip
    return Backbone(config, facts, [*mixers], seed=seed)
