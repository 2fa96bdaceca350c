import logging
from pathlib import Path

import pytest
from written_proteins import fasta, prepared, sequences, stored

from lra.tasks.errors import BadData
from lra.tasks.proteins import pfam
from lra.tasks.proteins.task import JudgedSplit, Proteins


@pytest.fixture
def file(tmp_path):
    return fasta(tmp_path / "a.fasta", sequences(300))


def table(path, rows, heads="Entry\tReviewed\tPfam"):
    path.write_text("\n".join([heads, *rows]) + "\n")
    return str(path)


def test_held_out_families_are_in_no_other_split(file, tmp_path, caplog):
    texts = sequences(300)
    extra = fasta(tmp_path / "b.fasta", [texts[0], "MKTAYMKTAY"], "Q")
    isoform = fasta(tmp_path / "c.fasta", ["MKWWWWMK"], "P1-")
    folder = tmp_path / "both"
    folder.mkdir()
    for path in (file, extra, isoform):
        (folder / Path(path).name).write_bytes(Path(path).read_bytes())
    # Q0, the copy of P0, is annotated alone; its sequence is held out under both names.
    rows = ["Q0\treviewed\tPF00001;PF00002;", "P1\tx\tPF00001", "P2\tx\tPF00003;", "P4\tx\t"]
    families = table(tmp_path / "pfam.tsv", rows)
    options = {"families": families, "held_out_families": ["PF00002", "PF00001"]}
    with caplog.at_level(logging.INFO):
        task = prepared(path=str(folder), test=JudgedSplit.families, **options)
    assert sorted(stored(task, "test")) == sorted([texts[0], texts[1], "MKWWWWMK"])
    rest = prepared(path=str(folder), **options)
    assert rest.folder == task.folder
    assert not {texts[0], texts[1]} & set(
        stored(task, "train") + stored(task, "validation") + stored(rest, "test")
    )
    assert "299 of 303 sequences have no Pfam family" in caplog.text
    assert task.spec.regime == "next residue, held-out families"
    hashes = {
        Proteins(path=str(folder), **{**options, **change}).spec.data_hash
        for change in (
            {},
            {"held_out_families": ["PF00001"]},
            {"families": None, "held_out_families": []},
        )
    }
    assert len(hashes) == 3
    assert task.examples("test") == 3
    assert len(list(task.batches("test", batch_size=1, seed=0))) == 3


@pytest.mark.parametrize(
    ("rows", "heads", "message"),
    [
        (["P1\tx\tPF99999;"], "Entry\tReviewed\tPfam", "none of the 1 annotated sequences belongs"),
        (["Z1\tx\tPF00001;"], "Entry\tReviewed\tPfam", r"has none of the 300.*'P0'"),
        (["P1\tx\tPF00001;"], "Entry\tReviewed\tFamily", "wanted Entry and Pfam"),
        (["P1\tx"], "Entry\tReviewed\tPfam", "line 2: the row has 2 columns; wanted 3"),
        ([], "Entry\tReviewed\tPfam", "contains no row"),
    ],
)
def test_tables_that_hold_nothing_out(file, tmp_path, rows, heads, message):
    families = table(tmp_path / "pfam.tsv", rows, heads)
    with pytest.raises(BadData, match=message):
        prepared(path=file, families=families, held_out_families=["PF00001"])


def test_the_published_families():
    assert len(set(pfam.PUBLISHED)) == 20
