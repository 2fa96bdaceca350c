import numpy as np
import pytest

from lra.tasks.baselines.seen_examples import RealTokens, SeenExamples
from lra.tasks.classification.listops.oracle import guess, habits, nodes, oracle_answers
from lra.tasks.classification.listops.task import ListOps
from lra.tasks.classification.listops.text import MAX, MIN, SM, encode, solve

DEEP = "[MAX 2 [MIN 7 [SM 9 9 ] 8 ] [SM 1 [MAX 3 4 ] ] ]"


def test_every_operator_has_a_depth_and_a_value():
    assert nodes(encode(DEEP).tolist()) == [
        (2, SM, 8), (1, MIN, 7), (2, MAX, 4), (1, SM, 5), (0, MAX, 7),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("depth", "answer"),
    [
        (0, 5),
        (1, 6),  # [MAX 2 6 0 ]
        (2, 3),  # [MAX 2 [MIN 7 3 8 ] [SM 1 1 ] ]
        (3, 7),
        (9, 7),
    ],
)
def test_deeper_operators_are_guessed(depth, answer):
    known = {(0, MAX): 5, (1, MIN): 6, (1, SM): 0, (2, SM): 3, (2, MAX): 1}
    assert guess(encode(DEEP).tolist(), depth, known) == answer


def test_what_comes_after_the_tree_does_not_matter():
    tokens = encode(DEEP).tolist() + encode("[SM 1 1 ]").tolist()
    assert guess(tokens, 9, {}) == 7
    assert nodes(tokens)[-1] == (0, MAX, 7)


def seen(rows):
    def read(examples):
        some = [rows[i].astype(np.int64) for i in examples]
        lengths = [len(row) for row in some]
        places = np.concatenate([np.arange(length) for length in lengths])
        return RealTokens(np.concatenate(some), np.repeat(np.arange(len(some)), lengths), places)

    return SeenExamples(
        targets=np.array([solve(row) for row in rows], np.uint8),
        lengths=np.array([len(row) for row in rows]),
        parts=1,
        read=read,
    )


def test_habits_are_the_most_frequent_values_and_ties_are_settled():
    texts = ["[MAX 1 9 ]", "[MAX 9 9 ]", "[MAX 1 2 ]", "[MIN 1 5 ]", "[MIN 0 5 ]"]
    rows = [encode(text) for text in texts]
    train = seen(rows)
    assert habits(train) == {(0, MAX): 9, (0, MIN): 0}


def test_the_oracle_rises_to_certainty_with_its_depth():
    task = ListOps(
        min_length=10, max_length=60, max_depth=4, max_args=5,
        train_examples=600, validation_examples=50, test_examples=300,
    )  # fmt: skip
    task.prepare()
    data, known = task.seen("test"), habits(task.seen("train"))
    scores = [float(oracle_answers(data, depth, known).mean()) for depth in range(5)]
    assert scores == sorted(scores)
    assert scores[-1] == 1.0
