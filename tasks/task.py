"""What a task is: where batches come from, and how answers are judged."""

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
    """What the model answers."""

    classification = auto()
    """One class for one sequence."""
    pair = auto()
    """One class for two sequences."""
    language_modelling = auto()
    """One token for every position, which sees what stands before it."""
    masked_modelling = auto()
    """One token for every position, which sees both sides; the batch's weight says which count."""
    sequence_to_sequence = auto()
    """One token for every position behind a source, which is the batch's `prefix`: it sees the
    source and what stands before it."""

    permutation_modelling = auto()
    """One token for some positions, each of which sees tokens of lower rank in the batch's `order`,
    and where it stands itself."""


TOKEN_KINDS = frozenset(set(Kind) - {Kind.classification, Kind.pair})
"""Those whose answers are tokens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec:
    """Facts about a task that models, keys and tables need. Cheap: needs no data on disk."""

    name: str
    version: int
    """Raised by every change that moves a number."""
    kind: Kind
    vocabulary: int
    """Number of token ids; 0 is padding where the task pads."""
    classes: int
    max_length: int
    added_ids: int = 0
    """Last ids of the vocabulary that the objective adds, such as a mask: other tasks over the same
    tokens have none, and weights move between them without."""
    padded: bool
    """Whether batches ever carry padding."""
    scalars: bool = False
    """Whether tokens are real numbers instead of ids; `vocabulary` is then 0."""
    metric: str
    """Name in `lra.runners.metrics`: what the tables print, e.g. accuracy."""
    source: str
    """Where the data come from, as printed beside every number, e.g. generated, sample, imdb."""
    data_hash: str
    """Hash of the data's identity (generator options or file hashes); same before and after
    `prepare`."""
    regime: str = ""
    """What evaluation judges, or how it cuts a stream of tokens, where a task offers the choice;
    part of every stored row."""
    tokenizer: str = ""
    """Name and hash of what made words or sub-words of a text, as in `words 1a2b3c4d`; part of
    every stored row. Empty: bytes, characters or symbols of the task's own."""
    memory: int = 0
    """Tokens that a state along time remembers; 0: no state is carried."""
    masks: frozenset[str] = frozenset()
    """Fields of every batch that say which tokens see each other: prefix, order, document."""
    source_length: int = 0
    """Tokens of the longest source, where there are such."""
    target_length: int = 0
    """Tokens of the longest answer to a source."""
    sources_vary: bool = False
    """Whether some sources are shorter."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Number of examples by split, where known."""


class Batch(NamedTuple):
    """One batch, on the CPU."""

    tokens: Int[Tensor, "b p l"] | Float[Tensor, "b p l"]
    target: Tensor
    """[b] classes, or [b l] tokens."""
    index: Int[Tensor, " b"]  # type: ignore[assignment]  # a tuple has a method of this name
    """Place in the split: pairs outcomes across models and ranks."""
    keep: Bool[Tensor, "b p l"] | None = None
    """True = real token; None when nothing is padded."""
    weight: Tensor | None = None
    """Like target: which positions count, and how much; None = all, once."""
    reset: Bool[Tensor, " b"] | None = None
    """Stream rows that begin anew."""
    document_position: Int[Tensor, "b l"] | None = None
    """Of each answer, how many tokens of its document come before it; None: there are no documents,
    or nobody asks."""
    document: Int[Tensor, "b l"] | None = None
    """Numbers of documents: a token sees those of its own alone; None: all of the row."""
    prefix: Int[Tensor, " b"] | None = None
    """First tokens of each row that see each other, where others see what stands before them."""
    order: Int[Tensor, "b l"] | None = None
    """Ranks: a token sees those of no higher rank; None: all of the row."""


class Tally(NamedTuple):
    """Sums over one batch, and the outcome of each item that counts, in the batch's order."""

    nll_sum: float
    """Nats."""
    hits: float
    count: float  # type: ignore[assignment]
    index: Int[Tensor, " n"]  # type: ignore[assignment]
    """Place in the split of each outcome."""
    nll: Float[Tensor, " n"]
    hit: Bool[Tensor, " n"] | Float[Tensor, " n"]
    """Of an example of many items: the share that is right."""
    parts: Mapping[tuple[str, str], tuple[float, float]] = {}
    """By (kind, part), e.g. (position, 8-15): sum of losses in nats, and number of items."""


@runtime_checkable
class Task(Protocol):
    """Constructed cheaply, with keyword-only options; reads or makes data in `prepare`.

    A class that derives from this one, or from a base in `tasks`, has the defaults.
    """

    incidental: ClassVar[frozenset[str]] = frozenset()
    """Options that change no number, such as paths: not part of a result's identity."""

    @property
    def spec(self) -> TaskSpec:
        """The facts; same before and after `prepare`."""
        ...

    def prepare(self) -> None:
        """Make the data ready on this machine: idempotent, safe with several processes."""
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
        """Sum what the model's per-item losses and hits mean for this task."""
        ...


@runtime_checkable
class RemarkedData(Protocol):
    """A task whose prepared data may be odd, and are meant so."""

    @property
    def remarks(self) -> Mapping[str, str]:
        """What a reader of scores has to know, by the split that it is about, or `labels`."""
        ...


def remarks_of(task: Task) -> Mapping[str, str]:
    """Return the remarks on a task's prepared data; none where it never has any."""
    return task.remarks if isinstance(task, RemarkedData) else {}


@runtime_checkable
class Derives(Protocol):
    """A task whose metric follows from the mean loss."""

    def derived_metrics(self, split: str, loss: float) -> dict[str, float]:
        """Return other metrics of a whole split from its mean loss in nats per item."""
        ...


@runtime_checkable
class Stretches(Task, Protocol):
    """A task whose test examples can be made longer or shorter, and no harder by anything else."""

    @property
    def trained_length(self) -> int:
        """Tokens of a training example, at most."""
        ...

    @property
    def tested_length(self) -> int:
        """Tokens of a test example, at most."""
        ...

    def stretched(self, factor: float) -> dict[str, object]:
        """Return the options that make test examples `factor` times as long as training ones.

        None to change where they are so long already. Needs prepared data.

        Raises:
            ValueError: The data hold no example of that length.
        """
        ...

    def equal_work(self, examples: int, factor: float) -> int:
        """Return how many stretched examples ask as much as `examples` of the training length."""
        ...


@runtime_checkable
class WindowedTask(Task, Protocol):
    """A task whose training examples are windows of one stream."""

    def window(self, split: str) -> int:
        """Return the tokens of a window of a split."""
        ...

    def with_windows(self, length: int) -> Task:
        """Return this task with training windows of `length` tokens, all else as it is.

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
    """A score that needs no long-range model; results are read against it."""

    name: str
    """e.g. majority, root_operator."""
    accuracy: float
    outcomes: Bool[Tensor, " n"] | None
    """Per example of the split, in index order; None where examples are many items each."""
    sentence: str
    """What a score at this level means, for print beside the table."""
    measures: Mapping[str, float] = {}  # never changed
    """Other metrics, e.g. loss and bits_per_character."""


@runtime_checkable
class CertifiedTask(Protocol):
    """A task that computes its baselines from its own data."""

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines on `split` (fitted on train where they need fitting)."""
        ...
