"""What a run's task tells its model, and the decoder that a task may ask for."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from lra.composition.run import Run

if TYPE_CHECKING:
    from models.backbone.config import TaskFacts
    from models.backbone.model import StackFactory
    from models.mixer import MixerFactory

PIXEL_VALUES = 256
"""Vocabulary of a language model that is measured on a task of real numbers."""
MEASURED = {
    "sequence_to_sequence": "language_modelling",
    "permutation_modelling": "masked_modelling",
}
"""Heads that a measurement of cost, which has neither sources nor ranks, has in place of others."""


def facts(run: Run, max_length: int | None = None) -> "TaskFacts":
    """Return what the task tells the model; with `max_length`, what a cost measurement does.

    A measurement of cost has rows of equal length, hence no padding, and may choose a direction.
    """
    from models.backbone.choices import CAUSAL_HEADS
    from models.backbone.config import TOKEN_HEADS, Head, TaskFacts
    from runners.runner import Direction

    spec = run.task.spec
    direction = run.runner.facing
    head = Head[spec.kind.name]
    if max_length is not None:
        head = Head[MEASURED.get(head.name, head.name)]
    if direction is Direction.causal:
        head = Head.language_modelling
    elif direction is Direction.bidirectional and head in CAUSAL_HEADS:
        head = Head.classification
    answers_tokens = head in TOKEN_HEADS
    return TaskFacts(
        head=head,
        vocabulary=spec.vocabulary or PIXEL_VALUES,
        classes=spec.classes if answers_tokens else max(spec.classes, 2),
        max_length=max_length or spec.max_length,
        padded=spec.padded and max_length is None,
        scalars=spec.scalars and not answers_tokens,
        memory=0 if max_length else spec.memory,
        added_ids=spec.added_ids,
        source_length=spec.source_length,
        target_length=spec.target_length,
        sources_vary=spec.sources_vary,
        masks=spec.masks if answers_tokens and max_length is None else frozenset(),
    )


def decoded(
    mixers: "Sequence[MixerFactory]", known: "TaskFacts", exact: "MixerFactory"
) -> "StackFactory":
    """Return what makes an encoder-decoder of an encoder's mixers.

    Args:
        mixers: Of the encoder.
        known: What the task tells the model.
        exact: A family of exact attention.

    Raises:
        Unsupported: The model answers something else.
    """
    from models.backbone.config import Head
    from models.backbone.encoder_decoder import encoder_decoder
    from models.mixer import Unsupported

    if known.head is not Head.sequence_to_sequence:
        raise Unsupported(
            "a decoder answers a source, and here is none: got model.backbone.decoder_depth above "
            "0; choose a task of sequence to sequence (reversal, sorting, text_pairs, or "
            "task.objective=prefix) and a runner that trains, or set it to 0"
        )
    return partial(encoder_decoder, mixers=mixers, exact=exact, facts=known)
