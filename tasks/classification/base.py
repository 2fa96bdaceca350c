"""What the classification tasks share: a stored data set, batches, tally, majority baseline."""

from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Integer, Shaped
from torch import Tensor

from tasks.baselines.n_grams import answers
from tasks.baselines.seen import RealTokens, SeenExamples, real_tokens
from tasks.data.rows import RowsTask
from tasks.task import Baseline, Batch, Tally

LOCAL = (
    (
        "bag_of_tokens",
        1,
        "counts tokens and forgets their order: a model at this level has learnt nothing about "
        "the sequence",
    ),
    (
        "ngrams",
        4,
        "sees runs of at most 4 tokens: a model at this level has learnt nothing that spans more",
    ),
)
"""Baselines of all classification tasks: name, window, and what a score at this level means."""


def tally(nll: Float[Tensor, " b"], hit: Bool[Tensor, " b"], batch: Batch) -> Tally:
    """Sum the losses and hits of one batch; rows of weight 0 do not count."""
    nll, hit, index = nll.detach().float().cpu(), hit.detach().cpu(), batch.index
    weight = torch.ones_like(nll) if batch.weight is None else batch.weight.cpu().float()
    counts = weight > 0
    return Tally(
        nll_sum=float((nll[counts].double() * weight[counts]).sum()),
        hits=float((hit[counts].double() * weight[counts]).sum()),
        count=float(weight.double().sum()),
        index=index[counts],
        nll=nll[counts],
        hit=hit[counts],
    )


class ClassificationTask(RowsTask):
    """One class for one or two stored sequences; a task adds what it is, and how data are made."""

    def lengths(self, split: str) -> Int[np.ndarray, " s"]:
        """Return the tokens of every sequence of a split, of both where they are pairs."""
        return np.minimum(np.diff(self.split(split).offsets), self.max_length)

    def example(self, split: str, index: int) -> tuple[list[Shaped[np.ndarray, " _"]], int]:
        """Return an example's sequences as stored (bytes or ids), cut to `max_length`, and class.

        Raises:
            IndexError: The split has no such example.
        """
        data = self.split(split)
        if not 0 <= index < len(data.targets):
            raise IndexError(f"{split} has examples 0 … {len(data.targets) - 1}: got {index}")
        rows = [row[: self.max_length] for row in data.rows(np.array([index]))]
        return rows, int(data.targets[index])

    def tally(self, nll: Tensor, hit: Tensor, batch: Batch) -> Tally:
        """Sum what the model's per-item losses and hits mean for this task."""
        return tally(nll, hit, batch)

    def stored(self, batch: Batch) -> Int[np.ndarray, "b p l"]:
        """Return the stored tokens that a batch shows; where it pads, they mean nothing."""
        return batch.tokens.numpy() - self.shift

    def seen(self, split: str) -> SeenExamples:
        """Return what a model sees of a split: baselines read nothing else."""
        data = self.split(split)
        return SeenExamples(
            targets=data.targets,
            lengths=np.minimum(data.lengths, self.max_length),
            parts=data.parts,
            read=partial(self._kept, split),
        )

    def _kept(self, split: str, examples: Int[np.ndarray, " b"]) -> RealTokens:
        (batch,) = self.read(split, [examples], 0)
        keep = None if batch.keep is None else batch.keep.flatten(0, 1).numpy()
        return real_tokens(self.stored(batch).reshape(-1, batch.tokens.shape[-1]), keep)

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines on `split`, fitted on train, from what a model sees of both."""
        train, data = self.seen("train"), self.seen(split)
        guess = int(self.counts(train.targets).argmax())
        found = [
            baseline(
                "majority",
                data.targets == guess,
                f"always answers {guess}, the most frequent training label: a model at this level "
                "has learnt nothing about its input",
            )
        ]
        for name, longest_run, sentence in LOCAL:
            hit = answers(
                train, data, classes=self.spec.classes, longest_run=longest_run, name=name
            )
            found.append(baseline(name, hit, sentence))
        return found

    def counts(self, targets: Integer[np.ndarray, " n"]) -> Int[np.ndarray, " c"]:
        """Return how often each class occurs."""
        return np.bincount(targets, minlength=self.spec.classes)


def baseline(name: str, hit: Bool[np.ndarray, " n"], sentence: str) -> Baseline:
    """Return a baseline from the outcome of each example."""
    return Baseline(
        name=name,
        accuracy=float(hit.mean()),
        outcomes=torch.from_numpy(np.ascontiguousarray(hit)),
        sentence=sentence,
    )
