"""Everything above a node of a graph, in order (Brevo in Allen-Zhu, arXiv:2512.17351).

    begin  D A  B D  C A  B C  ?  A  :  B C D A  end      edges (parent, child), question, answer
    .      . .  . .  . .  . .  .  .  B  C D A end  .      what is above A and A; parents first

A graph has 3 to `nodes` nodes, n of them with the weight 1 / (n + sqrt(nodes)) in training; a test
graph has `nodes`. The first nodes, 1 to (n - 1) div 4 + 1 of them, are leaves. Each later node has
1 to 4 of the earlier nodes with fewer than 4 children as parents. The question is the last node.

    paper    nodes         symbols        least_tokens   most_tokens
    Brevo1   70, 90, 110   as many        1              1
    Brevo2   30, 40, 50    4              2              4

Training predicts one order that was drawn. In evaluation, the model writes its answer greedily, and
every order in which parents come first is right: accuracy counts whole answers. `set_f1` compares
the nodes of an answer without their order; `leaf_first` counts answers that begin with a leaf.

This task shows whether a model plans an answer before its first token, which must be a leaf above
the question. It cannot show how many steps one pass makes: each written token is another pass.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np
from jaxtyping import Bool, Int, UInt64

from lra.conf.choices import by_name
from lra.tasks.diagnostics.base import Rows, below
from lra.tasks.diagnostics.context_rows import ContextTask
from lra.tasks.diagnostics.draws import unit
from lra.tasks.diagnostics.spelling import (
    different_words,
    graph_sizes,
    rows_of_words,
    spellings,
    word_rates,
)
from lra.tasks.task import Baseline, Batch, Tally
from lra.tasks.tensors import Tensor, torch

MOST_PARENTS = 4
"""Most parents and most children of a node."""
BEGIN, QUESTION, ANSWER, END = range(4)
"""Marks, which follow the ids of words."""

Word: TypeAlias = tuple[int, ...]


@by_name
@dataclass(kw_only=True, eq=False)
class OrderGraph(ContextTask):
    """Write all nodes above a node, parents first."""

    name: ClassVar[str] = "order_graph"
    scores: ClassVar[frozenset[str]] = frozenset({"set_f1", "leaf_first"})
    writes: ClassVar[bool] = True

    nodes: int = 12
    """Most nodes of a graph; all test graphs have as many."""
    symbols: int = 12
    """Number of different symbols in words, which name the nodes."""
    least_tokens: int = 1
    """Fewest tokens of a word; all numbers are equally probable."""
    most_tokens: int = 1
    """Most tokens of a word."""
    validation_examples: int = 500
    test_examples: int = 500

    def __post_init__(self) -> None:
        """Check the options."""
        longest, self.first_mark = self.most_tokens, 2 * self.symbols
        edges = sum(min(MOST_PARENTS, earlier) for earlier in range(1, self.nodes))
        self.length = (2 * self.reads * edges + self.nodes + 1) * longest + 4
        self.generated_as(
            vocabulary=self.first_mark + 4,
            difficulty=f"{self.nodes} nodes"
            + (f", words of {self.least_tokens} to {longest} tokens" if longest > 1 else ""),
        )
        sizes = range(self.least_tokens, longest + 1)
        self.rates = word_rates(self.symbols, sizes, self.nodes)
        self.spelling = spellings(self.symbols, sizes, marks=4)

    @property
    def _split_words(self) -> list[int]:
        """Numbers of random words: for size, leaves, names, parents, and two orders."""
        nodes = self.nodes
        return [1, 1, len(self.rates), nodes * (nodes + 1), MOST_PARENTS * nodes, nodes]

    def words(self, length: int) -> int:
        """Return the number of random words for a row."""
        del length
        return sum(self._split_words)

    def drawn(self, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the training rows that these random words decide."""
        return self.drawn_for("train", words, length)

    def drawn_for(self, split: str, words: UInt64[np.ndarray, "n w"], length: int) -> Rows:
        """Return the rows of `split` that these random words decide."""
        rows, nodes = len(words), self.nodes
        for_size, for_leaves, for_names, for_parents, for_edges, for_order = np.split(
            words, np.cumsum(self._split_words)[:-1], axis=1
        )
        size = graph_sizes(for_size, nodes, np.arange(nodes if split == "test" else 3, nodes + 1))
        leaves = 1 + (for_leaves % ((size - 1) // 4 + 1).astype(np.uint64)).astype(np.int64)
        parents = random_parents(for_parents.reshape(rows, nodes, -1), leaves, size)
        is_parent = (parents[:, :, :, None] == np.arange(nodes)).any(2)
        above = np.arange(nodes) == size - 1
        for node in reversed(range(nodes)):
            above |= above[:, node, None] & is_parent[:, node]
        # A random time after the latest parent.
        time = unit(for_order)
        for node in range(nodes):
            time[:, node] += (time * is_parent[:, node]).max(1)
        answer = np.argsort(np.where(above, time, np.inf), axis=1)
        has_edge = parents.reshape(rows, -1) >= 0
        edge = np.argsort(np.where(has_edge, for_edges >> np.uint64(1), 2**64 - 1), axis=1)
        ends = np.take_along_axis(parents.reshape(rows, -1), edge, 1), edge // MOST_PARENTS
        names = different_words(for_names, self.rates)[:, :nodes]
        places = np.hstack((np.stack(ends, axis=2).reshape(rows, -1), size - 1, answer))
        named = np.take_along_axis(names, places, 1)
        edges, question = 2 * edge.shape[1], 2 * edge.shape[1] + 1
        marks = np.tile(len(self.rates) + np.arange(4), (rows, 1))
        pieces = (
            marks[:, [BEGIN]], named[:, :edges], marks[:, [QUESTION]], named[:, edges:question],
            marks[:, [ANSWER]], named[:, question:], marks[:, [END]],
        )  # fmt: skip
        real = [np.ones_like(part, bool) for part in pieces]
        real[1] = np.arange(edges) < 2 * has_edge.sum(1, keepdims=True)
        real[5] = np.arange(nodes) < above.sum(1, keepdims=True)
        answers = np.arange(sum(part.shape[1] for part in pieces)) >= question + 3
        return rows_of_words(
            np.hstack(pieces), np.hstack(real), answers, spelling=self.spelling, length=length
        )

    def border(self, tokens: Int[np.ndarray, "n l"]) -> Int[np.ndarray, " n"]:
        """Return the position of the mark before the question."""
        found: Int[np.ndarray, " n"] = (tokens == self.first_mark + QUESTION).argmax(1)
        return found

    def different_rows(self, length: int) -> float:
        """Return a lower bound: the names of the nodes of the largest graphs."""
        del length
        return math.log2(math.perm(len(self.rates), self.nodes))

    def token_text(self, token: int) -> str:
        """Return a symbol as a number, with a dot at the end of a word, or a mark."""
        if token < self.first_mark:
            return str(token % self.symbols + 1) + "." * (token >= self.symbols)
        return ("begin", "?", ":", "end")[token - self.first_mark]

    def split_tokens(self, tokens: Sequence[int]) -> list[Word]:
        """Return the words and marks of some tokens."""
        words: list[Word] = [()]
        for token in tokens:
            words[-1] += (token,)
            if token >= self.symbols:
                words.append(())
        return words if words[-1] else words[:-1]

    def graph_of(self, tokens: Sequence[int]) -> tuple[list[Word], Word]:
        """Return both ends of each edge of a row, one after the other, and the node in question."""
        words = self.split_tokens(tokens)
        border = words.index((self.first_mark + QUESTION,))
        return words[1:border], words[border + 1]

    def accept(
        self, chosen: Int[Tensor, "b l"], batch: Batch
    ) -> tuple[Bool[Tensor, "b l"], Mapping[str, tuple[float, float]]]:
        """Return at each position whether the whole answer is right, and the further scores."""
        assert batch.weight is not None, "questions have weights"
        right, sums = torch.zeros_like(chosen, dtype=torch.bool), np.zeros(3)
        for row, asked in enumerate(batch.weight > 0):
            tokens = (batch.tokens[row, 0] - self.shift).tolist()
            written = self.split_tokens((chosen[row, asked] - self.shift).tolist())
            scores = judge_answer(*self.graph_of(tokens), written, (self.first_mark + END,))
            right[row], sums = scores[0] == 1, sums + scores
        _, f1, first = sums.tolist()
        rows = float(len(right))
        return right, {"set_f1": (f1, rows), "leaf_first": (first, rows)}

    def tally(self, nll: Tensor, hit: Tensor, batch: Batch) -> Tally:
        """Sum the losses and hits over the answers; each answer has weight 1."""
        assert batch.weight is not None, "questions have weights"
        return super().tally(
            nll,
            hit,
            batch._replace(weight=batch.weight.double() / batch.weight.sum(1, keepdim=True)),
        )

    def groups(self, batch: Batch) -> Mapping[str, Int[Tensor, "b l"]]:
        """Return `answer_tokens`, rounded down to a power of two."""
        assert batch.weight is not None, "questions have weights"
        tokens = (batch.weight > 0).sum(1, keepdim=True)
        rounded = 2 ** tokens.double().log2().floor().long()
        return {"answer_tokens": rounded.expand_as(batch.target)}

    def baselines(self, split: str) -> list[Baseline]:
        """Compute the direct parents, and all nodes, as answers on `split`."""
        end, sums, total = (self.first_mark + END,), np.zeros((2, 3)), 0
        for tokens, _, _ in self.blocks(split):
            for row in tokens.tolist():
                ends, node = self.graph_of(row)
                direct = (p for p, c in zip(ends[::2], ends[1::2], strict=True) if c == node)
                answers = [*dict.fromkeys(direct), node], dict.fromkeys(ends)
                for number, said in enumerate(answers):
                    sums[number] += judge_answer(ends, node, [*said, end], end)
            total += len(tokens)
        sentences = {
            "direct_parents": "This baseline answers the parents of the node and the node. A model "
            "with this score does one lookup.",
            "all_nodes": "This baseline answers all nodes in the order of the edges. A model with "
            "this score does not follow edges.",
        }
        scores = (sums / total).tolist()
        return [
            Baseline(name, right, None, sentence, {"set_f1": f1, "leaf_first": first})
            for (name, sentence), (right, f1, first) in zip(sentences.items(), scores, strict=True)
        ]


def judge_answer(
    ends: list[Word], node: Word, written: list[Word], end: Word
) -> tuple[float, float, float]:
    """Return whether a written answer is right, the F1 score of its nodes, and if a leaf is first.

    Args:
        ends: Parent and child of each edge.
        node: The node of the question.
        written: What the model wrote; an answer ends with `end`.
        end: The mark at the end.
    """
    parents: dict[Word, set[Word]] = {}
    for parent, child in zip(ends[::2], ends[1::2], strict=True):
        parents.setdefault(child, set()).add(parent)
    above, new = {node}, {node}
    while new:
        new = set[Word]().union(*(parents.get(each, ()) for each in new)) - above
        above |= new
    said = written[: written.index(end)] if end in written else written
    place = {word: number for number, word in enumerate(said)}
    # Each node once, all of them, parents first, and then the end.
    right = len(place) == len(said) == len(written) - 1 and place.keys() == above
    right = right and all(
        place[parent] < place[child] for child in above for parent in parents.get(child, ())
    )
    f1 = 2 * len(place.keys() & above) / (len(place) + len(above))
    return float(right), f1, float(bool(said) and said[0] in above - parents.keys())


def random_parents(
    words: UInt64[np.ndarray, "n w _"], leaves: Int[np.ndarray, "n 1"], size: Int[np.ndarray, "n 1"]
) -> Int[np.ndarray, "n w 4"]:
    """Return the parents of each node, among earlier nodes with room for a child; -1: no more.

    Args:
        words: Random words of each node: for each other node, and for the number of parents.
        leaves: Number of nodes without parents; they come first.
        size: Number of nodes.
    """
    number, nodes, _ = words.shape
    found = np.full((number, nodes, MOST_PARENTS), -1)
    children = np.zeros((number, nodes), np.int64)
    for node in range(1, nodes):
        room = children[:, :node] < MOST_PARENTS
        key = np.where(room, words[:, node, :node] >> np.uint64(1), 2**64 - 1)
        choice = np.argsort(key, axis=1)[:, :MOST_PARENTS]
        wanted = np.minimum(1 + below(words[:, node, -1], MOST_PARENTS), room.sum(1))
        used = np.arange(choice.shape[1]) < wanted[:, None]
        used &= (node >= leaves) & (node < size)
        found[:, node, : choice.shape[1]] = np.where(used, choice, -1)
        np.add.at(children, (np.nonzero(used)[0], choice[used]), 1)
    return found
