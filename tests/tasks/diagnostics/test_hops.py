"""Steps along a ring, compared with a walk through a dictionary."""

import numpy as np
import pytest
import torch
from small_diagnostics import FEW

from lra.runners.measures.certify import certify
from lra.tasks.baselines.certificate import certified_baselines
from lra.tasks.contract import check_task
from lra.tasks.diagnostics.base import NOT_ASKED
from lra.tasks.diagnostics.hops import Hops
from lra.tasks.diagnostics.spelling import by_word

DEPO1 = {"nodes": 225, "hops": 8, "symbols": 50, "least_tokens": 1, "most_tokens": 2}
DEPO2 = {"nodes": 75, "hops": 16, "symbols": 3, "least_tokens": 5, "most_tokens": 7}
SMALL = {
    "letters": {},
    "mixed": {"nodes": 9, "symbols": 4, "most_tokens": 3, "hops": 7, "questions": 4},
    "long": {"nodes": 5, "symbols": 2, "least_tokens": 3, "most_tokens": 4},
}


def made(**options):
    task = Hops(**{**FEW, **options})
    task.prepare()
    return task


def walked(task, row):
    """Return the edges of a row, its questions (steps, word), and the answers by position."""
    texts = [task.token_text(token) for token in row]
    assert texts[0] == "begin"
    word, words, edges, questions, answers = (), [], {}, [], {}
    for place, text in enumerate(texts[1:], 1):
        if text[0] == "+":
            edges = edges or dict(zip(words[::2], words[1::2], strict=True))
            steps, words = int(text[1:]), []
        elif text == "|":
            (end,) = words
            questions.append((steps, end))
            for _ in range(steps):
                end = edges[end]
            answers |= {place + i: token for i, token in enumerate(end)}
        else:
            word += (row[place],)
            if text.endswith("."):
                words, word = [*words, word], ()
    return edges, questions, answers


@pytest.mark.parametrize("name", SMALL)
def test_a_walk_finds_every_answer_of_hops(name):
    task = made(**SMALL[name])
    for split, number in zip(("train", "validation", "test"), FEW.values(), strict=True):
        tokens, answers, sizes = task.rows(split)
        assert len(tokens) == number
        for row, asked, size in zip(tokens.tolist(), answers.tolist(), sizes, strict=True):
            edges, questions, walk = walked(task, row[:size])
            assert walk == {i: token for i, token in enumerate(asked) if token != NOT_ASKED}
            assert len(edges) == task.nodes if split == "test" else 3 <= len(edges) <= task.nodes
            assert len({*edges.values()}) == len(edges)
            steps, starts = zip(*questions, strict=True)
            assert len({*starts}) == len(starts) == min(task.questions, len(edges))
            powers = {2**e for e in range(9)} | {task.hops}
            assert {*steps} <= (powers if split == "test" else {*range(1, task.hops + 1)})
            word = start = starts[0]
            for step in range(1, len(edges) + 1):
                word = edges[word]
                assert (word == start) == (step == len(edges)), "the edges are one ring"
    assert [finding for finding in check_task(task) if not finding.passed] == []


def test_hops_has_the_same_rows_for_ever():
    """Pinned: another generator is another version."""
    task = made(nodes=4, symbols=6, questions=2)
    row = [17, 6, 8, 8, 9, 9, 6, 15, 6, 16, 8, 13, 9, 16, 8, 0, 0]
    assert task.rows("train").tokens[0].tolist() == row
    above, below = task.describe("train", 0).splitlines()
    assert " ".join(above.split()) == "begin 1. 3. 3. 4. 4. 1. +4 1. | 3. +2 4. | 3."
    assert " ".join(below.split()) == ". . . . . . . . . 3. . . . 3. ."


def test_rings_of_hops_are_drawn_with_their_weights():
    task = made(train_examples=6000)
    numbers = [len(walked(task, row)[0]) for row in task.rows("train").tokens.tolist()]
    weights = 1 / (np.arange(3, 25) + 24**0.5)
    found = np.bincount(numbers, minlength=25)[3:] / 6000
    assert np.abs(found - weights / weights.sum()).max() < 4 * np.sqrt(0.1 * 0.9 / 6000)


def test_short_words_of_hops_are_rarer_than_their_share():
    """Words that a row has are drawn again, so 50 short words cannot be half of 225."""
    task = Hops(**DEPO1)
    words = np.random.default_rng(0).integers(0, 2**64, (200, task.words(0)), np.uint64)
    edges = [
        walked(task, row)[0] for row in task.drawn_for("test", words, task.length).tokens.tolist()
    ]
    ours = np.mean([sum(len(word) == 1 for word in each) for each in edges])
    rng, theirs = np.random.default_rng(1), []
    for _ in range(200):
        drawn = set()
        while len(drawn) < 225:
            drawn.add(tuple(rng.integers(50, size=rng.integers(1, 3)).tolist()))
        theirs.append(sum(len(word) == 1 for word in drawn))
    assert ours == pytest.approx(np.mean(theirs), abs=5 * np.std(theirs) / 10)


@pytest.mark.parametrize(
    ("options", "tokens", "asked", "floor"),
    [(DEPO1, 859, 18, 1 / 4), (DEPO2, 1043, 60, 1 / 5), ({}, 89, 10, 1 / 3)],
)
def test_floors_of_hops(options, tokens, asked, floor):
    """Of 400 rows, as in the specification; one lookup answers the questions of one step."""
    task = made(**options, test_examples=400)
    rows = task.rows("test")
    assert np.median(rows.sizes) == pytest.approx(tokens, abs=3)
    assert (rows.answers != NOT_ASKED).sum(1).mean() == pytest.approx(asked, abs=0.5)
    floors = {baseline.name: baseline.accuracy for baseline in task.baselines("test")}
    assert floors["one_lookup"] == pytest.approx(floor, abs=4 * np.sqrt(floor / 4000))
    pairs = zip(rows.tokens.tolist(), rows.sizes, strict=True)
    solved = [walked(task, row[:size])[1] for row, size in pairs]
    once = np.mean([steps == 1 for questions in solved for steps, _ in questions])
    assert floors["one_lookup"] == pytest.approx(once)
    assert floors["majority"] <= 1 / task.nodes + 0.01


def test_one_lookup_of_hops_goes_round_a_small_ring():
    task = made(nodes=3, hops=4, validation_examples=500)
    floors = {baseline.name: baseline.accuracy for baseline in task.baselines("validation")}
    assert floors["one_lookup"] == pytest.approx(1 / 2, abs=0.06)  # 1 step, or 4


def test_accuracy_of_hops_counts_words():
    task = made(**SMALL["mixed"])
    batch = next(task.batches("test", batch_size=80, seed=0))
    asked = batch.weight > 0
    hit = asked & (torch.rand(asked.shape, generator=torch.manual_seed(0)) < 0.7)
    tally = task.tally(torch.ones(asked.shape), hit, batch)
    words = {}
    for i, place in asked.nonzero().tolist():
        first = place
        while asked[i, first - 1]:
            first -= 1
        words[i, first] = words.get((i, first), True) and bool(hit[i, place])
    assert tally.count == pytest.approx(80 * 4) == len(words)
    assert tally.hits == pytest.approx(sum(words.values()))
    steps = task.groups(batch)["steps"]
    by_steps = {part: sums for (group, part), sums in tally.groups.items() if group == "steps"}
    for part, (hits, count) in by_steps.items():
        chosen = [right for at, right in words.items() if steps[at] == int(part)]
        assert (hits, count) == pytest.approx((sum(chosen), len(chosen)))
    assert {*by_steps} == {"1", "2", "4", "7"}
    right, weight = by_word(np.ones((1, 4), bool), np.array([[False, True, True, False]]))
    assert right.tolist() == [[False, True, True, False]]
    assert weight.tolist() == [[0, 0.5, 0.5, 0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"nodes": 2}, r"task\.nodes must be from 3 to .*: got task\.nodes=2"),
        ({"nodes": 27}, r"got task\.nodes=27, and 26 words of 1 to 1 tokens of 26 symbols"),
        ({"symbols": 30, "most_tokens": 3}, r"may be at most 16384: got .* and 27930 words"),
        ({"least_tokens": 2}, r"task\.least_tokens must be at most task\.most_tokens=1: got 2"),
        ({"hops": 0}, r"must be at least 1: got task\.hops=0"),
    ],
)
def test_impossible_sizes_of_hops(options, message):
    with pytest.raises(ValueError, match=message):
        Hops(**options)


def test_baselines_have_the_groups_of_scores(tmp_path, monkeypatch):
    """One lookup answers the questions one step ahead, and a majority none better than others."""
    monkeypatch.setenv("LRA_DATA", str(tmp_path))
    task = made(nodes=6, hops=4, test_examples=300)
    scores = {baseline.name: baseline for baseline in certified_baselines(task, "test")}
    again = {baseline.name: baseline for baseline in certified_baselines(task, "test")}
    for name, baseline in scores.items():
        assert again[name].groups == baseline.groups
        assert {group for group, _ in baseline.groups} == {"steps"}
        items = sum(number for _, number in baseline.groups.values())
        hits = sum(share * number for share, number in baseline.groups.values())
        assert baseline.accuracy == pytest.approx(hits / items)
    by_steps = scores["one_lookup"].groups
    assert by_steps["steps", "1"][0] == 1.0
    assert by_steps["steps", "2"][0] < 0.5
    rows = [row for row in certify(task, split="test") if row.metric == "accuracy_by_group"]
    assert {row.labels["part"] for row in rows} == {"1", "2", "4"}
