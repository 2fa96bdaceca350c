import numpy as np
import torch

from lra.tasks.baselines.n_grams import bags, n_gram_answers, runs
from lra.tasks.baselines.seen_examples import RealTokens, SeenExamples
from lra.tasks.data.batching import Draw, random_words


def noise(number, length, seed=0, symbols=20):
    words = random_words(Draw.sample, seed, number * length) % np.uint64(symbols)
    return words.astype(np.uint8).reshape(number, length)


def joined(rows):
    return RealTokens(
        np.concatenate([np.asarray(row, np.int64) for row in rows]),
        np.repeat(np.arange(len(rows)), [len(row) for row in rows]),
        np.concatenate([np.arange(len(row)) for row in rows]),
    )


def data(rows, labels, parts=1):
    texts = [example if parts > 1 else (example,) for example in rows]

    def read(examples):
        return joined([row for example in examples for row in texts[example]])

    return SeenExamples(
        targets=np.asarray(labels, np.uint8),
        lengths=np.array([max(len(row) for row in rows) for rows in texts]),
        parts=parts,
        read=read,
    )


def score(train, test, longest_run):
    return float(
        n_gram_answers(train, test, classes=2, longest_run=longest_run, name="test").mean()
    )


def test_a_frequent_token_is_found_by_counting():
    def made(seed):
        rows, labels = noise(300, 50, seed), np.arange(300) % 2
        rows[labels == 1, :8] = 3
        return data(np.roll(rows, 11, axis=1), labels)

    assert score(made(0), made(1), 1) > 0.95


def test_an_order_of_neighbours_needs_their_run():
    def made(seed):
        rows, labels = noise(1000, 40, seed), np.arange(1000) % 2
        rows[:, 10:20:2], rows[:, 11:21:2] = 30, 31
        rows[labels == 1, 10:20:2], rows[labels == 1, 11:21:2] = 31, 30
        rows[labels == 0, 20], rows[labels == 1, 20] = 29, 29
        rows[:, 9] = 28
        return data(rows, labels)

    assert score(made(0), made(1), 1) < 0.6
    assert score(made(0), made(1), 2) > 0.95


def test_what_lies_far_apart_is_not_seen():
    def made(seed):
        rows = noise(500, 60, seed, symbols=2)
        return data(rows, rows[:, 5] ^ rows[:, 50])

    assert score(made(0), made(1), 4) < 0.6


def test_two_texts_that_share_words_agree():
    def made(seed):
        first, labels = noise(800, 12, seed, symbols=200), np.arange(800) % 2
        second = noise(800, 12, seed + 10, symbols=200)
        second[labels == 1, :6] = first[labels == 1, :6]
        return data(list(zip(first, second, strict=True)), labels, parts=2)

    assert score(made(0), made(1), 1) > 0.8


def test_features_are_runs_within_a_row():
    rows = [np.array(row, np.uint8) for row in ([1, 2, 3], [9, 1, 2], [7])]
    hashes, owner = runs(joined(rows), 3)
    first, second, third = (hashes[owner == row].tolist() for row in range(3))
    assert (len(set(first)), len(set(second)), len(third)) == (6, 6, 1)
    assert len(set(first) & set(second)) == 3  # 1, 2, and 1 2
    alone, _ = runs(joined(rows[1:2]), 3)
    assert sorted(alone) == sorted(second)
    assert len(runs(joined([np.zeros(2, np.uint8)]), 4)[0]) == 3
    assert len(runs(joined([np.zeros(0, np.uint8)]), 4)[0]) == 0


def test_runs_do_not_cross_a_place_that_is_left_out():
    whole = RealTokens(np.array([1, 2, 1, 2, 3]), np.zeros(5, int), np.arange(5))
    without = whole._replace(position=np.array([0, 1, 5, 6, 8]))
    assert len(runs(whole, 4)[0]) == 5 + 4 + 3 + 2
    hashes, _ = runs(without, 4)
    assert len(hashes) == 5 + 2
    assert len(set(hashes)) == 4  # 1, 2, 3, and 1 2


def test_a_long_sequence_is_read_to_its_end():
    def made(seed):
        rows, labels = noise(128, 5000, seed), np.arange(128) % 2
        rows[labels == 1, -600:] = 3
        return data(rows, labels)

    assert score(made(0), made(1), 1) > 0.95


def test_features_of_two_texts_are_told_apart():
    def counts(*texts):
        bag = bags(data([texts], [0], parts=2), np.arange(1), 1)
        return bag[0]

    def number(bag):
        return round(float(bag.sum() ** 2))  # over the root of their number

    assert not torch.equal(counts([1], [2]), counts([2], [1]))
    assert number(counts([1, 2], [3, 4])) == 4
    assert number(counts([1, 2, 2], [2, 5, 1])) == 8  # and 1 and 2, once each, as shared
    two = data([([1, 2], [2, 1]), ([3, 4], [4, 9])], [0, 1], parts=2)
    torch.testing.assert_close(bags(two, np.arange(2), 1)[1], counts([3, 4], [4, 9]))


def test_the_same_answers_again():
    train = data(noise(200, 20), np.arange(200) % 2)
    first, second = (
        n_gram_answers(train, train, classes=2, longest_run=2, name="t") for _ in range(2)
    )
    np.testing.assert_array_equal(first, second)
    bag = bags(train, np.arange(3), 2)
    torch.testing.assert_close(bag.sum(1), torch.full((3,), 39**0.5))
