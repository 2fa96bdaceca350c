"""Needles for a trained language model of bytes: how likely is the correct answer among candidates?

    … The value of calm-river is 4821903. … What is the value of calm-river? 4821903

Nothing is trained. Rows are those of `task=needle`, with the text of the split as background. The
model gives a likelihood to the correct answer and to `candidates` - 1 others: the other values of
the row, and random ones. The rank of the correct answer among them is 1 if it is the most likely
one; a model that reads nothing has rank (`candidates` + 1) / 2 on average. A second score is the
fraction of the bytes of the correct answer that the model predicts, given those before.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from lra.conf.bounds import check_least, check_several
from lra.conf.choices import by_name
from lra.models.backbone.model import Backbone
from lra.models.mixer import Unsupported
from lra.runners.isolation.progress import so_far
from lra.runners.measurement.device import autocast
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.context import (
    ContextReading,
    lack_of_text,
    rows_of_length,
    streams_of,
)
from lra.runners.measures.extrapolate import longer_builds
from lra.runners.measures.repeats.copies import row_outcomes
from lra.runners.measures.trained_runner import TrainedRunner
from lra.runners.records import Measurement, Status
from lra.runners.runner import Passes, Work
from lra.runners.training.recurrent_state import remembered_tokens
from lra.tasks.data.batching import Draw, random_words
from lra.tasks.errors import NotPrepared
from lra.tasks.haystacks.byte_rows import Dice, spans, whole_words
from lra.tasks.haystacks.needle import STATED, Haystack, Needle
from lra.tasks.haystacks.spellings import Spelling, different, texts
from lra.tasks.language.base import LanguageTask
from lra.tasks.task import SPLITS, Task

SHORTEST = 256
"""The shortest row, in bytes, if lengths are not given."""
ASKED = b"The value of calm-river is 4821903. "
"""A text of a needle, which a task must be able to spell."""
MOST_TEXT = 1 << 22
"""The background is from the first tokens of a split, at most so many."""


class ProbeRow(NamedTuple):
    """One row, and the answers that are compared."""

    context: bytes
    """The row up to the answer."""
    candidates: list[bytes]
    """Different texts; the first is the correct answer."""
    depth: int
    """Place of the needle, in steps of 10 % of the row."""


@by_name
@dataclass(kw_only=True, eq=False)
class NeedleInText(Needle):
    """Rows of needles whose background is a given text."""

    text: bytes = b""
    """With haystack=text, single-byte characters with blanks between words."""

    @property
    def reads_books(self) -> bool:
        """No books: the text is given."""
        return False

    def background(self, split: str, dice: Dice, size: int) -> bytes:
        """Return the bytes between the sentences of a row."""
        if self.haystack is not Haystack.text:
            return super().background(split, dice, size)
        start = self.text.rfind(b" ", 0, dice.below(max(1, len(self.text) - size))) + 1
        return whole_words(self.text[start : start + size + 1], size)

    def probes(self, split: str, *, number: int, candidates: int, seed: int) -> Iterator[ProbeRow]:
        """Yield rows, and for each one different candidates of the same spelling."""
        per_row = self.words(self.length)
        most = candidates + self._most(self.length)
        several = min(most, different(self.value, self.digits))
        words = random_words(Draw.probe, seed, number * (per_row + 2 * several))
        for line in words.reshape(number, -1):
            tokens, answers, _ = self.drawn_for(split, line[None, :per_row], self.length)
            (asked,) = spans(answers[0])
            row = tokens[0].astype(np.uint8).tobytes()
            answer, stated = row[asked], STATED.findall(row[: asked.start])
            others = texts(self.value, Dice(line[per_row:]), several, self.digits)
            found = [*dict.fromkeys([answer, *stated, *others])][:candidates]
            depth = self.labels(row[: asked.start], answer, 0)["depth"]
            yield ProbeRow(row[: asked.start], found, depth)


@by_name
@dataclass(frozen=True, kw_only=True)
class NeedleProbe(TrainedRunner):
    """Which rows and candidates are compared."""

    outcome: ClassVar[str] = "answer_rank"
    tabled: ClassVar[tuple[str, ...]] = ("answer_rank", "candidate_accuracy", "answer_accuracy")

    split: str = "test"
    lengths: list[int] | None = None
    """Bytes of a row; None: powers of two from 256 that fit into a window and memory."""
    haystack: Haystack = Haystack.text
    """Between the needles: text of the split, noise or needles."""
    keys: int = 4
    """Number of keys in a row; one of them is asked."""
    key: Spelling = Spelling.word
    value: Spelling = Spelling.digits
    digits: int = 5
    overlap: bool = True
    """Whether the question has the words of the needle; false: synonyms, with key=synonym."""
    candidates: int = 100
    """Number of answers that are compared in a row."""
    examples: int = 100
    """Rows of each length."""
    batch_size: int = 64
    """Rows of a batch up to one evaluation window; fewer for longer rows."""

    def __post_init__(self) -> None:
        """Check the options; a ValueError says what to type instead."""
        if self.split not in SPLITS:
            raise ValueError(f"split: got {self.split!r}; wanted one of {', '.join(SPLITS)}")
        check_several("bytes", lengths=self.lengths)
        check_least(2, candidates=self.candidates)
        check_least(1, examples=self.examples, batch_size=self.batch_size, keys=self.keys)
        there = different(self.value, self.digits)
        if there < self.candidates + self.keys:
            raise ValueError(
                f"candidates: got {self.candidates}, but only {there:,} different answers exist "
                f"with value={self.value}; lower candidates, or raise digits"
            )

    def lengths_in(self, room: int) -> list[int]:
        """Return the lengths of rows for a model that reads `room` tokens."""
        powers = [1 << power for power in range(8, room.bit_length())]
        return sorted(self.lengths or powers or [room])

    def passes(self, work: Work) -> list[Passes]:
        """Return the passes over all candidates of all rows."""
        task, passes = streams_of(work.task), []
        window = task.window(self.split)
        memory = remembered_tokens(work.backbone, task, training=False) if task.memory else 0
        for length in self.lengths_in(window + memory):
            rows = rows_of_length(length, window, self.batch_size)
            batches = self.examples * -(-self.candidates // rows)
            passes.append(Passes(batches, min(rows, self.candidates), length, False))
        return passes

    def unfit(self, task: Task, families: Sequence[object]) -> str:
        """Return why a task has no text of bytes or characters; "" if it has, or may have."""
        del families
        if reason := lack_of_text(task):
            return reason
        try:
            tokens_of(cast(LanguageTask, task), ASKED)
        except Unsupported as error:
            return str(error)
        except NotPrepared:  # a vocabulary that is not there yet
            return ""
        return ""

    def run(self, work: Work) -> Iterator[Measurement]:
        """Yield ranks and accuracies over all rows, and accuracies by length and depth.

        Raises:
            Unsupported: The task is not text of bytes or characters.
        """
        task = streams_of(work.task)
        model, origins = self.model_of(work)
        yield from origins
        build = longer_builds(work, model)
        yield from needle_rows(build, task, self, work.hardware, seed=work.seed)

    @classmethod
    def headline(cls, rows: Sequence[Measurement]) -> str:
        """Return the mean rank of the correct answer."""
        found = [row for row in rows if row.metric == "answer_rank" and row.value is not None]
        return ", ".join(
            f"the correct answer has rank {row.value:.1f} of {row.labels['candidates']}"
            for row in found
        )


def needle_rows(
    build: Callable[[int], Backbone],
    task: LanguageTask,
    config: NeedleProbe,
    hardware: HardwareProfile,
    *,
    seed: int,
) -> Iterator[Measurement]:
    """Yield mean scores over all rows, and the share of rank 1 by length and depth.

    Args:
        build: Returns the trained model for rows of a number of tokens; raises `Unsupported` if it
            cannot read so many.
        task: The task of the model, with prepared data.
        config: Rows and candidates.
        hardware: The device, and the number format of computations.
        seed: Seed of the rows.

    Raises:
        Unsupported: The tokens of the task are no bytes or characters.
    """
    window = task.window(config.split)
    memory = remembered_tokens(build(window).config, task, training=False) if task.memory else None
    text = _text_of(task, config)
    ranks, hits, groups = list[float](), list[Tensor](), dict[tuple[str, str], list[bool]]()
    labels = {"split": config.split, "candidates": str(config.candidates)}
    for length in config.lengths_in(window + (memory or 0)):
        way = ContextReading(
            length, rows_of_length(length, window, config.batch_size), window, memory
        )
        try:
            needle = NeedleInText(
                length=length, haystack=config.haystack, keys=config.keys, key=config.key,
                value=config.value, digits=config.digits, overlap=config.overlap, text=text,
            )  # fmt: skip
            model = build(length if memory is None else window)
        except (ValueError, Unsupported) as error:
            reason, here = f"rows of {length:,} bytes: {error}", {**labels, "bytes": str(length)}
            yield Measurement(
                metric="answer_rank", status=Status.unsupported, reason=reason, labels=here
            )
            continue
        probes = needle.probes(
            config.split, number=config.examples, candidates=config.candidates, seed=seed
        )
        for number, probe in enumerate(probes):
            so_far(f"reading rows of {length:,} bytes", number, config.examples, "row")
            nll, right = judge_probe(model, task, probe, way, hardware)
            others = nll[1:]
            # Equal likelihoods count half.
            ranks.append(float(1 + (others < nll[0]).sum() + 0.5 * (others == nll[0]).sum()))
            hits.append(right)
            for group, part in {
                "length": length,
                "length_and_depth": 100 * length + probe.depth,
            }.items():
                groups.setdefault((group, str(part)), []).append(ranks[-1] == 1)
    if not ranks:
        return
    labels["examples"] = str(len(ranks))
    scores = {
        "answer_rank": float(np.mean(ranks)),
        "candidate_accuracy": float(np.mean([rank == 1 for rank in ranks])),
        "answer_accuracy": float(torch.cat(hits).double().mean()),
    }
    for metric, value in scores.items():
        yield Measurement(metric=metric, value=value, labels=labels)
    for (group, name), first in groups.items():
        parts = {**labels, "group": group, "part": name, "items": str(len(first))}
        yield Measurement(metric="accuracy_by_group", value=float(np.mean(first)), labels=parts)


def judge_probe(
    model: Backbone,
    task: LanguageTask,
    probe: ProbeRow,
    way: ContextReading,
    hardware: HardwareProfile,
) -> tuple[Float[Tensor, " c"], Bool[Tensor, " a"]]:
    """Return the loss of each of c candidates in nats, and which bytes of the answer are predicted.

    Args:
        model: The model.
        task: Its task, which converts text to tokens.
        probe: The row and its candidates.
        way: Whether to read a row at once, or in windows with a state.
        hardware: The device, and the number format of computations.
    """
    device = torch.device(str(hardware.device))
    model = model.to(device).eval()
    longest = max(map(len, probe.candidates))
    begin = [] if task.begin is None else [task.begin]
    rows = torch.tensor(
        [
            [*begin, *tokens_of(task, probe.context + each), *[0] * (longest - len(each))]
            for each in probe.candidates
        ]
    )
    sizes = torch.tensor([[len(each)] for each in probe.candidates])
    weight = torch.zeros(rows[:, 1:].shape)
    weight[:, -longest:] = (torch.arange(longest) < sizes).float()
    losses, hits = list[Tensor](), list[Tensor]()
    with torch.inference_mode(), autocast(hardware):
        for tokens, wanted in zip(
            torch.split(rows, way.rows), torch.split(weight, way.rows), strict=True
        ):
            nll, hit = row_outcomes(
                model, tokens.to(device), wanted, way, masked=bool(task.spec.masks)
            )
            losses.append((nll.double().cpu() * wanted).sum(1))
            hits.append(hit.cpu())
    answer = len(probe.candidates[0])
    return torch.cat(losses), hits[0][0, -longest:][:answer]


def tokens_of(task: LanguageTask, text: bytes) -> list[int]:
    """Return the tokens of a text, one for each byte.

    Raises:
        Unsupported: The task cannot spell the text so.
    """
    problem = "its tokens are no text"
    if hasattr(task, "encode"):
        try:
            ids: list[int] = task.encode(text.decode("ascii")).tolist()
        except ValueError as error:
            problem = str(error)
        else:
            if len(ids) == len(text):
                return ids
            problem = "its tokens are not single characters"
    raise Unsupported(
        f"task={task.spec.name} cannot spell needles ({problem}): choose a model of bytes, of "
        "enwik8 or corpus"
    )


def _text_of(task: LanguageTask, config: NeedleProbe) -> bytes:
    """Return the text of a split in ASCII, with single blanks between words."""
    tokens_of(task, ASKED)
    if config.haystack is not Haystack.text:
        return b""
    stream = task.split(config.split).tokens[:MOST_TEXT]
    words: list[str] = cast(Any, task).decode(stream).split()
    return " ".join(words).encode("ascii", "ignore")
