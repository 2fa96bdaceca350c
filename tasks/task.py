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


TOKEN_KINDS = frozenset(set(Kind) - {Kind.classification, Kind.pair})
"""Kinds whose answers are tokens."""


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
    """Last ids of the vocabulary that the objective adds, such as a mask. Other tasks over the same
    tokens lack them, so weights are copied without them."""
    padded: bool
    """Whether some batches have padding."""
    scalars: bool = False
    """Whether tokens are real numbers instead of ids; `vocabulary` is then 0."""
    metric: str
    """Name in `lra.runners.metrics`: what the tables print, e.g. accuracy."""
    source: str
    """Where the data come from, for example generated, sample, imdb; printed next to every
    number."""
    data_hash: str
    """Hash of the data's identity (generator options or file hashes); same before and after
    `prepare`."""
    regime: str = ""
    """What evaluation covers, or how it cuts a stream of tokens, if the task offers a choice; part
    of every stored row."""
    tokenizer: str = ""
    """Name and hash of the tokenizer of words or sub-words, for example `words 1a2b3c4d`; part of
    every stored row. Empty: bytes, characters or symbols."""
    memory: int = 0
    """Tokens that a state along time remembers; 0: the task has no state."""
    masks: frozenset[str] = frozenset()
    """Masks in every batch, which decide which tokens attend to each other: prefix, order,
    document."""
    source_length: int = 0
    """Tokens of the longest source, if the task has sources."""
    target_length: int = 0
    """Tokens of the longest answer to a source."""
    sources_vary: bool = False
    """Whether some sources are shorter."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Number of examples by split, if known."""


class Batch(NamedTuple):
    """One batch, on the CPU."""

    tokens: Int[Tensor, "b p l"] | Float[Tensor, "b p l"]
    target: Tensor
    """[b] classes, or [b l] tokens."""
    index: Int[Tensor, " b"]  # type: ignore[assignment]  # a tuple has a method of this name
    """Position in the split: pairs outcomes across models and ranks."""
    keep: Bool[Tensor, "b p l"] | None = None
    """True = real token; None without padding."""
    weight: Tensor | None = None
    """Shaped like target: which positions count, and how much; None = all, once."""
    reset: Bool[Tensor, " b"] | None = None
    """Rows of a stream that start again."""
    document_position: Int[Tensor, "b l"] | None = None
    """Number of tokens before each answer in its document; None: there are no documents, or nobody
    needs it."""
    document: Int[Tensor, "b l"] | None = None
    """Number of each token's document: tokens attend only within it; None: to the whole row."""
    prefix: Int[Tensor, " b"] | None = None
    """Length of each row's prefix, whose tokens attend to each other; later tokens attend to
    earlier ones."""
    order: Int[Tensor, "b l"] | None = None
    """Ranks: a token attends to those with no higher rank; None: to the whole row."""


class Tally(NamedTuple):
    """Sums over one batch, and the outcome of each counted item, in the batch's order."""

    nll_sum: float
    """Nats."""
    hits: float
    count: float  # type: ignore[assignment]
    index: Int[Tensor, " n"]  # type: ignore[assignment]
    """Position in the split of each outcome."""
    nll: Float[Tensor, " n"]
    hit: Bool[Tensor, " n"] | Float[Tensor, " n"]
    """Whether it is correct; for an example of many items, the fraction of correct ones."""
    parts: Mapping[tuple[str, str], tuple[float, float]] = {}
    """By (kind, part), for example (position, 8-15): sum of losses in nats, and number of items."""


@runtime_checkable
class Task(Protocol):
    """Constructed cheaply, with keyword-only options; reads or makes data in `prepare`.

    A class that derives from this one, or from a base in `tasks`, has the defaults.
    """

    incidental: ClassVar[frozenset[str]] = frozenset()
    """Options that change no number, such as paths; they are excluded from a result's identity."""

    @property
    def spec(self) -> TaskSpec:
        """The facts; equal before and after `prepare`."""
        ...

    def prepare(self) -> None:
        """Prepare the data on this machine: can be repeated, and is safe with several processes."""
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
        """Yield one epoch of `split`, from batch number `start` on (resuming is free).

        Train is shuffled by `seed` and drops nothing but an incomplete last batch; validation and
        test come whole, each example once over all ranks. Same arguments, same batches, on any
        machine and under any PYTHONHASHSEED.
        """
        ...

    def tally(self, nll: Tensor, hit: Tensor, batch: Batch) -> Tally:
        """Sum the model's per-item losses and hits for this task."""
        ...


@runtime_checkable
class RemarkedData(Protocol):
    """A task whose prepared data may have peculiarities that readers must know."""

    @property
    def remarks(self) -> Mapping[str, str]:
        """Remarks for readers of scores, by the split concerned, or `labels`."""
        ...


def remarks_of(task: Task) -> Mapping[str, str]:
    """Return the remarks on a task's prepared data, if it has any."""
    return task.remarks if isinstance(task, RemarkedData) else {}


@runtime_checkable
class Derives(Protocol):
    """A task whose metric follows from the mean loss."""

    def derived_metrics(self, split: str, loss: float) -> dict[str, float]:
        """Return other metrics of a whole split from its mean loss in nats per item."""
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
        """Return the options that make test examples `factor` times as long as training ones.

        None to change where they are so long already. Needs prepared data.

        Raises:
            ValueError: The data hold no example of that length.
        """
        ...

    def equal_work(self, examples: int, factor: float) -> int:
        """Return how many stretched examples are as much work as `examples` of training length."""
        ...


@runtime_checkable
class WindowedTask(Task, Protocol):
    """A task whose training examples are windows of one stream."""

    def window(self, split: str) -> int:
        """Return the tokens of a window of a split."""
        ...

    def with_windows(self, length: int) -> Task:
        """Return this task with training windows of `length` tokens, otherwise unchanged.

        Raises:
            ValueError: As its options stand, its examples are no windows.
        """
        ...

    def with_varied_windows(self, deviation: float, halved: float) -> Task:
        """Return this task with training windows whose lengths are drawn, one for each batch.

        Args:
            deviation: In tokens, around the window that it has.
            halved: Share of the batches whose lengths are drawn around half of that.

        Raises:
            ValueError: As its options stand, windows have one length.
        """
        ...

    def row_tokens(self, split: str, rows: int) -> int | None:
        """Return the fewest tokens that a row of a batch of `rows` streams reads in an epoch.

        None where rows are no streams, and no state is carried.
        """
        ...


class Baseline(NamedTuple):
    """A score that needs no long-range model; results are compared with it."""

    name: str
    """For example majority, root_operator."""
    accuracy: float
    outcomes: Bool[Tensor, " n"] | None
    """Correctness of each example of the split, by index; None for examples of many items."""
    sentence: str
    """What a score at this level means, printed next to the table."""
    measures: Mapping[str, float] = {}  # never changed
    """Other metrics, for example loss and bits_per_character."""


@runtime_checkable
class CertifiedTask(Protocol):
    """A task that computes its baselines from the data."""

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines on `split`; those that need fitting are fitted on train."""
        ...
