"""Everything above a node in order, compared with a walk up the edges."""

import numpy as np
import pytest
import torch
from small_diagnostics import FEW

from lra.models.backbone.config import BackboneConfig, Head, TaskFacts
from lra.models.backbone.model import Backbone, Outcome
from lra.models.families.softmax import SoftmaxAttention
from lra.runners.training.evaluate import evaluate
from lra.tasks.contract import check_task
from lra.tasks.data.batching import Draw, random_words
from lra.tasks.diagnostics.base import NOT_ASKED
from lra.tasks.diagnostics.order_graph import OrderGraph, judge_answer

SMALL = {
    "letters": {},
    "mixed": {"nodes": 7, "symbols": 3, "most_tokens": 3},
    "three": {"nodes": 3, "symbols": 40},
}


def made(**options):
    task = OrderGraph(**{**FEW, **options})
    task.prepare()
    return task


def drawn(task, number):
    """Return test rows without storing them."""
    per_row = task.words(task.length)
    words = random_words(Draw.diagnostic, 5, number * per_row).reshape(number, per_row)
    return task.drawn_for("test", words, task.length)


def words(task, tokens):
    """Return words as texts, each with a dot at its end."""
    texts = "".join(f"{task.token_text(token)} " for token in tokens).strip()
    found = []
    for text in texts.split(". "):
        found += [text.removesuffix(".").replace(" ", "-")]
    return found


def parsed(task, row):
    """Return the parents of each node, the node in question, and the answer."""
    marks = [place for place, token in enumerate(row) if token >= task.first_mark]
    assert [task.token_text(row[place]) for place in marks] == ["begin", "?", ":", "end"]
    first, second, third, last = marks
    assert (first, last) == (0, len(row) - 1)
    ends = words(task, row[1:second])
    parents = {name: set() for name in ends}
    for parent, child in zip(ends[::2], ends[1::2], strict=True):
        assert parent not in parents[child]
        parents[child].add(parent)
    (node,) = words(task, row[second + 1 : third])
    return parents, node, words(task, row[third + 1 : last]), third


@pytest.mark.parametrize("name", SMALL)
def test_a_walk_finds_every_answer_of_order_graph(name):
    task = made(**SMALL[name])
    for split, number in zip(("train", "validation", "test"), FEW.values(), strict=True):
        tokens, answers, sizes = task.rows(split)
        assert len(tokens) == number
        for row, asked, size in zip(tokens.tolist(), answers.tolist(), sizes, strict=True):
            parents, node, answer, place = parsed(task, row[:size])
            above, waiting = set(), [node]
            while waiting:
                above.add(waiting.pop())
                waiting += [p for each in above for p in parents[each] if p not in above]
            assert sorted(answer) == sorted(above)
            for position, each in enumerate(answer):
                assert parents[each] <= {*answer[:position]}
            assert answer[-1] == node
            assert [*asked[place : size - 1]] == row[place + 1 : size]
            assert set(asked[:place]) <= {NOT_ASKED}
            assert max(map(len, parents.values())) <= 4
            children = [p for each in parents.values() for p in each]
            assert max(map(children.count, parents)) <= 4
    if name == "mixed":
        assert [finding for finding in check_task(task) if not finding.passed] == []


def test_order_graph_has_the_same_rows_for_ever():
    """Pinned: another generator is another version."""
    above, below = (" ".join(line.split()) for line in made().describe("train", 0).splitlines())
    row = "begin 3. 8. 2. 5. 8. 5. 2. 4. 8. 4. 5. 4. 2. 8. 3. 5. 3. 4. ? 4. :"
    assert above == f"{row} 3. 2. 8. 5. 4. end"
    assert below == ". " * 21 + "3. 2. 8. 5. 4. end ."


@pytest.mark.parametrize(
    ("options", "tokens", "asked"),
    [
        ({"nodes": 70, "symbols": 70}, 336, 32),
        ({"nodes": 30, "symbols": 4, "least_tokens": 2, "most_tokens": 4}, 452, 54),
    ],
)
def test_rows_of_the_paper_have_the_published_lengths(options, tokens, asked):
    rows = drawn(OrderGraph(**options), 100)
    assert np.median(rows.sizes) == pytest.approx(tokens, rel=0.06)
    assert np.median((rows.answers != NOT_ASKED).sum(1)) == pytest.approx(asked, rel=0.15)


def test_leaves_of_order_graph_are_uniform():
    task = OrderGraph(nodes=30, symbols=30)
    rows = drawn(task, 400)
    graphs = [
        parsed(task, row[:size])[0]
        for row, size in zip(rows.tokens.tolist(), rows.sizes, strict=True)
    ]
    leaves = [30 - sum(map(bool, parents.values())) for parents in graphs]
    assert {*leaves} == {*range(1, 9)}  # 1 to 29 div 4 + 1
    assert np.mean(leaves) == pytest.approx(4.5, abs=4 * 2.3 / 20)


def test_floors_of_order_graph():
    floors = {baseline.name: baseline for baseline in made(test_examples=200).baselines("test")}
    assert floors["all_nodes"].accuracy < 0.02
    assert floors["all_nodes"].measures["set_f1"] == pytest.approx(0.82, abs=0.04)
    assert floors["direct_parents"].accuracy < 0.05
    assert floors["direct_parents"].measures["set_f1"] == pytest.approx(0.59, abs=0.05)


@pytest.mark.parametrize(
    ("written", "scores"),
    [
        ("abcde.", (1, 1, 1)),
        ("badce.", (0, 1, 1)),  # d is above c
        ("abcde", (0, 1, 1)),
        ("abcde..", (0, 1, 1)),
        ("abcdde.", (0, 1, 1)),
        ("abce.", (0, 8 / 9, 1)),
        ("cabde.", (0, 1, 0)),
        ("xabcde.", (0, 10 / 11, 0)),
        (".", (0, 0, 0)),
        ("", (0, 0, 0)),
    ],
)
def test_answers_are_judged_by_the_edges(written, scores):
    edges = "accdbddexyae"
    found = judge_answer([*edges], "e", [*written], ".")
    assert found == pytest.approx(scores)


class Writes(Backbone):
    """Writes the largest node whose parents are written; begins with the question at index 0."""

    def __init__(self, task):
        facts = TaskFacts(head=Head.language_modelling, vocabulary=40, classes=40, max_length=400)
        super().__init__(BackboneConfig(width=8, heads=2), facts, [SoftmaxAttention], seed=0)
        self.task, self.first = task, task.rows("test").tokens[0].tolist()

    def forward(self, tokens, target, keep, state, *, layout, asked):
        return Outcome(torch.ones(target.shape), torch.zeros_like(target).bool(), None, {})

    def predict(self, tokens, keep, *, layout):
        logits = torch.zeros(*tokens[:, 0].shape, self.task.spec.vocabulary)
        for number, row in enumerate((tokens[:, 0] - 1).tolist()):
            size = int(keep[number, 0].sum())
            question, mark = (row.index(self.task.first_mark + each) for each in (1, 2))
            ends = row[1:question]
            parents = {child: set() for child in ends}
            for parent, child in zip(ends[::2], ends[1::2], strict=True):
                parents[child].add(parent)
            above = {row[question + 1]}
            for _ in row:
                above |= {parent for each in above for parent in parents[each]}
            for place in range(mark, size):
                written = {*row[mark + 1 : place + 1]}
                ready = [n for n in above - written if parents[n] <= written]
                answer = max(ready, default=self.task.first_mark + 3)
                if row[:question] == self.first[:question] and place == mark:
                    answer = row[question + 1]
                logits[number, place, answer + 1] = 1
        return logits, None


def test_a_model_writes_another_order_than_the_drawn_one():
    task = made(test_examples=40, nodes=9)
    scores = evaluate(Writes(task), task, "test", batch_size=16, device=torch.device("cpu"))
    assert scores.measured["accuracy"] == scores.measured["exact_match"] == 39 / 40
    assert scores.measured["set_f1"] == 1
    assert scores.measured["leaf_first"] == 39 / 40
    assert scores.measured["loss"] == 1
    assert sum(items for _, items in scores.groups.values()) == pytest.approx(40)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 2}, r"task\.nodes must be from 3 to .* got task\.nodes=2"),
        ({"nodes": 13}, r"got task\.nodes=13, and 12 words of 1 to 1 tokens of 12 symbols"),
        ({"least_tokens": 2}, r"least_tokens must be at most task\.most_tokens=1: got 2"),
        ({"symbols": 0}, r"must be at least 1: got task\.symbols=0"),
    ],
)
def test_impossible_sizes_of_order_graph(options, message):
    with pytest.raises(ValueError, match=message):
        OrderGraph(**options)
