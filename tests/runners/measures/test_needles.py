"""Needles for language models that look up the answer by construction, and for one that guesses."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lra.models.backbone.config import BackboneConfig, Head, TaskFacts
from lra.models.backbone.heads import judge, spread_items
from lra.models.backbone.model import Backbone, Outcome
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Unsupported
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.needles import NeedleInText, NeedleProbe, needle_rows, tokens_of
from lra.runners.records import Status
from lra.tasks.haystacks.needle import STATED
from lra.tasks.haystacks.wordlist import SYNONYMS
from lra.tasks.language.characters import CharacterCorpus, Characters, CharacterSource
from tests.runners.small_text import text_task

CPU = HardwareProfile(name="cpu")
ADJECTIVES, NOUNS = SYNONYMS.values()
SAME = {f"{a}-{n}": f"{ADJECTIVES[a]}-{NOUNS[n]}" for a in ADJECTIVES for n in NOUNS}
TEXT = b"Wind and water wear the cliffs away. Boats come home at dusk. " * 40


def bytes_task():
    """Return a task of bytes with a text in memory."""
    task = Characters(corpus=CharacterCorpus.enwik8, source=CharacterSource.sample, length=512)
    task.split = lambda _: SimpleNamespace(tokens=np.frombuffer(TEXT, np.uint8))
    return task


class Scripted(Backbone):
    """A model of bytes whose next byte a subclass finds in the text so far."""

    def __init__(self):
        facts = TaskFacts(head=Head.language_modelling, vocabulary=256, classes=256, max_length=512)
        super().__init__(BackboneConfig(width=8, heads=2), facts, [SoftmaxAttention], seed=0)

    def forward(self, tokens, target, keep=None, state=None, *, layout=None, asked=None):
        logits = torch.zeros(*tokens[:, 0].shape, 256)
        for row, line in enumerate(tokens[:, 0].tolist()):
            for place, byte in self.said(bytes(line)):
                logits[row, place, byte] = 5.0
        nll, hit = judge(logits.flatten(0, 1)[asked], target.flatten()[asked])
        return Outcome(spread_items(nll, asked, target), spread_items(hit, asked, target), None, {})

    def said(self, text):
        return []


class LooksUp(Scripted):
    """Predicts the value of the asked key, or of the key with another one's synonym."""

    def said(self, text):
        context, question = text.rsplit(b"\n", 1)
        asked, written = question.split(b"? ")
        key = asked.split()[-1].decode()
        stated = re.findall(r"The value of (\S+) is (\S+)\. ", context.decode())
        found = {SAME.get(name, name): value for name, value in stated} | dict(stated)
        first = len(text) - len(written) - 1
        return [(first + n, byte) for n, byte in enumerate(found[key].encode())
                if first + n < len(text)]  # fmt: skip


class LastValue(LooksUp):
    """Predicts the value that comes last in the row."""

    def said(self, text):
        value = STATED.findall(text)[-1]
        first = text.rindex(b"? ") + 1
        return [(first + n, byte) for n, byte in enumerate(value) if first + n < len(text)]


def probe(model, **options):
    config = NeedleProbe(**{"examples": 4, "lengths": [300], "candidates": 9, **options})
    rows = list(needle_rows(lambda _: model, bytes_task(), config, CPU, seed=1))
    return {(row.metric, row.labels.get("part", "")): row for row in rows}


@pytest.mark.parametrize(
    "options",
    [{}, {"haystack": "noise"}, {"key": "synonym", "overlap": False}, {"value": "word", "keys": 2}],
)
def test_a_model_that_looks_up_ranks_the_answer_first(options):
    rows = probe(LooksUp(), **options)
    assert rows["answer_rank", ""].value == 1
    assert rows["candidate_accuracy", ""].value == rows["answer_accuracy", ""].value == 1
    assert rows["answer_rank", ""].labels == {
        "split": "test", "candidates": "9", "examples": "4"
    }  # fmt: skip


def test_a_model_without_context_guesses():
    rows = probe(Scripted(), lengths=[300, 400])
    assert rows["answer_rank", ""].value == 5  # all candidates are equally likely
    assert rows["candidate_accuracy", ""].value == 0
    parts = {part: row for (metric, part), row in rows.items() if metric == "accuracy_by_group"}
    assert {"300", "400"} < parts.keys()
    depths = {int(part) for part in parts if len(part) == 5}
    assert {depth // 100 for depth in depths} == {300, 400}
    assert sum(int(parts[str(depth)].labels["items"]) for depth in depths) == 8


def test_a_model_that_takes_the_last_value_ranks_it_before_the_answer():
    rows = probe(LastValue(), examples=24)
    # Of four needles, the last is asked in a quarter of the rows.
    assert rows["candidate_accuracy", ""].value == pytest.approx(0.25, abs=0.25)
    assert 1 < rows["answer_rank", ""].value < 7


def test_rows_and_candidates():
    needle = NeedleInText(length=300, haystack="text", keys=4, digits=5, text=TEXT)
    first, second = (
        list(needle.probes("test", number=5, candidates=30, seed=seed)) for seed in (0, 1)
    )
    assert first != second
    assert first == list(needle.probes("test", number=5, candidates=30, seed=0))
    for row in first:
        assert len(row.context) + 5 == 300
        assert len(row.candidates) == len({*row.candidates}) == 30
        assert {*STATED.findall(row.context)} < {*row.candidates}
        background = STATED.sub(b"", row.context.split(b"\n")[0])
        assert {*background.split()} <= {*TEXT.split()}


def test_rows_that_do_not_fit_have_a_reason():
    rows = probe(Scripted(), lengths=[100, 300])
    assert rows["answer_rank", ""].value == 5
    config = NeedleProbe(lengths=[100], candidates=20)
    (row,) = needle_rows(lambda _: Scripted(), bytes_task(), config, CPU, seed=1)
    assert row.status is Status.unsupported
    assert "rows of 100 bytes: task.length must be at least" in row.reason


def test_tasks_that_cannot_spell_needles_are_refused():
    with pytest.raises(
        Unsupported, match=r"task=text8 cannot spell needles .* of enwik8 or corpus"
    ):
        tokens_of(text_task(), b"The value")
    with pytest.raises(ValueError, match=r"candidates: got 100, but only 100 different answers"):
        NeedleProbe(digits=2)
    with pytest.raises(ValueError, match=r"lengths: got \[\]; wanted one or more"):
        NeedleProbe(lengths=[])
    with pytest.raises(ValueError, match=r"split: got 'dev'"):
        NeedleProbe(split="dev")
