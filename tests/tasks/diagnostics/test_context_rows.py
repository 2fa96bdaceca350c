"""Rows whose context stands twice: the same questions and answers, and the same baselines."""

import numpy as np
import pytest
from small_diagnostics import FEW

from lra.tasks.contract import check_task
from lra.tasks.diagnostics.base import NOT_ASKED, Rows
from lra.tasks.diagnostics.context_rows import ContextTask, read_again
from lra.tasks.diagnostics.hops import Hops
from lra.tasks.diagnostics.joint_recall import JointRecall
from lra.tasks.diagnostics.order_graph import OrderGraph

KINDS = (JointRecall, Hops, OrderGraph)
BORDERS = {"joint_recall": "|", "hops": "+", "order_graph": "?"}


def made(kind: type[ContextTask], **options: object) -> ContextTask:
    task = kind(**{**FEW, **options})
    task.prepare()
    return task


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("reads", [2, 3])
def test_a_context_stands_several_times_before_the_same_questions(
    kind: type[ContextTask], reads: int
) -> None:
    once, more = made(kind), made(kind, reads=reads)
    for split, number in zip(("train", "validation", "test"), FEW.values(), strict=True):
        rows, again = once.rows(split), more.rows(split)
        assert len(again.tokens) == number
        assert rows.sizes is not None
        assert again.sizes is not None
        for place in range(number):
            row, line = rows.tokens[place, : rows.sizes[place]], again.tokens[place]
            texts = [once.token_text(token) for token in row.tolist()]
            border = next(n for n, t in enumerate(texts) if t.startswith(BORDERS[once.name]))
            first, context, rest = np.split(row, [1, border])
            assert line[: again.sizes[place]].tolist() == [*first, *np.tile(context, reads), *rest]
            asked = again.answers[place, 1 + reads * len(context) : again.sizes[place]]
            assert asked.tolist() == rows.answers[place, border : rows.sizes[place]].tolist()
            assert (again.answers[place, : 1 + reads * len(context)] == NOT_ASKED).all()
    floors = [
        {floor.name: floor.accuracy for floor in task.baselines("test")} for task in (once, more)
    ]
    assert floors[0] == floors[1]
    groups = [
        {int(batch.index[0]): {name: group[0, -1] for name, group in task.groups(batch).items()}
         for batch in task.batches("test", batch_size=1, seed=0)}
        for task in (once, more)
    ]  # fmt: skip
    if kind is not Hops:  # whose groups are of positions
        assert groups[0] == groups[1]
    assert [finding for finding in check_task(more) if not finding.passed] == []


@pytest.mark.parametrize("kind", KINDS)
def test_one_reading_changes_neither_rows_nor_hash(kind: type[ContextTask]) -> None:
    assert kind(reads=1).spec == kind().spec
    assert kind(reads=2).spec.data_hash != kind().spec.data_hash
    assert kind(reads=2).length > kind().length
    with pytest.raises(ValueError, match=r"must be at least 1: got task\.reads=0"):
        kind(reads=0)


def test_contexts_of_several_lengths_are_read_again_by_hand() -> None:
    tokens = np.array([[9, 1, 2, 8, 5, 0, 0, 0], [9, 1, 2, 3, 8, 0, 0, 0]])
    answers = np.full_like(tokens, NOT_ASKED)
    answers[0, 3], answers[1, 4] = 5, 6
    twice = read_again(Rows(tokens, answers, np.array([5, 5])), np.array([3, 4]), 2)
    assert twice.tokens.tolist() == [[9, 1, 2, 1, 2, 8, 5, 0], [9, 1, 2, 3, 1, 2, 3, 8]]
    assert twice.sizes is not None
    assert twice.sizes.tolist() == [7, 8]
    assert np.argwhere(twice.answers != NOT_ASKED).tolist() == [[0, 5], [1, 7]]
