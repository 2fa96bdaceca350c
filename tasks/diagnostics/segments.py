"""The base of generated tasks whose rows come in segments, each of one length and number of pairs.

    segments: [{length: 64, pairs: 4, examples: 100000}, {length: 256, pairs: 64, examples: 20000}]

Each batch has rows of one segment, so no batch has padding. A segment is a task of its class, with
the options of the whole task except length and pairs; it decides its rows. Scores are also told by
segment: `accuracy_by_group` of the group `segment` has parts such as 256x64 (length x queries).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from enum import StrEnum, auto
from itertools import chain
from typing import ClassVar, Self

import numpy as np
from jaxtyping import Int

from lra.conf.choices import by_name
from lra.tasks.data.batching import Draw, permutation, plan_epoch
from lra.tasks.diagnostics.base import ROOM, DiagnosticTask
from lra.tasks.diagnostics.draws import Rows, rows_at_once
from lra.tasks.task import SPLITS, Baseline, Batch, Tally
from lra.tasks.tensors import Tensor

GROUP = "segment"
_PAIRS = 1 << 20
"""Above every number of queries of a row."""


class SegmentOrder(StrEnum):
    """Order of the training batches of an epoch."""

    shuffled = auto()
    """Batches of all segments in random order."""
    listed = auto()
    """All batches of the first segment, then those of the second, and so on."""


@by_name
@dataclass(frozen=True, kw_only=True)
class RowSegment:
    """Rows of one length and number of pairs."""

    length: int
    """Number of tokens of a row."""
    pairs: int
    """Number of pairs of a key and a value."""
    examples: int
    """Number of rows."""

    def __post_init__(self) -> None:
        """Raise ValueError for a segment without rows."""
        if self.examples < 1:
            raise ValueError(
                f"the segment {self} needs at least 1 row: got examples={self.examples}; raise "
                "examples, or remove the segment"
            )

    def __str__(self) -> str:
        """Return length and pairs, as in 64x4."""
        return f"{self.length}x{self.pairs}"


@dataclass(kw_only=True, eq=False)
class SegmentedTask(DiagnosticTask):
    """A generated task with the options `length` and `pairs`, which segments may set."""

    later: ClassVar[frozenset[str]] = frozenset({"segments", "test_segments", "order"})

    pairs: int
    segments: list[RowSegment] | None = None
    """Segments of training rows, in place of `length`, `pairs` and `train_examples`; null: one."""
    test_segments: list[RowSegment] | None = None
    """Segments of validation rows and as many test rows; null: those of training, each with
    `validation_examples` and `test_examples` rows."""
    order: SegmentOrder = SegmentOrder.shuffled
    """Order of training batches of several segments: shuffled, or as listed."""

    @property
    def segmented(self) -> bool:
        """Whether rows come in segments."""
        return self.segments is not None or self.test_segments is not None

    def segments_of(self, split: str) -> list[RowSegment]:
        """Return the segments of a split."""
        examples = {
            "train": self.train_examples or 1,
            "validation": self.validation_examples,
            "test": self.test_examples,
        }[split]
        if split != "train" and self.test_segments is not None:
            return self.test_segments
        whole = RowSegment(length=self.length, pairs=self.pairs, examples=examples)
        if self.segments is None:
            return [whole]
        if split == "train":
            return self.segments
        return [replace(segment, examples=examples) for segment in self.segments]

    def part(self, segment: RowSegment) -> Self:
        """Return the task of the rows of one segment."""
        return replace(
            self, segments=None, test_segments=None, length=segment.length, pairs=segment.pairs,
            train_examples=segment.examples,
        )  # fmt: skip

    def check_segments(self) -> None:
        """Raise ValueError for segments that are impossible, or at odds with other options."""
        for name in ("segments", "test_segments"):
            listed: list[RowSegment] | None = getattr(self, name)
            if listed is None:
                continue
            texts = [str(segment) for segment in listed]
            if not texts or len({*texts}) < len(texts):
                raise ValueError(
                    f"task.{name} must list segments, each length and number of pairs once, for "
                    f"example [{{length: 64, pairs: 4, examples: 1000}}], or be null: got {texts}"
                )
            for number, segment in enumerate(listed):
                try:
                    self.part(segment)
                except ValueError as error:
                    raise ValueError(f"task.{name}[{number}]: {error}") from error
        others = ("min_length", "test_length", "test_lengths")
        wrong = [name for name in others if getattr(self, name) is not None]
        if self.segmented and wrong:
            raise ValueError(
                f"got task.{wrong[0]}={getattr(self, wrong[0])} and segments, which set the "
                f"lengths of rows: set task.{wrong[0]}, or segments and test_segments, to null"
            )
        if self.segments is not None and self.train_examples is None:
            raise ValueError(
                "task.train_examples=null (new rows in each batch) does not support task.segments: "
                "set task.train_examples to a number; segments have their numbers of rows"
            )

    def generated_as(self, *, vocabulary: int, difficulty: str) -> None:
        """Check the options, and set the attributes that follow from them; see the base class."""
        self.check_segments()
        super().generated_as(vocabulary=vocabulary, difficulty=difficulty)
        self.options.pop("order", None)  # an order of batches leaves the rows as they are
        if not self.segmented:
            return
        for name in ("segments", "test_segments"):
            if name in self.options:
                self.options[name] = [asdict(segment) for segment in getattr(self, name)]
        counted = {split: self.segments_of(split) for split in SPLITS if split in self.sizes}
        self.sizes = {split: sum(s.examples for s in listed) for split, listed in counted.items()}

    @property
    def varies(self) -> bool:
        """Whether rows have several lengths."""
        several = {*self.lengths_of("train"), *self.lengths_of("test")}
        return len(several) > 1 if self.segmented else super().varies

    def lengths_of(self, split: str) -> list[int]:
        """Return the different lengths of the rows of `split`."""
        if not self.segmented:
            return super().lengths_of(split)
        return list(dict.fromkeys(segment.length for segment in self.segments_of(split)))

    @property
    def trained_length(self) -> int:
        """Number of tokens of the longest training row."""
        return max(self.lengths_of("train"))

    @property
    def tested_length(self) -> int:
        """Number of tokens of the longest test row."""
        return max(self.lengths_of("test")) if self.segmented else super().tested_length

    @property
    def _told_length(self) -> str:
        """The segments, or lengths, of training rows in words."""
        return listing(self.segments_of("train")) if self.segmented else super()._told_length

    def scarce(self, length: int) -> bool:
        """Return whether a segment of `length` has too few different rows for its splits."""
        if not self.segmented:
            return super().scarce(length)
        wanted: dict[str, int] = {}
        rows: dict[str, float] = {}
        for segment in chain(*map(self.segments_of, SPLITS)):
            if segment.length == length:
                wanted[str(segment)] = wanted.get(str(segment), 0) + segment.examples
                rows[str(segment)] = self.part(segment).different_rows(length)
        return any(rows[name] < np.log2(ROOM * number) for name, number in wanted.items())

    def _parts(self, split: str) -> Iterator[tuple[Self, list[int], int]]:
        """Yield the segments of `split`: the task that draws one, its length, and its rows."""
        if not self.segmented:
            yield from super()._parts(split)
            return
        for segment in self.segments_of(split):
            yield self.part(segment), [segment.length], segment.examples

    def incomplete(self, batch_size: int) -> int:
        """Return the number of training rows in incomplete batches, at most one a segment."""
        return sum(segment.examples % batch_size for segment in self.segments_of("train"))

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
        """Yield one epoch of `split`, from this rank's batch number `start` on; see `Task`.

        A batch has rows of one segment. Train drops the incomplete last batch of each segment.
        """
        sizes = {"batch_size": batch_size, "rank": rank, "ranks": ranks}
        segments = self.segments_of(split)
        if not self.segmented or (split == "train" and self.fresh):
            return super().batches(split, seed=seed, start=start, **sizes)
        plan: list[Int[np.ndarray, " b"]] = []
        first = 0
        for number, segment in enumerate(segments):
            lengths = np.full(segment.examples, segment.length)
            try:
                batches = plan_epoch(
                    lengths, train=split == "train", seed=seed + (number << 64),
                    bucket_batches=None, **sizes,
                )  # fmt: skip
            except ValueError as error:
                raise ValueError(f"segment {segment} of task={self.name}: {error}") from error
            plan += [first + rows for rows in batches]
            first += segment.examples
        if split == "train" and self.order is SegmentOrder.shuffled:
            plan = [plan[number] for number in permutation(Draw.buckets, seed, len(plan))]
        return self.read(split, plan[start:], seed if split == "train" else 0)

    def baseline_of_parts(
        self,
        name: str,
        split: str,
        guess: Callable[[Self, Int[np.ndarray, "n l"]], Int[np.ndarray, "n k"]],
        sentence: str,
    ) -> Baseline:
        """Return the baseline that answers `guess(part, tokens)` to the rows of each segment."""

        def guesses() -> Iterator[tuple[Rows, Int[np.ndarray, "n k"]]]:
            first = 0
            for segment in self.segments_of(split) if self.segmented else [None]:
                part, end = self, self.examples(split)
                if segment is not None:
                    part, end = self.part(segment), first + segment.examples
                step = rows_at_once(max(self.lengths_of(split)))
                for begin in range(first, end, step):
                    rows = self.rows(split, begin, min(begin + step, end))
                    yield rows, guess(part, rows.tokens)
                first = end

        return self.scored(name, sentence, guesses())

    def groups(self, batch: Batch) -> Mapping[str, Int[Tensor, "b l"]]:
        """Return numbers of groups for each position: of segments, too, if there are some."""
        groups = super().groups(batch)
        if not self.segmented:
            return groups
        assert batch.weight is not None
        tokens = batch.tokens[:, 0]
        length = (tokens >= 0).sum(1) if batch.keep is None else batch.keep[:, 0].sum(1)
        code = length * _PAIRS + (batch.weight > 0).sum(1)
        return {**groups, GROUP: code[:, None].expand(tokens.shape)}

    def tally(self, nll: Tensor, hit: Tensor, batch: Batch) -> Tally:
        """Sum the losses and hits over the questions; segments get their names."""
        found = super().tally(nll, hit, batch)
        named = {
            (group, "x".join(map(str, divmod(int(part), _PAIRS))) if group == GROUP else part): hits
            for (group, part), hits in found.groups.items()
        }
        return found._replace(groups=named)


def listing(segments: list[RowSegment]) -> str:
    """Return segments in a few words, as in 64x4, 256x64."""
    return ", ".join(map(str, segments))
