import gzip
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets.exceptions import DatasetNotFoundError
from written_proteins import MASKED, STREAM, every, fasta, masks, prepared, sequences, stored

from lra.composition.lookup import named_task
from lra.models.backbone.config import BackboneConfig, Head, TaskFacts
from lra.models.backbone.model import Backbone
from lra.models.families.softmax import SoftmaxAttention
from lra.runners.training.evaluate import evaluate
from lra.tasks.baselines.certificate import certified_baselines, path_of
from lra.tasks.contract import check_task
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.language.base import Regime
from lra.tasks.proteins.alphabet import (
    BEGIN,
    END,
    FIRST,
    LETTERS,
    MASK,
    VOCABULARY,
    to_ids,
    to_text,
)
from lra.tasks.proteins.data import Duplicates, ProteinSource
from lra.tasks.proteins.task import Proteins
from lra.tasks.task import SPLITS

MEMORY = {**STREAM, "regime": Regime.memory, "memory": 8}


@pytest.fixture
def file(tmp_path):
    return fasta(tmp_path / "a.fasta", sequences(300))


@pytest.mark.parametrize(
    "options",
    [
        {**STREAM, "regime": Regime.sliding, "stride": 20},
        {**STREAM, "regime": Regime.memory, "memory": 64, "contiguous": True},
    ],
)
def test_it_keeps_the_contract(options):
    assert [
        f for f in check_task(Proteins(source=ProteinSource.sample, **options)) if not f.passed
    ] == []


@pytest.mark.parametrize(("name", "options"), [("proteins", {}), ("proteins_masked", MASKED)])
def test_a_yaml_of_each_objective(name, options):
    spec = named_task(name, ["source=sample"]).spec
    assert spec == Proteins(source=ProteinSource.sample, **options).spec
    assert spec.name == name


def test_ids_are_fixed():
    assert to_ids(b".<>_ACDEFGHIKLMNPQRSTVWYBOUXZ") == bytes(range(29))
    assert (FIRST, VOCABULARY, len(LETTERS)) == (4, 29, 25)


def test_splits_hold_every_sequence_once_and_follow_the_sequence_alone(file, tmp_path):
    texts, task = sequences(300), prepared(path=file)
    splits = {split: stored(task, split) for split in SPLITS}
    assert every(task) == sorted(texts)
    assert 0 < len(splits["test"]) < 40
    folder = tmp_path / "many"
    folder.mkdir()
    (folder / "README.md").write_text("no sequence")
    fasta(folder / "b.fa", [t.lower() for t in texts[150:][::-1]], "Q")
    fasta(folder / "a.fasta", texts[:150])
    other = prepared(path=str(folder))
    assert other.spec.data_hash != task.spec.data_hash
    for split, found in splits.items():
        assert sorted(stored(other, split)) == sorted(found)


def test_blocks_make_no_difference(file, monkeypatch):
    whole = {split: sorted(stored(prepared(path=file), split)) for split in ("train", "test")}
    monkeypatch.setenv("LRA_DATA", file + "-cache")
    monkeypatch.setattr("lra.tasks.proteins.splits.BLOCK", 7)
    task = prepared(path=file)
    assert {split: sorted(stored(task, split)) for split in whole} == whole
    task.verify()


def test_duplicates_land_in_one_split_or_go(file, tmp_path):
    texts = sequences(300)
    folder = tmp_path / "two"
    folder.mkdir()
    fasta(folder / "a.fa", texts)
    fasta(folder / "b.fa", texts[::-1], "Q")
    once, twice = (prepared(path=str(folder), duplicates=d) for d in Duplicates)
    assert once.store().about["sequences"]["duplicates"] == 300
    assert sum(once.examples(s) for s in SPLITS) == 300
    for split in SPLITS:
        assert sorted(stored(twice, split)) == sorted(2 * stored(once, split))


def test_causal_models_read_a_begin_token_and_answer_every_residue(file):
    task = prepared(path=file, max_length=20)
    data = task.split("test")
    seen = 0
    for batch in task.batches("test", batch_size=4, seed=0):
        for row, index in enumerate(batch.index.tolist()):
            (ids,) = data.rows(np.array([index]))
            residues = ids[1:21].tolist()
            weight = (
                torch.ones(batch.target.shape[1]) if batch.weight is None else batch.weight[row]
            )
            assert batch.tokens[row, 0][weight > 0].tolist() == [BEGIN, *residues[:-1]]
            assert batch.target[row][weight > 0].tolist() == residues
            assert batch.tokens[row, 0][weight == 0].sum() == 0
            seen += 1
    assert seen == task.examples("test")


def test_masked_models_answer_what_is_masked(file):
    task = prepared(path=file, max_length=20, **MASKED)
    data = task.split("test")
    for batch in task.batches("test", batch_size=4, seed=0):
        masked = batch.tokens[:, 0] == MASK
        assert torch.equal(masked, batch.weight > 0)
        assert masked.any(1).all()
        for row, index in enumerate(batch.index.tolist()):
            (ids,) = data.rows(np.array([index]))
            assert batch.target[row][batch.target[row] > 0].tolist() == ids[1:21].tolist()
        rest = torch.where(masked, batch.target, batch.tokens[:, 0])
        assert torch.equal(rest, batch.target)


def test_masks_depend_on_seed_and_example_alone(file):
    task = prepared(path=file, **MASKED)
    alone = masks(task, "train", batch_size=1)
    assert len(alone) == task.examples("train")
    for options in (
        {"batch_size": 16},
        {"batch_size": 5, "start": 3},
        {"batch_size": 4, "rank": 1, "ranks": 2},
    ):
        some = masks(task, "train", **options)
        assert some
        assert {index: alone[index] for index in some} == some
    other = masks(task, "train", batch_size=1, seed=4)
    assert sum(other[index] != alone[index] for index in alone) > 0.9 * len(alone)
    assert masks(task, "test", batch_size=3) == masks(task, "test", batch_size=8, seed=9)


def test_the_stream_joins_sequences_and_judges_residues_alone(file):
    task = prepared(path=file, **STREAM)
    tokens, seen, judged = task.split("test").tokens, [], 0
    assert to_text(np.array(tokens)).split(">")[1:] == stored(task, "test")
    for batch in task.batches("test", batch_size=3, seed=0):
        assert torch.equal(
            batch.target[batch.weight > 0] >= FIRST, batch.weight[batch.weight > 0] > 0
        )
        assert not (batch.target[batch.weight > 0] == END).any()
        seen += batch.target[batch.weight > 0].tolist()
        judged += int(batch.weight.sum())
    assert seen == [t for t in tokens.tolist() if t != END]
    assert judged == sum(map(len, stored(task, "test")))


@pytest.mark.parametrize(
    "options", [{"max_length": 15}, {"max_length": 15, **MASKED}, STREAM, MEMORY]
)
def test_the_baseline_equals_a_direct_computation(file, options):
    task = prepared(path=file, **options)
    cut = None if "form" in options else 15
    known = "".join(text[:cut] for text in stored(task, "train"))
    counts = {letter: 1 + known.count(letter) for letter in LETTERS.decode()}
    best, total = max(counts, key=counts.get), sum(counts.values())
    whole = [text[:cut] for text in stored(task, "test")]
    if "objective" in options:
        places = masks(task, "test", batch_size=4)
        whole = ["".join(text[i] for i in places[row]) for row, text in enumerate(whole)]
    answers = "".join(whole)
    (baseline,) = task.baselines("test")
    loss = sum(-math.log(counts[letter] / total) for letter in answers) / len(answers)
    assert baseline.measures["loss"] == pytest.approx(loss)
    assert baseline.measures["perplexity"] == pytest.approx(math.exp(loss))
    assert baseline.accuracy == pytest.approx(answers.count(best) / len(answers))


def test_a_data_set_from_a_folder(tmp_path):
    folder = tmp_path / "tables"
    folder.mkdir()
    texts = sequences(300)
    (folder / "train.csv").write_text("Sequence,Name\n" + "".join(f"{t},x\n" for t in texts[:280]))
    (folder / "test.csv").write_text("Sequence,Name\n" + "".join(f"{t},x\n" for t in texts[280:]))
    task = prepared(source=ProteinSource.datasets, path=str(folder))
    assert every(task) == sorted(texts)
    assert task.spec.source == "datasets: tables (a part)"
    with pytest.raises(BadData, match="wanted residues"):
        prepared(source=ProteinSource.datasets, path=str(folder), column="residues")
    (folder / "test.csv").write_text("Sequence,Name\nMK-T,x\n")
    with pytest.raises(
        BadData, match=r"test, record 1 \(Sequence\): the character at residue 3 is '-'"
    ):
        prepared(source=ProteinSource.datasets, path=str(folder))


@pytest.mark.parametrize("error", [ConnectionError, DatasetNotFoundError])
def test_a_data_set_that_is_not_to_be_had(monkeypatch, error):
    def refuse(name, *_, revision, **__):
        raise error(f"no {name} at {revision}")

    monkeypatch.setattr("datasets.load_dataset", refuse)
    task = Proteins(source=ProteinSource.datasets, revision="a" * 40)
    assert task.spec.source == "khairi/uniprot-swissprot@aaaaaaaaaa"
    with pytest.raises(NotPrepared, match=r"no khairi.* at aaa.*set task\.path to their folder"):
        task.prepare()


def test_missing_files_say_what_to_put_where(tmp_path):
    for path in (None, str(tmp_path)):
        with pytest.raises(NotPrepared, match=r"uniprot_sprot\.fasta\.gz.*CC BY 4\.0"):
            Proteins(path=path).prepare()
    with pytest.raises(NotPrepared, match="Entry and Pfam"):
        Proteins(path=fasta(tmp_path / "a.fa", ["MK"]), families="nowhere.tsv").prepare()
    with pytest.raises(NotPrepared, match="column Sequence"):
        Proteins(source=ProteinSource.datasets, path=str(tmp_path / "no")).prepare()


def test_the_downloaded_file_is_found(file):
    target = Path(os.environ["LRA_DATA"]) / "downloads" / "uniprot_sprot.fasta.gz"
    target.parent.mkdir(parents=True)
    target.write_bytes(gzip.compress(Path(file).read_bytes()))
    task = prepared()
    assert task.spec.source == "Swiss-Prot (a part)"
    assert sum(task.examples(s) for s in SPLITS) == 300


def test_too_few_sequences_for_three_splits(tmp_path):
    with pytest.raises(BadData, match=r"split has none of the .* sequences"):
        prepared(path=fasta(tmp_path / "a.fa", ["MK", "ML"]))


def test_examples_as_people_read_them(file):
    causal, masked, stream = (prepared(path=file, **o) for o in ({}, MASKED, STREAM))
    text = stored(causal, "test")[0]
    assert causal.describe("test", 0).replace("\n", "") == text
    shown, _, answers = masked.describe("test", 0).rpartition("\n-> ")
    assert len(answers) == shown.count("_") > 0
    filled = iter(answers)
    assert "".join(next(filled) if c == "_" else c for c in shown.replace("\n", "")) == text
    assert masks(masked, "test", batch_size=9)[0] == [i for i, c in enumerate(shown) if c == "_"]
    assert stream.describe("test", 0).replace("\n", "").startswith(f">{text}"[:50])
    with pytest.raises(IndexError, match="examples 0"):
        causal.describe("test", 999)


def test_losses_by_place_and_by_frequency(file):
    task = prepared(path=file, **MASKED)
    batch = next(task.batches("test", batch_size=8, seed=0))
    nll = torch.ones(batch.target.shape)
    parts = task.tally(nll, nll > 0, batch).parts
    for kind in ("position", "frequency"):
        own = [found for (about, _), found in parts.items() if about == kind]
        assert sum(count for _, count in own) == float(batch.weight.sum())
    assert ("frequency", "0") not in parts


@pytest.mark.parametrize(("options", "batch_size"), [({}, 6), (MASKED, 1)])
def test_an_evaluation_equals_a_direct_computation(file, options, batch_size):
    task = prepared(path=file, max_length=24, **options)
    head = Head[task.spec.kind.name]
    config = BackboneConfig(width=16, heads=2, depth=2, feed_forward_width=32)
    facts = TaskFacts(head=head, vocabulary=29, classes=29, max_length=24, padded=True)
    model = Backbone(config, facts, [SoftmaxAttention], seed=3).double().eval()
    places, losses, hits = masks(task, "test", batch_size=1), [], []
    for row, text in enumerate(stored(task, "test")):
        residues = torch.tensor(list(to_ids(text.encode())))[:24]
        if options:
            tokens, asked = residues.clone(), places[row]
            tokens[asked] = MASK
        else:
            tokens, asked = torch.tensor([BEGIN, *residues[:-1]]), range(len(residues))
        with torch.no_grad():
            logits = model.predict(tokens[None, None])[0][0].log_softmax(-1)
        losses += [-float(logits[i, residues[i]]) for i in asked]
        hits += [bool(logits[i].argmax() == residues[i]) for i in asked]
    found = evaluate(model, task, "test", batch_size=batch_size, device=torch.device("cpu"))
    assert found.measured["loss"] == pytest.approx(np.mean(losses), rel=1e-6)
    assert found.measured["accuracy"] == pytest.approx(np.mean(hits))
    assert found.measured["perplexity"] == pytest.approx(math.exp(np.mean(losses)), rel=1e-6)
    assert len(found.outcomes.index) == task.examples("test")


def test_certificates_tell_the_objectives_apart(file):
    causal, masked = prepared(path=file), prepared(path=file, **MASKED)
    (first,), (second,) = certified_baselines(causal, "test"), certified_baselines(masked, "test")
    assert first.measures != second.measures
    assert json.loads(path_of(masked, "test").read_text())["regime"] == "masked residues"
    assert certified_baselines(causal, "test") == [first]


def test_residues_of_ones_own_are_read_and_written(file):
    task = Proteins(path=str(file))
    assert task.encode("<MKV").tolist() == [1, 4 + 10, 4 + 8, 4 + 17]
    assert task.decode(task.encode("<MKV>")) == "<MKV>"
    with pytest.raises(ValueError, match="got 'J', 'm'"):
        task.encode("mJA")
