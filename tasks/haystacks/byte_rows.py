"""The base of these tasks: rows of bytes made of sentences in a background, a question, answers."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt64

from lra.tasks.diagnostics.base import NOT_ASKED, DiagnosticTask, Rows
from lra.tasks.haystacks.wordlist import NOISE
from lra.tasks.task import Baseline, Batch
from lra.tasks.tensors import Tensor, torch

DEPTHS = 40
"""Sentences are put at different ones of so many equally spaced places of the background."""
LOOK = 200
SEPARATOR = b", "


class Dice:
    """Draws from the random words of one row, each of which is used once."""

    def __init__(self, words: UInt64[np.ndarray, " w"]) -> None:
        self._words, self._numbers, self._next = words, words.tolist(), 0

    def word(self) -> int:
        """Return the next random word, below 2^64."""
        self._next += 1
        word: int = self._numbers[self._next - 1]
        return word

    def below(self, number: int) -> int:
        """Return a number from 0 to `number` - 1."""
        self._next += 1
        drawn: int = self._numbers[self._next - 1] % number
        return drawn

    def distinct(self, number: int, of: int) -> list[int]:
        """Return different numbers below `of` in random order; takes `number` random words."""
        moved: dict[int, int] = {}
        drawn = []
        words = self._numbers[self._next : self._next + number]
        self._next += number
        for first, word in enumerate(words):
            other = first + word % (of - first)
            drawn.append(moved.get(other, other))
            moved[other] = moved.get(first, first)
        return drawn

    def order(self, number: int) -> Int[np.ndarray, " n"]:
        """Return the numbers below `number` in random order; takes `number` random words."""
        self._next += number
        order: Int[np.ndarray, " n"] = self._words[self._next - number : self._next].argsort()
        return order


class RowContent(NamedTuple):
    """The content of a row."""

    sentences: list[bytes]
    """In the order in which they come in the row; each ends with a blank."""
    question: bytes
    answers: list[bytes]
    """The row ends with them; each byte is a question."""


@dataclass(kw_only=True, eq=False)
class ByteRows(DiagnosticTask):
    """A base class; a subclass tells the sentences, question and answers of a row.

    `__post_init__` of a subclass calls `rows_of`.
    """

    length: int = 1024
    """Number of bytes of a row in training and validation, with question and answers."""
    reads: int = 1
    """Number of times that the part before the question is in a row; 2 tells a model that did not
    know what to remember from one that cannot remember."""
    train_examples: int | None = 20_000
    test_examples: int = 1000
    validation_examples: int = 1000

    def rows_of(self, difficulty: str, *, ending: int, sentences: int, because: str) -> None:
        """Check the options, and set what follows from them.

        Args:
            difficulty: The difficulty in a few words.
            ending: Most bytes of question and answers.
            sentences: Most bytes of the smallest number of sentences.
            because: What these bytes are, for the message about short rows.
        """
        self.ending = ending
        again = f", {self.reads} times" if self.reads > 1 else ""
        self.generated_as(vocabulary=256, difficulty=f"{difficulty}{again}, bytes")
        self.least(self.reads * sentences + ending, f"{because}{again}, a question and answers")

    @abstractmethod
    def content(self, dice: Dice, room: int) -> RowContent:
        """Return the content of a row whose sentences have at most `room` bytes."""

    def background(self, split: str, dice: Dice, size: int) -> bytes:
        """Return the bytes between the sentences of a row: whole words, padded with blanks."""
        del split
        start = NOISE.find(". ", dice.below(len(NOISE) - 1)) + 2
        text = (NOISE[start:] + NOISE * (size // len(NOISE) + 1)).encode()
        return whole_words(text, size)

    def room(self, length: int) -> int:
        """Return the bytes of the part before the question, in a row of `length` bytes."""
        return (length - self.ending) // self.reads

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return training rows that these random words decide."""
        return self.drawn_for("train", words, length)

    def drawn_for(self, split: str, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows of a split that these random words decide."""
        tokens = np.zeros((len(words), length), np.int64)
        answers = np.full_like(tokens, NOT_ASKED)
        for row, line in enumerate(words):
            dice = Dice(line)
            content = self.content(dice, self.room(length))
            end = SEPARATOR.join(content.answers)
            size = (length - len(content.question) - len(end)) // self.reads
            empty = size - sum(map(len, content.sentences))
            background = self.background(split, dice, empty) if empty else b""
            text = scatter(background, content.sentences, dice) * self.reads
            text = text.ljust(length - len(content.question) - len(end)) + content.question + end
            tokens[row] = np.frombuffer(text, np.uint8)
            place = length - len(end)
            for answer in content.answers:
                after = place + len(answer)
                answers[row, place - 1 : after - 1] = tokens[row, place:after]
                place = after + len(SEPARATOR)
        return Rows(tokens, answers)

    def token_text(self, token: int) -> str:
        """Return a printable ASCII character, or the number of another byte."""
        return chr(token) if 32 <= token < 127 else f"<{token}>"

    def describe(self, split: str, index: int) -> str:
        """Return a row as text, and its answers."""
        row, stored = self.split(split).rows(np.array([index]))
        asked = spans(stored.astype(np.int64) + NOT_ASKED)
        text = row.astype(np.uint8).tobytes()
        context = text[: asked[0].start].decode(errors="replace")
        return f"{context}\nanswers: {', '.join(text[span].decode() for span in asked)}"

    def labels(self, context: bytes, answer: bytes, number: int) -> Mapping[str, int]:
        """Return groups of answer `number` of a row, by name, from the text before the answers.

        All answers of a task have the same names; none by default.
        """
        del context, answer, number
        return {}

    def groups(self, batch: Batch) -> Mapping[str, Int[Tensor, "b l"]]:
        """Return `labels` for each byte of an answer, and the length where it varies.

        The group `length_and_depth` is 100 times the length, plus the depth: for a heat map.
        """
        assert batch.weight is not None, "rows with questions have weights"
        asked = np.where(batch.weight.cpu().numpy() > 0, 0, NOT_ASKED)
        lines = (batch.tokens[:, 0].cpu().numpy() - self.shift).clip(min=0).astype(np.uint8)
        found: dict[str, np.ndarray] = {}
        for row, line in enumerate(lines):
            parts = spans(asked[row])
            context = line[: parts[0].start].tobytes()
            for number, span in enumerate(parts):
                for name, value in self.labels(context, line[span].tobytes(), number).items():
                    numbers = found.setdefault(name, np.full(asked.shape, NOT_ASKED))
                    numbers[row, span.start - 1 : span.stop - 1] = value
        groups = {**super().groups(batch), **{n: torch.from_numpy(a) for n, a in found.items()}}
        if groups.keys() >= {"length", "depth"}:
            groups["length_and_depth"] = 100 * groups["length"].cpu() + groups["depth"]
        return groups

    def said(
        self, name: str, split: str, read: Callable[[bytes], Sequence[bytes]], sentence: str
    ) -> Baseline:
        """Return the baseline whose answers `read` finds in the text before the answers."""
        correct = total = 0
        for tokens, answers, _ in self.blocks(split):
            for row, asked in zip(tokens, answers, strict=True):
                text, parts = row.astype(np.uint8).tobytes(), spans(asked)
                guesses = islice(cycle(read(text[: parts[0].start]) or [b""]), len(parts))
                for span, guess in zip(parts, guesses, strict=True):
                    pairs = zip(text[span], guess, strict=False)
                    correct += sum(byte == guessed for byte, guessed in pairs)
                    total += span.stop - span.start
        return Baseline(name=name, accuracy=correct / total, outcomes=None, sentence=sentence)


def whole_words(text: bytes, size: int) -> bytes:
    """Return the words of `text` that fit into `size` bytes, padded with blanks."""
    if text[size : size + 1] not in (b" ", b""):
        text = text[: text.rfind(b" ", 0, size) + 1]
    return text[:size].ljust(size)


def scatter(background: bytes, sentences: Sequence[bytes], dice: Dice) -> bytes:
    """Return the background with the sentences in order, at random places behind its sentences.

    Takes a random word for each sentence. The places are different ones of `DEPTHS`, unless there
    are more sentences. Where no sentence ends in the last `LOOK` bytes, the place is behind a word.
    """
    number = len(sentences)
    if number > DEPTHS:
        depths = sorted(dice.below(DEPTHS) for _ in sentences)
    else:
        depths = sorted(dice.distinct(number, DEPTHS))
    parts, last = [], 0
    for depth, sentence in zip(depths, sentences, strict=True):
        wanted = len(background) * depth // (DEPTHS - 1)
        border = background.rfind(b". ", max(0, wanted - LOOK), wanted + 1)
        if border < 0 and wanted > LOOK:
            border = background.rfind(b" ", 0, wanted + 1) - 1
        place = max(last, border + 2 if border >= 0 else 0)
        parts += [background[last:place], sentence]
        last = place
    return b"".join([*parts, background[last:]])


def depth_of(place: int, context: bytes) -> int:
    """Return a place in a text, in steps of 10 % of the text."""
    return 10 * (10 * place // len(context))


def letters_of(number: int, letters: int, first: int = ord("a")) -> bytes:
    """Return a number below 26^letters as so many letters, from `first` on."""
    return bytes(first + number // 26**place % 26 for place in range(letters))


def spans(answers: Int[np.ndarray, " l"]) -> list[slice]:
    """Return where the answers of a row are in its text; the question precedes each byte."""
    asked = np.flatnonzero(answers != NOT_ASKED)
    breaks = np.flatnonzero(np.diff(asked) > 1) + 1
    return [slice(int(part[0]) + 1, int(part[-1]) + 2) for part in np.split(asked, breaks)]
