"""What a model predicts about the inputs of a classification task: a class, or the tokens.

    classify   tokens  a b c d e       target  the class
    masked     tokens  a _ c d _       target  . b . . e     the masked tokens
    causal     tokens  _ a b c d       target  a b c d e
    prefix     tokens  a b _ c d       target  . . c d e     the tokens after a prefix
    unilm      as masked, and a mask of attention differs from example to example
    permutation  tokens a b c d e      target  . b . . e     each without reading itself
    replaced    tokens  a _ c d _      target  a b c d e     the model reads a x c d e: x is new

`_` is an additional id after the ids of the task. It is the mask, and the first token that a causal
model reads. All positions are masked with the same probability, but at least one token of each
sequence. The draw depends on (seed, example), so it is the same in every epoch; evaluation uses one
fixed draw. Only masked tokens count in the loss; padding never counts. The end of a prefix is drawn
in the same way, with equal probability for all positions. Tokens of the prefix attend to each
other, and later tokens to all earlier ones. The two texts of a pair become two separate sequences.
Splits, their order and the cut of long texts are those of the classification task.

Self-pretraining (arXiv:2310.02980) first trains with `masked` or `causal` on the inputs of the same
task. The paper masks 50 % of pixels, 15 % of the bytes of texts and 10 % of ListOps' tokens, which
are the defaults here. It always replaces a masked token by the mask, which is the default, too. The
paper predicts pixels as symbols, as lra does, except for CIFAR-10, where they are real numbers.

`masked_replacement=bert`: BERT (arXiv:1810.04805) leaves 10 % of the chosen tokens unchanged and
replaces 10 % by a random token. UniLM (arXiv:1905.03197, section 2.3) draws one of four masks of
attention for each example. With probability 1/3, all tokens attend to all. With probability 1/3,
tokens of a source attend to the source, and tokens of a target to the source and to earlier tokens.
With probability 1/6 each, tokens attend to earlier tokens, or to later ones. XLNet
(arXiv:1906.08237) predicts the chosen tokens in a random order, each from all tokens that were not
chosen and from the chosen ones earlier in this order. Tokens that were not chosen attend to each
other, as in XLNet's code. ELECTRA (arXiv:2003.10555) has a small generator fill the masked tokens
with samples, and the model finds the samples that differ from the original tokens. The batch holds
a random number for each sample, so that samples, too, depend on (seed, example) alone.
"""

from dataclasses import replace
from enum import StrEnum, auto
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int, UInt64

from lra.tasks.data.batching import Draw
from lra.tasks.data.masking import draw_tokens, words_of
from lra.tasks.task import Batch, Kind, TaskSpec
from lra.tasks.tensors import Tensor, torch


class InputObjective(StrEnum):
    """What the model predicts."""

    classify = auto()
    """A class for each example."""
    masked = auto()
    """Masked tokens, from all other tokens."""
    causal = auto()
    """Each token, from those before it."""
    prefix = auto()
    """Each later token, from a prefix whose tokens attend to each other, and the tokens before
    it."""
    unilm = auto()
    """Masked tokens, from the tokens that one of UniLM's four masks of attention allows."""
    permutation = auto()
    """Some tokens in a random order, from all other tokens and those earlier in this order."""
    replaced = auto()
    """Which tokens a small generator has replaced, from all tokens."""


class MaskedReplacement(StrEnum):
    """What replaces a masked token."""

    mask = auto()
    """Always the mask id."""
    bert = auto()
    """The mask id for 80 %, a random id of the task for 10 %, the token itself for 10 %."""


REGIMES = {
    InputObjective.masked: "masked tokens, {share:.0%}",
    InputObjective.permutation: "tokens in random order, {share:.0%}",
    InputObjective.unilm: "masked tokens under UniLM's masks, {share:.0%}",
    InputObjective.causal: "next token",
    InputObjective.prefix: "next token after a prefix",
    InputObjective.replaced: "replaced tokens, {share:.0%}",
}
KINDS = {
    InputObjective.masked: Kind.masked_modelling,
    InputObjective.causal: Kind.language_modelling,
    InputObjective.prefix: Kind.sequence_to_sequence,
    InputObjective.unilm: Kind.masked_modelling,
    InputObjective.permutation: Kind.permutation_modelling,
    InputObjective.replaced: Kind.replaced_detection,
}
HIDING = frozenset({InputObjective.masked, InputObjective.unilm, InputObjective.replaced})
"""Objectives under which some tokens are hidden."""
MASKS = {
    InputObjective.prefix: frozenset({"prefix"}),
    InputObjective.unilm: frozenset({"order"}),
    InputObjective.permutation: frozenset({"order"}),
}
"""Fields of `Batch` that an objective fills, and that decide which tokens attend to each other."""

DETECTION_SCORES = frozenset({"original_share", "generator_accuracy", "generator_loss"})
"""Further scores of `replaced`, which the model computes."""


class Hiding(NamedTuple):
    """Which tokens are masked, and what replaces them."""

    seed: int
    share: float
    """Probability of each token to be masked."""
    replacement: MaskedReplacement
    token_ids: range
    """Ids of the task without padding; the next id is the mask."""


def spec_of(
    spec: TaskSpec,
    objective: InputObjective,
    share: float,
    replacement: MaskedReplacement = MaskedReplacement.mask,
    *,
    conditional: bool = False,
) -> TaskSpec:
    """Return the facts of a task under `objective`, given its `spec` under classify.

    `share` is the probability of each token to be masked, and `replacement` what replaces it. With
    `conditional`, the class of an example is its condition.
    """
    # A prefix (the source) leaves at least one token to predict, and may be empty.
    longest_prefix = max(1, spec.max_length - 1) if objective is InputObjective.prefix else 0
    as_bert = ", as BERT's" if replacement is MaskedReplacement.bert else ""
    return replace(
        spec,
        kind=KINDS[objective],
        vocabulary=spec.vocabulary + 1,
        classes=spec.vocabulary + 1,
        added_ids=1,
        regime=REGIMES[objective].format(share=share) + as_bert + ", given the class" * conditional,
        conditions=spec.classes if conditional else 0,
        masks=MASKS.get(objective, frozenset()),
        source_length=longest_prefix,
        target_length=spec.max_length if longest_prefix else 0,
        sources_vary=longest_prefix > 0,
        # The two texts of a pair become two examples, so the numbers of pairs would be wrong.
        sizes={} if spec.kind is Kind.pair else spec.sizes,
        scores=DETECTION_SCORES if objective is InputObjective.replaced else spec.scores,
    )


def with_answers(batch: Batch, objective: InputObjective, hiding: Hiding) -> Batch:
    """Return a batch of a classification task with its tokens as targets.

    Args:
        batch: The batch for a classifier, with tokens [b, p, l]. The p texts of an example become
            p rows of the result, so its tokens are [b * p, 1, l].
        objective: What the model predicts; not classify.
        hiding: The seed of the draws for each row, and how tokens are masked.
    """
    parts = batch.tokens.shape[1]
    target = batch.tokens.flatten(0, 1)
    keep = None if batch.keep is None else batch.keep.flatten(0, 1)
    index = batch.index
    if parts > 1:
        index = (parts * index[:, None] + torch.arange(parts)).flatten()
    real: Bool[Tensor, "b l"] = torch.ones_like(target, dtype=torch.bool)
    if keep is not None:
        real = keep
    position = torch.arange(target.shape[1])
    result = Batch(
        tokens=target[:, None],
        target=target,
        index=index,
        keep=None if keep is None else keep[:, None],
    )
    if objective is InputObjective.permutation:
        chosen = _draw_tokens(real, index, hiding)
        order = random_ranks(chosen, index, hiding.seed)
        return result._replace(weight=chosen.float(), order=order)
    if objective in HIDING:
        tokens, chosen = hide_tokens(target, real, index, hiding)
        if objective is InputObjective.replaced:
            return result._replace(
                tokens=tokens[:, None],
                weight=None if keep is None else keep.float(),
                uniform=random_numbers(chosen, index, hiding.seed),
                masked_per_row=chosen.double().sum(1).mean().expand(len(chosen)),
            )
        result = result._replace(tokens=tokens[:, None], weight=chosen.float())
        if objective is InputObjective.unilm:
            result = result._replace(order=unilm_ranks(real.sum(1), index, position, hiding.seed))
        return result
    # Causal and prefix: from the end of the prefix on, a token is read one position later.
    prefix = torch.zeros_like(index)
    if objective is InputObjective.prefix:
        (words,) = words_of(index.numpy(), 1, seed=hiding.seed, draw=Draw.sight).T
        prefix = _draw_below(words, real.sum(1))
        answered = (position >= prefix[:, None]) & real
        result = result._replace(prefix=prefix, weight=answered.float())
    elif keep is not None:
        result = result._replace(weight=keep.float())
    tokens = target.where(position < prefix[:, None], target.roll(1, dims=1))
    tokens[position == prefix[:, None]] = hiding.token_ids.stop
    return result._replace(tokens=tokens.masked_fill(~real, 0)[:, None])


def hide_tokens(
    target: Int[Tensor, "b l"], there: Bool[Tensor, "b l"], index: Int[Tensor, " b"], hiding: Hiding
) -> tuple[Int[Tensor, "b l"], Bool[Tensor, "b l"]]:
    """Mask some tokens of `target`; return the new tokens, and True at those that were masked.

    `there` is False at padding, and `index`, the number of a row, decides its draw.
    """
    rows, length = index.numpy(), target.shape[1]
    masked = _draw_tokens(there, index, hiding)
    replacement: Tensor = torch.full_like(target, hiding.token_ids.stop)
    if hiding.replacement is MaskedReplacement.bert:
        # The high half of each random word, as a fraction, chooses: below 0.1 a random id, which
        # the low half draws; from 0.1 to 0.2 the token itself; else the mask.
        words = words_of(rows, length, seed=hiding.seed, draw=Draw.replaced)
        uniform = torch.from_numpy((words >> np.uint64(32)).astype(np.int64)) / 2**32
        low = words & np.uint64(2**32 - 1)
        random = hiding.token_ids.start + (low % np.uint64(len(hiding.token_ids))).astype(np.int64)
        replacement = replacement.where(uniform >= 0.1, torch.from_numpy(random))
        replacement = replacement.where((uniform < 0.1) | (uniform >= 0.2), target)
    return target.where(~masked, replacement), masked


def _draw_tokens(
    real: Bool[Tensor, "b l"], index: Int[Tensor, " b"], hiding: Hiding
) -> Bool[Tensor, "b l"]:
    """Return True at the real tokens that the model must predict; `index` decides a row's draw."""
    drawn = draw_tokens(real.numpy(), index.numpy(), seed=hiding.seed, share=hiding.share)
    return torch.from_numpy(drawn).logical_and_(real)


def random_numbers(
    chosen: Bool[Tensor, "b l"], index: Int[Tensor, " b"], seed: int
) -> Float[Tensor, "b l"]:
    """Return numbers for `Batch.uniform`: in (0, 1) at chosen tokens, 0 at the others.

    `index` is the number of each row; it decides the draw together with `seed`.
    """
    words = words_of(index.numpy(), chosen.shape[1], seed=seed, draw=Draw.sampled)
    # The middles of 2^23 equal intervals, all of which float32 can represent.
    middles = ((words >> np.uint64(41)).astype(np.float64) + 0.5) / 2**23
    return torch.from_numpy(middles.astype(np.float32)).masked_fill(~chosen, 0)


def random_ranks(
    drawn: Bool[Tensor, "b l"], index: Int[Tensor, " b"], seed: int
) -> Int[Tensor, "b l"]:
    """Return ranks for `Batch.order`: 1, 2, … in random order for drawn tokens, 0 for the others.

    `index` is the number of each row; it decides the draw together with `seed`.
    """
    words = words_of(index.numpy(), drawn.shape[1], seed=seed, draw=Draw.sight)
    # Tokens that are not drawn sort last; the second argsort turns the order into ranks.
    words[~drawn.numpy()] = np.iinfo(np.uint64).max
    ranks = torch.from_numpy(words.argsort(1, kind="stable").argsort(1)) + 1
    return ranks.masked_fill(~drawn, 0)


def unilm_ranks(
    lengths: Int[Tensor, " b"], index: Int[Tensor, " b"], place: Int[Tensor, " l"], seed: int
) -> Int[Tensor, "b l"]:
    """Return ranks for `Batch.order`, for each row from one of UniLM's four masks of attention.

    A row has `lengths` tokens; its number `index` decides its draw; `place` is 0 … l - 1.
    """
    first, second = words_of(index.numpy(), 2, seed=seed, draw=Draw.sight).T
    # 0, 1: all attend to all. 2, 3: source and target. 4: to earlier tokens. 5: to later ones.
    kind = torch.from_numpy((first % np.uint64(6)).astype(np.int64))[:, None]
    # Source and target get at least one token each, if the row has two.
    source_length = 1 + _draw_below(second, (lengths - 1).clamp(min=1))[:, None]
    equal = torch.zeros_like(kind) * place
    source_then_target = (place - source_length + 1).clamp(min=0)
    order = equal.where(kind < 2, source_then_target)
    order = order.where(kind != 4, place)
    return order.where(kind != 5, -place)


def _draw_below(words: UInt64[np.ndarray, " b"], numbers: Int[Tensor, " b"]) -> Int[Tensor, " b"]:
    """Return, from random 64-bit `words`, a number from 0 to n - 1 for each n of `numbers`."""
    return torch.from_numpy((words % numbers.numpy().astype(np.uint64)).astype(np.int64))
