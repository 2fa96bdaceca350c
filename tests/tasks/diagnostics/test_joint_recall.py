"""Joint recall, compared with a table of contexts and keys."""

from collections import Counter

import numpy as np
import pytest
from small_diagnostics import FEW

from lra.tasks.contract import check_task
from lra.tasks.diagnostics.base import NOT_ASKED
from lra.tasks.diagnostics.joint_recall import JointRecall

ONE_SIZE = ("contexts", "least_contexts", "keys", "least_keys")


def made(**options):
    task = JointRecall(**{**FEW, **options})
    task.prepare()
    return task


def tabled(task, row):
    """Return the table of a row, and the answers by position, each from its context and key."""
    texts = [task.token_text(token) for token in row]
    table, answers, context, second = {}, {}, "", False
    for place, text in enumerate(texts):
        if text == "|":
            second = True
        elif text[0] == "c":
            context = text
        elif text[0] == "k" and second:
            answers[place] = table[context, text]
            assert row[place + 1] == answers[place]
        elif text[0] == "k":
            assert (context, text) not in table
            table[context, text] = row[place + 1]
    return table, answers


@pytest.mark.parametrize(
    "options", [{}, {"contexts": 2, "least_contexts": 1, "keys": 7, "least_keys": 7, "values": 3}]
)
def test_a_table_finds_every_answer_of_joint_recall(options):
    task = made(**options)
    for split, number in zip(("train", "validation", "test"), FEW.values(), strict=True):
        tokens, answers, sizes = task.rows(split)
        assert len(tokens) == number
        for row, asked, size in zip(tokens.tolist(), answers.tolist(), sizes, strict=True):
            table, found = tabled(task, row[:size])
            assert found == {i: token for i, token in enumerate(asked) if token != NOT_ASKED}
            contexts, keys = ({*each} for each in zip(*table, strict=True))
            assert len(table) == len(found) == len(contexts) * len(keys)
            assert size == 2 * len(contexts) * (1 + 2 * len(keys)) + 2 <= task.length
            assert task.least_contexts <= len(contexts) <= task.contexts
            assert task.least_keys <= len(keys) <= task.keys
    assert [finding for finding in check_task(task) if not finding.passed] == []


def test_joint_recall_has_the_same_rows_for_ever():
    """Pinned: another generator is another version."""
    task = made(contexts=2, least_contexts=2, keys=2, least_keys=2)
    row = "begin c2 k1 v2 k2 v7 c1 k1 v6 k2 v7 | c1 k2 v7 k1 v6 c2 k1 v2 k2 v7"
    above, below = task.describe("train", 0).splitlines()
    assert above.split() == row.split()
    assert " ".join(below.split()[11:]) == ". . v7 . v6 . . v2 . v7 ."
    assert task.rows("train").tokens[0, :6].tolist() == [0, 21, 18, 3, 19, 8]


def test_sizes_and_orders_of_joint_recall_are_uniform():
    task = made(train_examples=8000)
    tokens, _, sizes = task.rows("train")
    rows = [row[:size] for row, size in zip(tokens.tolist(), sizes, strict=True)]
    texts = [[task.token_text(token) for token in row] for row in rows]
    pairs = Counter(
        (len({t for t in row if t[0] == "c"}), len({t for t in row if t[0] == "k"}))
        for row in texts
    )
    assert len(pairs) == 16
    assert max(abs(count / 500 - 1) for count in pairs.values()) < 0.2
    for half in (0, 1):
        starts = [row[1 if half == 0 else row.index("|") + 1 :] for row in texts]
        first = Counter((row[0], row[1]) for row in starts if "c4" not in row and "k4" not in row)
        assert len(first) == 9, "each context and each key may come first"
        assert max(abs(n / (first.total() / 9) - 1) for n in first.values()) < 0.4


@pytest.mark.parametrize(
    ("size", "row", "last", "key"),
    [(5, 0.164, 0.248, 0.306), (8, 0.123, 0.179, 0.258), (16, 0.092, 0.123, 0.194)],
)
def test_floors_of_joint_recall(size, row, last, key):
    task = made(**dict.fromkeys(ONE_SIZE, size), test_examples=2000)
    floors = {baseline.name: baseline.accuracy for baseline in task.baselines("test")}
    assert floors["frequent_value"] == pytest.approx(row, abs=0.006)
    assert floors["last_value"] == pytest.approx(last, abs=0.008)
    assert floors["frequent_value_of_key"] == pytest.approx(key, abs=0.006)
    assert floors["majority"] == pytest.approx(1 / 16, abs=0.006)


def test_floors_of_joint_recall_by_hand():
    task = made()
    floors = {baseline.name: baseline.accuracy for baseline in task.baselines("test")}
    hits = {"frequent_value": [], "last_value": [], "frequent_value_of_key": []}
    tokens, _, sizes = task.rows("test")
    for row, size in zip(tokens.tolist(), sizes, strict=True):
        table, answers = tabled(task, row[:size])
        behind = {}
        for (_, key), value in table.items():
            behind.setdefault(key, []).append(value)
        everything = [*table.values()]
        for place, answer in answers.items():
            values = behind[task.token_text(row[place])]
            hits["last_value"].append(values[-1] == answer)
            for name, listed in (("frequent_value", everything), ("frequent_value_of_key", values)):
                hits[name].append(max(sorted({*listed}), key=listed.count) == answer)
    assert {name: floors[name] for name in hits} == {name: np.mean(h) for name, h in hits.items()}


def test_groups_of_joint_recall():
    task = made()
    rows = task.rows("test")
    for batch in task.batches("test", batch_size=80, seed=0):
        groups = task.groups(batch)
        for i, index in enumerate(batch.index.tolist()):
            table, _ = tabled(task, rows.tokens[index, : rows.sizes[index]].tolist())
            contexts, keys = ({*each} for each in zip(*table, strict=True))
            assert {*groups["contexts"][i].tolist()} == {len(contexts)}
            assert {*groups["keys"][i].tolist()} == {len(keys)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"contexts": 2}, r"task\.least_contexts must be at most task\.contexts=2: got 3"),
        ({"least_keys": 7}, r"task\.least_keys must be at most task\.keys=6: got 7"),
        ({"least_keys": 0}, r"must be at least 1: got task\.least_keys=0"),
        ({"values": 0}, r"must be at least 1: got task\.values=0"),
    ],
)
def test_impossible_sizes_of_joint_recall(options, message):
    with pytest.raises(ValueError, match=message):
        JointRecall(**options)
