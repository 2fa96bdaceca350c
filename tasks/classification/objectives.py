"""What a model predicts about the inputs of a classification task: a class, or the tokens.

    classify   tokens  a b c d e       target  the class
    masked     tokens  a _ c d _       target  . b . . e     those that were masked
    causal     tokens  _ a b c d       target  a b c d e
    prefix     tokens  a b _ c d       target  . . c d e     the rest behind a beginning
    unilm      as masked, and what a token sees differs from example to example
    permutation  tokens a b c d e      target  . b . . e     without seeing themselves

`_` is one id more, behind those of the task: the mask, and what a causal model reads first. Masked
are all positions with one probability, drawn by (seed, example) and so again in every epoch, and
once and for all in evaluation; one token of a sequence at least. Only they count in the loss, and
padding never does. Where a beginning ends is drawn likewise, all places being equally likely: its
tokens see each other, and the others all that stands before them. Both texts of a pair are
sequences of their own. Splits, their order and what is cut stay those of the classification task.

Self-pretraining (arXiv:2310.02980) trains with `masked` or `causal` on the task's own inputs first.
There 50 % of pixels, 15 % of the bytes of texts and 10 % of ListOps' tokens are masked, which are
the defaults; a masked token always becomes the mask, the default here. Pixels are answered as
symbols, there too but on CIFAR-10, where they are real numbers.

BERT (arXiv:1810.04805) leaves 10 % of the chosen tokens as they are and puts a random one in place
of 10 %: `masked_replacement=bert`. UniLM (arXiv:1905.03197, section 2.3) draws for each example who
sees whom: a third all of all, a third a source that sees itself and a target that sees the source
and what stands before, a sixth each what stands before, or behind. XLNet (arXiv:1906.08237) answers
the chosen tokens one after the other in a random order, each from all others that were not chosen
and from those before it in that order; tokens that were not chosen see each other, as in its code.
"""

from dataclasses import replace
from enum import StrEnum, auto
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int, UInt64

from lra.tasks.data.batching import Draw
from lra.tasks.data.masking import draw_tokens, words_of
from lra.tasks.task import Batch, Kind, TaskSpec
from lra.tasks.tensors import Tensor, torch


class InputObjective(StrEnum):
    """What the model predicts."""

    classify = auto()
    """A class for each example."""
    masked = auto()
    """Masked tokens, from all others."""
    causal = auto()
    """Each token, from those before it."""
    prefix = auto()
    """Each later token, from a prefix whose tokens attend to each other, and the tokens before
    it."""
    unilm = auto()
    """Masked tokens, from the others that one of UniLM's four masks leaves visible."""
    permutation = auto()
    """Some tokens in a random order, from the rest and those before them in that order."""


class MaskedReplacement(StrEnum):
    """What replaces a token that is to be predicted."""

    mask = auto()
    bert = auto()
    """The mask at 80 %, a random id of the task at 10 %, the token itself at 10 %."""


REGIMES = {
    InputObjective.masked: "masked tokens, {share:.0%}",
    InputObjective.permutation: "tokens in random order, {share:.0%}",
    InputObjective.unilm: "masked tokens under UniLM's masks, {share:.0%}",
    InputObjective.causal: "next token",
    InputObjective.prefix: "next token after a prefix",
}
KINDS = {
    InputObjective.masked: Kind.masked_modelling,
    InputObjective.causal: Kind.language_modelling,
    InputObjective.prefix: Kind.sequence_to_sequence,
    InputObjective.unilm: Kind.masked_modelling,
    InputObjective.permutation: Kind.permutation_modelling,
}
HIDING = frozenset({InputObjective.masked, InputObjective.unilm})
"""Objectives under which some tokens are hidden."""
MASKS = {
    InputObjective.prefix: frozenset({"prefix"}),
    InputObjective.unilm: frozenset({"order"}),
    InputObjective.permutation: frozenset({"order"}),
}
"""Masks in the batches of an objective, which decide which tokens attend to each other."""


class Hiding(NamedTuple):
    """How tokens are hidden."""

    seed: int
    share: float
    """Fraction of the tokens that are hidden."""
    replacement: MaskedReplacement
    token_ids: range
    """Ids of the task; the next one is the mask."""


def spec_of(
    spec: TaskSpec,
    objective: InputObjective,
    share: float,
    replacement: MaskedReplacement = MaskedReplacement.mask,
) -> TaskSpec:
    """Return the facts of a classification task under another objective."""
    sources = max(1, spec.max_length - 1) if objective is InputObjective.prefix else 0
    as_bert = ", as BERT's" if replacement is MaskedReplacement.bert else ""
    return replace(
        spec,
        kind=KINDS[objective],
        vocabulary=spec.vocabulary + 1,
        classes=spec.vocabulary + 1,
        added_ids=1,
        regime=REGIMES[objective].format(share=share) + as_bert,
        masks=MASKS.get(objective, frozenset()),
        source_length=sources,
        target_length=spec.max_length if sources else 0,
        sources_vary=sources > 0,
        sizes={} if spec.kind is Kind.pair else spec.sizes,
    )


def with_answers(batch: Batch, objective: InputObjective, hiding: Hiding) -> Batch:
    """Return a batch of a classification task in which tokens are predicted.

    Args:
        batch: As a classifier sees it.
        objective: Another one than classify.
        hiding: Seed of what is drawn for each row, and how tokens are hidden.
    """
    parts = batch.tokens.shape[1]
    target = batch.tokens.flatten(0, 1)
    keep = None if batch.keep is None else batch.keep.flatten(0, 1)
    index = batch.index
    if parts > 1:
        index = (parts * index[:, None] + torch.arange(parts)).flatten()
    there: Bool[Tensor, "b l"] = torch.ones_like(target, dtype=torch.bool)
    if keep is not None:
        there = keep
    place = torch.arange(target.shape[1])
    result = Batch(
        tokens=target[:, None],
        target=target,
        index=index,
        keep=None if keep is None else keep[:, None],
    )
    if objective is InputObjective.permutation:
        drawn = _answered_tokens(there, index, hiding)
        result = result._replace(
            weight=drawn.float(), order=random_ranks(drawn, index, hiding.seed)
        )
        return result
    if objective in HIDING:
        tokens, drawn = hide_tokens(target, there, index, hiding)
        result = result._replace(tokens=tokens[:, None], weight=drawn.float())
        if objective is InputObjective.unilm:
            result = result._replace(order=unilm_ranks(there.sum(1), index, place, hiding.seed))
        return result
    cut = torch.zeros_like(index)
    if objective is InputObjective.prefix:
        (words,) = words_of(index.numpy(), 1, seed=hiding.seed, draw=Draw.sight).T
        cut = _below(words, there.sum(1))
        result = result._replace(prefix=cut, weight=((place >= cut[:, None]) & there).float())
    elif keep is not None:
        result = result._replace(weight=keep.float())
    tokens = target.where(place < cut[:, None], target.roll(1, dims=1))
    tokens[place == cut[:, None]] = hiding.token_ids.stop
    return result._replace(tokens=tokens.masked_fill(~there, 0)[:, None])


def hide_tokens(
    target: Int[Tensor, "b l"],
    there: Bool[Tensor, "b l"],
    index: Int[Tensor, " b"],
    hiding: Hiding,
) -> tuple[Int[Tensor, "b l"], Bool[Tensor, "b l"]]:
    """Return the tokens with some of them hidden, and which ones."""
    rows, length = index.numpy(), target.shape[1]
    drawn = _answered_tokens(there, index, hiding)
    instead: Tensor = torch.full_like(target, hiding.token_ids.stop)
    if hiding.replacement is MaskedReplacement.bert:
        words = words_of(rows, length, seed=hiding.seed, draw=Draw.replaced)
        share = torch.from_numpy((words >> np.uint64(32)).astype(np.int64)) / 2**32
        low = words & np.uint64(2**32 - 1)
        random = hiding.token_ids.start + (low % np.uint64(len(hiding.token_ids))).astype(np.int64)
        instead = instead.where(share >= 0.1, torch.from_numpy(random))
        instead = instead.where((share < 0.1) | (share >= 0.2), target)
    return target.where(~drawn, instead), drawn


def _answered_tokens(
    there: Bool[Tensor, "b l"], index: Int[Tensor, " b"], hiding: Hiding
) -> Bool[Tensor, "b l"]:
    """Return which tokens are to be answered."""
    drawn = draw_tokens(there.numpy(), index.numpy(), seed=hiding.seed, share=hiding.share)
    return torch.from_numpy(drawn).logical_and_(there)


def random_ranks(
    drawn: Bool[Tensor, "b l"], index: Int[Tensor, " b"], seed: int
) -> Int[Tensor, "b l"]:
    """Return 0 for the tokens that were not drawn, and a random order from 1 on for the others."""
    words = words_of(index.numpy(), drawn.shape[1], seed=seed, draw=Draw.sight)
    words[~drawn.numpy()] = np.iinfo(np.uint64).max
    ranks = torch.from_numpy(words.argsort(1, kind="stable").argsort(1)) + 1
    return ranks.masked_fill(~drawn, 0)


def unilm_ranks(
    lengths: Int[Tensor, " b"], index: Int[Tensor, " b"], place: Int[Tensor, " l"], seed: int
) -> Int[Tensor, "b l"]:
    """Return ranks for the tokens of each row, from one of UniLM's four masks.

    Args:
        lengths: Tokens of each row.
        index: What tells rows apart.
        place: Positions.
        seed: Of the draws.
    """
    first, second = words_of(index.numpy(), 2, seed=seed, draw=Draw.sight).T
    kind = torch.from_numpy((first % np.uint64(6)).astype(np.int64))[:, None]
    # source and target have a token each, where there are two
    source = 1 + _below(second, (lengths - 1).clamp(min=1))[:, None]
    every = torch.zeros_like(kind) * place
    behind = (place - source + 1).clamp(min=0)
    order = every.where(kind < 2, behind)
    order = order.where(kind != 4, place)
    return order.where(kind != 5, -place)


def _below(words: UInt64[np.ndarray, " b"], numbers: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """Return a number below each of `numbers`."""
    return torch.from_numpy((words % numbers.numpy().astype(np.uint64)).astype(np.int64))
