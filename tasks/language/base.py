"""The base of language tasks: streams of tokens, the regime of evaluation, sums per window.

The corpus of a split is one stream. Training windows are shuffled, or contiguous; with a memory, a
state is then carried from batch to batch. Evaluation follows a regime, part of every stored row:

    non_overlapping   windows of `length`, each read alone
    sliding           windows of `length` that end `stride` apart; the last `stride` tokens count
    memory            contiguous, with a state carried over; each token counts once

An example is a window: its loss is the mean over the tokens that count in it.
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
    """How a stream is cut for evaluation."""

    non_overlapping = auto()
    sliding = auto()
    memory = auto()


class LanguageTask(StoredTask):
    """Next-token prediction; a task calls `read_as` in its constructor.

    Args:
        length: Tokens of a training window.
        evaluation_length: Tokens of a window of evaluation; not given: the same.
        regime: How evaluation cuts the stream: non_overlapping, sliding or memory.
        stride: Tokens from one sliding window to the next.
        memory: Tokens that a state remembers, for regime=memory.
        contiguous: Whether training rows go on from batch to batch, instead of shuffled windows;
            with regime=memory, a state is carried along.
        within_documents: Whether a token sees those of its own document alone.
    """

    length: int
    """Tokens of a training window."""
    evaluation_length: int
    """Tokens of a window of validation and test."""
    regime: Regime
    stride: int
    memory: int
    contiguous: bool
    within_documents = False
    """Whether a token attends only to its document."""
    varied: VariedLengths | None = None
    """How the lengths of training windows are drawn; None: all are `length`."""

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
        """Take the options of the class, which say how streams are cut into windows.

        Raises:
            ValueError: The options contradict each other.
        """
        self.regime = regime
        read = length if evaluation_length is None else evaluation_length
        for name, value in (("length", length), ("evaluation_length", read)):
            if value < 1:
                raise ValueError(f"task.{name} must be at least 1: got {value}")
        sliding = self.regime is Regime.sliding
        if sliding and (stride is None or not 1 <= stride < read):
            raise ValueError(
                f"task.regime=sliding needs a stride from 1 to length - 1 = {read - 1}: got "
                f"task.stride={stride}"
            )
        if not sliding and stride is not None:
            raise ValueError(
                f"task.stride needs regime=sliding: got regime={self.regime}, stride={stride}"
            )
        if (self.regime is Regime.memory) != (memory > 0):
            raise ValueError(
                "task.memory is the number of tokens that a state remembers, for "
                f"regime=memory: got regime={self.regime}, memory={memory}"
            )
        if within_documents and memory:
            raise ValueError(
                "task.within_documents hides other documents of a window, but a state mixes "
                f"documents: got regime=memory, memory={memory}; set "
                "task.regime=non_overlapping or sliding, task.memory=0"
            )
        self.within_documents = within_documents
        self.length, self.memory, self.contiguous = length, memory, contiguous
        self.evaluation_length = read
        self.stride = read if stride is None else stride

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
        """Return the facts of the task; `read_as` must have been called before."""
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
        """Return the regime for rows and tables."""
        texts = {
            Regime.non_overlapping: "non-overlapping",
            Regime.sliding: f"sliding, stride {self.stride}",
            Regime.memory: f"memory of {self.memory}",
        }
        return texts[self.regime] + (", within documents" if self.within_documents else "")

    def examples(self, split: str) -> int:
        """Return the number of windows in a split; the last one may be incomplete."""
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
            ValueError: Windows are shuffled, or would often be longer than a model is built for.
        """
        if not self.contiguous:
            raise ValueError(
                "windows of drawn lengths must follow one another in a stream: got "
                "task.contiguous=false; set it to true, or runner.window_deviation=null"
            )
        if self.length + 3 * deviation > self.longest:
            wanted = math.ceil(self.length + 3 * deviation)
            raise ValueError(
                f"windows of {self.length} tokens with a deviation of {deviation} are often "
                f"longer than the {self.longest} for which the model is built, the larger of "
                f"task.length and task.evaluation_length: type task.evaluation_length={wanted} "
                "or more, or lower runner.window_deviation"
            )
        other = copy.copy(self)
        other.varied = VariedLengths(deviation, halved, self.longest)
        return other

    def row_tokens(self, split: str, rows: int) -> int | None:
        """Return how many tokens each of `rows` parallel streams reads in an epoch, at least.

        None for a split whose windows are read one by one, without a state between them.
        """
        if not self.carries(split):
            return None
        whole = (len(self.split(split).tokens) - 1) // rows
        return whole // self.length * self.length if split == "train" else whole

    def carries(self, split: str) -> bool:
        """Tell whether a state continues from batch to batch of a split."""
        return self.memory > 0 and (self.contiguous or split != "train")

    @property
    def trained_length(self) -> int:
        """Tokens of a training window."""
        return self.length

    @property
    def tested_length(self) -> int:
        """Tokens of a window of evaluation."""
        return self.evaluation_length

    def stretched(self, factor: float) -> dict[str, object]:
        """Return the options that make evaluation windows `factor` times as long as training's.

        Raises:
            ValueError: A state is carried from window to window, or the test split is shorter.
        """
        if self.regime is Regime.memory:
            raise ValueError(
                f"with regime=memory a model reads a state of {self.memory} tokens in addition "
                "to the window: set task.regime=non_overlapping or sliding, task.memory=0"
            )
        length, there = max(1, round(factor * self.length)), len(self.split("test").tokens) - 1
        if length > there:
            raise ValueError(
                f"the test split has {there:,} tokens to predict, less than one window of "
                f"{length:,}; remove this factor, or take more text"
            )
        return {} if length == self.evaluation_length else {"evaluation_length": length}

    def equal_work(self, examples: int, factor: float) -> int:
        """Return how many windows evaluate as many tokens as `examples` of the training length.

        Args:
            examples: Windows of the training length.
            factor: How many times as long the windows of evaluation are.
        """
        judged = factor if self.regime is Regime.non_overlapping else 1.0
        return max(1, math.ceil(examples / judged))

    @property
    def longest(self) -> int:
        """Tokens of the longest window."""
        return max(self.length, self.evaluation_length)

    def example(self, split: str, index: int) -> Int[np.ndarray, " l"]:
        """Return the stored tokens of a window."""
        first = index * self.window(split)
        return np.asarray(self.split(split).tokens[first : first + self.window(split)], np.int64)

    def windows(self, split: str, *, rows: int, seed: int) -> Windows:
        """Return the windows of one epoch of all ranks, in batches of `rows`."""
        tokens, length = len(self.split(split).tokens), self.window(split)
        if tokens < 2:
            raise ValueError(f"the {split} split has {tokens} tokens; wanted at least 2")
        if split == "train" and not self.contiguous:
            return shuffled_windows(tokens, length=length, seed=seed)
        if split == "train" or self.regime is Regime.memory:
            if (tokens - 1) // rows < (length if split == "train" else 1):
                raise ValueError(
                    f"{rows} streams of windows of {length} need {rows * length + 1} tokens: the "
                    f"{split} split has {tokens}; lower the batch size or task.length"
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
                f"batch_size={batch_size} on ranks={ranks} needs {together} windows of "
                f"{self.length}: the split has {number}; lower the batch size or task.length"
            )
        streams = self.carries(split)
        flat = self.split(split).tokens
        asked = split != "train" or self.within_documents
        documents = self.document_starts(split) if asked else None
        if documents is None and self.within_documents:
            raise BadData(
                f"{self.spec.source}: {split} has no marks where documents begin; set "
                "task.within_documents=false"
            )
        for first in range(start * together, last, together):
            indices = np.arange(first, min(first + together, last))[rank::ranks]
            if len(indices):
                reset = first == 0 if streams else None
                batch = self._batch(flat, plan, indices, reset=reset)
                if documents is not None:
                    batch = self._placed(batch, plan.starts[indices, None], documents, split)
                yield batch

    def _placed(
        self,
        batch: Batch,
        starts: Int[np.ndarray, "b 1"],
        documents: Int[np.ndarray, " d"],
        split: str,
    ) -> Batch:
        """Return a batch with the positions of its tokens in their documents.

        For evaluation, `document_position` says how many tokens of its document come before each
        answer. With `within_documents`, `document` numbers the document of each token.

        Args:
            batch: The batch.
            starts: The place of each row's first token in the stream.
            documents: The places at which documents begin, in order.
            split: The split of the batch.
        """
        place = starts + np.arange(batch.target.shape[1])
        if split != "train":
            before = place + 1 - documents[np.searchsorted(documents, place + 1, "right") - 1]
            batch = batch._replace(document_position=torch.from_numpy(before))
        if self.within_documents:
            numbers = np.searchsorted(documents, place, "right")
            batch = batch._replace(document=torch.from_numpy(numbers))
        return batch

    def _batch(
        self, flat: np.ndarray, plan: Windows, indices: Int[np.ndarray, " b"], reset: bool | None
    ) -> Batch:
        starts, lengths, scored = (part[indices] for part in plan)
        longest = int(lengths.max())
        narrow = np.zeros((len(indices), longest + 1), flat.dtype)
        for row, (begin, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
            narrow[row, : length + 1] = flat[begin : begin + length + 1]
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
        """Return the whole stream: runs of text pass the ends of documents."""
        return Sequences(data.tokens, np.array([0, len(data.tokens)]))

    def document_starts(self, split: str) -> Int[np.ndarray, " d"] | None:
        """Return where each document of a split begins, the first one at 0; None without documents.

        Here there are none: a task that knows where its documents begin says so.
        """
        del split
        return None

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the unigram baseline: token frequencies of train, each count plus 1."""
        seen = count_tokens(self.split(split).tokens[1:], self.spec.vocabulary)
        return [unigram_baseline(self.counts.numpy(), seen, partial(self.derived_metrics, split))]

    def tally(self, nll: Tensor, hit: Tensor, batch: Batch) -> Tally:
        """Sum losses in nats and hits over the tokens that count."""
        numbers = {"frequency": (self.counts[batch.target], 10)}
        if batch.document_position is not None:
            numbers["document_position"] = batch.document_position.cpu(), 2
        return tally(nll, hit, batch, numbers)

    def derived_metrics(self, split: str, loss: float) -> dict[str, float]:
        """Return metrics from the mean loss in nats per token: perplexity."""
        del split
        return {"perplexity": math.exp(loss)}

    @cached_property
    def counts(self) -> Int[Tensor, " v"]:
        """How often each token occurs in train."""
        return torch.from_numpy(count_tokens(self.split("train").tokens, self.spec.vocabulary))


def count_tokens(stream: np.ndarray, vocabulary: int) -> Int[np.ndarray, " v"]:
    """Count each token, a piece of the stream at a time."""
    total = np.zeros(vocabulary, np.int64)
    for first in range(0, len(stream), COUNT_AT_ONCE):
        total += np.bincount(stream[first : first + COUNT_AT_ONCE], minlength=vocabulary)
    return total
