"""The flip-flop language (Liu et al., arXiv:2306.00946): one bit, stored over distractors.

    w 1  i 0  i 1  r 1  w 0  i 1  r 0      pairs of an operation and a bit
    . .  . .  . .  1 .  . .  . .  0 .      the answer at `r` is the bit of the last `w`

`w` writes the bit, `i` (ignore) changes nothing, `r` reads. The first operation writes, the last
one reads. With probability `ignore`, one of the others ignores; otherwise it writes or reads. All
bits except those behind `r` are random.

The paper trains at 512 tokens and `ignore` 0.8, and tests also at 0.98 (long distances) and 0.1
(many writes). It reports rare errors, so `test_examples` must be large: a sparse row asks for 3.6
bits, and 28,000 rows for 100,000. `distance` groups the scores by pairs since the last write.

This task shows whether a model attends to one earlier token reliably. It cannot show whether a
model has room for more than one bit.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int, UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import NOT_ASKED, DiagnosticTask, Rows, below
from lra.tasks.task import Baseline, Batch
from lra.tasks.tensors import Tensor, torch

WRITE, READ, IGNORE, ZERO = range(4)
"""Ids of the operations and of the bit 0; the bit 1 is the id behind it."""


@by_name
@dataclass(kw_only=True, eq=False)
class FlipFlop(DiagnosticTask):
    """Read the bit that was written last, over ignored bits."""

    name: ClassVar[str] = "flip_flop"
    multiple: ClassVar[int] = 2

    length: int = 512
    ignore: float = 0.8
    """Probability that an operation ignores its bit, in training and validation."""
    test_ignore: float | None = None
    """Probability that an operation of a test row ignores its bit; null: as in training."""

    def __post_init__(self) -> None:
        """Check the options."""
        tested = self.ignore if self.test_ignore is None else self.test_ignore
        self.shares = {"train": self.ignore, "validation": self.ignore, "test": tested}
        trained = "" if tested == self.ignore else f", trained with {100 * self.ignore:g}%"
        self.generated_as(vocabulary=5, difficulty=f"{100 * tested:g}% ignored{trained}")
        for option, share in (("ignore", self.ignore), ("test_ignore", tested)):
            if not 0 <= share <= 1:
                raise ValueError(f"task.{option} must lie in [0, 1]: got {share}")
        self.least(4, "a write, a read, and their bits")
        for option, tokens in (("length", self.length), ("test_length", self.tested_length)):
            if tokens % 2:
                raise ValueError(
                    f"task.{option} must be even, because a row consists of pairs: got {tokens}; "
                    f"wanted {tokens - 1} or {tokens + 1}"
                )

    def words(self, length: int) -> int:
        """Return the number of random words for a row: one for each pair."""
        return length // 2

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the training rows that these random words decide."""
        return self.drawn_for("train", words, length)

    def drawn_for(self, split: str, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows of `split` that these random words decide."""
        del length
        return flip_flop_rows(words, ignore=self.shares[split])

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of choices of the bits that are not read."""
        return length // 2 - 1

    def token_text(self, token: int) -> str:
        """Return w, r, i for the operations, and the bits."""
        return "wri01"[token]

    def groups(self, batch: Batch) -> Mapping[str, Int[Tensor, "b l"]]:
        """Return `distance`: pairs since the last write, rounded down to a power of two."""
        tokens = batch.tokens[:, 0]
        place = torch.arange(tokens.shape[1]).expand_as(tokens)
        written = torch.where(tokens == WRITE, place, 0).cummax(1).values
        pairs = ((place - written) // 2).clamp(min=1)
        return {"distance": 2 ** pairs.double().log2().floor().long()}

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines of all diagnostics, and the last bit, on `split`."""
        return [
            *super().baselines(split),
            self.baseline(
                "last_bit",
                split,
                lambda tokens: np.roll(tokens, 1, axis=1),
                "This baseline answers the bit in front of the question. A model with this score "
                "reads the previous token, and finds no earlier write.",
            ),
        ]


def flip_flop_rows(words: UInt64[np.ndarray, "n p"], *, ignore: float) -> Rows:
    """Return rows of pairs of an operation and a bit; each random word decides one pair."""
    number, pairs = words.shape
    # The lowest two bits of a word decide the bit, and whether to write or read.
    bits = below(words, 2)
    ignored = words >> np.uint64(11) < int(ignore * 2**53)
    operations = np.where(ignored, IGNORE, np.where(words & np.uint64(2), READ, WRITE))
    operations[:, 0], operations[:, -1] = WRITE, READ
    place = np.where(operations == WRITE, np.arange(pairs), 0)
    stored = np.take_along_axis(bits, np.maximum.accumulate(place, axis=1), axis=1)
    asked = operations == READ
    tokens = np.stack((operations, ZERO + np.where(asked, stored, bits)), axis=2)
    answers = np.full((number, pairs, 2), NOT_ASKED)
    answers[:, :, 0][asked] = ZERO + stored[asked]
    return Rows(tokens.reshape(number, -1), answers.reshape(number, -1))
