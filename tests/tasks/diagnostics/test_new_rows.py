"""Rows of several lengths, new rows in each batch, and training that predicts all tokens."""

from itertools import islice

import numpy as np
import pytest
import torch
from small_diagnostics import TASKS

from lra.tasks.contract import check_task, fingerprint
from lra.tasks.data.batching import Draw, random_words
from lra.tasks.diagnostics.base import EPOCH, NOT_ASKED, Loss
from lra.tasks.diagnostics.draws import rows_of_lengths
from lra.tasks.diagnostics.duplicate import Duplicate
from lra.tasks.diagnostics.induction import Induction
from lra.tasks.diagnostics.mqar import MQAR
from lra.tasks.diagnostics.permutations import Permutations

FEW = {"train_examples": 300, "validation_examples": 60, "test_examples": 40}


def prepared(kind, **options):
    task = kind(**{**FEW, **options})
    task.prepare()
    return task


@pytest.mark.share(4)
@pytest.mark.parametrize("name", TASKS)
def test_rows_of_several_lengths_keep_the_contract_and_the_rule(name):
    kind, options = TASKS[name]
    length = options["length"]
    task = prepared(
        kind, **options, min_length=length - 4, test_lengths=[length - 6, length, length + 10]
    ) if not name.startswith(("mqar", "selective")) else prepared(
        kind, **options, min_length=length, test_lengths=[length, length + 10]
    )  # fmt: skip
    assert [finding for finding in check_task(task) if not finding.passed] == []
    fixed = kind(**{**FEW, **options})
    for split in ("validation", "test"):
        tokens, answers, sizes = task.rows(split)
        for size in np.unique(sizes):
            here = sizes == size
            assert (tokens[here, size:] == 0).all()
            assert (answers[here, size:] == NOT_ASKED).all()
            assert ((answers[here] != NOT_ASKED).sum(1) > 0).all()
    assert fixed.spec.data_hash != task.spec.data_hash
    assert task.spec.vocabulary == fixed.spec.vocabulary + 1


def test_each_test_length_has_its_rows():
    task = prepared(Permutations, group="z2", length=9, test_lengths=[4, 12, 7])
    assert task.spec.sizes["test"] == 120
    assert np.bincount(task.rows("test").sizes).nonzero()[0].tolist() == [4, 7, 12]
    assert set(np.bincount(task.rows("test").sizes)[[4, 7, 12]]) == {40}
    for batch in task.batches("test", batch_size=7, seed=0):
        shifted = batch.tokens[:, 0]
        real = torch.ones_like(shifted) > 0 if batch.keep is None else batch.keep[:, 0]
        assert torch.equal(shifted != 0, real)
        rows = task.rows("test").tokens[batch.index.numpy()][:, : real.shape[1]]
        assert torch.equal((shifted - 1)[real], torch.from_numpy(rows)[real])
        # Parity, computed from what the model sees.
        assert torch.equal(((shifted - 1) * real).cumsum(1)[real] % 2, (batch.target - 1)[real])


def test_hits_are_counted_by_length():
    task = prepared(Permutations, group="z2", length=9, test_lengths=[4, 12])
    counts = {}
    for batch in task.batches("test", batch_size=30, seed=0):
        length = (batch.tokens != 0).sum(-1).expand(batch.target.shape)
        found = task.tally(torch.ones(batch.target.shape), length == 4, batch)
        for part, (hits, number) in found.groups.items():
            before = counts.get(part, (0, 0))
            counts[part] = (before[0] + hits, before[1] + number)
    assert counts == {("length", "4"): (160, 160), ("length", "12"): (0, 480)}


def test_lengths_are_equally_frequent_and_of_their_rows():
    words = random_words(Draw.diagnostic, 1, 6000 * 31).reshape(6000, 31)
    task = Induction(symbols=5, length=30)
    rows = rows_of_lengths(words, np.array([4, 17, 30]), task.words, task.drawn)
    assert np.abs(np.bincount(rows.sizes)[[4, 17, 30]] / 2000 - 1).max() < 0.1
    here = rows.sizes == 17
    alone = task.drawn(words[here, 1:18], 17)
    assert np.array_equal(rows.tokens[here, :17], alone.tokens)
    assert np.array_equal(rows.answers[here, :17], alone.answers)


def test_new_rows_in_each_batch_and_the_same_from_any_batch():
    task = prepared(MQAR, length=30, pairs=5, vocabulary=40, train_examples=None)
    assert "train" not in task.spec.sizes
    assert task.examples("train") == EPOCH
    epochs = [list(islice(task.batches("train", batch_size=8, seed=s), 40)) for s in (0, 0, 1)]
    assert fingerprint(epochs[0]) == fingerprint(epochs[1])
    rows = {row.numpy().tobytes() for epoch in epochs[1:] for b in epoch for row in b.tokens}
    assert len(rows) == 2 * 40 * 8
    later = task.batches("train", batch_size=8, seed=0, start=37)
    assert fingerprint(islice(later, 3)) == fingerprint(epochs[0][37:])
    parts = [
        next(task.batches("train", batch_size=4, seed=0, rank=rank, ranks=2)) for rank in (0, 1)
    ]
    whole = epochs[0][0]
    for rank, part in enumerate(parts):
        assert torch.equal(part.tokens, whole.tokens[rank::2])
        assert torch.equal(part.index, whole.index[rank::2])


def test_new_rows_may_equal_a_test_row_where_rows_are_few():
    few = prepared(Permutations, group="s3", length=4, test_length=4, train_examples=None)
    assert few.copies_allowed("train", "test") == 1
    many = prepared(Permutations, group="s5", length=30, train_examples=None)
    assert many.copies_allowed("train", "test") == 0


@pytest.mark.parametrize(("kind", "options"), [(Duplicate, {}), (Induction, {"min_length": 12})])
def test_training_on_all_tokens_asks_for_the_next_one_too(kind, options):
    task = prepared(kind, symbols=9, length=26, loss="all", **options)
    for batch in islice(task.batches("train", batch_size=16, seed=0), 3):
        tokens, answers, _ = task.rows("train")
        for row, index in enumerate(batch.index.tolist()):
            real = len(tokens[0]) if batch.keep is None else int(batch.keep[row].sum())
            for place in range(batch.tokens.shape[-1]):
                asked = answers[index, place] if place < real else NOT_ASKED
                if asked != NOT_ASKED:
                    wanted, counts = asked + task.shift, True
                elif place + 1 < real:
                    wanted, counts = int(batch.tokens[row, 0, place + 1]), True
                else:
                    wanted, counts = 0, False
                assert bool(batch.weight[row, place]) is counts
                assert not counts or int(batch.target[row, place]) == wanted
    test = next(task.batches("test", batch_size=16, seed=0))
    asked = task.rows("test").answers[test.index.numpy()][:, : test.weight.shape[1]] != NOT_ASKED
    assert np.array_equal(test.weight.numpy() > 0, asked)
    assert task.loss is Loss.all


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_length": 30}, r"min_length must be from 1 to task\.length=20, .* got 30"),
        ({"min_length": 2}, r"task\.min_length must be at least 3"),
        ({"test_lengths": [64, 2]}, r"task\.test_lengths must be at least 3"),
        ({"test_lengths": []}, r"lengths of at least 1, for example \[64,128\], or null: got \[\]"),
        ({"test_lengths": [9, 9]}, r"has a length twice: \[9, 9\]"),
        ({"test_lengths": [9], "test_length": 8}, r"set one of them to null"),
        ({"train_examples": 0}, r"must be at least 1: got task\.train_examples=0"),
    ],
)
def test_impossible_lengths(options, message):
    with pytest.raises(ValueError, match=message):
        Induction(length=20, **options)
