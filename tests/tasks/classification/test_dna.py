"""DNA: every form of its files gives the same sequences, and bad ones are refused by name."""

import io
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from lra.tasks.classification.dna import baselines, chains
from lra.tasks.classification.dna.alphabet import (
    BaseReader,
    LetterCase,
    reverse_complement,
    to_letters,
)
from lra.tasks.classification.dna.task import Dna, DnaSource, Strands
from lra.tasks.classification.objectives import InputObjective
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.task import SPLITS, Kind
from tests.tasks.classification.written_dna import fasta, folders, genomes, sequence, table


def letters_of(task: Dna, split: str) -> list[tuple[str, int]]:
    """Return the letters and the class of every stored sequence of a split, sorted."""
    data = task.split(split)
    rows = data.rows(np.arange(len(data.targets)))
    return sorted((to_letters(row), int(t)) for row, t in zip(rows, data.targets, strict=True))


def prepared(path: Path, **options) -> Dna:
    task = Dna(path=str(path), **options)
    before = task.spec
    task.prepare()
    assert task.spec == before
    return task


def written(root: Path) -> dict[tuple[str, str], list[str]]:
    """Return the sequences that `folders` wrote, by split and class."""
    return {
        (split, name): [f.read_text().strip() for f in sorted((root / split / name).iterdir())]
        for split in ("train", "test")
        for name in ("neg", "pos")
    }


def as_fasta(root: Path, where: Path) -> Path:
    for (split, name), texts in written(root).items():
        fasta(where / split / f"{name}.fa.gz", {f"s{n}": text for n, text in enumerate(texts)}, 7)
    return where


def as_table(root: Path, where: Path) -> Path:
    for split in ("train", "test"):
        rows = [
            f"{text},{name}"
            for (part, name), texts in written(root).items()
            for text in texts
            if part == split
        ]
        table(where / f"{split}.csv", rows, "sequence,label")
    return where


def as_parquet(root: Path, where: Path) -> Path:
    import pyarrow
    import pyarrow.parquet

    where.mkdir()
    for split in ("train", "test"):
        found = [
            (text, name)
            for (part, name), texts in written(root).items()
            for text in texts
            if part == split
        ]
        columns = {"sequence": [text for text, _ in found], "label": [name for _, name in found]}
        pyarrow.parquet.write_table(pyarrow.table(columns), where / f"{split}.parquet")
    return where


def as_tar(root: Path, where: Path) -> Path:
    with tarfile.open(where.with_suffix(".tar.gz"), "w:gz") as tar:
        tar.add(root, arcname="demo")
    return where.with_suffix(".tar.gz")


def as_zip(root: Path, where: Path) -> Path:
    with zipfile.ZipFile(where.with_suffix(".zip"), "w") as packed:
        for file in root.rglob("*.txt"):
            packed.write(file, f"demo/{file.relative_to(root)}")
    return where.with_suffix(".zip")


def as_intervals(root: Path, where: Path) -> Path:
    """Write sequences as intervals of one chromosome, every second one of the minus strand."""
    chromosome, rows = "NN", dict[tuple[str, str], list[str]]()
    reader = BaseReader(LetterCase.fold)
    for key, texts in written(root).items():
        rows[key] = []
        for number, text in enumerate(texts):
            strand, piece = "+-"[number % 2], text
            if strand == "-":
                piece = to_letters(reverse_complement(reader.ids(text.encode(), "")))
            start, chromosome = len(chromosome), chromosome + piece
            rows[key].append(f"{number},chr1,{start},{len(chromosome)},{strand}")
    for (split, name), lines in rows.items():
        table(where / split / f"{name}.csv.gz", lines)
    fasta(where / "genome" / "g.fa", {"2": "ACGT", "1 dna:chromosome": chromosome})
    return where


@pytest.mark.parametrize(
    ("form", "named"),
    [
        (as_fasta, False),
        (as_table, True),
        (as_parquet, True),
        (as_tar, True),
        (as_zip, True),
        (as_intervals, False),
    ],
)
def test_all_forms_of_files_give_the_same_splits(tmp_path, form, named):
    root = folders(tmp_path / "text")
    path = form(root, tmp_path / "other")
    options = {"labels": ["neg", "pos"]} if named else {}
    if form is as_intervals:
        options["genome"] = str(path / "genome")
    wanted, found = prepared(root), prepared(path, **options)
    for split in SPLITS:
        assert letters_of(found, split) == letters_of(wanted, split)
    of_test = [(t, n) for n, c in enumerate(("neg", "pos")) for t in written(root)["test", c]]
    assert letters_of(wanted, "test") == sorted(of_test)
    assert [wanted.examples(split) for split in SPLITS] == [54, 6, 60]
    assert (wanted.spec.classes, wanted.names) == (2, ["neg", "pos"])


def test_the_seed_decides_the_validation_split_and_labels_the_order_of_classes(tmp_path):
    root = folders(tmp_path / "text")
    first, other = prepared(root), prepared(root, data_seed=1)
    assert letters_of(first, "validation") != letters_of(other, "validation")
    assert letters_of(first, "test") == letters_of(other, "test")
    turned = prepared(root, labels=["pos", "neg"])
    assert letters_of(turned, "test") == sorted((x, 1 - y) for x, y in letters_of(first, "test"))


def test_a_table_without_test_loses_both_shares_and_dev_is_validation(tmp_path):
    rows = [f"{sequence(n, 30)},{n % 2}" for n in range(100)]
    one = table(tmp_path / "mine.csv", rows, "dna,kind")
    task = prepared(one, labels=["0", "1"], sequence="dna", label="kind")
    assert [task.examples(split) for split in SPLITS] == [80, 10, 10]
    for split, part in (("train", rows[:60]), ("dev", rows[60:70]), ("test", rows[70:])):
        table(tmp_path / "gue" / f"{split}.csv", part, "sequence,label")
    task = prepared(tmp_path / "gue", labels=["0", "1"])
    assert [task.examples(split) for split in SPLITS] == [60, 10, 30]


def test_letters_become_ids_and_codes_of_several_bases_are_counted(tmp_path, caplog):
    fold, keep = BaseReader(LetterCase.fold), BaseReader(LetterCase.keep)
    assert fold.ids(b"ACGTNacgtnUuRy", "").tolist() == [0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 3, 3, 4, 4]
    assert keep.ids(b"ACGTNacgtnUuRy", "").tolist() == [*range(10), 3, 8, 4, 9]
    assert "2 of 14 letters" in fold.report("file")
    assert "file: 2 of 14 letters are codes of several bases" in caplog.text
    assert BaseReader(LetterCase.fold).report("file") == ""
    assert to_letters(reverse_complement(keep.ids(b"AACGTNacn", ""))) == "ngtNACGTT"
    root = folders(tmp_path / "a")
    (root / "train" / "neg" / "0.txt").write_text("ACGR\nacgt")
    task = prepared(root, case=LetterCase.keep)
    assert task.spec.vocabulary == 11
    assert ("ACGNacgt", 0) in letters_of(task, "train") + letters_of(task, "validation")
    assert "1 of " in task.remarks["train"]


def test_a_genome_of_each_class(tmp_path):
    for name, letters in (("human", "A" * 30), ("worm", "C" * 30)):
        fasta(tmp_path / "genome" / f"{name}.fa", {"X": letters})
        for split in ("train", "test"):
            rows = [f"{n},chrX,{n},{n + 5 + n % 3},+" for n in range(12)]
            table(tmp_path / "data" / split / f"{name}.csv", rows)
    task = prepared(tmp_path / "data", genome=str(tmp_path / "genome"), validation_fraction=0.4)
    assert {(text[0], label) for text, label in letters_of(task, "test")} == {("A", 0), ("C", 1)}
    (tmp_path / "genome" / "worm.fa").rename(tmp_path / "genome" / "celegans.fa")
    with pytest.raises(BadData, match=r"two records have the name 'X'; .*CLASS\.fa for each"):
        prepared(tmp_path / "data", genome=str(tmp_path / "genome"))


def test_windows_of_genomes_cover_them_once_and_share_no_base(tmp_path):
    task = prepared(genomes(tmp_path / "g"), window=50)
    assert task.spec.name == "dna_species"
    assert not task.spec.padded
    assert [task.examples(split) for split in SPLITS] == [45, 6, 6]  # of 18 + 13 and 26 windows
    first, second = sequence(1, 900, "AATTCG"), sequence(2, 650)
    windows = [(text[i : i + 50], 0) for text in (first, second) for i in range(0, len(text), 50)]
    windows += [(sequence(3, 1330, "ATCGCG")[i : i + 50], 1) for i in range(0, 1300, 50)]
    assert sorted(row for split in SPLITS for row in letters_of(task, split)) == sorted(windows)
    batch = next(task.batches("test", batch_size=6, seed=0))
    assert batch.keep is None
    assert batch.tokens.shape == (6, 1, 50)
    assert to_letters(batch.tokens[0, 0].numpy()) == task.describe("test", 0).split()[0]


def test_windows_of_mostly_n_are_skipped_aloud(tmp_path, caplog):
    root = genomes(tmp_path / "g")
    fasta(root / "rich.fna", {"r1": "N" * 170 + sequence(3, 1160, "ATCGCG")})
    assert sum(prepared(root, window=50).examples(split) for split in SPLITS) == 57 - 3
    assert "skips 3 windows of train, mostly N" in caplog.text


def test_the_other_strand_of_what_a_model_reads(tmp_path):
    root = folders(tmp_path / "a")
    tasks = {each: prepared(root, reverse_complement=each, max_length=20) for each in Strands}
    plan = [np.arange(12)]
    (one,), (two,) = (list(tasks[each].read("train", plan, 5)) for each in ("none", "both"))
    assert tasks[Strands.both].spec.kind is Kind.pair
    assert two.tokens.shape[1] == 2
    assert torch.equal(two.tokens[:, :1], one.tokens)
    for row, real in zip(two.tokens.numpy(), two.keep.numpy(), strict=True):
        first, second = (part[there] - 1 for part, there in zip(row, real, strict=True))
        assert (reverse_complement(first) == second).all()
        assert not row[~real].any()
    drawn = [next(tasks[Strands.augment].read("train", plan, seed)) for seed in (1, 1, 2)]
    assert torch.equal(drawn[0].tokens, drawn[1].tokens)
    assert not torch.equal(drawn[0].tokens, drawn[2].tokens)
    turned = (drawn[0].tokens == two.tokens[:, 1:]).all(-1).flatten()
    plain = (drawn[0].tokens == one.tokens).all(-1).flatten()
    assert (turned | plain).all()
    assert 0 < turned.sum() < 12
    for split in ("validation", "test"):
        stored = next(tasks[Strands.none].read(split, plan[:1][0][None, :4], 0))
        read = next(tasks[Strands.augment].read(split, plan[:1][0][None, :4], 3))
        assert torch.equal(read.tokens, stored.tokens)


def test_chains_have_equal_runs_of_three_bases_and_a_known_best_score():
    table_of = chains.transitions()
    assert table_of.sum(-1) == pytest.approx(np.ones((2, 4, 4, 4)))
    assert table_of.sum(1) == pytest.approx(np.ones((2, 4, 4, 4)))  # so runs of three stay uniform
    assert not np.allclose(table_of[0], table_of[1])
    row = np.array([0, 1, 2, 3, 3, 1, 0, 0, 2])
    logs = [
        sum(np.log(table_of[c, row[i], row[i + 1], row[i + 2], row[i + 3]]) for i in range(6))
        for c in range(2)
    ]
    assert chains.best_answer(row) == int(np.argmax(logs))
    rows = chains.sample_rows("train", None)
    counts = np.zeros((2, 256))
    for ids, label in rows:
        codes = np.convolve(ids.astype(int), [1, 4, 16, 64])[3:-3]
        np.add.at(counts[label], codes, 1)
    seen = counts.reshape(2, 4, 4, 4, 4)
    shares = seen / seen.sum(-1, keepdims=True)
    # About 730 runs begin with each three bases, so four standard errors are 0.07.
    assert np.abs(shares - table_of).max() < 0.07


def test_baselines_of_the_sample_reach_chance_below_four_bases_and_the_ceiling_above():
    task = Dna(source=DnaSource.sample)
    task.prepare()
    found = {each.name: each for each in task.baselines("test")}
    chance = 3.5 * 0.5 / 400**0.5  # standard errors of a fair coin
    for name in ("majority", "k_mers_1", "k_mers_2", "k_mers_3", "gc_content", "length_alone"):
        assert found[name].accuracy == pytest.approx(0.5, abs=chance), name
    best = found["ceiling_bayes"]
    assert 0.9 < found["k_mers_4"].accuracy <= best.accuracy < 0.97
    assert max(found.values(), key=lambda each: each.accuracy) is best
    outcomes, targets = best.outcomes.numpy(), task.split("test").targets
    said = np.where(outcomes, targets, 1 - targets)
    assert best.measures["mcc"] == pytest.approx(np.corrcoef(said, targets)[0, 1])
    assert found["majority"].measures["mcc"] == 0


def accuracies(task: Dna) -> dict[str, float]:
    """Return the accuracy on test of each baseline that only DNA has."""
    seen = task.seen("train"), task.seen("test")
    found = baselines.further_outcomes(*seen, task.spec.classes)
    return {name: hit.mean() for name, (hit, _) in found.items()}


def test_a_sample_of_windows():
    task = Dna(source=DnaSource.sample, window=300)
    task.prepare()
    assert [task.examples(split) for split in SPLITS] == [900, 100, 400]
    assert {*task.lengths("test").tolist()} == {300}
    rows = [*task.seen("test").rows(np.arange(400))]
    hits = [chains.best_answer(row) == task.split("test").targets[n] for n, row in enumerate(rows)]
    assert np.mean(hits) > 0.98
    assert chains.best_answer(rows[0][:3]) == 0  # three bases tell nothing


def test_composition_and_length_are_found_where_they_tell_the_class(tmp_path):
    rows = [f"{sequence(n, 60, 'AT' if n % 2 else 'CG')},{n % 2}" for n in range(300)]
    task = prepared(table(tmp_path / "gc.csv", rows, "sequence,label"), labels=["0", "1"])
    found = accuracies(task)
    assert found["gc_content"] == found["k_mers_1"] == 1
    assert found["length_alone"] == 0.5
    rows = [f"{sequence(n, 40 + 20 * (n % 3))},{n % 3}" for n in range(300)]
    task = prepared(table(tmp_path / "size.csv", rows, "sequence,label"), labels=["0", "1", "2"])
    assert accuracies(task)["length_alone"] == 1
    assert not task.spec.scores


def test_a_tally_counts_by_class_where_the_correlation_is_scored():
    task = Dna(source=DnaSource.sample)
    task.prepare()
    batch = next(task.batches("test", batch_size=10, seed=0))
    hit = torch.arange(10) < 7
    found = task.tally(torch.zeros(10), hit, batch).classes
    for each in (0, 1):
        mine = batch.target == each
        assert found[each] == (int((hit & mine).sum()), int(mine.sum()))
    masked = Dna(source=DnaSource.sample, objective=InputObjective.masked)
    assert not masked.spec.scores


def intervals(tmp_path: Path, row: str) -> Dna:
    for split in ("train", "test"):
        for name in ("neg", "pos"):
            table(tmp_path / "i" / split / f"{name}.csv.gz", ["0,chr1,0,5,+", row])
    genome = fasta(tmp_path / "g.fa", {"1": "ACGTACGTAC"})
    return Dna(path=str(tmp_path / "i"), genome=str(genome))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("1,chr1,4,11,+", r"line 3: the interval ends at base 11, but chr1 has 10 bases; use the"),
        (
            "1,chr7,1,3,+",
            r"line 3: the region 'chr7' is not in the genome, which has '1'; set task",
        ),
        ("1,chr1,4,4,+", r"has start=4 and end=4; wanted a start below the end"),
        ("1,chr1,-1,4,+", r"start and end are '-1' and '4'; wanted two whole numbers"),
        ("1,chr1,1,4,x", r"the strand is 'x'; wanted \+ or -"),
        ("1,chr1,1,4", r"4 fields, but the header has 5"),
    ],
)
def test_bad_intervals(tmp_path, row, message):
    with pytest.raises(BadData, match=message):
        intervals(tmp_path, row).prepare()


def test_intervals_without_a_genome(tmp_path):
    task = intervals(tmp_path, "1,chr1,1,4,+")
    task.genome = None
    with pytest.raises(
        BadData, match=r"i has intervals, which need a genome: got task.genome=null"
    ):
        task.prepare()
    with pytest.raises(NotPrepared, match=r"has no FASTA file"):
        Dna(path=str(tmp_path / "i"), genome=str(tmp_path / "i")).prepare()


def removed(root: Path) -> None:
    for file in (root / "test" / "pos").iterdir():
        file.unlink()
    (root / "test" / "pos").rmdir()


def emptied(root: Path) -> None:
    for file in (root / "test" / "pos").iterdir():
        file.unlink()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (removed, r"test has the classes neg; wanted those of train: neg, pos; add the missing"),
        (emptied, r"test has no sequence of the class pos; wanted at least one of each class"),
        (lambda r: (r / "train" / "neg" / "3.txt").write_text("\n"), r"3\.txt: the sequence is em"),
        (
            lambda r: (r / "train" / "neg" / "3.txt").write_text("ACGMKLV"),
            r"3\.txt: the letter at base 6 is 'L'; wanted A, C, G, T, N .*use task=proteins",
        ),
        (lambda r: (r / "test").rename(r / "other"), ""),
        (lambda r: (r / "train").rename(r / "other"), r"has test, but not train"),
    ],
)
def test_bad_folders(tmp_path, damage, message):
    root = folders(tmp_path / "a", number=20)
    damage(root)
    if not message:  # without test, it is taken from train
        assert [prepared(root).examples(split) for split in SPLITS] == [32, 4, 4]
        return
    with pytest.raises((BadData, NotPrepared), match=message):
        prepared(root)


def test_bad_fasta_files_and_tables(tmp_path):
    root = genomes(tmp_path / "g")
    (root / "poor.fa").write_text(">a\nACGT\n")
    with pytest.raises(BadData, match=r"poor.fa and poor.fa.gz are one class; remove one"):
        prepared(root)
    (root / "poor.fa").rename(root / "third.fa")
    (root / "third.fa").write_text(">p protein\nMKVLAT\n")
    with pytest.raises(BadData, match=r"record 1 \('p protein'\): the letter at base 4 is 'L'"):
        prepared(root)
    (root / "third.fa").write_text("")
    with pytest.raises(BadData, match=r"third.fa contains no record; use a FASTA file"):
        prepared(root)
    (root / "third.fa").write_text(">a\nACGT\n")
    with pytest.raises(BadData, match=r"no window of 50 bases of the class third; .*lower task.wi"):
        prepared(root, window=50)
    bad = table(tmp_path / "t.csv", ["ACGT,1", "ACGT,", ",1"], "sequence,label")
    with pytest.raises(BadData, match=r"t.csv: got task.labels=null; wanted every label"):
        prepared(bad)
    with pytest.raises(BadData, match=r"line 3: the label is ''; wanted one of '0', '1'"):
        prepared(bad, labels=["0", "1"])
    with pytest.raises(BadData, match=r"columns are sequence, label, without dna; .*rename them"):
        prepared(bad, labels=["0", "1"], sequence="dna")
    with pytest.raises(BadData, match=r"has the classes poor, rich, third, but task.labels="):
        prepared(root, labels=["0", "1"])


@pytest.mark.parametrize("name", ["../train/neg/1.txt", "/train/neg/1.txt"])
@pytest.mark.parametrize("ending", ["tar", "zip"])
def test_an_archive_with_a_path_outside_is_refused(tmp_path, name, ending):
    archive = tmp_path / f"a.{ending}"
    if ending == "zip":
        with zipfile.ZipFile(archive, "w") as packed:
            packed.writestr(name, "ACGT")
    else:
        with tarfile.open(archive, "w") as tar:
            member = tarfile.TarInfo(name)
            member.size = 4
            tar.addfile(member, io.BytesIO(b"ACGT"))
    with pytest.raises(BadData, match=r"lies outside the archive; wanted names such as train/CL"):
        prepared(archive, labels=["neg", "pos"])
    assert not (tmp_path / "train").exists()


def test_missing_files_are_named(tmp_path):
    with pytest.raises(NotPrepared, match=r"task.path=null; set it to a folder with train/CLASS"):
        Dna().prepare()
    with pytest.raises(NotPrepared, match=r"nowhere is missing; wanted a folder with train/CLASS"):
        Dna(path=str(tmp_path / "nowhere")).prepare()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window": 0}, r"task.window must be at least 1, or null for whole sequences: got 0"),
        ({"labels": ["a"]}, r"at least two labels"),
        ({"labels": ["a", "a"]}, r"at least two labels, each once"),
        ({"sequence": "label"}, r"must be different columns: got 'label'"),
        ({"max_length": 0}, r"max_length=0"),
        ({"test_fraction": 0.6}, r"must lie in \(0, 0.5\): got 0.6"),
        ({"source": DnaSource.sample, "genome": "g"}, r"reads no files: got genome='g'"),
        ({"source": DnaSource.sample, "path": "x"}, r"reads no files: got task.path='x'"),
        (
            {"reverse_complement": Strands.both, "objective": InputObjective.causal},
            r"both needs objective=classify: got objective=causal",
        ),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        Dna(**options)
