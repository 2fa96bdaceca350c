"""The interface of a task: where batches come from, and how answers are evaluated."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int

from lra.tasks.errors import (
    BadData as BadData,  # noqa: PLC0414  # handed on
    NotPrepared as NotPrepared,  # noqa: PLC0414
)
from lra.tasks.tensors import Tensor

SPLITS = ("train", "validation", "test")


class Kind(StrEnum):
    """What the model predicts."""

    classification = auto()
    """One class for one sequence."""
    pair = auto()
    """One class for two sequences."""
    language_modelling = auto()
    """One token at every position, from the tokens before it."""
    masked_modelling = auto()
    """One token at every position, from both sides; the batch's weight says which ones count."""
    sequence_to_sequence = auto()
    """One token at every position after a source (the batch's `prefix`), from the source and the
    tokens before it."""

    permutation_modelling = auto()
    """One token at some positions, each from its position and the tokens of lower rank in the
    batch's `order`."""
    reconstruction = auto()
    """Every token of a row, each from its position and one vector that a causal model makes of the
    row."""
    replaced_detection = auto()
    """At every position, whether a generator has replaced the token; targets are the original
    tokens."""

    regression = auto()
    """One real number for one sequence, judged by its squared error."""


TOKEN_KINDS = frozenset(set(Kind) - {Kind.classification, Kind.pair, Kind.regression})
"""Kinds whose targets are tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """Facts about a task that models, keys and tables need. Cheap: needs no data on disk."""

    name: str
    version: int
    """Increased by every change that changes a number."""
    kind: Kind
    vocabulary: int
    """Number of token ids; 0 is padding if the task pads."""
    classes: int
    max_length: int
    added_ids: int = 0
    """Number of ids that the objective adds at the end of the vocabulary, such as a mask token.
    Other tasks over the same tokens lack them, so their weights are not copied."""
    padded: bool
    """Whether some batches have padding."""
    scalars: bool = False
    """Whether tokens are real numbers instead of ids; `vocabulary` is then 0."""
    channels: int = 1
    """Real numbers of a token; from 2 on, tokens have a last axis of this size."""
    metric: str
    """Name of the metric that tables print, from `lra.runners.metrics`, for example accuracy."""
    source: str
    """Where the data come from, for example generated, sample, imdb; printed next to every
    number."""
    data_hash: str
    """Hash of the generator options or of the data files; `prepare` does not change it."""
    regime: str = ""
    """What evaluation covers, or how it cuts a text into windows, if the task offers a choice; part
    of every stored row."""
    tokenizer: str = ""
    """Name and hash of the tokenizer of words or sub-words, for example `words 1a2b3c4d`; part of
    every stored row. Empty: bytes, characters or symbols."""
    memory: int = 0
    """Number of earlier tokens that a model remembers from window to window; 0: none."""
    masks: frozenset[str] = frozenset()
    """Masks in every batch, which decide which tokens attend to each other: prefix, order,
    document."""
    source_length: int = 0
    """Tokens of the longest source, if the task has sources."""
    target_length: int = 0
    """Tokens of the longest answer to a source."""
    sources_vary: bool = False
    """Whether some sources are shorter than `source_length`."""
    conditions: int = 0
    """Number of conditions, of which every batch has one for each row; 0: none."""
    scores: frozenset[str] = frozenset()
    """Scores besides accuracy and loss: exact_match, macro_accuracy, scaled_accuracy, mcc for two
    classes, and those of `AcceptsSeveral`."""
    chance: float = 0.0
    """Accuracy of a guess, which scaled_accuracy maps to 0."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Number of examples by split, if known."""

    @property
    def measured(self) -> frozenset[str]:
        """The scores of every evaluation, without those that follow from the mean loss."""
        basic = {"mse"} if self.kind is Kind.regression else {"accuracy", "loss"}
        return self.scores | basic


class Batch(NamedTuple):
    """One batch, on the CPU."""

    tokens: Int[Tensor, "b p l"] | Float[Tensor, "b p l"] | Float[Tensor, "b p l channels"]
    target: Tensor
    """[b] classes or real numbers, or [b l] tokens."""
    index: Int[Tensor, " b"]  # type: ignore[assignment]  # a tuple has a method of this name
    """Position of each example in its split; pairs the outcomes of different models."""
    keep: Bool[Tensor, "b p l"] | None = None
    """True at real tokens, False at padding; None: there is no padding."""
    weight: Tensor | None = None
    """Weight of each target in the loss and the score, shaped like target; None: all weights are
    1."""
    reset: Bool[Tensor, " b"] | None = None
    """True for each row that starts a text anew, so that the model's state is reset."""
    document_position: Int[Tensor, "b l"] | None = None
    """Number of tokens before each answer in its document; None: no documents, or not needed."""
    document: Int[Tensor, "b l"] | None = None
    """Number of each token's document; tokens attend only to their own document. None: to the whole
    row."""
    prefix: Int[Tensor, " b"] | None = None
    """Length of each row's prefix. Tokens of the prefix attend to the whole prefix, later tokens
    to all earlier ones. None: no prefix."""
    order: Int[Tensor, "b l"] | None = None
    """Rank of each token; a token attends to tokens of the same or a lower rank. None: to the whole
    row."""
    uniform: Float[Tensor, "b l"] | None = None
    """A random number in (0, 1) at each token that a generator replaces, which decides its sample;
    0 at the others. None: no generator."""
    masked_per_row: Float[Tensor, " b"] | None = None
    """Mean number of those tokens in the rows of the batch, for each row. A part of the batch can
    so compute its share of their mean loss."""
    allowed: Int[Tensor, "b l"] | None = None
    """All correct answers of each question: bit i is set if id i is one. None: the target alone."""
    condition: Int[Tensor, " b"] | None = None
    """Condition under which each row is generated, for example its class. None: there are none."""


class Tally(NamedTuple):
    """Sums over one batch, and the outcome of each counted item, in the batch's order.

    An item is an answer that counts: one class, or one token.
    """

    nll_sum: float
    """Weighted sum of the items' losses in nats; in regression, of squared errors."""
    hits: float
    """Weighted number of correct items; in regression, 0."""
    count: float  # type: ignore[assignment]
    """Sum of the items' weights."""
    index: Int[Tensor, " n"]  # type: ignore[assignment]
    """Position of each outcome's example in the split."""
    nll: Float[Tensor, " n"]
    """Loss of each outcome in nats."""
    hit: Bool[Tensor, " n"] | Float[Tensor, " n"]
    """Whether the outcome is correct; for an example of many items, the fraction that is."""
    parts: Mapping[tuple[str, str], tuple[float, float]] = {}
    """Sum of losses in nats and number of items by (kind, part), such as (position, 8-15)."""
    groups: Mapping[tuple[str, str], tuple[float, float]] = {}
    """Number of correct items and of items by (group, part), such as (length, 64)."""
    classes: Mapping[int, tuple[float, float]] = {}
    """Number of correct items and of items by class, where a score needs them."""
    further: Mapping[str, tuple[float, float]] = {}
    """Sum and number of items of each further score (`AcceptsSeveral`), by name."""


@runtime_checkable
class Task(Protocol):
    """A task: its constructor takes keyword-only options and is fast; `prepare` gets the data.

    Derive a class from this one, or from a base class in `tasks`, to inherit the defaults.
    """

    incidental: ClassVar[frozenset[str]] = frozenset()
    """Options that change no number, such as paths; they are excluded from a result's identity."""

    @property
    def spec(self) -> TaskSpec:
        """The facts about this task; equal before and after `prepare`."""
        ...

    def prepare(self) -> None:
        """Prepare the data on this machine, once; several processes may call this together."""
        ...

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
        """Yield one epoch of `split`, from batch number `start` on, without reading earlier ones.

        Train is shuffled by `seed` and drops only an incomplete last batch, if there are segments
        one of each. Validation and test are complete: all ranks together read each example once.
        The same arguments give the same batches on every machine and for every PYTHONHASHSEED.
        """
        ...

    def tally(self, nll: Tensor, hit: Tensor, batch: Batch) -> Tally:
        """Sum the losses `nll` (nats) and `hit`s of a batch, both shaped like `batch.target`."""
        ...


@runtime_checkable
class RemarkedData(Protocol):
    """A task whose prepared data may have peculiarities that readers must know."""

    @property
    def remarks(self) -> Mapping[str, str]:
        """Remarks for readers of scores, by the name of a split, or `labels`."""
        ...


def remarks_of(task: Task) -> Mapping[str, str]:
    """Return the remarks on a task's prepared data, if it has any."""
    return task.remarks if isinstance(task, RemarkedData) else {}


@runtime_checkable
class AcceptsSeveral(Protocol):
    """A task with several correct answers to a question; it judges the tokens that a model chose.

    `TaskSpec.scores` names its further scores.
    """

    writes: ClassVar[bool]
    """Whether a model reads the answers that it chose itself so far, instead of those of the
    task."""

    def accept(
        self, chosen: Int[Tensor, "b l"], batch: Batch
    ) -> tuple[Bool[Tensor, "b l"], Mapping[str, tuple[float, float]]]:
        """Return which chosen tokens are right, and `Tally.further`.

        Args:
            chosen: The most likely token at each position of a batch, on the CPU.
            batch: The batch with the answers of the task.
        """
        ...


@runtime_checkable
class Derives(Protocol):
    """A task whose metric follows from the mean loss."""

    def derived_metrics(self, split: str, loss: float) -> dict[str, float]:
        """Return further metrics of a split from `loss`, its mean loss in nats per item."""
        ...


@runtime_checkable
class Stretches(Task, Protocol):
    """A task whose test examples can be longer or shorter without other changes in difficulty."""

    @property
    def trained_length(self) -> int:
        """Most tokens of a training example."""
        ...

    @property
    def tested_length(self) -> int:
        """Most tokens of a test example."""
        ...

    def stretched(self, factor: float) -> dict[str, object]:
        """Return the task options that make test examples `factor` times as long as training ones.

        An empty dict means that they already have this length. Needs prepared data.

        Raises:
            ValueError: The data contain no example of this length.
        """
        ...

    def equal_work(self, examples: int, factor: float) -> int:
        """Return how many examples, `factor` times as long, are as much work as `examples`."""
        ...


@runtime_checkable
class WindowedTask(Task, Protocol):
    """A task whose training examples are windows of one stream."""

    def window(self, split: str) -> int:
        """Return the number of tokens of a window of `split`."""
        ...

    def with_windows(self, length: int) -> Task:
        """Return this task with training windows of `length` tokens, otherwise unchanged.

        Raises:
            ValueError: With its present options, the task has no windows.
        """
        ...

    def with_varied_windows(self, deviation: float, halved: float) -> Task:
        """Return this task with training windows whose lengths are drawn, one for each batch.

        Args:
            deviation: Standard deviation of the lengths in tokens; the mean is the present window.
            halved: Share of the batches with half the present window as the mean.

        Raises:
            ValueError: With its present options, all windows must have one length.
        """
        ...

    def row_tokens(self, split: str, rows: int) -> int | None:
        """Return how many tokens each of `rows` batch rows reads in an epoch of `split`, at least.

        None if the rows of successive batches do not continue each other.
        """
        ...


class Baseline(NamedTuple):
    """A score that needs no long-range model; results are compared with it."""

    name: str
    """For example majority or root_operator."""
    accuracy: float | None
    """None in regression."""
    outcomes: Bool[Tensor, " n"] | None
    """Whether each example of the split is correct, by index; None if examples have many items."""
    sentence: str
    """What a score at this level means, printed next to the table."""
    measures: Mapping[str, float] = {}  # never changed
    """Other metrics, for example loss and bits_per_character."""
    groups: Mapping[tuple[str, str], tuple[float, float]] = {}  # never changed
    """Accuracy of the items of each part, and their number, by (group, part)."""


@runtime_checkable
class CertifiedTask(Protocol):
    """A task that computes its baselines from the data."""

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines on `split`; those that need fitting are fitted on train."""
        ...
