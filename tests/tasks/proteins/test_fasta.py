import bz2
import gzip
import logging
import lzma
from random import Random

import pytest

from lra.tasks.errors import BadData
from lra.tasks.proteins.fasta import ProteinRecord, accession, read_fasta
from tests.fuzz import cases

PLAIN = b">sp|P12345|NAME_ORG A protein OS=X\nMKTAY\nIAKQR\n>tr|Q1|N_O\nmsDL*\n"
RECORDS = [ProteinRecord("P12345", b"MKTAYIAKQR"), ProteinRecord("Q1", b"MSDL")]


def written(tmp_path, content, name="a.fasta"):
    path = tmp_path / name
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(
    "content",
    [
        PLAIN,
        PLAIN.replace(b"\n", b"\r\n"),
        b"\n  \n" + PLAIN.replace(b"\n", b"\n\n"),
        PLAIN.replace(b"MKTAY\n", b"mk ta y\nI\nA\n").replace(b"IAKQR", b"kqr"),
        PLAIN.replace(b"OS=X", b"OS=\xe9\xff"),
    ],
)
def test_what_real_files_contain(tmp_path, content):
    assert list(read_fasta(written(tmp_path, content))) == RECORDS


@pytest.mark.parametrize(
    ("ending", "pack"), [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)]
)
def test_packed_files(tmp_path, ending, pack):
    path = written(tmp_path, pack(PLAIN), f"a.fasta{ending}")
    assert list(read_fasta(path)) == RECORDS
    path.write_bytes(pack(PLAIN)[:-9])
    with pytest.raises(BadData, match="truncated, damaged"):
        list(read_fasta(path))


def test_a_changed_byte_of_a_packed_file_is_damage_and_no_strange_residue(tmp_path):
    lines = [b">a%d\n%s\n" % (number, b"MKTAYIAK" * 8) for number in range(300)]
    whole, drawn, path = gzip.compress(b"".join(lines)), Random(3), tmp_path / "a.fasta.gz"
    for _ in range(cases(60)):
        spoilt = bytearray(whole)
        spoilt[drawn.randrange(20, len(whole) - 8)] ^= 1 << drawn.randrange(8)
        path.write_bytes(spoilt)
        with pytest.raises(BadData, match="the gzip stream is damaged within"):
            list(read_fasta(path))
    path.write_bytes(gzip.compress(b">a\nMK1\n"))
    with pytest.raises(BadData, match="at residue 3 is '1'"):  # sound, and no protein
        list(read_fasta(path))


def test_unusual_residues_stay_and_j_becomes_x(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        (record,) = read_fasta(written(tmp_path, b">a\nABJOUXZj\n"))
    assert record == ProteinRecord("a", b"ABXOUXZX")
    assert "read 2 J (leucine or isoleucine) as X" in caplog.text


def test_records_without_residues_are_left_out_aloud(tmp_path, caplog):
    content = b">e1\n>sp|P1|A\nMK\n>e2\n\n*\n>\n"
    assert list(read_fasta(written(tmp_path, content))) == [ProteinRecord("P1", b"MK")]
    assert "skips 3 records without residues; the first is record 1 (e1)" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b">a\nMK-T\n", r"record 1 \(a\): .* residue 3 is '-'; wanted one of ACDEF.*gaps"),
        (b">a\nMK\n>b x\nM.T\n", r"record 2 \(b\): .* residue 2 is '\.'"),
        (b">\nMK1\n", r"record 1 \(without a name\): .* residue 3 is '1'.*correct the"),
        (b">a\nM*KT\n", r"residue 2 is '\*'.*a stop ends"),
        (b">a\nM\xf6K\n", "at residue 2"),
        (b"MKT\n>a\nMK\n", r"line 1: got 'MKT' before the first header"),
        (b"{}\n", "use a complete FASTA file"),
        (b"", "contains no record"),
        (b"\n\n", "contains no record"),
        *(
            (PLAIN[:cut], "the last line has no line end, so it may be truncated")
            for cut in range(-4, 0)
        ),
    ],
)
def test_everything_else_is_refused(tmp_path, content, message):
    with pytest.raises(BadData, match=message) as caught:
        list(read_fasta(written(tmp_path, content)))
    assert "a.fasta" in str(caught.value)


def test_accessions():
    titles = ("sp|P12345-2|N desc", "UniRef50_Q6 desc", "tr|A0A1", "plain", "", "a||b")
    assert [accession(title) for title in titles] == [
        "P12345-2",
        "UniRef50_Q6",
        "A0A1",
        "plain",
        "",
        "a||b",
    ]
