import numpy as np
import pytest
import torch

from lra.tasks.classification.listops.task import ListOps
from lra.tasks.classification.retrieval import Retrieval
from lra.tasks.classification.text import Text
from lra.tasks.data.batching import Draw, Piece, collate, permutation, plan_epoch, random_words
from lra.tasks.data.storage import from_rows

LENGTHS = np.random.default_rng(0).integers(1, 500, 1000)


def plan(**changes):
    options = {
        "train": True, "batch_size": 8, "seed": 0, "bucket_batches": 16, "rank": 0, "ranks": 1,
    }  # fmt: skip
    return plan_epoch(LENGTHS, **{**options, **changes})


def padding(batches):
    return sum(LENGTHS[rows].max() * len(rows) for rows in batches) / sum(
        LENGTHS[rows].sum() for rows in batches
    )


def test_words_are_the_same_on_every_platform():
    assert random_words(Draw.order, 5, 2).tolist() == [7106696665261125875, 16934146427186092348]
    assert random_words(Draw.order, 5, 1) != random_words(Draw.buckets, 5, 1)


def test_permutation_is_one():
    assert sorted(permutation(Draw.order, 3, 100).tolist()) == list(range(100))


def test_buckets_save_padding_and_are_shuffled():
    assert padding(plan()) < 1.15
    assert padding(plan(bucket_batches=1)) > 1.5
    longest = [LENGTHS[rows].max() for rows in plan()]
    rises = np.diff(longest) > 0
    assert 0.3 < rises.mean() < 0.7


def test_without_buckets_batches_are_cut_from_the_shuffled_split():
    batches = plan(bucket_batches=None, batch_size=64, seed=5)
    assert np.concatenate(batches).tolist() == permutation(Draw.order, 5, 1000)[:960].tolist()
    assert padding(batches) > 1.8
    judged = plan(train=False, bucket_batches=None, batch_size=64)
    assert np.concatenate(judged).tolist() == list(range(1000))
    assert [len(rows) for rows in judged] == [64] * 15 + [40]


def test_train_drops_only_an_incomplete_batch():
    batches = plan(batch_size=64)
    assert [len(rows) for rows in batches] == [64] * 15
    assert len(np.unique(np.concatenate(batches))) == 960


def test_evaluation_is_whole_and_longest_first():
    batches = plan(train=False, batch_size=64)
    assert sorted(np.concatenate(batches).tolist()) == list(range(1000))
    lengths = LENGTHS[np.concatenate(batches)]
    assert (np.diff(lengths) <= 0).all()
    assert len(batches[-1]) == 1000 % 64


def test_ranks_do_the_work_of_one():
    one = plan(batch_size=24)
    shares = [plan(batch_size=8, rank=rank, ranks=3) for rank in range(3)]
    for whole, parts in zip(one, zip(*shares, strict=True), strict=True):
        assert sorted(whole) == sorted(np.concatenate(parts))
        tops = [LENGTHS[part].max() for part in parts]
        assert max(tops) - min(tops) <= np.ptp(LENGTHS[whole])


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"rank": 2, "ranks": 2}, "rank=2, ranks=2"),
        ({"batch_size": 1001}, "needs at least 1001 training examples: the split has 1000"),
    ],
)
def test_impossible_batches_are_refused(change, wanted):
    with pytest.raises(ValueError, match=wanted):
        plan(**change)


def test_collate_pads_cuts_and_shifts():
    rows = [np.array(row, np.uint8) for row in ([255, 1], [2, 3, 0, 5, 6], [7])]
    split = from_rows(rows, np.array([1, 0, 1], np.uint8))
    batch = collate(split, np.array([1, 2]), max_length=4, shift=1)
    assert batch.tokens.tolist() == [[[3, 4, 1, 6]], [[8, 0, 0, 0]]]
    assert batch.keep.tolist() == [[[True] * 4], [[True, False, False, False]]]
    assert batch.target.tolist() == [0, 1]
    assert batch.index.tolist() == [1, 2]
    alone = collate(split, np.array([0]), max_length=4, shift=1)
    assert alone.keep is None
    assert alone.tokens.tolist() == [[[256, 2]]]


def test_a_longer_row_begins_where_a_random_word_says():
    rows = [np.arange(n, dtype=np.uint8) for n in (9, 3, 4)]
    split = from_rows(rows, np.zeros(3, np.uint8))
    known = {"max_length": 4, "shift": 1}
    first = set()
    for word in range(12):
        words = np.array([word, word, 5], np.uint64)
        long, short, fitting = collate(split, np.arange(3), words=words, **known).tokens[:, 0]
        assert short.tolist() == [1, 2, 3, 0]
        assert fitting.tolist() == [1, 2, 3, 4]
        assert (long.diff() == 1).all()
        first.add(int(long[0]))
    assert first == set(range(1, 7))  # every place of which four are left


@pytest.mark.parametrize("kind", [Text, Retrieval])
@pytest.mark.parametrize("cut", Piece)
def test_which_pieces_of_longer_texts_are_kept(kind, cut):
    task, usual = (kind(source="sample", max_length=20, cut=each) for each in (cut, Piece.first))
    task.prepare()

    def pieces(of, split, seed):
        batches = of.batches(split, batch_size=1, seed=seed)
        found = {int(batch.index): batch.tokens for batch in batches}
        return torch.cat([found[row] for row in sorted(found)])

    one, again, other = (pieces(task, "train", seed) for seed in (1, 1, 2))
    assert one.equal(again)
    assert one.equal(other) == one.equal(pieces(usual, "train", 1)) == (cut is Piece.first)
    judged = pieces(task, "test", 0)
    assert judged.equal(pieces(task, "test", 1))
    assert judged.equal(pieces(usual, "test", 0)) == (cut is not Piece.random)


@pytest.mark.parametrize("padded_length", [4, 7])
def test_every_row_can_be_padded_to_one_length(padded_length):
    rows = [np.array(row, np.uint8) for row in ([255, 1], [2, 3, 0, 5, 6], [7, 8])]
    split = from_rows(rows, np.array([1, 0, 1], np.uint8))
    for chosen in ([1, 2], [0, 2], [1]):
        known = {"max_length": 4, "shift": 1}
        plain = collate(split, np.array(chosen), **known)
        batch = collate(split, np.array(chosen), padded_length=padded_length, **known)
        length = plain.tokens.shape[-1]
        assert batch.tokens.shape[-1] == padded_length
        assert (batch.tokens[..., :length] == plain.tokens).all()
        assert not batch.tokens[..., length:].any()
        keep = batch.keep if batch.keep is not None else torch.ones(1, 1, padded_length)
        assert keep.sum() == (plain.tokens > 0).sum()


@pytest.mark.parametrize("task", [Text, Retrieval, ListOps])
def test_rows_are_padded_to_no_less_than_they_have(task):
    sample = {"source": "sample"} if task is not ListOps else {"min_length": 10}
    with pytest.raises(ValueError, match=r"padded_length=99; wanted 100 or more, or null"):
        task(**sample, max_length=100, padded_length=99)
    assert task(**sample, max_length=100, padded_length=128).spec.max_length == 128


@pytest.mark.parametrize(("max_length", "shift"), [(6, 0), (6, 1), (4, 1)])
def test_rows_of_one_length_are_gathered_alike(max_length, shift):
    rows = list(np.arange(60, dtype=np.uint8).reshape(10, 6))
    even = from_rows(rows, np.arange(10, dtype=np.uint8))
    odd = from_rows([np.zeros(5, np.uint8), *rows], np.arange(11, dtype=np.uint8))
    chosen = np.array([7, 0, 3])
    one = collate(even, chosen, max_length=max_length, shift=shift)
    other = collate(odd, chosen + 1, max_length=max_length, shift=shift)
    assert one.keep is other.keep is None
    assert one.tokens.tolist() == other.tokens.tolist()
    assert one.tokens[0, 0].tolist() == (rows[7][:max_length] + shift).tolist()
