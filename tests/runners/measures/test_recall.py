"""Copy advantage and recalled tokens: models that copy by construction, and literal counts."""

import math
from collections import Counter
from dataclasses import replace
from functools import partial
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from lra.models.backbone.config import BackboneConfig, Head, TaskFacts
from lra.models.backbone.heads import judge, spread_items
from lra.models.backbone.model import Backbone, Outcome
from lra.models.families.softmax import SoftmaxAttention
from lra.models.mixer import Positions, Unsupported
from lra.runners.measurement.hardware import HardwareProfile
from lra.runners.measures.context import ContextReading
from lra.runners.measures.extrapolate import fit_weights
from lra.runners.measures.recall import TextRecall
from lra.runners.measures.repeats.copies import (
    CopyControl,
    CopyForm,
    CopyOptions,
    copy_of,
    copy_rows,
    draw_segments,
    mutate,
    row_losses,
)
from lra.runners.measures.repeats.pairs import (
    completes_earlier_pair,
    count_pairs,
    judge_tokens,
    token_rows,
)
from lra.runners.records import Status
from lra.runners.training.evaluate import evaluate
from lra.tasks.diagnostics.induction import Induction
from lra.tasks.language.base import Regime
from lra.tasks.proteins.alphabet import BEGIN, END, FIRST
from lra.tasks.proteins.data import ProteinSource
from lra.tasks.proteins.task import Objective, ProteinForm, Proteins
from lra.tasks.task import Batch
from tests.runners.small_text import language_model, text_task

CPU = HardwareProfile(name="cpu")
LENGTH = 64
task_of = partial(text_task, sample=6000, length=LENGTH)
SMALL = CopyOptions(
    split="test", size=12, segments=5, distances=[4, 30], forms=[CopyForm.exact], mutated=[0.0],
    controls=[CopyControl.native],
)  # fmt: skip


class HandMade(Backbone):
    """A model whose logits a subclass sets by hand."""

    def __init__(self):
        facts = TaskFacts(
            head=Head.language_modelling, vocabulary=64, classes=64, max_length=LENGTH
        )
        super().__init__(BackboneConfig(width=8, heads=2), facts, [SoftmaxAttention], seed=0)

    def forward(self, tokens, target, keep=None, state=None, *, layout=None, asked=None):
        logits = self.logits(tokens[:, 0]).flatten(0, 1)
        items = target.flatten()
        if asked is not None:
            logits, items = logits[asked], items[asked]
        nll, hit = judge(logits, items)
        return Outcome(spread_items(nll, asked, target), spread_items(hit, asked, target), None, {})


class CopiesByHand(HandMade):
    """Predicts what followed the last earlier place with the same 5 tokens, else every token."""

    def logits(self, tokens):
        logits = torch.zeros(*tokens.shape, 27)
        for row, text in enumerate(tokens.tolist()):
            after = {}
            for place in range(5, len(text)):
                after[tuple(text[place - 5 : place])] = text[place]
                following = after.get(tuple(text[place - 4 : place + 1]))
                if following is not None:
                    logits[row, place, following] = 12.0
        return logits


class FrequenciesByHand(HandMade):
    """Predicts by the frequencies of tokens alone."""

    def __init__(self, counts):
        super().__init__()
        self.frequencies = (counts + 1.0).log()

    def logits(self, tokens):
        return self.frequencies.expand(*tokens.shape, -1)


def model_of(positions=Positions.rotary, max_length=LENGTH, **options):
    model = language_model(SoftmaxAttention, max_length=max_length, positions=positions, **options)
    return model.double().eval()


def copies(model, task, options=SMALL, seed=3, batch_size=3):
    build = (lambda _: model) if isinstance(model, Backbone) else model
    rows = list(
        copy_rows(build, task, options=options, batch_size=batch_size, hardware=CPU, seed=seed)
    )
    found = {(row.metric, int(row.labels["distance"])): row for row in rows}
    assert len(found) == len(rows)
    return found


def tokens_of(model, task, examples=None, batch_size=5, rare=0.5):
    judged = judge_tokens(
        model, task, split="test", examples=examples, batch_size=batch_size, hardware=CPU
    )
    rows = token_rows(judged, task, split="test", rare=rare)
    return judged, {(row.metric, row.labels["kind"]): row for row in rows}


@pytest.mark.parametrize("control", CopyControl)
@pytest.mark.parametrize("form", [CopyForm.exact, CopyForm.reversed])
def test_each_segment_is_behind_its_copy_and_behind_the_control(control, form):
    task, model = task_of(), model_of(max_length=60)
    options = SMALL._replace(controls=[control], forms=[form])
    segments = draw_segments(task, options, 3)
    stream = torch.from_numpy(task.split("test").tokens.astype(np.int64))

    def loss(text, size=12):
        logits, _ = model.predict(text[None, None, :-1])
        nll = -logits[0].log_softmax(-1).gather(1, text[1:, None])[:, 0]
        return float(nll[-size:].mean().detach())

    for (metric, distance), row in copies(model, task, options).items():
        expected = []
        for number, start in enumerate(segments.starts.tolist()):
            segment, between = stream[start : start + 12], stream[start - distance : start]
            copy = segment if form is CopyForm.exact else segment.flip(0)
            first = stream[start - distance - 12 : start - distance]
            if control is CopyControl.foreign:
                first = torch.from_numpy(segments.foreign[number])
            behind_copy = loss(torch.cat((copy, between, segment)))
            behind_control = loss(torch.cat((first, between, segment)))
            expected.append(
                behind_copy if metric == "copied_loss" else behind_control - behind_copy
            )
        assert row.value == pytest.approx(np.mean(expected), rel=1e-4, abs=1e-9)
        if metric == "copy_advantage":
            assert row.samples == pytest.approx(expected, rel=1e-4, abs=1e-9)


@pytest.mark.parametrize("control", CopyControl)
def test_a_model_that_copies_gains_nearly_its_loss_at_every_distance(control):
    task = task_of()
    text = np.random.default_rng(0).integers(0, 27, 6000)
    task.split = lambda _: SimpleNamespace(tokens=text)
    options = SMALL._replace(size=40, segments=20, distances=[16, 128, 512], controls=[control])
    rows = copies(CopiesByHand(), task, options)
    for distance in options.distances:
        advantage, loss = (rows[m, distance].value for m in ("copy_advantage", "copied_loss"))
        # The first five tokens have no match, and are predicted as well with the copy as without.
        assert advantage > 0.7 * (advantage + loss)
        assert loss < 6 / 40 * math.log(27)
    # A reversed copy has no five tokens in order, and one with half of them replaced has few.
    options = options._replace(distances=[16])
    reverse = copies(CopiesByHand(), task, options._replace(forms=[CopyForm.reversed]))
    half = copies(CopiesByHand(), task, options._replace(mutated=[0.5]))
    assert reverse["copy_advantage", 16].value == pytest.approx(0, abs=0.1)
    assert half["copy_advantage", 16].value < 0.3


@pytest.mark.parametrize("form", CopyForm)
@pytest.mark.parametrize("control", CopyControl)
def test_a_model_without_context_gains_nothing(form, control):
    task = task_of()
    rows = copies(
        FrequenciesByHand(task.counts), task, SMALL._replace(forms=[form], controls=[control])
    )
    assert {r.value for (metric, _), r in rows.items() if metric == "copy_advantage"} == {0.0}
    assert all(set(r.samples) == {0.0} for (m, _), r in rows.items() if m == "copy_advantage")


def test_all_forms_shares_and_controls_are_measured_in_one_run():
    task, model = task_of(), model_of(max_length=60)
    options = SMALL._replace(
        distances=[4], forms=list(CopyForm), mutated=[0.0, 0.25], controls=list(CopyControl)
    )
    rows = list(
        copy_rows(lambda _: model, task, options=options, batch_size=9, hardware=CPU, seed=3)
    )
    kinds = {(r.labels["copied"], r.labels.get("control")): r for r in rows}
    copied = ["exact", "exact, 25 % replaced", "reversed", "reversed, 25 % replaced"]
    assert {*kinds} == {(form, c) for form in copied for c in (None, "native", "foreign")}
    alone = copies(model, task, SMALL._replace(distances=[4], controls=[CopyControl.foreign]))
    assert kinds["exact", "foreign"].samples == alone["copy_advantage", 4].samples


def test_a_state_that_remembers_the_whole_row_reads_it_as_one_window():
    task = task_of(length=16, regime=Regime.memory, memory=128, contiguous=True)
    model = model_of(max_length=64, carried=128)
    windows, whole = copies(model, task), copies(model, task_of())
    for key, row in whole.items():
        assert windows[key].value == pytest.approx(row.value, rel=1e-5)
    task.memory = 2
    model.stack.blocks = model.stack.blocks[:1]  # one layer reads no further than its memory
    assert copies(model, task)["copied_loss", 30].value != pytest.approx(
        whole["copied_loss", 30].value, rel=1e-3
    )


def test_segments_are_those_of_every_model_and_do_not_overlap_their_rows():
    options = SMALL._replace(segments=10, controls=[CopyControl.foreign])
    drawn = draw_segments(task_of(), options, 0)
    assert drawn.drawn == draw_segments(task_of(length=32), options, 0).drawn
    assert drawn.drawn != draw_segments(task_of(), options, 1).drawn
    assert np.diff(drawn.starts).min() >= 12
    assert drawn.starts[0] >= 2 * 12 + 30 - 12
    text = drawn.stream.astype(np.int64)
    places = {
        tuple(text[at : at + 12].tolist()): at for at in range(42, len(text) - 11, 12)
    }  # of all slots
    for start, foreign in zip(drawn.starts.tolist(), drawn.foreign.tolist(), strict=True):
        assert abs(places[tuple(foreign)] - start) >= 2 * 12 + 30


def test_replaced_tokens_are_others_of_the_split_at_their_share():
    task = task_of()
    segments = np.resize(task.split("test").tokens.astype(np.int64), (200, 50))
    generator, occurring = torch.Generator().manual_seed(1), np.unique(segments)
    some = mutate(segments, 0.3, occurring, generator)
    assert (some != segments).mean() == pytest.approx(0.3, abs=0.015)
    every = mutate(segments, 1.0, occurring, generator)
    assert not (every == segments).any()
    assert set(np.unique(every)) == set(np.unique(task.split("test").tokens))


def test_an_alphabet_with_complements_is_reversed_into_them():
    task = task_of()
    segments = np.array([[0, 1, 5]])
    assert copy_of(segments, task, CopyForm.reversed).tolist() == [[5, 1, 0]]
    task.complements = np.arange(26, -1, -1)
    assert copy_of(segments, task, CopyForm.reversed).tolist() == [[21, 25, 26]]


def proteins_of(form, **options):
    task = Proteins(source=ProteinSource.sample, form=form, max_length=96, **options)
    task.prepare()
    return task


class NotesRows(HandMade):
    """Notes the rows that it reads; equal logits of all tokens."""

    def __init__(self):
        super().__init__()
        self.read = []

    def logits(self, tokens):
        self.read.append(tokens.clone())
        return torch.zeros(*tokens.shape, 64)


def test_a_sequence_begins_with_its_token_and_ends_before_the_next():
    model = NotesRows()
    options = SMALL._replace(segments=20, distances=[8])
    copies(model, proteins_of(ProteinForm.single), options)
    for rows in model.read:
        assert set(rows[:, 0].tolist()) == {BEGIN}
        assert rows.shape[1] == 12 + 8 + 12
        assert int(rows[:, 1:].min()) >= FIRST
    task = proteins_of(ProteinForm.concatenated)
    assert (task.begin, task.unscored) == (None, END)
    with_ends = copies(model, task, options._replace(segments=200))
    assert with_ends["copied_loss", 8].value == pytest.approx(math.log(64))


def test_sequences_that_are_too_short_are_refused():
    options = SMALL._replace(size=3000)
    with pytest.raises(Unsupported, match=r"6,030 tokens .two segments of 3,000 .*lower runner"):
        copies(NotesRows(), proteins_of(ProteinForm.single), options)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"regime": Regime.sliding, "stride": 20},
        {"regime": Regime.memory, "memory": 32, "contiguous": True},
    ],
)
def test_recalled_and_other_tokens_add_up_to_the_loss_of_evaluation(options):
    task = task_of(**options)
    model = model_of(carried=options.get("memory", 0))
    judged, rows = tokens_of(model, task)
    there = evaluate(model, task, "test", batch_size=5, device=torch.device("cpu"))
    assert rows["loss_part", "all"].value == pytest.approx(there.measured["loss"], rel=1e-6)
    assert rows["recalled_loss", "all"].value == pytest.approx(there.measured["loss"], rel=1e-6)
    for whole, parts in {"all": ("recalled", "other"), "recalled": ("rare", "frequent")}.items():
        for metric in ("loss_part", "recalled_share"):
            total = sum(rows[metric, part].value for part in parts)
            assert rows[metric, whole].value == pytest.approx(total, rel=1e-9)
    for kind in ("all", "recalled", "rare", "frequent", "other"):
        loss, share, part = (
            rows[m, kind].value for m in ("recalled_loss", "recalled_share", "loss_part")
        )
        assert part == pytest.approx(loss * share, rel=1e-9)
        assert np.mean(rows["loss_part", kind].samples) == pytest.approx(part, rel=1e-4)
    assert len(judged.nll) == len(task.split("test").tokens) - 1
    _, others = tokens_of(model, task, batch_size=5)
    assert others["loss_part", "other"].labels["drawn"] == rows["loss_part", "all"].labels["drawn"]


def test_recalled_tokens_are_those_of_a_slow_count():
    task = task_of()
    judged, rows = tokens_of(CopiesByHand(), task, examples=7, rare=0.3)
    recalled, pairs = [], []
    for batch in task.batches("test", batch_size=1, seed=0):
        if int(batch.index[0]) >= 7:
            continue
        text = [*batch.tokens[0, 0].tolist(), int(batch.target[0, -1])]
        for place in range(1, len(text)):
            pair = (text[place - 1], text[place])
            earlier = [(text[i - 1], text[i]) for i in range(1, place)]
            recalled.append(pair in earlier)
            pairs.append(pair)
    assert judged.recalled.tolist() == recalled
    assert rows["recalled_share", "recalled"].value == pytest.approx(np.mean(recalled))
    train = task.split("train").tokens.tolist()
    counts = Counter(pairwise(train))
    seen = sorted(counts[pair] for pair, again in zip(pairs, recalled, strict=True) if again)
    limit = seen[int(0.3 * (len(seen) - 1))]
    row = rows["recalled_share", "rare"]
    assert row.labels["rare_at_most"] == str(limit)
    assert int(row.labels["items"]) == sum(count <= limit for count in seen)
    # What stood in the window before helps a model that looks it up.
    assert rows["recalled_loss", "recalled"].value < rows["recalled_loss", "other"].value


def test_a_pair_of_another_document_is_no_earlier_one():
    tokens, target = torch.tensor([[[1, 2, 1, 2, 1]]]), torch.tensor([[2, 1, 2, 1, 2]])
    batch = Batch(tokens, target, torch.zeros(1, dtype=torch.long))
    assert completes_earlier_pair(batch, 3).tolist() == [[False, False, True, True, True]]
    batch = batch._replace(document=torch.tensor([[5, 5, 6, 6, 6]]))
    assert completes_earlier_pair(batch, 3).tolist() == [[False, False, False, False, True]]


def test_a_row_is_one_document_of_a_task_with_documents():
    plain = model_of()
    model = Backbone(
        plain.config,
        replace(plain.facts, masks=frozenset({"document"})),
        [SoftmaxAttention],
        seed=3,
    )
    model = model.double().eval()
    tokens, weight = torch.arange(26).repeat(2, 1), torch.ones(2, 25, dtype=torch.float64)
    way = ContextReading(25, 2, LENGTH, None)
    losses = row_losses(plain, tokens, weight, way, masked=False)
    assert torch.equal(row_losses(model, tokens, weight, way, masked=True), losses)
    with pytest.raises(Unsupported, match="needs batches with document"):
        row_losses(model, tokens, weight, way, masked=False)


def test_pairs_are_counted_across_the_pieces_of_a_long_stream(monkeypatch):
    monkeypatch.setattr("lra.runners.measures.repeats.pairs.COUNT_AT_ONCE", 7)
    stream = np.random.default_rng(0).integers(0, 3, 100).astype(np.uint8)
    counts = Counter(pairwise(stream.tolist()))
    pairs = np.array([0, 1, 5, 8])
    expected = [counts[divmod(int(pair), 3)] for pair in pairs]
    assert count_pairs(stream, pairs, 3).tolist() == expected
    assert count_pairs(stream, pairs[:0], 3).tolist() == []


def test_without_a_recalled_token_only_their_share_is_told():
    _, rows = tokens_of(model_of(), task_of(length=1))
    assert rows["recalled_share", "recalled"].value == rows["loss_part", "recalled"].value == 0
    assert ("recalled_loss", "recalled") not in rows
    assert rows["recalled_share", "other"].value == 1


def test_a_loss_that_is_not_finite_is_a_row_with_the_reason():
    model = model_of()
    with torch.no_grad():
        model.embedding.weight.fill_(torch.nan)
    rows = copies(model, task_of())
    assert {row.status for row in rows.values()} == {Status.diverged}
    _, rows = tokens_of(model, task_of())
    assert rows["recalled_loss", "all"].status is Status.diverged


def work_of(task, model, **options):
    return SimpleNamespace(
        task=task, backbone=model.config, hardware=CPU, seed=0, trained=lambda: model,
        facts=lambda: model.facts, **options,
    )  # fmt: skip


def test_a_run_measures_both_and_says_so_in_its_headline():
    model = model_of()
    config = TextRecall(segments=5, batch_size=4, examples=3)
    rows = list(config.run(work_of(task_of(), model)))
    advantages = [row for row in rows if row.metric == "copy_advantage"]
    # Windows of 64 tokens have room for segments of 16 tokens and 16 or 32 tokens between them.
    assert [(r.labels["segment"], r.labels["distance"]) for r in advantages] == [
        ("16", "16"), ("16", "16"), ("16", "32"), ("16", "32"),
    ]  # fmt: skip
    assert int(next(r for r in rows if r.labels.get("kind") == "all").labels["items"]) == 3 * 64
    headline = TextRecall.headline(rows)
    assert headline.startswith("a copy 32 tokens before lowers the loss by ")
    assert "loss on recalled tokens " in headline
    expected = advantages[-2].value
    assert f"by {expected:.3f} nats a token (native)" in headline


def test_rows_longer_than_the_model_are_built_or_refused():
    task, learned = task_of(), model_of(Positions.learned)

    def build(tokens):
        if tokens <= LENGTH:
            return learned
        longer = model_of(Positions.learned, max_length=tokens)
        return fit_weights(longer, learned.state_dict())

    rows = copies(build, task, SMALL._replace(distances=[4, 200]))
    assert rows["copy_advantage", 4].status is Status.ok
    assert rows["copy_advantage", 200].status is Status.unsupported
    assert "positions have shape [64, 8] and do not fit" in rows["copy_advantage", 200].reason
    assert copies(model_of(max_length=512), task, SMALL._replace(distances=[200]))


def test_what_no_model_can_read_is_refused_in_one_sentence():
    with pytest.raises(Unsupported, match=r"task=induction has none; choose enwik8"):
        next(TextRecall().run(work_of(Induction(length=12, symbols=5), model_of())))
    masked = proteins_of(ProteinForm.single, objective=Objective.masked)
    with pytest.raises(Unsupported, match=r"task=proteins_masked has none; choose .* or proteins"):
        next(TextRecall().run(work_of(masked, model_of())))
    config = TextRecall(segment=40, measures=["copies"])
    (row,) = config.run(work_of(task_of(), model_of()))
    assert row.status is Status.unsupported
    assert "exceed the 64 tokens that the model reads: lower runner.segment to at most 32" in (
        row.reason
    )
    config = TextRecall(distances=[6000], measures=["copies"])
    (row,) = config.run(work_of(task_of(), model_of()))
    assert "6,032 tokens (two segments of 16 and 6,000 tokens between them)" in row.reason


def test_passes_are_those_of_rows_and_windows():
    model, task = model_of(), task_of()
    config = TextRecall(segments=10, batch_size=4, distances=[30, 100], segment=17)
    passes = config.passes(work_of(task, model))
    windows = task.examples("test")
    assert [(p.times, p.rows, p.length, p.step) for p in passes] == [
        (9, 4, 64, False), (30, 1, 134, False), (-(-windows // 4), 4, 64, False),
    ]  # fmt: skip
