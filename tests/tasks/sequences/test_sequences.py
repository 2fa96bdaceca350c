"""Reversal, sorting and pairs of texts: what is read, what is asked, and how it is scored."""

import json

import numpy as np
import pytest
import torch

from lra.runners.training.evaluate import evaluate
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.sequences.orderings import Ordering, Target
from lra.tasks.sequences.text_pairs import TextPairs
from lra.tasks.task import Kind

FEW = {"train_examples": 64, "validation_examples": 20, "test_examples": 30}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "data"))


def ordering(**options):
    task = Ordering(**{**FEW, "length": 6, **options})
    task.prepare()
    return task


@pytest.mark.parametrize(
    ("target", "wanted"), [(Target.reversed, lambda s: s[::-1]), (Target.sorted, sorted)]
)
def test_the_answer_is_the_source_in_its_order_and_an_end(target, wanted):
    task = ordering(target=target, test_length=9)
    assert task.spec.kind is Kind.sequence_to_sequence
    assert (task.spec.max_length, task.spec.source_length, task.spec.target_length) == (19, 9, 10)
    assert task.spec.sources_vary
    for split, length in (("train", 6), ("test", 9)):
        for batch in task.batches(split, batch_size=10, seed=1):
            assert batch.prefix.tolist() == [length] * len(batch.index)
            assert batch.keep is None
            for tokens, answers, weight in zip(
                batch.tokens[:, 0].tolist(), batch.target.tolist(), batch.weight, strict=True
            ):
                source = tokens[:length]
                assert 0 not in source
                assert tokens[length:] == [0, *wanted(source)]
                assert answers[length:] == [*wanted(source), 0]
                assert weight.tolist() == [0.0] * length + [1.0] * (length + 1)


def test_a_stretched_task_has_sources_as_many_times_as_long():
    task = ordering(length=4)
    assert task.stretched(2.5) == {"test_length": 10, "train_examples": 1, "validation_examples": 1}
    assert task.stretched(1.0) == {}
    with pytest.raises(ValueError, match=r"task.length must be at least 1"):
        Ordering(length=0)


PAIRS = [("ab", "x"), ("é", "yes"), ("abcdef", "longer than six")]


def pairs(tmp_path, rows=PAIRS, **options):
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(json.dumps({"a": a, "b": b}) + "\n" for a, b in rows))
    named = {"train": str(path), "validation": str(path), "test": str(path)}
    return TextPairs(**named, source_text="a", target_text="b", **options)


def test_pairs_of_texts_are_joined_by_a_boundary_and_padded_behind(tmp_path):
    task = pairs(tmp_path, source_length=4, target_length=6)
    task.prepare()
    (batch,) = task.batches("test", batch_size=3, seed=0)
    for row, index in enumerate(batch.index.tolist()):
        source, target = (text.encode() for text in PAIRS[index])
        source, whole = [byte + 2 for byte in source[:4]], len(target) <= 6
        answer = [*(byte + 2 for byte in target[:6]), *([1] if whole else [])]
        length = len(source) + len(answer)
        assert int(batch.prefix[row]) == len(source)
        assert batch.tokens[row, 0].tolist()[:length] == [*source, 1, *answer[:-1]]
        assert batch.target[row].tolist()[len(source) : length] == answer
        assert int(batch.keep[row].sum()) == length
        assert batch.weight[row].nonzero().flatten().tolist() == [*range(len(source), length)]
    assert task.describe("train", 1) == "é\n-> yes"
    (baseline,) = task.baselines("test")
    asked = np.concatenate(
        [b.target[b.weight > 0] for b in task.batches("test", batch_size=2, seed=0)]
    )
    assert baseline.accuracy == (asked == np.bincount(asked).argmax()).mean()


def test_bad_pairs_are_named(tmp_path):
    with pytest.raises(ValueError, match="must be a file of pairs"):
        TextPairs()
    with pytest.raises(ValueError, match="must be different columns"):
        TextPairs(train="x.csv", source_text="a", target_text="a")
    with pytest.raises(NotPrepared, match=r"set task\.train to an existing file"):
        TextPairs(train=str(tmp_path / "none.csv")).prepare()
    with pytest.raises(BadData, match=r"line 2, b: the text is empty"):
        pairs(tmp_path, rows=[("a", "b"), ("a", "")]).prepare()
    with pytest.raises(BadData, match=r"without source, target; .*task.source_text"):
        TextPairs(train=str(tmp_path / "mine.jsonl")).prepare()


class Copies(torch.nn.Module):
    """Answers right but for the first answer of every third example."""

    traits = ()
    seed_remark = ""

    def forward(self, tokens, target, keep, state, *, layout, asked):
        from lra.models.backbone.model import Outcome

        hit = torch.ones_like(target, dtype=torch.bool)
        hit[::3, int(layout.prefix[0])] = False
        return Outcome(torch.zeros(target.shape), hit, None, {})


def test_exact_match_counts_sequences_all_of_whose_answers_are_right():
    task = ordering()
    found = evaluate(Copies(), task, "test", batch_size=30, device=torch.device("cpu")).measured
    assert found["exact_match"] == pytest.approx(20 / 30)
    assert found["accuracy"] == pytest.approx(1 - 10 / (30 * 7))
