"""Steps along a ring that the context lists (Depo in Allen-Zhu, arXiv:2512.17351).

    begin  C A  B C  A B  2 A | C  1 B | C      edges of the ring A B C, and two questions
    .      . .  . .  . .  . . C .  . . C .      the answer is 2 steps, then 1 step behind the word

A ring has 3 to `nodes` words, n of them with the weight 1 / (n + sqrt(nodes)) in training. There,
all numbers of steps from 1 to `hops` are equally frequent, and may lead round the ring. A test ring
has `nodes` words, and its questions 1, 2, 4, … or `hops` steps. Each question of a row starts at
another word. A word is one or more tokens; the last one has separate ids, so a word says where it
ends. The words of a row differ. Accuracy counts words, which are correct if all their tokens are.

    paper   nodes           hops   symbols   least_tokens   most_tokens
    Depo1   225, 300, 375   8      50        1              2
    Depo2    75, 100, 125   16     3         5              7

The scores by `steps` show how many dependent lookups a model does in one pass. They cannot show how
far apart the edges may be, because a row has no filler.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from jaxtyping import Int, UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import NOT_ASKED, Rows, below
from lra.tasks.diagnostics.context_rows import ContextTask
from lra.tasks.diagnostics.draws import random_orders
from lra.tasks.diagnostics.spelling import (
    by_word,
    different_words,
    graph_sizes,
    rows_of_words,
    spellings,
    word_rates,
)
from lra.tasks.task import Baseline, Batch, Tally
from lra.tasks.tensors import Tensor, torch


@by_name
@dataclass(kw_only=True, eq=False)
class Hops(ContextTask):
    """Follow a ring of words for several steps."""

    name: ClassVar[str] = "hops"

    nodes: int = 24
    """Most words of a ring; all test rings have as many."""
    hops: int = 4
    """Most steps of a question."""
    symbols: int = 26
    """Number of different symbols in words."""
    least_tokens: int = 1
    """Fewest tokens of a word; all numbers are equally probable."""
    most_tokens: int = 1
    """Most tokens of a word."""
    questions: int = 10
    """Most questions of a row; a smaller ring has one for each word."""

    def __post_init__(self) -> None:
        """Check the options."""
        longest, self.asked = self.most_tokens, min(self.questions, self.nodes)
        edges = 2 * self.nodes * longest
        self.length = 1 + self.reads * edges + 2 * self.asked * (1 + longest)
        self.first_mark = 2 * self.symbols
        self.generated_as(
            vocabulary=self.first_mark + self.hops + 2,
            difficulty=f"{self.hops} steps, {self.nodes} words"
            + (f" of {self.least_tokens} to {longest} tokens" if longest > 1 else ""),
        )
        sizes = range(self.least_tokens, longest + 1)
        self.rates = word_rates(self.symbols, sizes, self.nodes)
        self.spelling = spellings(self.symbols, sizes, marks=self.hops + 2)

    def words(self, length: int) -> int:
        """Return the number of random words for a row: for size, words, three orders, steps."""
        del length
        return 1 + len(self.rates) + 3 * self.nodes + self.asked

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the training rows that these random words decide."""
        return self.drawn_for("train", words, length)

    def drawn_for(self, split: str, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows of `split` that these random words decide."""
        nodes, asked = self.nodes, self.asked
        steps, sizes = np.arange(1, self.hops + 1), np.arange(3, nodes + 1)
        if split == "test":
            # With 32 steps, the paper also asks for 24.
            more = (steps == self.hops) | ((steps == 24) & (self.hops == 32))
            steps, sizes = steps[(steps & (steps - 1) == 0) | more], sizes[-1:]
        for_size, for_words, for_orders, for_steps = np.split(
            words, np.cumsum([1, len(self.rates), 3 * nodes]), axis=1
        )
        size = graph_sizes(for_size, nodes, sizes)
        chosen = different_words(for_words, self.rates)[:, :nodes]
        orders = random_orders(for_orders.reshape(len(words), 3, nodes), size[:, 0])
        ring, edge, start = orders[:, 0], orders[:, 1], orders[:, 2, :asked]

        def at(place: Int[np.ndarray, "n p"]) -> Int[np.ndarray, "n p"]:
            """Return the words at these places of the ring."""
            return np.take_along_axis(chosen, np.take_along_axis(ring, place % size, 1), 1)

        step = steps[below(for_steps, len(steps))]
        first = np.full_like(step, len(self.rates) - 1)  # one before the mark of one step
        asks = first + step, at(start), first + self.hops + 1, at(start + step)
        pieces = (
            first[:, :1] + self.hops + 2,
            np.stack((at(edge), at(edge + 1)), axis=2).reshape(len(words), -1),
            np.stack(asks, axis=2).reshape(len(words), -1),
        )
        real = [
            np.arange(part.shape[1]) < size * per
            for part, per in zip(pieces, (1, 2, 4), strict=True)
        ]
        answers = np.hstack([np.zeros(1 + 2 * nodes, bool), np.tile([False] * 3 + [True], asked)])
        return rows_of_words(
            np.hstack(pieces), np.hstack(real), answers, spelling=self.spelling, length=length
        )

    def border(self, tokens: Int[np.ndarray, "n l"]) -> Int[np.ndarray, " n"]:
        """Return the position of the first question."""
        is_step = (tokens >= self.first_mark) & (tokens < self.first_mark + self.hops)
        found: Int[np.ndarray, " n"] = is_step.argmax(1)
        return found

    def different_rows(self, length: int) -> float:
        """Return a lower bound for rings of three words, of any size."""
        del length
        # Words, the two rings, the order of edges, and the questions.
        asked = min(3, self.asked)
        rows = math.comb(len(self.rates), 3) * 2 * 6 * math.perm(3, asked) * self.hops**asked
        return math.log2(rows)

    def token_text(self, token: int) -> str:
        """Return a symbol as a number, with a dot at the end of a word; a step as +k; a mark."""
        if token < self.first_mark:
            return str(token % self.symbols + 1) + "." * (token >= self.symbols)
        steps = token - self.first_mark + 1
        return f"+{steps}" if steps <= self.hops else "|" if steps == self.hops + 1 else "begin"

    def groups(self, batch: Batch) -> Mapping[str, Int[Tensor, "b l"]]:
        """Return `steps`: how many a question asks for."""
        return {"steps": torch.from_numpy(self._steps(batch.tokens[:, 0].numpy() - self.shift))}

    def _steps(self, tokens: Int[np.ndarray, "n l"]) -> Int[np.ndarray, "n l"]:
        """Return the steps of the latest question at each position; anything before the first."""
        is_mark = (tokens >= self.first_mark) & (tokens < self.first_mark + self.hops)
        place = np.where(is_mark, np.arange(tokens.shape[1]), 0)
        latest = np.take_along_axis(tokens, np.maximum.accumulate(place, axis=1), axis=1)
        return latest - self.first_mark + 1

    def tally(self, nll: Tensor, hit: Tensor, batch: Batch) -> Tally:
        """Sum the losses and hits over the words of answers; an example is a row."""
        assert batch.weight is not None, "questions have weights"
        right, weight = by_word(hit.cpu().numpy(), batch.weight.numpy() > 0)
        weighted = batch._replace(weight=torch.from_numpy(weight))
        return super().tally(nll, torch.from_numpy(right), weighted)

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines of all diagnostics, and one lookup, on `split`."""

        def looked_up(tokens: Int[np.ndarray, "n l"]) -> Int[np.ndarray, "n l"]:
            """Return the next word where it is the answer, which then follows in the row."""
            ends = (tokens >= self.symbols) & (tokens < self.first_mark)
            is_step = (tokens >= self.first_mark) & (tokens < self.first_mark + self.hops)
            size = (ends & (is_step.cumsum(1) == 0)).sum(1, keepdims=True) // (2 * self.reads)
            once = (self._steps(tokens) - 1) % size == 0
            return np.where(once, np.roll(tokens, -1, axis=1), NOT_ASKED)

        return [
            *super().baselines(split),
            self.baseline(
                "one_lookup",
                split,
                looked_up,
                "This baseline answers the next word of the ring. A model with this score does "
                "one step.",
            ),
        ]
