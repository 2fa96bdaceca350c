import numpy as np
import pytest

from lra.tasks.classification.listops.text import (
    HEADER,
    IDS,
    VOCABULARY,
    decode,
    encode,
    read_tsv,
    solve,
)
from lra.tasks.errors import BadData, NotPrepared

GOLDEN = {
    "[MAX 2 9 [MIN 4 7 ] 0 ]": 9,
    "[MAX 4 3 [MIN 2 3 ] 1 0 [MED 1 5 8 9 2 ] ]": 5,
    "[MED 1 4 ]": 2,  # 2.5, truncated
    "[MED 8 9 9 8 ]": 8,  # 8.5, truncated
    "[MED 5 1 9 ]": 5,
    "[SM 9 9 5 ]": 3,  # 23 modulo 10
    "[SM 4 6 ]": 0,
    "[MIN [SM 5 6 ] 3 ]": 1,
    "[SM [MAX 1 7 ] [MED 0 9 4 6 ] [MIN 8 2 ] ]": 4,  # 7 + 5 + 2
    "[MED [MED [MED 0 1 ] 3 ] 9 ]": 5,  # 0, then 1.5 -> 1, then 5
    "7": 7,
}
OFFICIAL = {
    "[MAX 2 9 ]": "( ( ( [MAX 2 ) 9 ) ] )",
    "[MAX 2 [MIN 4 7 ] ]": "( ( ( [MAX 2 ) ( ( ( [MIN 4 ) 7 ) ] ) ) ] )",
    "[SM [MED 1 2 3 ] 0 ]": "( ( ( [SM ( ( ( ( [MED 1 ) 2 ) 3 ) ] ) ) 0 ) ] )",
    "5": "5",
}


@pytest.mark.parametrize("text", GOLDEN)
def test_golden_examples_solved_on_the_encoded_form(text):
    padded = np.concatenate([encode(text), np.zeros(3, np.uint8)])
    assert solve(padded) == GOLDEN[text]
    assert decode(padded) == text


def test_vocabulary_is_pinned():
    assert VOCABULARY[0] == "<pad>"
    assert [IDS[word] for word in (b"0", b"9", b"[MIN", b"[MAX", b"[MED", b"[SM", b"]")] == [
        1, 10, 11, 12, 13, 14, 15,
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["[MAX 2", "2 3", "[MAX ]", "]", "", "[MAX 2 ] ]"])
def test_solver_refuses_what_is_no_tree(text):
    with pytest.raises(BadData, match=r"closed tree|closes no list"):
        solve(encode(text))


def test_unknown_word_is_named():
    with pytest.raises(BadData, match=r"'\[MEAN' is not a ListOps token"):
        encode("[MEAN 1 2 ]")


def test_official_form_of_trees() -> None:
    for text, official in OFFICIAL.items():
        np.testing.assert_array_equal(encode(official), encode(text))


def write(folder, *lines):
    path = folder / "basic_val.tsv"
    path.write_bytes(b"\n".join([HEADER, *lines]) + b"\n")
    return path


def test_reader_takes_official_lines_and_carriage_returns(tmp_path):
    path = write(tmp_path, b"( ( ( [MAX 2 ) 9 ) ] )\t9", b"( ( ( [SM 5 ) 6 ) ] )\t1\r")
    rows = list(read_tsv(path, max_length=10, check_answers=True))
    assert rows == [(encode("[MAX 2 9 ]").tobytes(), 9), (encode("[SM 5 6 ]").tobytes(), 1)]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (b"( ( ( [MAX 2 ) 9 ) ] )", r"line 3: the line .* has 1 columns; wanted Source<TAB>Target"),
        (b"( ( ( [MAX 2 ) 9 ) ] )\t9\t9", r"line 3: the line .* has 3 columns"),
        (b"( ( ( [MEAN 2 ) 9 ) ] )\t9", r"line 3: the token b'\[MEAN' is unknown"),
        (b"( ( ( [MAX 2 ) 12 ) ] )\t9", r"line 3: the token b'12' is unknown"),
        (b"( ( ( [MAX 2 ) 9 ) ] )\t10", r"line 3: the target b'10' is not a digit"),
        (b"( ( ( [MAX 2 ) 9 ) ] )\t", r"line 3: the target b'' is not a digit"),
        (b"( ( ( [MAX 2 ) 9 ) ] )\t2", "target is 2, but the value of the tree is 9"),
        (
            b"[MAX 1 2 3 4 5 6 7 8 9 ]\t9",
            r"line 3: the tree has 11 tokens, more than task.max_length=10",
        ),
        (b"( ( [MAX 2 ) 9\t9", r"line 3: the tokens must be exactly one closed tree"),
    ],
)
def test_reader_names_file_line_value_and_way_out(tmp_path, line, wanted):
    path = write(tmp_path, b"( ( ( [MAX 2 ) 9 ) ] )\t9", line)
    with pytest.raises(BadData, match=wanted) as caught:
        list(read_tsv(path, max_length=10, check_answers=True))
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("line", [b"( ( [MAX 2 ) 9\t9", b"2 3\t3", b"[MAX ]\t3", b"\t3", b"]\t1"])
def test_structure_is_checked_without_answers_too(tmp_path, line):
    with pytest.raises(BadData, match=r"brackets of .* do not match"):
        list(read_tsv(write(tmp_path, line), max_length=10, check_answers=False))


def test_unchecked_answers_are_taken_as_they_are(tmp_path):
    path = write(tmp_path, b"( ( ( [MAX 2 ) 9 ) ] )\t2")
    assert [target for _, target in read_tsv(path, max_length=9, check_answers=False)] == [2]


def test_wrong_header_empty_file_and_missing_file(tmp_path):
    path = tmp_path / "basic_val.tsv"
    for content, wanted in ((b"a,b\n1,2\n", "line 1: got b'a,b'"), (b"", "line 1: got b''")):
        path.write_bytes(content)
        with pytest.raises(BadData, match=wanted):
            list(read_tsv(path, max_length=9, check_answers=True))
    path.write_bytes(HEADER + b"\n")
    with pytest.raises(BadData, match="no line after the header"):
        list(read_tsv(path, max_length=9, check_answers=True))
    with pytest.raises(NotPrepared, match=r"absent.tsv is missing"):
        list(read_tsv(tmp_path / "absent.tsv", max_length=9, check_answers=True))
