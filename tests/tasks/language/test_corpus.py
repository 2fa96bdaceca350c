"""Texts of one's own: what is read, how it is cut, what scores mean, and what is refused."""

import gzip
import json
import math
from collections import Counter

import numpy as np
import pytest
import torch

from lra.composition.compose import typed
from lra.composition.hydra_entry import entries
from lra.errors import ConfigError
from lra.tasks.data import lines
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.language.corpus import Corpus, CorpusUnits
from lra.tasks.task import SPLITS

ENDING = "\n<end of document>\n"
TEXT = "".join(f"line {n} says ü{n % 3} and  more\n" for n in range(200))
"""Two blanks in each line, of which words keep one."""


def prepared(train, **options):
    task = Corpus(train=str(train), **({"length": 8} | options))
    task.prepare()
    return task


def written(task, split):
    return task.decode(np.asarray(task.split(split).tokens))


@pytest.fixture
def one(tmp_path):
    (tmp_path / "one.txt").write_text(TEXT)
    return tmp_path / "one.txt"


@pytest.fixture
def notes(tmp_path):
    texts = {"b.txt": "second\r\nfile\r\n", "a.txt": "\ufefffirst, unended",
             "deep/c.md": "é third\n", ".hidden": "no", ".git/x.txt": "no"}  # fmt: skip
    for name, text in texts.items():
        (tmp_path / "notes" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "notes" / name).write_bytes(text.encode())
    return tmp_path / "notes"


@pytest.mark.parametrize("units", CorpusUnits)
def test_a_file_is_cut_into_parts_that_make_it_up(one, units, monkeypatch):
    options = {"units": units}
    if units is CorpusUnits.subwords:
        options["subword_vocabulary"] = 270
    task = prepared(one, **options)
    parts = [written(task, split) for split in SPLITS]
    if units is CorpusUnits.words:
        parts = [part.replace(" <eos>", "").replace("<eos>", "") for part in parts]
        known = {word for word, count in Counter(parts[0].split()).items() if count > 1}
        assert known
        assert all(set(part.split()) <= known | {"<unk>"} for part in parts)
    elif units is not CorpusUnits.characters:
        assert "".join(parts) == TEXT
        size = len(TEXT.encode())
        for part, share in zip(parts, (0.8, 0.1, 0.1), strict=True):
            assert abs(len(part.encode()) - share * size) <= 2
    whole = [task.split(split).tokens.tolist() for split in SPLITS]
    task.folder.rename(task.folder.with_suffix(".before"))
    monkeypatch.setattr(lines, "BLOCK_BYTES", 1)
    again = prepared(one, **options)
    assert [again.split(split).tokens.tolist() for split in SPLITS] == whole


def test_no_character_is_cut(tmp_path):
    (tmp_path / "one.txt").write_text("é" * 101)
    task = prepared(tmp_path / "one.txt")
    parts = [written(task, split) for split in SPLITS]
    assert "".join(parts) == "é" * 101 + "\n"
    assert "�" not in "".join(parts)


def test_files_of_a_folder_are_documents_in_the_order_of_their_names(notes, one):
    other = one.with_name("other.txt")
    other.write_text(TEXT[:300])
    task = prepared(notes, validation=str(one), test=str(other))
    texts = ["first, unended\n", "second\nfile\n", "é third\n"]
    assert written(task, "train") == "".join(text + ENDING for text in texts)
    assert task.spec.vocabulary == 257
    starts = np.cumsum([0, *(len(text.encode()) + 1 for text in texts)])
    assert task.document_starts("train").tolist() == starts[:-1].tolist()
    assert prepared(one).spec.vocabulary == 256
    assert prepared(one).document_starts("train") is None
    pattern = prepared(notes / "*.txt", validation=str(one), test=str(other))
    assert written(pattern, "train") == "".join(text + ENDING for text in texts[:2])


def test_a_document_goes_on_in_the_next_part_with_one_end(tmp_path):
    (tmp_path / "notes").mkdir()
    for name in "ab":
        (tmp_path / "notes" / name).write_text(name * 50 + "\n")
    task = prepared(tmp_path / "notes", test_fraction=0.2, validation_fraction=0.2)
    parts = [written(task, split) for split in SPLITS]
    assert "".join(parts) == f"{'a' * 50}\n{ENDING}{'b' * 50}\n{ENDING}"
    assert [ENDING in part for part in parts] == [True, False, True]


def test_packed_files_are_read(one):
    packed = one.with_name("one.txt.gz")
    packed.write_bytes(gzip.compress(one.read_bytes()))
    assert written(prepared(packed), "train") == written(prepared(one), "train")


@pytest.mark.parametrize("units", CorpusUnits)
def test_bits_per_byte_are_those_of_the_text(one, units):
    options = {"subword_vocabulary": 270} if units is CorpusUnits.subwords else {}
    task = prepared(one, units=units, **options)
    got = task.derived_metrics("test", 1.5)
    text = b"".join(block.text for block in task.text("test"))
    train = b"".join(block.text for block in task.text("train"))
    tokens, spelled = len(task.split("test").tokens), 0.0
    if units is CorpusUnits.words:
        counts = Counter(train.decode().split())
        lost = [word for word in text.decode().split() if counts[word] < 2]
        assert lost
        of_byte = Counter(train)
        for byte in "".join(f"{word} " for word in lost).encode():
            spelled -= math.log2((1 + of_byte[byte]) / (256 + len(train)))
        text = text.replace(b"  ", b" ")
    wanted = (1.5 / math.log(2) * tokens + spelled) / len(text)
    assert got["bits_per_byte"] == pytest.approx(wanted, rel=1e-12)
    if units is CorpusUnits.bytes:
        assert got == {"bits_per_byte": pytest.approx(1.5 / math.log(2), rel=1e-12)}
    elif units is CorpusUnits.characters:
        assert got["bits_per_character"] == 1.5 / math.log(2)
    else:
        assert got["perplexity"] == math.exp(1.5)
    assert ("test" in task.remarks) is (units is CorpusUnits.words)


def test_rare_characters_are_unknown_and_remarked(tmp_path):
    (tmp_path / "one.txt").write_text("abab" * 100 + "ж" + "ba" * 60 + "漢")
    task = prepared(tmp_path / "one.txt", units=CorpusUnits.characters)
    assert task.spec.vocabulary == 2 + 1
    assert written(task, "test").endswith("ba��")
    assert task.remarks["test"].startswith("4 of ")
    assert task.encode("abba").tolist() == [0, 1, 1, 0]
    with pytest.raises(ValueError, match="train does not contain the characters 'x'"):
        task.encode("axb")


def test_another_text_is_another_copy_and_a_name_says_that_it_is_yours(one):
    first = prepared(one)
    one.write_text(TEXT + "more\n")
    second = prepared(one)
    assert first.folder != second.folder
    assert first.spec.source != second.spec.source
    assert second.spec.source.startswith("user's corpus: one.txt ")
    words = prepared(one, units=CorpusUnits.words)
    assert words.spec.source == second.spec.source
    assert (words.spec.tokenizer[:6], second.spec.tokenizer) == ("words ", "bytes")
    assert Corpus(train=str(one), length=8).spec == second.spec


def test_two_processes_learn_the_same_sub_words(one):
    options = {"units": CorpusUnits.subwords, "subword_vocabulary": 270}
    task = prepared(one, **options)
    learnt = (task.tokeniser._file.folder / "tokenizer.json").read_bytes()
    (task.tokeniser._file.folder / "tokenizer.json").unlink()
    (task.tokeniser._file.folder / "manifest.json").unlink()
    again = Corpus(train=str(one), length=8, **options)
    again.prepare()
    assert (again.tokeniser._file.folder / "tokenizer.json").read_bytes() == learnt


def test_batches_tell_documents_apart(notes, one):
    other = one.with_name("other.txt")
    other.write_text(TEXT[:300])
    task = prepared(notes, validation=str(one), test=str(other), within_documents=True)
    batch = next(task.batches("train", batch_size=2, seed=0))
    assert batch.document is not None
    with pytest.raises(BadData, match=r"set task\.within_documents=false"):
        next(prepared(one, within_documents=True).batches("test", batch_size=2, seed=0))
    assert bool(torch.all(batch.tokens < 257))


BAD = {
    "binary.txt": (b"\x89PNG\r\n\x1a\n\0\0", r"binary\.txt: byte 0 is not UTF-8"),
    "latin.txt": (b"caf\xe9 au lait\n", r"latin\.txt: byte 3 is not UTF-8"),
    "wide.txt": (
        "\ufeffwide".encode("utf-16-le"),
        "byte order mark of UTF-16; save this file as UTF-8",
    ),
    "nul.txt": (b"one\ntwo\0\n", r"nul\.txt, line 2: the line contains a byte 0"),
    "empty.txt": (b"", r"empty\.txt is an empty file \(0 bytes\)"),
    "short.txt": (b"abc\n", "the train split has|the validation split has .* tokens"),
    "damaged.txt.gz": (gzip.compress(b"text " * 99)[:-9], r"damaged\.txt\.gz"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_text_is_refused(tmp_path, name):
    content, message = BAD[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadData, match=message):
        prepared(tmp_path / name)
    with pytest.raises(BadData, match=message):
        prepared(tmp_path / name, units=CorpusUnits.words)


ROWS = b"".join(
    b'{"id": %d, "source": "made up", "story": "once upon a time"}\n\n' % n for n in range(30)
)


@pytest.mark.parametrize(
    ("name", "content", "refused"),
    [
        ("rows.jsonl", ROWS, True),
        ("rows.jsonl", ROWS.split(b"\n")[0], True),
        ("rows.jsonl.gz", gzip.compress(ROWS), True),
        ("rows.txt", b"\xef\xbb\xbf" + ROWS.replace(b"\n", b"\r\n"), True),
        ("one.json", ROWS.split(b"\n")[0], False),  # a document of a folder of code
        ("said.txt", b"The log says:\n" + ROWS, False),
        ("numbers.txt", b'{"id": 1}\n' * 90, False),
        ("list.txt", b'["once", "upon"]\n' * 90, False),
        ("deep.txt", b"[" * 9999 + b"\n{}", False),
    ],
)
def test_json_lines_are_no_text(tmp_path, name, content, refused):
    (tmp_path / name).write_bytes(content)
    if not refused:
        prepared(tmp_path / name)
        return
    for units in (CorpusUnits.bytes, CorpusUnits.words):
        with pytest.raises(BadData, match=r"is JSON Lines.* such as 'story', as a file"):
            prepared(tmp_path / name, units=units)


def test_a_bad_file_among_others_says_how_to_leave_it_out(notes):
    (notes / "z.bin").write_bytes(b"\xff\xff")
    with pytest.raises(BadData, match=r"z\.bin: byte 0 .*'notes/\*\.txt' to exclude other files"):
        prepared(notes)


@pytest.mark.parametrize("name", ["absent", "absent/*.txt", "empty"])
def test_what_is_not_there_is_named(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        NotPrepared, match=r"task\.train=.*(is missing|contains no file); set this option to a text"
    ):
        prepared(tmp_path / name)


def test_splits_that_share_their_text_are_refused(one, notes):
    copy = one.with_name("copy.txt")
    copy.write_text(TEXT)
    for test in (one, copy):
        with pytest.raises(
            BadData, match=r"task\.train and task\.test both name .*remove task\.test"
        ):
            prepared(one, test=str(test))
    with pytest.raises(BadData, match=r"both name .*b\.txt"):
        prepared(notes, validation=str(notes / "b.txt"))


def test_a_tokenizer_that_loses_text_is_refused(one, tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = Tokenizer(models.WordLevel({"line": 0, "[UNK]": 1}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "words.json"))
    options = {"units": CorpusUnits.subwords}
    with pytest.raises(BadData, match=r"words\.json decodes .* to 'line \[UNK\].*one\.txt, line 1"):
        prepared(one, tokenizer=str(tmp_path / "words.json"), **options)
    (tmp_path / "no.json").write_text(json.dumps({"a": 1}))
    with pytest.raises(BadData, match=r"no\.json is not a tokenizer\.json"):
        prepared(one, tokenizer=str(tmp_path / "no.json"), **options)
    learnt = prepared(one, subword_vocabulary=270, **options)
    file = learnt.tokeniser._file.folder / "tokenizer.json"
    given = prepared(one, tokenizer=str(file), **options)
    assert "".join(written(given, split) for split in SPLITS) == TEXT


def test_too_many_sub_words_say_how_many_there_are(one):
    with pytest.raises(BadData, match=r"wanted 8,000; set task\.subword_vocabulary=\d+ or less"):
        prepared(one, units=CorpusUnits.subwords)


def test_the_name_of_another_task_is_refused(one):
    words = ["task=corpus", f"task.train={one}", "logger=none"]
    with pytest.raises(ConfigError, match=r"task\.name=enwik8 is the name of another task"):
        typed(entries([*words, "task.name=enwik8"])[0].config)
    assert typed(entries([*words, "task.name=my_notes"])[0].config).task_name == "my_notes"


def test_files_like_those_of_penn_treebank_give_their_words_and_line_ends(tmp_path):
    """Blanks around each line, `<unk>` and N in the text, and a word that occurs once."""
    texts = {"train": " no it was n't <unk> monday \n the N points \n", "valid": " it was N \n",
             "test": " the <unk> was \n no points \n"}  # fmt: skip
    for split, text in texts.items():
        (tmp_path / f"ptb.{split}.txt").write_text(text)
    task = prepared(
        tmp_path / "ptb.train.txt", validation=str(tmp_path / "ptb.valid.txt"),
        test=str(tmp_path / "ptb.test.txt"), units="words", least_count=1,
    )  # fmt: skip
    assert task.spec.vocabulary == len({*texts["train"].split(), "<eos>"})
    for split, text in zip(SPLITS, texts.values(), strict=True):
        words = text.replace("\n", " <eos> ").split()
        assert len(task.split(split).tokens) == len(words)
        assert written(task, split).split() == words


def test_shards_like_those_of_the_billion_word_benchmark_are_documents(tmp_path):
    for folder, number in (("training", 3), ("heldout", 2)):
        (tmp_path / folder).mkdir()
        for shard in range(1, number + 1):
            name = f"news.en-{shard:05}-of-00100"
            (tmp_path / folder / name).write_text(f"the {folder} said so .\nthe shard {shard} .\n")
    held = tmp_path / "heldout"
    task = prepared(
        tmp_path / "training", validation=str(held / "news.en-00001-of-00100"),
        test=str(held / "news.en-00002-of-00100"), units="words", least_count=3,
    )  # fmt: skip
    text = written(task, "train")
    assert text.count("<eos>") == 6
    assert text.count("end of document") == 3
    assert "<unk>" in written(task, "test")  # `heldout`
