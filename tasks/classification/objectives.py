"""What a model answers about the inputs of a classification task: a class, or the tokens.

    classify   tokens  a b c d e       target  the class
    masked     tokens  a _ c d _       target  . b . . e     those that were masked
    causal     tokens  _ a b c d       target  a b c d e
    prefix     tokens  a b _ c d       target  . . c d e     the rest behind a beginning

`_` is one id more, behind those of the task: the mask, and what a causal model reads first. Masked
are all positions with one probability, drawn by (seed, example) and so anew in every epoch, and
once and for all in evaluation; one token of a sequence at least. Only they count in the loss, and
padding never does. Where a beginning ends is drawn likewise, all places being equally likely: its
tokens see each other, and the others all that stands before them. Both texts of a pair are
sequences of their own. Splits, their order and what is cut stay those of the classification task.

Self-pretraining (arXiv:2310.02980) trains with `masked` or `causal` on the task's own inputs first.
There 50 % of pixels, 15 % of the bytes of texts and 10 % of ListOps' tokens are masked, which are
the defaults; a masked token always becomes the mask, as here. Pixels are answered as symbols, there
too but on CIFAR-10, where they are real numbers.
"""

from dataclasses import replace
from enum import StrEnum, auto

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from tasks.data.batching import Draw
from tasks.data.masking import chosen, words_of
from tasks.task import Batch, Kind, TaskSpec


class InputObjective(StrEnum):
    """What the model answers."""

    classify = auto()
    """A class for each example."""
    masked = auto()
    """Masked tokens, from all others."""
    causal = auto()
    """Each token, from those before it."""
    prefix = auto()
    """Each token of the rest, from a beginning that sees itself both ways, and those before it."""


REGIMES = {
    InputObjective.masked: "masked tokens, {share:.0%}",
    InputObjective.causal: "next token",
    InputObjective.prefix: "next token behind a prefix",
}
KINDS = {
    InputObjective.masked: Kind.masked_modelling,
    InputObjective.causal: Kind.language_modelling,
    InputObjective.prefix: Kind.sequence_to_sequence,
}
MASKS = {InputObjective.prefix: frozenset({"prefix"})}
"""What the batches of an objective say of which tokens see each other."""


def spec_of(spec: TaskSpec, objective: InputObjective, share: float) -> TaskSpec:
    """Return the facts of a classification task under another objective."""
    return replace(
        spec,
        kind=KINDS[objective],
        vocabulary=spec.vocabulary + 1,
        classes=spec.vocabulary + 1,
        added_ids=1,
        regime=REGIMES[objective].format(share=share),
        masks=MASKS.get(objective, frozenset()),
        sizes={} if spec.kind is Kind.pair else spec.sizes,
    )


def answered(
    batch: Batch, objective: InputObjective, *, seed: int, share: float, extra: int
) -> Batch:
    """Return a batch of a classification task in which tokens are to be answered.

    Args:
        batch: As a classifier sees it.
        objective: Another one than classify.
        seed: Of what is drawn for each row.
        share: Of the tokens that are masked.
        extra: The id behind the task's own.
    """
    parts = batch.tokens.shape[1]
    target = batch.tokens.flatten(0, 1)
    keep = None if batch.keep is None else batch.keep.flatten(0, 1)
    index = batch.index
    if parts > 1:
        index = (parts * index[:, None] + torch.arange(parts)).flatten()
    weight: Tensor | None
    prefix: Tensor | None = None
    if objective is InputObjective.masked:
        there: Bool[Tensor, "b l"] = torch.ones_like(target, dtype=torch.bool)
        if keep is not None:
            there = keep
        drawn = torch.from_numpy(
            chosen(there.numpy(), index.numpy(), seed=seed, share=share)
        ).logical_and_(there)
        tokens, weight = target.masked_fill(drawn, extra), drawn.float()
    else:
        prefix = torch.zeros_like(index)
        if objective is InputObjective.prefix:
            words = words_of(index.numpy(), 1, seed=seed, draw=Draw.sight)[:, 0]
            length = torch.full_like(index, target.shape[1]) if keep is None else keep.sum(1)
            prefix = torch.from_numpy((words % length.numpy().astype(np.uint64)).astype(np.int64))
        place = torch.arange(target.shape[1])
        tokens = target.where(place < prefix[:, None], target.roll(1, dims=1))
        tokens[place == prefix[:, None]] = extra
        if keep is not None:
            tokens.masked_fill_(~keep, 0)
        weight = None if keep is None else keep.float()
        if objective is InputObjective.prefix:
            behind = place >= prefix[:, None]
            weight = (behind if keep is None else behind & keep).float()
        else:
            prefix = None
    return Batch(
        tokens=tokens[:, None],
        target=target,
        index=index,
        keep=None if keep is None else keep[:, None],
        weight=weight,
        prefix=prefix,
    )
