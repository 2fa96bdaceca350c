"""Recall in real text: copy advantage by distance, and the loss of recalled tokens.

Nothing is trained: a trained language model reads text of a split. `lra.runners.measures.repeats`
defines both measures; the page "How language models are evaluated" explains how to read them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum, auto
from typing import ClassVar

from lra.conf.bounds import check_least, check_several
from lra.conf.choices import by_name
from lra.models.backbone.model import Backbone
from lra.models.mixer import Unsupported
from lra.runners.isolation.progress import phase
from lra.runners.measures.context import lack_of_text, rows_of_length, streams_of
from lra.runners.measures.extrapolate import longer_builds
from lra.runners.measures.passes import size
from lra.runners.measures.repeats.copies import CopyControl, CopyForm, CopyOptions, copy_rows
from lra.runners.measures.repeats.pairs import judge_tokens, token_rows
from lra.runners.measures.trained_runner import TrainedRunner
from lra.runners.records import Measurement, Status
from lra.runners.runner import Passes, Work
from lra.runners.training.recurrent_state import remembered_tokens
from lra.tasks.language.base import LanguageTask
from lra.tasks.task import SPLITS, Task

LONGEST_SEGMENT, NEAREST = 256, 16
"""The size of a segment, and the shortest distance, in tokens, if windows are long enough."""


class RecallMeasure(StrEnum):
    """How recall is measured."""

    copies = auto()
    """The advantage that a copy gives to a segment, by distance."""
    pairs = auto()
    """The loss of tokens that complete an earlier pair of tokens."""


@by_name
@dataclass(frozen=True, kw_only=True)
class TextRecall(TrainedRunner):
    """What is measured, on which text, and how segments are repeated."""

    outcome: ClassVar[str] = "copy_advantage"

    measures: list[RecallMeasure] = field(default_factory=lambda: list(RecallMeasure))
    split: str = "test"
    segment: int | None = None
    """Tokens of a repeated segment; None: 256, or a quarter of a shorter window and memory."""
    segments: int = 100
    """How many segments are repeated."""
    distances: list[int] | None = None
    """Tokens between copy and segment; None: powers of two that fit into a window and memory."""
    forms: list[CopyForm] = field(default_factory=lambda: [CopyForm.exact])
    mutated: list[float] = field(default_factory=lambda: [0.0])
    """Fractions of the tokens of a copy that are replaced."""
    controls: list[CopyControl] = field(default_factory=lambda: list(CopyControl))
    rare: float = 0.5
    """A pair of tokens is rare if its count in train is at most this quantile."""
    examples: int | None = None
    """How many windows are read for the pairs, the first of the split; None: all."""
    batch_size: int = 64
    """Rows of a batch up to one evaluation window; fewer for longer rows."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        for name, kinds in (
            ("measures", RecallMeasure), ("forms", CopyForm), ("controls", CopyControl)
        ):  # fmt: skip
            chosen = getattr(self, name)
            if not chosen or len(set(chosen)) < len(chosen):
                raise ValueError(
                    f"{name}: got {[*map(str, chosen)]}; wanted one or more of "
                    f"{', '.join(kinds)}, none of them twice"
                )
        if self.split not in SPLITS:
            raise ValueError(f"split: got {self.split!r}; wanted one of {', '.join(SPLITS)}")
        check_several("tokens", distances=self.distances)
        for name, least in (("segment", 1), ("examples", 1)):
            if (value := getattr(self, name)) is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, or null: got {value}")
        check_least(2, segments=self.segments)
        check_least(1, batch_size=self.batch_size)
        shares = self.mutated
        if not shares or len(set(shares)) < len(shares) or not all(0 <= s <= 1 for s in shares):
            raise ValueError(
                f"mutated: got {shares}; wanted one or more different numbers from 0 to 1"
            )
        if not 0 <= self.rare <= 1:
            raise ValueError(f"rare must be from 0 to 1: got {self.rare}")

    def copies_in(self, window: int, memory: int) -> CopyOptions:
        """Return the options of copies for windows and a memory of so many tokens.

        Raises:
            Unsupported: No distance fits into window and memory.
        """
        room = window + memory
        segment = self.segment or max(1, min(LONGEST_SEGMENT, room // 4))
        farthest = room + 1 - 2 * segment
        if self.distances is None and farthest < 1:
            raise Unsupported(
                f"two segments of runner.segment={segment} tokens and a token between them exceed "
                f"the {room} tokens that the model reads: lower runner.segment to at most "
                f"{room // 2}"
            )
        powers = [2**n for n in range(farthest.bit_length()) if NEAREST <= 2**n <= farthest]
        distances = self.distances or powers or [max(1, farthest)]
        return CopyOptions(
            self.split, segment, self.segments, sorted(distances), self.forms, self.mutated,
            self.controls,
        )  # fmt: skip

    def passes(self, work: Work) -> list[Passes]:
        """Return the passes over rows with and without copies, and over the windows of a split."""
        task, passes = streams_of(work.task), []
        window = task.window(self.split)
        memory = remembered_tokens(work.backbone, task, training=False) if task.memory else 0
        if RecallMeasure.copies in self.measures:
            options = self.copies_in(window, memory)
            for distance in options.distances:
                length = 2 * options.size + distance
                rows = rows_of_length(length, window, self.batch_size)
                kinds = len(self.forms) * len(self.mutated) + len(self.controls)
                batches = kinds * -(-self.segments // rows)
                passes.append(Passes(batches, min(rows, self.segments), length, False))
        if RecallMeasure.pairs in self.measures:
            windows = size(task, self.split)
            windows = min(windows, self.examples or windows)
            rows = min(self.batch_size, windows)
            passes.append(Passes(-(-windows // rows), rows, window, False))
        return passes

    def unfit(self, task: Task, families: Sequence[object]) -> str:
        """Return why a task has no long text; "" if it has."""
        del families
        return lack_of_text(task)

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield the copy advantages, and the losses of recalled and other tokens.

        Raises:
            Unsupported: The task has no long text.
        """
        task = streams_of(work.task)
        model, origins = self.model_of(work)
        yield from origins
        for measure in self.measures:
            phase(str(measure))
            try:
                if measure is RecallMeasure.copies:
                    yield from self._copies(work, task, model)
                    continue
                tokens = judge_tokens(
                    model, task, split=self.split, examples=self.examples,
                    batch_size=self.batch_size, hardware=work.hardware,
                )  # fmt: skip
                yield from token_rows(tokens, task, split=self.split, rare=self.rare)
            except Unsupported as error:
                metric = "copy_advantage" if measure is RecallMeasure.copies else "recalled_loss"
                yield Measurement(
                    metric=metric, status=Status.unsupported, reason=str(error),
                    labels={"split": self.split},
                )  # fmt: skip

    def _copies(self, work: Work, task: LanguageTask, model: Backbone) -> Iterator[Measurement]:
        """Yield the copy advantages of a trained model, built anew for rows longer than windows."""
        memory = remembered_tokens(model.config, task, training=False) if task.memory else 0
        yield from copy_rows(
            longer_builds(work, model),
            task,
            options=self.copies_in(task.window(self.split), memory),
            batch_size=self.batch_size,
            hardware=work.hardware,
            seed=work.seed,
        )

    @classmethod
    def headline(cls, rows: Sequence[Measurement]) -> str:
        """Return the advantage at the largest distance, and the loss of recalled tokens."""
        words = []
        if copies := [r for r in rows if r.metric == "copy_advantage" and r.value is not None]:
            last = max(copies, key=lambda row: int(row.labels["distance"]))
            words.append(
                f"a copy {int(last.labels['distance']):,} tokens before lowers the loss by "
                f"{last.value:.3f} nats a token ({last.labels['control']})"
            )
        losses = {r.labels.get("kind"): r.value for r in rows if r.metric == "recalled_loss"}
        words += [f"loss on {kind} tokens {losses[kind]:.3f}" for kind in ("recalled", "other")
                  if losses.get(kind) is not None]  # fmt: skip
        return ", ".join(words)
