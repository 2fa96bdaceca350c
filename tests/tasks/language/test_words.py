import io
import json
import shutil

import numpy as np
import pytest

from lra.tasks.data import lines
from lra.tasks.data.lines import LineBlock, file_blocks, text_blocks
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.language import vocabulary_cache
from lra.tasks.language.words import Unknown, Words, split_words, token_type, vocabulary_file

TEXT = b" \n = A = \n \n b a b \xc3\xa9 b"


def train():
    return file_blocks(io.BytesIO(TEXT), "train.txt")


def words(size, **options):
    return Words(size=size, train="hash", **({"unknown": Unknown.refuse} | options))


def test_every_line_ends_with_eos_blank_ones_included():
    assert split_words(b" \n a  b\n\n") == [b"<eos>", b"a", b"b", b"<eos>", b"<eos>"]


def test_ids_follow_count_then_word():
    made = words(7)
    made.learn(train)
    content = (made._file.folder / "vocabulary.txt").read_text()
    assert content == "<eos> 4\nb 3\n= 2\nA 1\na 1\né 1\n<unk> 0\n"
    ids = np.concatenate([made.encode(block) for block in train()])
    assert ids.tolist() == [0, 2, 3, 2, 0, 0, 1, 4, 1, 5, 1, 0]
    assert made.decode(ids[:6]) == "<eos>\n= A = <eos>\n<eos>"


def test_another_number_of_words_is_refused():
    with pytest.raises(BadData, match=r"7 different words.*wanted 9.*task\.vocabulary_size=7"):
        words(9).learn(train)


def test_an_unknown_word_is_named_with_its_file_and_line():
    made = words(7)
    made.learn(train)
    with pytest.raises(BadData, match=r"valid\.txt, line 12: the word 'zoë' .*task\.unknown=unk"):
        made.encode(LineBlock("b a\n\n a zoë b zoë\n".encode(), "valid.txt", 10))
    lenient = words(7, unknown=Unknown.unk)
    lenient.learn(train)
    assert lenient.encode(LineBlock(b"b zap zap\n", "valid.txt", 1)).tolist() == [1, 6, 6, 0]
    assert lenient.missed == 2


def test_a_text_is_the_same_in_blocks_of_any_size(monkeypatch):
    whole = list(train())
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1)
    parts = list(train())
    assert len(parts) == 4
    assert len(whole) == 1
    assert b"".join(block.text for block in parts) == whole[0].text == TEXT + b"\n"
    assert [block.line for block in parts] == [1, 2, 3, 4]
    assert b"".join(block.text for block in text_blocks(TEXT, "x")) == TEXT
    assert [block.line for block in text_blocks(TEXT, "x")] == [1, 2, 3, 4]


def test_no_utf8_and_no_text_are_refused(monkeypatch):
    monkeypatch.setattr(lines, "BLOCK_BYTES", 4)
    with pytest.raises(BadData, match=r"f\.txt: byte 8 is not UTF-8.*\\xff"):
        list(file_blocks(io.BytesIO(b"abc\n\ndef\xff\n"), "f.txt"))
    with pytest.raises(BadData, match=r"f\.txt is an empty file"):
        list(file_blocks(io.BytesIO(b""), "f.txt"))


def test_the_type_of_ids():
    assert token_type(65_536) is np.uint16
    assert token_type(65_537) is np.uint32


def test_a_vocabulary_changed_by_hand_is_found():
    made = words(7)
    made.learn(train)
    file = made._file.folder / "vocabulary.txt"
    file.write_text(file.read_text().replace("A", "B"))
    with pytest.raises(BadData, match=r"vocabulary\.txt: the file was changed: .*; delete this"):
        words(7).learn(train)
    with pytest.raises(BadData, match="was changed"):
        _ = made.sha256


def test_the_vocabulary_of_another_text_is_found():
    made = words(7)
    made.learn(train)
    other = Words(size=7, train="another", unknown=Unknown.refuse)
    shutil.copytree(made._file.folder, other._file.folder)
    with pytest.raises(BadData, match=r"'train': 'hash'.*wanted .*'train': 'another'"):
        other.learn(train)


@pytest.mark.parametrize(
    ("manifest", "message"), [("{", "lra cannot read"), (json.dumps({"format": 9}), "format is 9")]
)
def test_a_broken_manifest(manifest, message):
    made = words(7)
    made.learn(train)
    (made._file.folder / "manifest.json").write_text(manifest)
    with pytest.raises(BadData, match=message):
        vocabulary_cache.read_verified(made._file)


def test_nothing_is_kept_of_an_interrupted_count():
    def broken():
        yield from train()
        raise BadData("the disk is gone")

    made = words(7)
    with pytest.raises(BadData, match="disk"):
        made.learn(broken)
    assert not made.is_stored()
    with pytest.raises(NotPrepared, match="lra data prepare"):
        vocabulary_cache.read_verified(made._file)


def test_a_vocabulary_is_made_once():
    words(7).learn(train)
    made = words(7)
    made.learn(lambda: pytest.fail("read again"))
    assert vocabulary_file({}) == b"<eos> 0\n<unk> 0\n"
