"""The contract of tasks over what we ship, and over tasks that break one promise each."""

from dataclasses import replace

import pytest
import torch

from lra.tasks import contract
from lra.tasks.classification.dna.task import Dna, DnaSource, Strands
from lra.tasks.classification.gray import Encoding
from lra.tasks.classification.listops.task import ListOps, ListOpsSource
from lra.tasks.classification.objectives import InputObjective, MaskedReplacement
from lra.tasks.classification.pathfinder.task import Pathfinder, PathfinderSource
from lra.tasks.classification.pixels import Colour, Dataset, Pixels, PixelSource
from lra.tasks.classification.retrieval import Retrieval, RetrievalSource
from lra.tasks.classification.spoken_digits import DigitSource, SpokenDigits
from lra.tasks.classification.table import TableTask
from lra.tasks.classification.text import Text, TextSource, Validation
from lra.tasks.contract import check_task
from lra.tasks.data.sources import data_root
from lra.tasks.diagnostics.duplicate import Duplicate
from lra.tasks.diagnostics.induction import Induction
from lra.tasks.diagnostics.mqar import MQAR
from lra.tasks.diagnostics.permutations import Permutations
from lra.tasks.diagnostics.selective_copy import SelectiveCopy
from lra.tasks.language.base import Regime
from lra.tasks.language.corpus import Corpus, CorpusUnits
from lra.tasks.language.pg19 import PG19, PG19Source
from lra.tasks.language.subwords import Algorithm
from lra.tasks.language.wikitext import Units, WikiText, WikiTextSource
from lra.tasks.proteins.task import Objective, ProteinForm, Proteins, ProteinSource
from lra.tasks.sequences.orderings import Ordering, Target as SequenceTarget
from lra.tasks.sequences.text_pairs import TextPairs
from tests.tasks.classification.written_dna import genomes


def table(columns, **options):
    """A table of sentences that differ, of one text or of two."""
    path = data_root() / "mine.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        ",".join([*(f"{word} {number} {column}" for column in columns), label])
        for number in range(200)
        for word, label in (("fine", "good"), ("dull", "bad"))
    ]
    path.write_text("\n".join([",".join([*columns, "label"]), *rows]) + "\n")
    return TableTask(train=str(path), labels=["good", "bad"], **options)


def text_pairs(**options):
    path = data_root() / "pairs.tsv"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [f"{number} " * (1 + number % 4) + f"\t{number}" for number in range(200)]
    path.write_text("\n".join(["source\ttarget", *rows]) + "\n")
    return TextPairs(train=str(path), **options)


def corpus(**options):
    """Seven documents of words that come again, with some that do not."""
    folder = data_root() / "notes"
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(7):
        lines = [f"day {number} é{n % 5}  went well, n{n * number}" for n in range(60)]
        (folder / f"{number}.txt").write_text("\n".join(lines))
    return Corpus(train=str(folder), length=24, **options)


def few_trees(**options):
    sizes = {"min_length": 20, "max_length": 80, "max_depth": 4, "max_args": 6}
    return ListOps(**sizes, **FEW, **options)


FEW = {"train_examples": 200, "validation_examples": 60, "test_examples": 70}
SHIPPED = {
    "table": lambda: table(["text"]),
    "table-pairs": lambda: table(["text", "other"], second_text="other", max_length=9),
    "listops-sample": lambda: ListOps(source=ListOpsSource.sample),
    "listops-generated": lambda: few_trees(),
    "text-sample": lambda: Text(source=TextSource.sample),
    "text-sample-cut": lambda: Text(source=TextSource.sample, max_length=150, bucket_batches=2),
    "text-sample-test": lambda: Text(source=TextSource.sample, validation=Validation.test),
    "listops-filler": lambda: few_trees(filler=60),
    "retrieval-sample": lambda: Retrieval(source=RetrievalSource.sample),
    "image-sample": lambda: Pixels(source=PixelSource.sample),
    "image-scalars": lambda: Pixels(source=PixelSource.sample, encoding=Encoding.scalars),
    "image-rgb": lambda: Pixels(
        source=PixelSource.sample, colour=Colour.rgb, encoding=Encoding.scalars
    ),
    "spoken-digits": lambda: SpokenDigits(source=DigitSource.sample, max_length=1024),
    "image-black": lambda: Pixels(source=PixelSource.sample, black_is_padding=True),
    "mnist-permuted": lambda: Pixels(
        source=PixelSource.sample, dataset=Dataset.mnist, permuted=True, max_length=300
    ),
    "wikitext-words": lambda: WikiText(source=WikiTextSource.sample, length=24),
    "wikitext-bpe": lambda: WikiText(
        source=WikiTextSource.sample,
        units=Units.subwords,
        length=40,
        regime=Regime.sliding,
        stride=9,
    ),
    "wikitext-unigram": lambda: WikiText(
        source=WikiTextSource.sample,
        units=Units.subwords,
        subword_model=Algorithm.unigram,
        length=40,
    ),
    "pg19-sample": lambda: PG19(
        source=PG19Source.sample, length=40, regime=Regime.memory, memory=80
    ),
    "corpus-bytes": lambda: corpus(regime=Regime.memory, memory=30),
    "corpus-characters": lambda: corpus(units=CorpusUnits.characters),
    "corpus-words": lambda: corpus(units=CorpusUnits.words, within_documents=True),
    "corpus-bpe": lambda: corpus(
        units=CorpusUnits.subwords, subword_vocabulary=280, regime=Regime.sliding, stride=9
    ),
    "listops-masked": lambda: few_trees(objective=InputObjective.masked),
    "retrieval-causal": lambda: Retrieval(
        source=RetrievalSource.sample, objective=InputObjective.causal
    ),
    "pathfinder-sample": lambda: Pathfinder(source=PathfinderSource.sample),
    "pathfinder-black": lambda: Pathfinder(
        train_examples=64, validation_examples=32, test_examples=32, black_is_padding=True
    ),
    "proteins-causal": lambda: Proteins(source=ProteinSource.sample, max_length=40),
    "proteins-masked": lambda: Proteins(
        source=ProteinSource.sample, max_length=40, objective=Objective.masked
    ),
    "proteins-concatenated": lambda: Proteins(
        source=ProteinSource.sample, max_length=40, form=ProteinForm.concatenated
    ),
    "mqar": lambda: MQAR(**FEW, length=32, vocabulary=300),
    "mqar-longer-test": lambda: MQAR(**FEW, length=20, test_length=50, vocabulary=30),
    "selective_copy": lambda: SelectiveCopy(**FEW, length=40),
    "induction": lambda: Induction(**FEW, length=20),
    "duplicate": lambda: Duplicate(**FEW, length=20),
    "permutations": lambda: Permutations(**FEW),
    "reversal": lambda: Ordering(**FEW, length=8),
    "sorting-longer-test": lambda: Ordering(
        **FEW, target=SequenceTarget.sorted, length=6, test_length=9
    ),
    "text_pairs": lambda: text_pairs(target_length=5),
    "dna-sample": lambda: Dna(source=DnaSource.sample),
    "dna-both": lambda: Dna(
        source=DnaSource.sample, max_length=40, reverse_complement=Strands.both
    ),
    "dna-masked": lambda: Dna(
        source=DnaSource.sample,
        reverse_complement=Strands.augment,
        objective=InputObjective.masked,
    ),
    "dna-species": lambda: Dna(path=str(genomes(data_root() / "genomes")), window=30),
    "listops-prefix": lambda: few_trees(objective=InputObjective.prefix),
    "listops-replaced": lambda: few_trees(objective=InputObjective.replaced),
    "retrieval-replaced": lambda: Retrieval(
        source=RetrievalSource.sample, objective=InputObjective.replaced
    ),
    "listops-permutation": lambda: few_trees(objective=InputObjective.permutation),
    "text-unilm": lambda: Text(
        source=TextSource.sample,
        objective=InputObjective.unilm,
        masked_replacement=MaskedReplacement.bert,
    ),
    "permutations-few": lambda: Permutations(**FEW, group="s3", length=3),
}


@pytest.fixture(autouse=True)
def quick_baselines(monkeypatch):
    """Fit baselines briefly: what is asked of them holds for a baseline of any strength."""
    for module in ("n_grams", "image_windows"):
        monkeypatch.setattr(f"lra.tasks.baselines.{module}.EPOCHS", 1)
    monkeypatch.setattr("lra.tasks.baselines.n_grams.FIT_EXAMPLES", 200)
    monkeypatch.setattr("lra.tasks.baselines.image_windows.FIT_PIXELS", 200 * 32 * 32)


@pytest.mark.share(4)
@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_tasks_keep_the_contract(name):
    findings = check_task(SHIPPED[name]())
    assert len(findings) == 12
    assert [finding for finding in findings if not finding.passed] == []


class Broken(Text):
    """The sample, one promise of which a subclass breaks."""

    def __init__(self):
        super().__init__(source=TextSource.sample)

    def batches(self, split, *, batch_size, seed, rank=0, ranks=1, start=0):
        places = {"rank": rank, "ranks": ranks, "start": start}
        for batch in super().batches(split, batch_size=batch_size, seed=seed, **places):
            yield self.spoil(split, batch)

    def spoil(self, split, batch):
        return batch


class Unrepeatable(Broken):
    def spoil(self, split, batch):
        return batch._replace(target=torch.randint(2, batch.target.shape))


class IgnoresSeed(Broken):
    def batches(self, split, *, batch_size, seed, rank=0, ranks=1, start=0):
        places = {"rank": rank, "ranks": ranks, "start": start}
        return super().batches(split, batch_size=batch_size, seed=0, **places)


class IgnoresStart(Broken):
    def batches(self, split, *, batch_size, seed, rank=0, ranks=1, start=0):
        places = {"rank": rank, "ranks": ranks}
        return super().batches(split, batch_size=batch_size, seed=seed, **places)


class IgnoresRank(Broken):
    def batches(self, split, *, batch_size, seed, rank=0, ranks=1, start=0):
        return super().batches(split, batch_size=batch_size, seed=seed, start=start)


class LosesExamples(Broken):
    def batches(self, split, *, batch_size, seed, rank=0, ranks=1, start=0):
        places = {"rank": rank, "ranks": ranks, "start": start}
        made = list(super().batches(split, batch_size=batch_size, seed=seed, **places))
        return iter(made[:-1])


class LeaksTest(Broken):
    def split(self, name):
        return super().split("test")


class LargeToken(Broken):
    def spoil(self, split, batch):
        return batch._replace(tokens=batch.tokens + 200)


class ShiftedKeep(Broken):
    def spoil(self, split, batch):
        keep = None if batch.keep is None else batch.keep.roll(1, dims=-1)
        return batch._replace(keep=keep)


class Miscounts(Broken):
    def tally(self, nll, hit, batch):
        return super().tally(nll, hit, batch)._replace(hits=float(len(hit)))


class UnsteadySpec(Broken):
    @property
    def spec(self):
        known = super().spec
        return replace(known, data_hash="prepared") if self._store else known


class InventsBaseline(Broken):
    def baselines(self, split):
        return [baseline._replace(accuracy=0.99) for baseline in super().baselines(split)]


@pytest.fixture(scope="module")
def sample(tmp_path_factory):
    """Where the sample of all broken tasks is made once."""
    return tmp_path_factory.mktemp("sample")


@pytest.mark.parametrize(
    ("broken", "check"),
    [
        (Unrepeatable, contract.check_repeats),
        (IgnoresSeed, contract.check_seed_matters),
        (IgnoresStart, contract.check_start),
        (IgnoresRank, contract.check_ranks),
        (LosesExamples, contract.check_whole),
        (LeaksTest, contract.check_disjoint),
        (LargeToken, contract.check_tokens),
        (ShiftedKeep, contract.check_keep),
        (Miscounts, contract.check_perfect),
        (InventsBaseline, contract.check_baselines),
    ],
)
def test_broken_promises_are_found(broken, check, sample, monkeypatch):
    monkeypatch.setenv("LRA_DATA", str(sample))
    task = broken()
    task.prepare()
    finding = check(task)
    assert not finding.passed
    assert finding.detail


SPOILT = [
    (contract.check_tokens, lambda batch: batch._replace(tokens=batch.tokens + 200)),
    (contract.check_keep, lambda batch: batch._replace(keep=torch.zeros_like(batch.tokens) > 0)),
    (contract.check_masks, lambda batch: batch._replace(prefix=torch.zeros_like(batch.index))),
    (contract.check_masks, lambda batch: batch._replace(condition=torch.zeros_like(batch.index))),
]


@pytest.mark.parametrize(("check", "spoil"), SPOILT)
def test_no_example_of_train_is_passed_over(check, spoil, monkeypatch, tmp_path):
    monkeypatch.setenv("LRA_DATA", str(tmp_path))
    task = table(["text"], validation_fraction=0.49, test_fraction=0.46)
    task.prepare()
    assert task.examples("train") % contract.BATCH_SIZE
    assert check(task).passed
    batches = task.batches
    for wrong in range(task.examples("train")):

        def spoilt(split, *, wrong=wrong, **options):
            for batch in batches(split, **options):
                yield spoil(batch) if wrong in batch.index and split == "train" else batch

        monkeypatch.setattr(task, "batches", spoilt)
        assert not check(task).passed, wrong


def test_a_spec_that_changes_is_found():
    finding = next(each for each in check_task(UnsteadySpec()) if each.check == "spec")
    assert not finding.passed
    assert finding.detail
