"""Joint recall (HAX, arXiv:2507.00449): a value that depends on a context and a key.

    begin  B y 7 x 2  A x 3 y 7  |  A y 7 x 3  B x 2 y 7      contexts A, B; keys x, y; values
    .      . . . . .  . . . . .  .  . 7 . 3 .  . 2 . 7 .      the answer at a key is its value

A row has a random table of values, one for each of its contexts and keys. It lists the table twice,
each time with the contexts, and the keys of each context, in a new random order. The second time,
the task asks for the value behind each key. The same key has other values in other contexts, so a
model must look up a pair. A row has `least_contexts` to `contexts` contexts and `least_keys` to
`keys` keys, all numbers equally probable, which are the first ones of their kind.

The paper uses 5 to 16 contexts and 5 to 16 keys, with 10,000 training rows of each of the 144 sizes
and 100 test rows, and prints the mean of the accuracies of rows, which weights small rows more than
the mean of questions does. Its models without sparse attention are twice as wide as those with it.

This task shows whether a model looks up by two tokens together. It cannot show recall over text
that is not asked for, because each value is asked for once.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from jaxtyping import Int, UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import NOT_ASKED, Rows, below
from lra.tasks.diagnostics.context_rows import ContextTask
from lra.tasks.diagnostics.draws import random_orders
from lra.tasks.task import Baseline, Batch
from lra.tasks.tensors import Tensor

BEGIN, BORDER, FIRST_VALUE = range(3)
FLOORS = {
    "frequent_value": "This baseline answers the most frequent value in the first half. A model "
    "with this score recognises values.",
    "last_value": "This baseline answers the last value behind the key in the first half. A model "
    "with this score finds the key, and ignores the context.",
    "frequent_value_of_key": "This baseline answers the most frequent value behind the key. A "
    "model with this score collects the values of a key, and ignores the context.",
}


@by_name
@dataclass(kw_only=True, eq=False)
class JointRecall(ContextTask):
    """Recall the value that a key has in a context."""

    name: ClassVar[str] = "joint_recall"

    contexts: int = 6
    """Most contexts of a row."""
    least_contexts: int = 3
    """Fewest contexts of a row."""
    keys: int = 6
    """Most keys of a row."""
    least_keys: int = 3
    """Fewest keys of a row."""
    values: int = 16
    """Number of different values."""

    def __post_init__(self) -> None:
        """Check the options."""
        for kind in ("contexts", "keys"):
            least, most = getattr(self, f"least_{kind}"), getattr(self, kind)
            if least > most:
                raise ValueError(
                    f"task.least_{kind} must be at most task.{kind}={most}: got {least}"
                )
        self.length = (1 + self.reads) * self.contexts * (1 + 2 * self.keys) + 2
        self.first_key = FIRST_VALUE + self.values
        self.first_context = self.first_key + self.keys
        self.generated_as(
            vocabulary=self.first_context + self.contexts,
            difficulty=f"{_span(self.least_contexts, self.contexts)} contexts, "
            f"{_span(self.least_keys, self.keys)} keys, {self.values} values",
        )

    def words(self, length: int) -> int:
        """Return the number of random words for a row: for size, values and four orders."""
        del length
        return 2 + 3 * self.contexts * self.keys + 2 * self.contexts

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that these random words decide."""
        most_contexts, most_keys, number = self.contexts, self.keys, len(words)
        contexts = self.least_contexts + below(words[:, 0], 1 + most_contexts - self.least_contexts)
        keys = self.least_keys + below(words[:, 1], 1 + most_keys - self.least_keys)
        for_values, for_contexts, for_keys = np.split(
            words[:, 2:], np.cumsum([most_contexts * most_keys, 2 * most_contexts]), axis=1
        )
        table = below(for_values, self.values).reshape(number, most_contexts, most_keys)
        context = random_orders(for_contexts.reshape(number, 2, -1), contexts)
        key = random_orders(for_keys.reshape(number, 2, most_contexts, -1), keys)
        value = FIRST_VALUE + table[np.arange(number)[:, None, None, None], context[..., None], key]
        # A context is one block: the context, and then pairs of a key and a value.
        blocks = np.empty((number, 2, most_contexts, 1 + 2 * most_keys), np.int64)
        asked = np.full_like(blocks, NOT_ASKED)
        blocks[..., 0] = self.first_context + context
        blocks[..., 1::2], blocks[..., 2::2] = self.first_key + key, value
        asked[:, 1, :, 1::2] = value[:, 1]
        half, block, place = np.ogrid[:2, :most_contexts, : blocks.shape[3]]
        tall, wide = contexts[:, None, None, None], 1 + 2 * keys[:, None, None, None]
        real = np.broadcast_to((block < tall) & (place < wide), blocks.shape)
        index = np.nonzero(real)[0], (1 + half * (1 + tall * wide) + block * wide + place)[real]
        tokens, answers = np.full((2, number, length), BEGIN)
        answers[:] = NOT_ASKED
        tokens[index], answers[index] = blocks[real], asked[real]
        tokens[np.arange(number), 1 + contexts * (1 + 2 * keys)] = BORDER
        return Rows(tokens, answers, 2 + 2 * contexts * (1 + 2 * keys))

    def border(self, tokens: Int[np.ndarray, "n l"]) -> Int[np.ndarray, " n"]:
        """Return the position of the border between both lists."""
        found: Int[np.ndarray, " n"] = (tokens == BORDER).argmax(1)
        return found

    def different_rows(self, length: int) -> float:
        """Return the binary logarithm of the number of different rows of the smallest size."""
        del length
        contexts, keys = self.least_contexts, self.least_keys
        order = math.lgamma(contexts + 1) + contexts * math.lgamma(keys + 1)
        return contexts * keys * math.log2(self.values) + 2 * order / math.log(2)

    def token_text(self, token: int) -> str:
        """Return begin, | for the border, and v, k, c with a number for value, key and context."""
        starts = {"c": self.first_context, "k": self.first_key, "v": FIRST_VALUE}
        names = (f"{name}{token - first + 1}" for name, first in starts.items() if token >= first)
        return next(names, "|" if token else "begin")

    def groups(self, batch: Batch) -> Mapping[str, Int[Tensor, "b l"]]:
        """Return `contexts` and `keys`: how many the row has."""
        tokens = batch.tokens[:, 0] - 1
        contexts = (tokens >= self.first_context).sum(1, keepdim=True) // (1 + self.reads)
        pairs = ((tokens >= self.first_key) & (tokens < self.first_context)).sum(1, keepdim=True)
        keys = pairs // ((1 + self.reads) * contexts)
        return {"contexts": contexts.expand_as(tokens), "keys": keys.expand_as(tokens)}

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines of all diagnostics, and three that ignore contexts, on `split`."""
        found = super().baselines(split)
        for name, sentence in FLOORS.items():
            found.append(self.baseline(name, split, partial(self._guess, name), sentence))
        return found

    def _guess(self, name: str, tokens: Int[np.ndarray, "n l"]) -> Int[np.ndarray, "n _"]:
        """Return the answers of a baseline of `FLOORS`; anything at positions without a key."""
        is_key = (tokens >= self.first_key) & (tokens < self.first_context)
        row, place = np.nonzero(is_key & ((tokens == BORDER).cumsum(1) == 0))
        key, value = tokens[row, place] - self.first_key, tokens[row, place + 1]
        seen = np.zeros((len(tokens), self.keys, self.first_key), np.int64)
        np.add.at(seen, (row, key, value), 1)
        best = seen.argmax(2)
        if name == "frequent_value":
            best[:] = seen.sum(1).argmax(1)[:, None]
        if name == "last_value":
            best[row, key] = value  # the last assignment to a key wins
        return np.take_along_axis(best, np.clip(tokens - self.first_key, 0, self.keys - 1), axis=1)


def _span(least: int, most: int) -> str:
    return str(most) if least == most else f"{least} to {most}"
