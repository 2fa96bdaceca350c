"""Inputs of classification tasks, answered token by token."""

import hashlib
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from lra.composition.lookup import named_task
from lra.tasks.classification.objectives import InputObjective, spec_of, unilm_ranks
from lra.tasks.classification.text import Text, TextSource
from lra.tasks.task import Kind

SMALL = {
    "listops": ["train_examples=40", "validation_examples=20", "test_examples=20",
                "min_length=5", "max_length=40", "max_depth=3", "max_args=4"],
    "text": ["source=sample", "max_length=400"],
    "retrieval": ["source=sample"],
    "mnist": ["source=sample", "max_length=60"],
    "pathfinder": ["train_examples=20", "validation_examples=8", "test_examples=8"],
}  # fmt: skip

RECORDED = "e7d1f1845160455078f2dfc2489157e0721562226ef24e2cede21c3f448b9b24"
"""Hash of the masks of one batch."""


def made(name, *words):
    task = named_task(name, [*SMALL[name], *words])
    task.prepare()
    return task


def joined(task, split, seed=3):
    """Return tokens, targets, what is real, and weights, of all rows, padded alike."""
    found = []
    for batch in task.batches(split, batch_size=8, seed=seed):
        real = (
            torch.ones(batch.tokens.shape, dtype=torch.bool) if batch.keep is None else batch.keep
        )
        rows = batch.tokens.flatten(0, 1)
        for number, row in enumerate(rows):
            there = real.flatten(0, 1)[number]
            target = batch.target[number] if batch.target.dim() > 1 else None
            weight = None if batch.weight is None else batch.weight[number]
            found.append((row, target, there, weight))
    return found


@pytest.mark.parametrize("name", SMALL)
def test_masked_tokens_are_the_classifiers_and_nothing_else_counts(name):
    plain, task = made(name), made(name, "objective=masked")
    assert task.folder == plain.folder
    extra = plain.spec.vocabulary
    assert task.spec.kind is Kind.masked_modelling
    assert (task.spec.vocabulary, task.spec.added_ids) == (extra + 1, 1)
    hidden = total = 0
    for split in ("train", "test"):
        rows = list(zip(joined(plain, split), joined(task, split), strict=True))  # the same order
        for (seen, _, real, _), (shown, target, there, weight) in rows:
            assert torch.equal(real, there)
            assert torch.equal(seen, target)
            drawn = weight > 0
            assert drawn.any()
            assert not (drawn & ~there).any()
            assert torch.equal(shown, torch.where(drawn, extra, seen))
            hidden, total = hidden + int(drawn.sum()), total + int(there.sum())
    wanted = {"listops": 0.1, "text": 0.15, "retrieval": 0.15}.get(name, 0.5)
    short = 0.06 if name == "listops" else 0.0  # where one token of a row is hidden at least
    assert wanted - 0.03 < hidden / total < wanted + 0.03 + short


@pytest.mark.parametrize("name", SMALL)
def test_a_causal_model_reads_all_but_the_last_token(name):
    plain, task = made(name), made(name, "objective=causal")
    assert task.spec.kind is Kind.language_modelling
    for (seen, _, real, _), (shown, target, there, weight) in zip(
        joined(plain, "test"), joined(task, "test"), strict=True
    ):
        length = int(real.sum())
        assert torch.equal(target, seen)
        assert shown[0] == plain.spec.vocabulary
        assert torch.equal(shown[1:length], seen[: length - 1])
        assert not shown[length:].any()
        assert torch.equal(there, real)
        assert weight is None or torch.equal(weight > 0, real)


def masks(task, split, seed):
    return {
        int(index): row.nonzero().flatten().tolist()
        for batch in task.batches(split, batch_size=4, seed=seed)
        for index, row in zip(batch.index, batch.weight, strict=True)
    }


def test_masks_are_drawn_anew_for_each_epoch_and_once_for_evaluation():
    task = made("listops", "objective=masked")
    assert masks(task, "train", 1) != masks(task, "train", 2)
    assert masks(task, "test", 1) == masks(task, "test", 2)
    other = [b.weight for b in task.batches("test", batch_size=20, seed=9)]
    assert masks(task, "test", 1) == {
        int(i): row.nonzero().flatten().tolist()
        for b, w in zip(task.batches("test", batch_size=20, seed=9), other, strict=True)
        for i, row in zip(b.index, w, strict=True)
    }  # whatever the batch
    paired = masks(made("retrieval", "objective=masked"), "test", 0)
    assert sorted(paired) == list(range(len(paired)))
    assert len({tuple(mask) for mask in paired.values()}) > len(paired) // 2


def test_masks_are_the_same_in_every_process_and_on_every_machine():
    batch = next(made("retrieval", "objective=masked").batches("train", batch_size=8, seed=5))
    drawn = hashlib.sha256(str(batch.weight.tolist()).encode()).hexdigest()
    assert drawn == RECORDED


def test_scores_are_those_of_tokens():
    task = made("listops", "objective=masked")
    batch = next(task.batches("test", batch_size=20, seed=0))
    nll, hit = torch.full(batch.target.shape, 2.0), batch.weight > 0
    found = task.tally(nll, hit, batch)
    assert found.count == float(batch.weight.sum())
    assert found.hits == found.count
    assert found.nll_sum == pytest.approx(2 * found.count)
    assert task.derived_metrics("test", 2.0) == pytest.approx(
        {"perplexity": math.e**2, "bits_per_token": 2 / math.log(2)}
    )
    assert made("listops").derived_metrics("test", 2.0) == {}


@pytest.mark.parametrize("name", ["listops", "pathfinder"])
@pytest.mark.parametrize("objective", ["masked", "causal"])
def test_the_baseline_is_the_frequency_of_tokens(name, objective):
    task = made(name, f"objective={objective}")
    (baseline,) = task.baselines("test")
    seen = np.concatenate([t[r].numpy() for _, t, r, _ in joined(task, "train", 0)])
    stored = task.split("train").tokens
    known = np.bincount(stored.astype(np.int64) + task.shift, minlength=task.spec.vocabulary)
    guess = known.argmax()
    judged = [t[r if w is None else w > 0] for _, t, r, w in joined(task, "test")]
    right = torch.cat(judged) == int(guess)
    assert set(seen) <= set(known.nonzero()[0])
    assert baseline.name == "unigram"
    assert baseline.accuracy == pytest.approx(float(right.double().mean()))
    assert baseline.measures["perplexity"] == pytest.approx(math.exp(baseline.measures["loss"]))


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        ("mnist", ["objective=masked", "encoding=scalars"], "set task.encoding=symbols"),
        ("text", ["masked_share=0.2"], "needs objective=masked, unilm"),
        ("mnist", ["objective=replaced", "encoding=scalars"], "set task.encoding=symbols"),
        ("text", ["objective=causal", "masked_share=0.2"], "got objective=causal"),
        ("text", ["objective=masked", "masked_share=1"], "must lie in \\(0, 1\\)"),
        (
            "text",
            ["objective=prefix", "masked_replacement=bert"],
            "needs objective=masked, unilm or",
        ),
        ("text", ["class_conditional=true"], "needs objective=causal: got objective=classify"),
    ],
)
def test_options_that_do_not_fit(name, words, message):
    with pytest.raises(ValueError, match=message):
        named_task(name, [*SMALL[name], *words])


@pytest.mark.parametrize("name", ["text", "mnist"])
def test_berts_replacement_hides_the_same_tokens_in_three_ways(name):
    plain, task = (
        made(name, "objective=masked"),
        made(name, "objective=masked", "masked_replacement=bert"),
    )
    assert task.spec.regime == f"{plain.spec.regime}, as BERT's"
    mask = task.spec.vocabulary - 1
    counts, others = {"mask": 0, "kept": 0, "random": 0}, set()
    for split in ("train", "test"):
        rows = zip(joined(plain, split), joined(task, split), strict=True)
        for (_, target, there, wanted), (shown, same, _, weight) in rows:
            assert torch.equal(target, same)
            assert torch.equal(wanted, weight)
            drawn = weight > 0
            assert torch.equal(shown[~drawn], target[~drawn])
            kinds = (shown[drawn] == mask, shown[drawn] == target[drawn])
            counts["mask"] += int(kinds[0].sum())
            counts["kept"] += int(kinds[1].sum())
            strange = shown[drawn & there][~(kinds[0] | kinds[1])]
            counts["random"] += len(strange)
            others |= set(strange.tolist())
    total = sum(counts.values())
    # a random id is the token itself now and then: of grey digits most are black
    slack = 0.02 if name == "text" else 0.08
    assert abs(counts["mask"] / total - 0.8) < 0.02
    assert abs(counts["kept"] / total - 0.1) < slack
    assert abs(counts["random"] / total - 0.1) < slack
    assert others <= set(range(int(task.spec.padded), mask))
    assert len(others) > 100
    again = made(name, "objective=masked", "masked_replacement=bert")
    for one, other in zip(joined(task, "train"), joined(again, "train"), strict=True):
        assert torch.equal(one[0], other[0])


def test_unilm_draws_one_of_four_masks_for_each_example():
    lengths, count = torch.tensor([1, 2, 7, 30]).repeat(600), 2400
    ranks = unilm_ranks(lengths, torch.arange(count), torch.arange(30), 5)
    found = {"bidirectional": 0, "left": 0, "right": 0, "source": 0}
    sources = []
    for row, length in zip(ranks, lengths.tolist(), strict=True):
        if length < 7:
            continue
        sees = row[:length] <= row[:length, None]
        triangle = torch.ones(length, length, dtype=torch.bool).tril()
        if bool(sees.all()):
            found["bidirectional"] += 1
        elif torch.equal(sees, triangle.T):
            found["right"] += 1
        else:
            cut = int(sees[0].sum())  # 1: a source of one token, which a causal mask is as well
            wanted = triangle.clone()
            wanted[:cut, :cut] = True
            assert torch.equal(sees, wanted)
            found["source" if cut > 1 else "left"] += 1
            sources.append(cut / length)
    shares = {name: number / 1200 for name, number in found.items()}
    assert shares["bidirectional"] == pytest.approx(1 / 3, abs=0.05)
    assert shares["right"] == pytest.approx(1 / 6, abs=0.04)
    assert shares["left"] == pytest.approx(1 / 6 + (1 / 6 + 1 / 29) / 6, abs=0.05)
    assert max(sources) < 1
    assert torch.equal(
        unilm_ranks(lengths[3:], torch.arange(3, count), torch.arange(30), 5), ranks[3:]
    )


def test_unilm_masks_as_masked_modelling_does_and_adds_ranks():
    plain, task = made("listops", "objective=masked"), made("listops", "objective=unilm")
    assert task.spec.masks == {"order"}
    assert masks(task, "test", 0) == masks(plain, "test", 0)
    batch = next(task.batches("train", batch_size=8, seed=1))
    assert batch.order.shape == batch.target.shape


@pytest.mark.parametrize("name", SMALL)
def test_replaced_tokens_are_those_that_masked_modelling_hides(name):
    plain, task = made(name, "objective=masked"), made(name, "objective=replaced")
    assert task.spec.kind is Kind.replaced_detection
    assert task.spec.vocabulary == plain.spec.vocabulary
    for split in ("train", "test"):
        for one, other in zip(
            plain.batches(split, batch_size=8, seed=3),
            task.batches(split, batch_size=8, seed=3),
            strict=True,
        ):
            assert torch.equal(one.tokens, other.tokens)
            assert torch.equal(one.target, other.target)
            assert torch.equal(one.weight > 0, other.uniform > 0)
            assert float(other.uniform.max()) < 1
            counted = torch.ones_like(one.weight) if other.weight is None else other.weight
            keep = torch.ones_like(one.tokens) if one.keep is None else one.keep
            assert torch.equal(counted > 0, keep[:, 0] > 0)


def test_the_numbers_of_samples_depend_on_the_seed_and_the_example_alone():
    task = made("listops", "objective=replaced")

    def numbers(split, seed, size):
        return {
            int(index): row[row > 0].tolist()
            for batch in task.batches(split, batch_size=size, seed=seed)
            for index, row in zip(batch.index, batch.uniform, strict=True)
        }

    assert numbers("test", 1, 4) == numbers("test", 2, 20)
    first, second = numbers("train", 1, 4), numbers("train", 2, 4)
    assert first == numbers("train", 1, 8)
    assert first != second
    drawn = np.array([u for row in first.values() for u in row])
    assert len({*drawn.tolist()}) > 0.9 * len(drawn)
    assert abs(drawn.mean() - 0.5) < 0.1


def test_the_default_is_the_classification_task():
    task = Text(source=TextSource.sample)
    assert task.objective is InputObjective.classify
    assert task.spec.regime == ""
    assert task.spec.kind is Kind.classification


@pytest.mark.parametrize(("longest", "source"), [(1, 1), (2, 1), (9, 8)])
def test_a_prefix_leaves_a_token_to_continue(longest, source):
    spec = replace(Text(source=TextSource.sample).spec, max_length=longest)
    found = spec_of(spec, InputObjective.prefix, 0.15)
    assert (found.source_length, found.target_length) == (source, longest)
    assert spec_of(spec, InputObjective.masked, 0.15).source_length == 0


def test_the_class_is_the_condition_of_a_row():
    plain = made("text", "objective=causal")
    task = made("text", "objective=causal", "class_conditional=true")
    assert (task.spec.conditions, plain.spec.conditions) == (2, 0)
    assert task.spec.regime == "next token, given the class"
    labels = task.split("test").targets
    for found, wanted in zip(
        *(each.batches("test", batch_size=8, seed=0) for each in (task, plain)), strict=True
    ):
        assert found.condition.tolist() == labels[found.index].tolist()
        assert wanted.condition is None
        assert torch.equal(found.tokens, wanted.tokens)
    batch = next(task.batches("test", batch_size=1, seed=0))
    text = task.decode(batch.target[0].numpy())
    assert task.encode(text)[:-1].tolist() == batch.tokens[0, 0].tolist()
