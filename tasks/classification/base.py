"""The base of classification tasks: stored data, batches, tally, majority baseline."""

import math
from collections.abc import Iterable, Iterator
from functools import partial
from typing import ClassVar

import numpy as np
from jaxtyping import Bool, Int, Integer, Shaped

from lra.tasks.baselines.seen_examples import RealTokens, SeenExamples, real_tokens
from lra.tasks.classification.objectives import (
    HIDING,
    Hiding,
    InputObjective,
    MaskedReplacement,
    spec_of,
    with_answers,
)
from lra.tasks.data import tokens
from lra.tasks.data.examples import tally
from lra.tasks.data.rows import RowsTask
from lra.tasks.data.tokens import unigram_baseline
from lra.tasks.task import Baseline, Batch, Tally, TaskSpec
from lra.tasks.tensors import Tensor, torch

FIT = 20_000
"""Most training examples whose tokens the baseline counts."""
COUNTED_AT_ONCE = 64

LOCAL = (
    (
        "bag_of_tokens",
        1,
        "This baseline counts tokens and ignores their order. A model with this score may have "
        "learnt nothing about the order.",
    ),
    (
        "ngrams",
        4,
        (
            "This baseline reads groups of at most 4 neighbouring tokens. A model with this score "
            "may use no longer context."
        ),
    ),
)
"""Baselines of all classification tasks: name, tokens of a window, and what the score means."""


class ClassificationTask(RowsTask):
    """A task that asks for one class for one or two stored sequences; a base class.

    With an `objective` other than classify, the model predicts tokens of the same inputs.
    """

    objective = InputObjective.classify
    class_conditional = False
    scalars = False
    """Whether tokens are real numbers."""
    condition_names: ClassVar[tuple[str, ...]] = ()
    """Names of the conditions by id, if they have names."""
    usual_share: ClassVar[float] = 0.15
    """Fraction of tokens that objective=masked hides."""

    def answer(
        self,
        objective: InputObjective,
        masked_share: float | None,
        masked_replacement: MaskedReplacement = MaskedReplacement.mask,
        *,
        class_conditional: bool = False,
    ) -> None:
        """Set what the model predicts; a `masked_share` of None means `usual_share`.

        With `class_conditional`, batches have the class of an example as its condition.

        Raises:
            ValueError: The options contradict each other.
        """
        if class_conditional and objective is not InputObjective.causal:
            raise ValueError(
                "task.class_conditional=true makes a model generate tokens given the class, which "
                f"needs objective=causal: got objective={objective}; set task.objective=causal or "
                "task.class_conditional=false"
            )
        self.class_conditional = class_conditional
        hides = objective in HIDING
        if masked_share is not None and not (hides or objective is InputObjective.permutation):
            raise ValueError(
                f"task.masked_share={masked_share} needs objective=masked, unilm, permutation or "
                f"replaced: got objective={objective}; set task.masked_share=null"
            )
        if masked_replacement is not MaskedReplacement.mask and not hides:
            raise ValueError(
                f"task.masked_replacement={masked_replacement} needs objective=masked, unilm "
                f"or replaced: got objective={objective}; set task.masked_replacement=mask"
            )
        if self.scalars and objective is not InputObjective.classify:
            raise ValueError(
                f"task.objective={objective} predicts token ids, which scalars lack: got "
                "task.encoding=scalars; set task.encoding=symbols or task.objective=classify"
            )
        self.objective, self.masked_replacement = objective, masked_replacement
        self.masked_share = self.usual_share if masked_share is None else masked_share
        if not 0 < self.masked_share < 1:
            raise ValueError(f"task.masked_share must lie in (0, 1): got {masked_share}")

    @property
    def per_token(self) -> bool:
        """Whether the model predicts tokens instead of a class."""
        return self.objective is not InputObjective.classify

    def facts_of(self, spec: TaskSpec) -> TaskSpec:
        """Return the facts under `self.objective`, given those for `classify`."""
        if not self.per_token:
            return spec
        return spec_of(
            spec, self.objective, self.masked_share, self.masked_replacement,
            conditional=self.class_conditional,
        )  # fmt: skip

    def batches(
        self,
        split: str,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        ranks: int = 1,
        start: int = 0,
    ) -> Iterator[Batch]:
        """Yield one epoch of `split`, from this rank's batch number `start` on."""
        epoch = super().batches(
            split, batch_size=batch_size, seed=seed, rank=rank, ranks=ranks, start=start
        )
        # Evaluation always masks the same tokens, so it uses a fixed seed.
        return self._answered(epoch, seed if split == "train" else 0) if self.per_token else epoch

    def _answered(self, batches: Iterable[Batch], seed: int) -> Iterator[Batch]:
        """Yield `batches` with tokens as targets instead of classes; `seed` draws masked tokens."""
        # Without padding, which has id 0, and without the mask, which is the last id.
        token_ids = range(int(self.spec.padded), self.spec.vocabulary - 1)
        hiding = Hiding(seed, self.masked_share, self.masked_replacement, token_ids)
        for batch in batches:
            condition = batch.target if self.class_conditional else None
            yield with_answers(batch, self.objective, hiding)._replace(condition=condition)

    def lengths(self, split: str) -> Int[np.ndarray, " s"]:
        """Return the tokens that a model reads of each sequence of `split`; a pair has two."""
        sizes = np.diff(self.split(split).offsets) // self.channels
        lengths: np.ndarray = np.minimum(sizes, self.max_length)
        return lengths

    def example(self, split: str, index: int) -> tuple[list[Shaped[np.ndarray, " _"]], int]:
        """Return an example: its stored sequences (bytes or ids), cut to `max_length`, and class.

        Raises:
            IndexError: The split has no example with this index.
        """
        data = self.split(split)
        if not 0 <= index < len(data.targets):
            raise IndexError(
                f"{split} has the examples 0 to {len(data.targets) - 1}: got example {index}"
            )
        most = self.max_length * self.channels
        rows = [row[:most] for row in data.rows(np.array([index]))]
        return rows, int(data.targets[index])

    def tally(self, nll: Tensor, hit: Tensor, batch: Batch) -> Tally:
        """Sum the model's losses and hits, of tokens or of examples."""
        if self.per_token:
            return tokens.tally(nll, hit, batch, {})
        return tally(nll, hit, batch, by_class=bool(self.spec.scores))

    def derived_metrics(self, split: str, loss: float) -> dict[str, float]:
        """Return metrics from `loss`, the mean in nats per token; {} if a class is predicted."""
        del split
        if not self.per_token or self.objective is InputObjective.replaced:
            return {}
        return {"perplexity": math.exp(loss), "bits_per_token": loss / math.log(2)}

    def stored(self, batch: Batch) -> Int[np.ndarray, "b p l *rgb"]:
        """Return the stored tokens of a batch; the numbers at padding are meaningless."""
        return batch.tokens.numpy() - self.shift

    def seen(self, split: str) -> SeenExamples:
        """Return what a model reads of a split; baselines read the same."""
        data = self.split(split)
        return SeenExamples(
            targets=data.targets,
            lengths=np.minimum(data.lengths, self.max_length * self.channels),
            parts=data.parts,
            read=partial(self._read_tokens, split),
        )

    def _read_tokens(self, split: str, examples: Int[np.ndarray, " b"]) -> RealTokens:
        """Return the tokens of some examples without padding, as one batch of a model has them."""
        (batch,) = self.read(split, [examples], 0)
        keep = None if batch.keep is None else batch.keep.flatten(0, 1).numpy()
        return real_tokens(
            self.stored(batch).reshape(len(examples) * batch.tokens.shape[1], -1), keep
        )

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines on `split`, fitted on train, from what a model reads of both.

        If the model predicts tokens, the only baseline is their frequencies in train; if it finds
        replaced tokens, it is the answer that all are original.
        """
        if self.objective is InputObjective.replaced:
            return [self._always_original(split)]
        if self.per_token:
            frequencies = self._count_tokens("train", scored=False)
            targets = self._count_tokens(split, scored=True)
            return [unigram_baseline(frequencies, targets, partial(self.derived_metrics, split))]
        from lra.tasks.baselines import n_grams

        train, data = self.seen("train"), self.seen(split)
        results = [self.majority(split)]
        for name, longest_run, sentence in LOCAL:
            hit = n_grams.n_gram_answers(
                train, data, classes=self.spec.classes, longest_run=longest_run, name=name
            )
            results.append(baseline(name, hit, sentence))
        return results

    def majority(self, split: str) -> Baseline:
        """Return the baseline that always answers the most frequent training label."""
        guess = int(self.counts(self.split("train").targets).argmax())
        return baseline(
            "majority",
            self.split(split).targets == guess,
            f"This baseline always answers {guess}, the most frequent training label. A model "
            "with this score has learnt nothing about its input.",
        )

    def _always_original(self, split: str) -> Baseline:
        """Return the baseline that takes every token for the original one."""
        replaced = total = 0
        for batch in self.batches(split, batch_size=COUNTED_AT_ONCE, seed=0):
            assert batch.uniform is not None, "a batch says which tokens are replaced"
            replaced += int((batch.uniform > 0).sum())
            total += int(batch.target.numel() if batch.keep is None else batch.keep.sum())
        return Baseline(
            name="always_original",
            accuracy=1 - replaced / total,
            outcomes=None,
            sentence="This baseline takes every token for the original one. Samples that equal the "
            "original tokens raise its accuracy to original_share, which each model reports.",
        )

    def _count_tokens(self, split: str, *, scored: bool) -> Int[np.ndarray, " v"]:
        """Return how often each token occurs in `split`.

        If `scored`, count all targets with a weight above 0, else all tokens of `FIT` examples.
        With a language model's objective, the targets of a batch are the tokens of its sequences.
        """
        total = torch.zeros(self.spec.vocabulary, dtype=torch.int64)
        examples = np.arange(self.examples(split) if scored else min(FIT, self.examples(split)))
        plan = np.split(examples, range(COUNTED_AT_ONCE, len(examples), COUNTED_AT_ONCE))
        for batch in self._answered(self.read(split, plan, 0), 0):
            counted = torch.ones_like(batch.target, dtype=torch.bool)
            if batch.keep is not None:
                counted = batch.keep[:, 0]
            if scored and batch.weight is not None:
                counted = batch.weight > 0
            total += torch.bincount(batch.target[counted], minlength=len(total))
        return total.numpy()

    def counts(self, targets: Integer[np.ndarray, " n"]) -> Int[np.ndarray, " c"]:
        """Return how often each class occurs in `targets`."""
        return np.bincount(targets, minlength=self.spec.classes)


def baseline(name: str, hit: Bool[np.ndarray, " n"], sentence: str) -> Baseline:
    """Return a baseline whose accuracy is the mean of `hit`, the outcome of each example."""
    return Baseline(
        name=name,
        accuracy=float(hit.mean()),
        outcomes=torch.from_numpy(np.ascontiguousarray(hit)),
        sentence=sentence,
    )
