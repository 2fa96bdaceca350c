"""Stored rows of tokens with answers at some positions: their batches, scores and baselines."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

import numpy as np
from jaxtyping import Int

from lra.tasks.data.rows import RowsTask
from lra.tasks.data.tokens import tally
from lra.tasks.diagnostics.draws import NOT_ASKED, Rows, rows_at_once
from lra.tasks.task import Baseline, Batch, Tally
from lra.tasks.tensors import Tensor, torch

Guess: TypeAlias = Callable[[np.ndarray], np.ndarray]
"""Maps tokens [n, l] to answers that broadcast against them."""


class AskedRows(RowsTask):
    """A base class of tasks whose examples are two sequences: tokens, and answers + 1 (0: none)."""

    vocabulary: int
    """Number of token ids; answers are among them."""

    @abstractmethod
    def token_text(self, token: int) -> str:
        """Return a token as text for people."""

    @abstractmethod
    def groups(self, batch: Batch) -> Mapping[str, Int[Tensor, "b l"]]:
        """Return a number for each position of a batch, by name: scores are also told by these."""

    @abstractmethod
    def longest_row(self, split: str) -> int:
        """Return the number of tokens of the longest row of a split."""

    def visible_batch(self, batch: Batch, seed: int) -> Batch:
        """Return tokens [b, 1, l], answers [b, l] as targets, and weight 1 at questions."""
        del seed
        answers = batch.tokens[:, 1] + NOT_ASKED
        return batch._replace(
            tokens=batch.tokens[:, :1],
            target=answers.clamp(min=0),
            weight=(answers >= self.shift).float(),
            keep=None if batch.keep is None else batch.keep[:, :1],
        )

    def tally(self, nll: Tensor, hit: Tensor, batch: Batch) -> Tally:
        """Sum the losses and hits over the questions; an example is a row."""
        by_class = not self.spec.scores.isdisjoint(("macro_accuracy", "mcc"))
        return tally(nll, hit, batch, {}, groups=self.groups(batch), by_class=by_class)

    def rows(self, split: str, first: int = 0, last: int | None = None) -> Rows:
        """Return the rows `first` to `last` - 1 of a prepared split; all of them by default."""
        data = self.split(split)
        # Two sequences of one length are an example.
        bounds = data.offsets[::2][first : None if last is None else last + 1]
        lengths, flat = np.diff(bounds) // 2, data.tokens[bounds[0] : bounds[-1]]
        width = int(lengths.max(initial=0))
        if not self.shift:
            both = flat.reshape(len(lengths), 2, width).astype(np.int64)
            return Rows(both[:, 0], both[:, 1] + NOT_ASKED)
        both = np.zeros((len(lengths), 2, width), np.int64)
        real = np.arange(width) < lengths[:, None, None]
        both[np.broadcast_to(real, both.shape)] = flat
        return Rows(both[:, 0], both[:, 1] + NOT_ASKED, lengths)

    def blocks(self, split: str) -> Iterator[Rows]:
        """Yield the rows of a prepared split in blocks that fit into memory."""
        step = rows_at_once(self.longest_row(split))
        stored = len(self.split(split).targets)
        for first in range(0, stored, step):
            yield self.rows(split, first, first + step)

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the baselines, fitted on train, that read at most the token of the question."""
        guess, best = self.habits()
        return [
            self.baseline(
                "majority",
                split,
                lambda tokens: np.full_like(tokens, guess),
                f"This baseline always answers {self.token_text(guess)}, the most frequent answer "
                "in training. A model with this score has learnt nothing.",
            ),
            self.baseline(
                "last_token",
                split,
                lambda tokens: best[tokens],
                "This baseline reads only the token of the question, and gives its most frequent "
                "answer in training. A model with this score remembers nothing.",
            ),
        ]

    def habits(self) -> tuple[int, Int[np.ndarray, " v"]]:
        """Return the most frequent answer in train, and the most frequent answer to each token.

        If two answers are equally frequent, the smaller one is returned.
        """
        pair_codes, pair_counts = [], []
        for tokens, answers, _ in self.blocks("train"):
            scored = answers != NOT_ASKED
            pairs = tokens[scored] * self.vocabulary + answers[scored]
            codes_of_block, counts_of_block = np.unique(pairs, return_counts=True)
            pair_codes.append(codes_of_block)
            pair_counts.append(counts_of_block)
        codes, index = np.unique(np.concatenate(pair_codes), return_inverse=True)
        counts = np.bincount(index, weights=np.concatenate(pair_counts))
        token, answer = np.divmod(codes, self.vocabulary)
        guess = int(np.bincount(answer, weights=counts).argmax())
        best = np.full(self.vocabulary, guess)
        # The last assignment to a token wins, so its most frequent answer comes last.
        order = np.lexsort((-answer, counts, token))
        best[token[order]] = answer[order]
        return guess, best

    def baseline(self, name: str, split: str, guess: Guess, sentence: str) -> Baseline:
        """Return the baseline that answers `guess(tokens)`; only questions count."""
        return self.scored(name, sentence, ((b, guess(b.tokens)) for b in self.blocks(split)))

    def scored(
        self, name: str, sentence: str, guesses: Iterable[tuple[Rows, Int[np.ndarray, "n k"]]]
    ) -> Baseline:
        """Return a baseline from blocks of rows and its answers to them, with its groups."""
        sums = Counter[tuple[str, str] | None]()
        counts = Counter[tuple[str, str] | None]()
        for rows, answers in guesses:
            found = self._judge(rows, answers)
            for part, (hits, items) in [(None, (found.hits, found.count)), *found.groups.items()]:
                sums[part] += hits  # type: ignore[assignment]  # weights are whole numbers
                counts[part] += items  # type: ignore[assignment]
        return Baseline(
            name=name,
            accuracy=sums[None] / counts[None],
            outcomes=None,
            sentence=sentence,
            groups={part: (sums[part] / items, items) for part, items in counts.items() if part},
        )

    def _judge(self, rows: Rows, answers: Int[np.ndarray, "n k"]) -> Tally:
        """Return the sums over a block of rows for which a baseline gives `answers`."""
        real = rows.real()
        batch = Batch(
            tokens=torch.from_numpy(np.where(real, rows.tokens + self.shift, 0))[:, None],
            target=torch.from_numpy((rows.answers + self.shift).clip(min=0)),
            index=torch.arange(len(real)),
            keep=torch.from_numpy(real)[:, None] if self.shift else None,
            weight=torch.from_numpy(rows.answers != NOT_ASKED).float(),
        )
        hit = torch.from_numpy(rows.answers == answers)
        return self.tally(torch.zeros(hit.shape), hit, batch)

    def describe(self, split: str, index: int) -> str:
        """Return a row as two lines of text: the tokens, and each answer below its question."""
        row, stored_answers = self.split(split).rows(np.array([index]))
        answers = (stored_answers.astype(np.int64) + NOT_ASKED).tolist()
        above = [self.token_text(token) for token in row.tolist()]
        below = ["." if answer == NOT_ASKED else self.token_text(answer) for answer in answers]
        widths = [max(len(a), len(b)) for a, b in zip(above, below, strict=True)]
        return "\n".join(
            " ".join(word.rjust(width) for word, width in zip(line, widths, strict=True))
            for line in (above, below)
        )
