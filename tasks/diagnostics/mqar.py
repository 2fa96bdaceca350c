"""Multi-query associative recall (Arora et al., Zoology, arXiv:2312.04927).

    k4 v8 k2 v3 k7 v6 | k2 v9 k4 k1 v1 v5 k7 v2      pairs of a key and its value, then queries
     .  .  .  .  .  .   v3  . v8  .  .  . v6  .      the answer is the value of the key

Each key is queried once. Keys are the lower half of the vocabulary without 0, values the upper
half; no key or value repeats within a row. The part after the pairs has slots of two tokens, and
slot g is drawn for a query with the weight (g + 1)^(power - 1). So most queries come soon and some
late, as words in real language repeat. `power=1` spreads the queries evenly.

Other positions have blanks in figure 2 of the paper (the protocol `zoology`), and random tokens by
default and in later figures of the authors (the protocol `based`). Figure 2 has lengths 64, 128,
256, 512 with 4, 8, 16, 64 pairs, a vocabulary of 8,192, power 0.01, 100,000 training rows, and
models of 2 layers. Further options make these rows:

    k4 v8 k2 v3 k4 v8 k2 v3 | ...      passes=2: the pairs twice, before the queries
    k4 v8 k2 v3 k4 v9       | ...      updates=1: one key gets a second value, which is its answer
    a1 b1 v8 a1 b2 v3 a2 b1 | ...      grid=2: keys of two tokens from a grid of 2 x 2 keys, so
                                       that several keys share each token
    k4 v8 k2 v3 k7 v6 | .. .. k2       queries=1: one pair is asked for, the others distract

For `passes` see arXiv:2407.05483. Segments of rows of several lengths and numbers of pairs are in
`lra.tasks.diagnostics.segments`.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from jaxtyping import UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import Rows
from lra.tasks.diagnostics.recall_rows import (
    Filler as Filler,  # noqa: PLC0414
    RecallForm,
)
from lra.tasks.diagnostics.segments import SegmentedTask, listing
from lra.tasks.task import Baseline


@by_name
@dataclass(kw_only=True, eq=False)
class MQAR(SegmentedTask):
    """Multi-query associative recall: answer each key with the value that came after it before."""

    name: ClassVar[str] = "mqar"
    later: ClassVar[frozenset[str]] = SegmentedTask.later | {"passes", "updates", "grid", "queries"}

    length: int = 64
    pairs: int = 4
    """Number of pairs of a key and a value; each key is queried once."""
    vocabulary: int = 8192
    """Number of token ids: 0 is blank, the lower half are keys, the upper half values."""
    power: float = 0.01
    """Exponent of the distances between pairs and queries, above 0 and at most 1. A smaller one
    makes short distances more frequent; 1 makes all equally frequent."""
    filler: Filler = Filler.random
    """Tokens between queries: random or blank."""
    passes: int = 1
    """How often the pairs stand before the queries."""
    updates: int = 0
    """Number of keys that get a second value after all pairs; the newest value is the answer."""
    grid: int | None = None
    """Keys have two tokens: cells of a grid of so many rows and columns, of which each row of the
    data has its own; ids are first tokens, second tokens and values in thirds. null: one token."""
    queries: int | None = None
    """Number of keys that are queried, drawn at random; null: all."""
    train_examples: int | None = 100_000
    validation_examples: int = 3000
    test_examples: int = 3000

    def __post_init__(self) -> None:
        """Check the options."""
        form, told = self.form, f"{self.pairs} pairs"
        if self.segmented:
            told = f"{listing(self.segments_of('test'))} (length x pairs)"
        extra = {"passes": 1, "updates": 0, "grid": None, "queries": None}
        changed = [f"{n}={getattr(self, n)}" for n in extra if getattr(self, n) != extra[n]]
        self.generated_as(
            vocabulary=self.vocabulary,
            difficulty=", ".join([f"{told} of {self.vocabulary} tokens", *changed]),
        )
        if not 0 < self.power <= 1:
            raise ValueError(f"task.power must lie in (0, 1]: got {self.power}")
        if self.segmented and self.queries is not None:
            raise ValueError(
                f"got task.queries={self.queries} and segments, which are named by their number of "
                "queries: set task.queries to null, so that each key is queried"
            )
        if self.segments is None:
            self._check_form(form)

    def _check_form(self, form: RecallForm) -> None:
        """Raise ValueError if rows of `length` tokens do not fit, or there are too few ids."""
        pairs, vocabulary, values = self.pairs, self.vocabulary, self.pairs + self.updates
        for name, most in (("updates", pairs), ("queries", pairs)):
            if (number := getattr(self, name)) is not None and number > most:
                raise ValueError(f"task.{name} must be at most task.pairs={most}: got {number}")
        if self.grid is not None and self.grid**2 < pairs:
            raise ValueError(
                f"task.grid={self.grid} has {self.grid**2} keys, and a row needs task.pairs="
                f"{pairs}: raise task.grid, or lower task.pairs"
            )
        of_values = vocabulary - form.first_value
        if self.grid is not None and (form.half_keys < self.grid or of_values < values):
            raise ValueError(
                f"task.grid={self.grid} needs {self.grid} ids for each of the two tokens of a key, "
                f"and {values} for values: task.vocabulary={vocabulary} has {form.half_keys} and "
                f"{of_values}; raise task.vocabulary"
            )
        if self.grid is None and vocabulary // 2 - 1 < pairs:
            raise ValueError(
                f"task.vocabulary must be at least {2 * pairs + 2} for task.pairs={pairs}: got "
                f"{vocabulary}, which has {max(0, vocabulary // 2 - 1)} keys"
            )
        if self.grid is None and of_values < values:
            raise ValueError(
                f"task.vocabulary must be at least {2 * values} for task.pairs={pairs} and "
                f"task.updates={self.updates}: got {vocabulary}"
            )
        tokens = form.key_tokens + 1
        written = f"each of {pairs} pairs"
        if self.updates or self.passes > 1:
            written = f"each of {values} values in each of {self.passes} passes"
        self.least(
            form.context + tokens * form.queries,
            f"{tokens} tokens for {written} and for each of {form.queries} queries",
        )

    @cached_property
    def form(self) -> RecallForm:
        """What a row consists of."""
        queries = self.pairs if self.queries is None else self.queries
        return RecallForm(
            pairs=self.pairs, vocabulary=self.vocabulary, power=self.power, filler=self.filler,
            passes=self.passes, updates=self.updates, grid=self.grid, queries=queries,
        )  # fmt: skip

    def words(self, length: int) -> int:
        """Return the number of random words for a row: for keys, values, slots and filler."""
        return sum(self.form.words(length))

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows that these random words decide."""
        return self.form.rows(words, length)

    def different_rows(self, length: int) -> float:
        """Return a lower bound of the binary logarithm of the number of different rows."""
        if self.segmented:
            return min(
                self.part(segment).different_rows(length)
                for split in ("train", "test")
                for segment in self.segments_of(split)
                if segment.length == length
            )
        values = math.perm(self.vocabulary - self.form.first_value, self.pairs)
        keys = math.perm(self.form.first_value - 1, self.pairs) if self.grid is None else 1
        return math.log2(keys) + math.log2(values)

    def token_text(self, token: int) -> str:
        """Return k1, k2, … for keys, v1, v2, … for values, and _ for blank; in a grid, a1, b1."""
        first, half = self.form.first_value, self.form.half_keys
        if token == 0 or token >= first:
            return "_" if token == 0 else f"v{token - first + 1}"
        if self.grid is None:
            return f"k{token}"
        return f"a{token}" if token <= half else f"b{token - half}"

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines of all diagnostics, and of incomplete lookups, on `split`."""
        found = [
            *super().baselines(split),
            self.baseline_of_parts(
                "last_value",
                split,
                lambda part, tokens: tokens[:, part.form.context - 1, None],
                "This baseline always answers the value of the last pair, which is correct for 1 "
                f"of {self.pairs} queries. A model with this score recognises values, but does not "
                "look up the key."
                if not self.segmented
                else "This baseline always answers the value of the last pair of a row. A model "
                "with this score recognises values, but does not look up the key.",
            ),
        ]
        if self.updates:
            found.append(self.baseline_of_parts(
                "first_value", split, lambda part, tokens: part.form.first_values(tokens),
                "This baseline answers the first value of a key. A model with this score looks up "
                "keys, but ignores their second values.",
            ))  # fmt: skip
        if self.grid is not None:
            found.append(self.baseline_of_parts(
                "half_key", split, lambda part, tokens: part.form.values_of_half_keys(tokens),
                "This baseline reads the second token of a key, and answers the last value behind "
                "this token. A model with this score ignores the first token of keys.",
            ))  # fmt: skip
        return found
