"""The base of language tasks: windows of a text, and the regime of evaluation.

The text of a split is one long sequence of tokens, a *stream*, which is cut into windows. Training
windows are shuffled, or contiguous: each row of a batch continues that row of the last batch. With
a memory, a state then goes on from batch to batch. Every stored row names the regime of evaluation:

    non_overlapping   windows of `length`, each read alone
    sliding           windows of `length` that end `stride` apart; the last `stride` tokens count
    memory            contiguous windows with a state from window to window; each token counts once

An example is a window. Its loss is the mean over the tokens that count.
"""

import copy
import math
from collections.abc import Iterator
from enum import StrEnum, auto
from functools import cached_property, partial

import numpy as np
from jaxtyping import Int

from lra.conf.choices import by_name
from lra.tasks.data.batching import check_ranks
from lra.tasks.data.overlap import Sequences
from lra.tasks.data.storage import RaggedRows
from lra.tasks.data.stored_task import StoredTask
from lra.tasks.data.tokens import tally, unigram_baseline
from lra.tasks.errors import BadData
from lra.tasks.language.windows import (
    VariedLengths,
    Windows,
    evaluation_windows,
    lanes,
    shuffled_windows,
    varied_lanes,
)
from lra.tasks.task import Baseline, Batch, Kind, Tally, Task, TaskSpec
from lra.tasks.tensors import Tensor, torch

COUNT_AT_ONCE = 1 << 24


class Regime(StrEnum):
    """How evaluation cuts a text into windows."""

    non_overlapping = auto()
    sliding = auto()
    memory = auto()


class LanguageTask(StoredTask):
    """Next-token prediction; a base class. The constructor of a subclass calls `read_as`.

    Args:
        length: Number of tokens of a training window.
        evaluation_length: Number of tokens of an evaluation window; null: as in training.
        regime: How evaluation cuts the text into windows: non_overlapping, sliding or memory.
        stride: Number of tokens from one sliding window to the next.
        memory: Number of earlier tokens that a model remembers, for regime=memory.
        contiguous: Whether each row of a training batch continues the same row of the last batch,
            instead of shuffled windows. With regime=memory, the model's state continues, too.
        within_documents: Whether tokens attend only to their own document.
    """

    length: int
    """Number of tokens of a training window."""
    evaluation_length: int
    """Number of tokens of a window in validation and test."""
    regime: Regime
    stride: int
    memory: int
    contiguous: bool
    within_documents = False
    """Whether tokens attend only to their own document."""
    begin: int | None = None
    """Token before the first one of an example; None: an example continues the text before it."""
    unscored: int | None = None
    """Token that never counts as an answer; None: every token counts."""
    complements: Int[np.ndarray, " v"] | None = None
    """Complement of each token, for an alphabet that has them; None: it has none."""
    varied: VariedLengths | None = None
    """How the lengths of training windows are drawn; None: all windows have `length` tokens."""

    @by_name
    def read_as(
        self,
        *,
        length: int,
        regime: Regime,
        stride: int | None,
        memory: int,
        contiguous: bool,
        evaluation_length: int | None = None,
        within_documents: bool = False,
    ) -> None:
        """Set the options of the class, which decide how the text is cut into windows.

        Raises:
            ValueError: The options contradict each other.
        """
        self.regime = regime
        window = length if evaluation_length is None else evaluation_length
        for name, value in (("length", length), ("evaluation_length", window)):
            if value < 1:
                raise ValueError(f"task.{name} must be at least 1: got {value}")
        sliding = self.regime is Regime.sliding
        if sliding and (stride is None or not 1 <= stride < window):
            raise ValueError(
                f"task.regime=sliding needs a task.stride from 1 to {window - 1}, below the length "
                f"of a window: got task.stride={stride}"
            )
        if not sliding and stride is not None:
            raise ValueError(
                f"task.stride={stride} needs task.regime=sliding: got regime={self.regime}"
            )
        if (self.regime is Regime.memory) != (memory > 0):
            raise ValueError(
                "task.regime=memory needs task.memory, the number of remembered tokens, and the "
                f"other way round: got regime={self.regime}, memory={memory}"
            )
        if within_documents and memory:
            raise ValueError(
                "task.within_documents=true excludes tokens of other documents, but the state of "
                f"task.regime=memory mixes documents: got memory={memory}; set task.memory=0, and "
                "task.regime=non_overlapping or sliding"
            )
        self.within_documents = within_documents
        self.length, self.memory, self.contiguous = length, memory, contiguous
        self.evaluation_length = window
        self.stride = window if stride is None else stride

    def stream_spec(
        self,
        *,
        name: str,
        version: int,
        vocabulary: int,
        metric: str,
        source: str,
        data_hash: str,
        tokenizer: str = "",
    ) -> TaskSpec:
        """Return the facts about the task; the constructor must call `read_as` before."""
        return TaskSpec(
            name=name,
            version=version,
            kind=Kind.language_modelling,
            vocabulary=vocabulary,
            classes=vocabulary,
            max_length=self.longest,
            padded=False,
            metric=metric,
            source=source,
            data_hash=data_hash,
            regime=self.regime_text,
            tokenizer=tokenizer,
            memory=self.memory,
            masks=frozenset({"document"} if self.within_documents else ()),
        )

    @property
    def regime_text(self) -> str:
        """The regime, as rows and tables print it."""
        texts = {
            Regime.non_overlapping: "non-overlapping",
            Regime.sliding: f"sliding, stride {self.stride}",
            Regime.memory: f"memory of {self.memory}",
        }
        return texts[self.regime] + (", within documents" if self.within_documents else "")

    def examples(self, split: str) -> int:
        """Return the number of windows in a split; the last one may be incomplete.

        The first token of the text is not predicted, so windows have one token less to share.
        """
        return -(-(len(self.split(split).tokens) - 1) // self.window(split))

    def lengths(self, split: str) -> Int[np.ndarray, " w"]:
        """Return the number of tokens of every window of a split, in order."""
        window_lengths = np.full(self.examples(split), self.window(split), np.int64)
        window_lengths[-1] -= int(window_lengths.sum()) - (len(self.split(split).tokens) - 1)
        return window_lengths

    def window(self, split: str) -> int:
        """Return the number of tokens of a whole window of a split."""
        return self.length if split == "train" else self.evaluation_length

    def with_windows(self, length: int) -> Task:
        """Return this task with training windows of `length` tokens, otherwise unchanged."""
        other = copy.copy(self)
        other.length = length
        return other

    def with_varied_windows(self, deviation: float, halved: float) -> Task:
        """Return this task with training windows whose lengths are drawn around `length`.

        Raises:
            ValueError: Windows are shuffled, or would often exceed `longest`, the model's limit.
        """
        if not self.contiguous:
            raise ValueError(
                "runner.window_deviation needs contiguous training windows: got "
                "task.contiguous=false; set task.contiguous=true, or runner.window_deviation=null"
            )
        # One length in 700 of a normal distribution is 3 deviations above its mean.
        if self.length + 3 * deviation > self.longest:
            wanted = math.ceil(self.length + 3 * deviation)
            raise ValueError(
                f"windows of task.length={self.length} tokens, with a deviation of {deviation}, "
                f"often exceed {self.longest} tokens, the most that the model accepts; set "
                f"task.evaluation_length={wanted} or more, or lower runner.window_deviation"
            )
        other = copy.copy(self)
        other.varied = VariedLengths(deviation, halved, self.longest)
        return other

    def row_tokens(self, split: str, rows: int) -> int | None:
        """Return how many tokens each of `rows` batch rows reads in an epoch, at least.

        None if no state continues from batch to batch of `split`.
        """
        if not self.carries(split):
            return None
        per_row = (len(self.split(split).tokens) - 1) // rows
        return per_row // self.length * self.length if split == "train" else per_row

    def carries(self, split: str) -> bool:
        """Return whether a state continues from batch to batch of `split`."""
        return self.memory > 0 and (self.contiguous or split != "train")

    @property
    def trained_length(self) -> int:
        """Number of tokens of a training window."""
        return self.length

    @property
    def tested_length(self) -> int:
        """Number of tokens of an evaluation window."""
        return self.evaluation_length

    def stretched(self, factor: float) -> dict[str, object]:
        """Return the options that make evaluation windows `factor` times as long as training ones.

        Raises:
            ValueError: A state continues from window to window, or the test split is too short.
        """
        if self.regime is Regime.memory:
            raise ValueError(
                "longer windows cannot be compared under task.regime=memory, because a model also "
                f"reads a state of {self.memory} tokens; set task.memory=0, and "
                "task.regime=non_overlapping or sliding"
            )
        length, available = max(1, round(factor * self.length)), len(self.split("test").tokens) - 1
        if length > available:
            raise ValueError(
                f"the test split has {available:,} tokens to predict, fewer than one window of "
                f"{length:,} tokens; remove the factor {factor:g}, or use a longer test text"
            )
        return {} if length == self.evaluation_length else {"evaluation_length": length}

    def equal_work(self, examples: int, factor: float) -> int:
        """Return how many windows evaluate as many tokens as `examples` of the training length.

        `factor` is the length of evaluation windows divided by the length of training windows.
        """
        # A sliding window of any length evaluates `stride` tokens.
        scored = factor if self.regime is Regime.non_overlapping else 1.0
        return max(1, math.ceil(examples / scored))

    @property
    def longest(self) -> int:
        """Number of tokens of the longest window."""
        return max(self.length, self.evaluation_length)

    def example(self, split: str, index: int) -> Int[np.ndarray, " l"]:
        """Return the stored tokens of window number `index`."""
        first = index * self.window(split)
        return np.asarray(self.split(split).tokens[first : first + self.window(split)], np.int64)

    def windows(self, split: str, *, rows: int, seed: int) -> Windows:
        """Return the windows of one epoch of all ranks, in batches of `rows`."""
        tokens, length = len(self.split(split).tokens), self.window(split)
        if tokens < 2:
            raise ValueError(f"the {split} split must have at least 2 tokens: got {tokens}")
        if split == "train" and not self.contiguous:
            return shuffled_windows(tokens, length=length, seed=seed)
        if split == "train" or self.regime is Regime.memory:
            if (tokens - 1) // rows < (length if split == "train" else 1):
                raise ValueError(
                    f"{rows} rows of contiguous windows of {length} tokens need a {split} split of "
                    f"{rows * length + 1} tokens: got {tokens}; lower the batch size or task.length"
                )
            whole = split == "train"
            if whole and self.varied:
                return varied_lanes(tokens, length=length, rows=rows, varied=self.varied, seed=seed)
            return lanes(tokens, length=length, rows=rows, whole=whole, seed=seed)
        return evaluation_windows(tokens, length=length, stride=self.stride)

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
        check_ranks(batch_size=batch_size, rank=rank, ranks=ranks)
        together = batch_size * ranks
        plan = self.windows(split, rows=together, seed=seed)
        number = len(plan.starts)
        last = number // together * together if split == "train" else number
        if split == "train" and not last:
            raise ValueError(
                f"batch_size={batch_size} on ranks={ranks} needs {together} training windows of "
                f"{self.length} tokens: got {number}; lower the batch size or task.length"
            )
        has_state = self.carries(split)
        flat = self.split(split).tokens
        needs_documents = split != "train" or self.within_documents
        documents = self.document_starts(split) if needs_documents else None
        if documents is None and self.within_documents:
            raise BadData(
                f"{self.spec.source}: the {split} split does not show where documents begin; set "
                "task.within_documents=false"
            )
        for first in range(start * together, last, together):
            indices = np.arange(first, min(first + together, last))[rank::ranks]
            if len(indices):
                reset = first == 0 if has_state else None
                batch = self._make_batch(flat, plan, indices, reset=reset)
                if documents is not None:
                    batch = self._add_positions(batch, plan.starts[indices, None], documents, split)
                yield batch

    def _add_positions(
        self,
        batch: Batch,
        starts: Int[np.ndarray, "b 1"],
        documents: Int[np.ndarray, " d"],
        split: str,
    ) -> Batch:
        """Return `batch` with `document_position` (evaluation) and `document` (within documents).

        Args:
            batch: The batch.
            starts: Position of each row's first token in the text.
            documents: Positions at which documents begin, in order.
            split: The split of the batch.
        """
        position = starts + np.arange(batch.target.shape[1])
        if split != "train":
            answer = position + 1  # the model predicts the next token
            before = answer - documents[np.searchsorted(documents, answer, "right") - 1]
            batch = batch._replace(document_position=torch.from_numpy(before))
        if self.within_documents:
            numbers = np.searchsorted(documents, position, "right")
            batch = batch._replace(document=torch.from_numpy(numbers))
        return batch

    def _make_batch(
        self, flat: np.ndarray, plan: Windows, indices: Int[np.ndarray, " b"], reset: bool | None
    ) -> Batch:
        """Return the windows `indices` of `plan` as a batch; weights are 1 at scored tokens."""
        starts, lengths, scored = (part[indices] for part in plan)
        longest = int(lengths.max())
        # A row has the tokens of a window and the one after them, the last to predict.
        narrow = np.zeros((len(indices), longest + 1), flat.dtype)
        for row, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
            narrow[row, : length + 1] = flat[start : start + length + 1]
        both = torch.from_numpy(narrow.astype(np.int64))
        weight = None
        if not bool((scored == longest).all()):
            position = np.arange(longest)
            counts = (position >= (lengths - scored)[:, None]) & (position < lengths[:, None])
            weight = torch.from_numpy(counts.astype(np.float32))
        return Batch(
            tokens=both[:, None, :-1],
            target=both[:, 1:],
            index=torch.from_numpy(indices),
            weight=weight,
            reset=None if reset is None else torch.full((len(indices),), reset),
        )

    def text_sequences(self, data: RaggedRows) -> Sequences:
        """Return the whole text as one sequence, so that compared pieces may span documents."""
        return Sequences(data.tokens, np.array([0, len(data.tokens)]))

    def texts(self, split: str) -> Int[np.ndarray, "n 2"]:
        """Return where each text begins and ends in the tokens of a split; here it is one text."""
        return np.array([[0, len(self.split(split).tokens)]])

    def document_starts(self, split: str) -> Int[np.ndarray, " d"] | None:
        """Return the position of each document's first token, the first at 0.

        None if the text has no known documents, as here; subclasses override this.
        """
        del split
        return None

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the unigram baseline: token frequencies of train, each count plus 1."""
        targets = count_tokens(self.split(split).tokens[1:], self.spec.vocabulary)
        derived = partial(self.derived_metrics, split)
        return [unigram_baseline(self.counts.numpy(), targets, derived)]

    def tally(self, nll: Tensor, hit: Tensor, batch: Batch) -> Tally:
        """Sum the losses and hits over the tokens that count, also by frequency and position."""
        numbers = {"frequency": (self.counts[batch.target], 10)}
        if batch.document_position is not None:
            numbers["document_position"] = batch.document_position.cpu(), 2
        return tally(nll, hit, batch, numbers)

    def derived_metrics(self, split: str, loss: float) -> dict[str, float]:
        """Return the perplexity for `loss`, the mean in nats per token."""
        del split
        return {"perplexity": math.exp(loss)}

    @cached_property
    def counts(self) -> Int[Tensor, " v"]:
        """Number of occurrences of each token in train."""
        return torch.from_numpy(count_tokens(self.split("train").tokens, self.spec.vocabulary))


def count_tokens(stream: np.ndarray, vocabulary: int) -> Int[np.ndarray, " v"]:
    """Return how often each token occurs in `stream`; count it piece by piece to save memory."""
    total = np.zeros(vocabulary, np.int64)
    for first in range(0, len(stream), COUNT_AT_ONCE):
        total += np.bincount(stream[first : first + COUNT_AT_ONCE], minlength=vocabulary)
    return total
