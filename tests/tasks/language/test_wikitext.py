import gzip
import math
import shutil
import zipfile

import numpy as np
import pytest

from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.language import wikitext_files
from lra.tasks.language.base import Regime
from lra.tasks.language.subwords import Algorithm
from lra.tasks.language.wikitext import Units, WikiText, WikiTextSource, article_starts
from lra.tasks.language.wikitext_files import WikiTextCorpus, WikiTextForm
from lra.tasks.language.words import Unknown
from lra.tasks.task import SPLITS

TRAIN = " \n = A cat = \n \n the cat saw the <unk> . \n the dog \n"
VALID = " \n the dog saw a dog . \n"
TEST = " \n = A dog = \n"
TEXTS = {"train": TRAIN, "valid": VALID.replace(" a ", " A "), "test": TEST}
# By (-count, word): <eos> 5, the 3, = 2, cat 2, . 1, <unk> 1, A 1, dog 1, saw 1
WORDS = 9


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "wikitext-2"
    place.mkdir()
    for split, text in TEXTS.items():
        (place / f"wiki.{split}.tokens").write_text(text)
    return place


def words(path, **options):
    given = {
        "corpus": WikiTextCorpus.wikitext2,
        "partial": True,
        "vocabulary_size": WORDS,
        "length": 4,
    }
    return WikiText(path=str(path), **(given | options))


def subwords(path, **options):
    given = {"units": Units.subwords, "vocabulary_size": None, "subword_vocabulary": 262}
    return words(path, **(given | options))


def test_words_by_hand(folder):
    task = words(folder)
    task.prepare()
    assert task.split("train").tokens.tolist() == [
        *(0, 2, 6, 3, 2, 0, 0),
        *(1, 3, 8, 1, 5, 4, 0, 1, 7, 0),
    ]
    assert task.split("validation").tokens.tolist() == [0, 1, 7, 8, 6, 7, 4, 0]
    assert task.split("test").tokens.tolist() == [0, 2, 6, 7, 2, 0]
    assert task.split("test").tokens.dtype == np.uint16
    assert task.store().about["words"] == {"train": 17, "validation": 8, "test": 6}
    assert task.describe("train", 0) == "<eos>\n= A cat"
    assert task.spec.metric == "perplexity"
    assert task.spec.tokenizer.startswith("words ")
    assert task.spec == words(folder).spec
    task.verify()


def test_words_of_sub_words_are_those_of_the_published_task(folder):
    task = subwords(folder)
    task.prepare()
    assert task.store().about["words"] == {"train": 17, "validation": 8, "test": 6}
    ids = np.asarray(task.split("test").tokens)
    assert task.decode(ids) == TEST
    assert task.tokens_per_word("test") == (len(ids) - 1) / 6
    found = task.derived_metrics("test", 1.5)
    assert found["word_perplexity"] == pytest.approx(math.exp(1.5 * (len(ids) - 1) / 6))
    assert task.spec.metric == "word_perplexity"
    assert task.spec.tokenizer.startswith("bpe 262 ")
    (baseline,) = task.baselines("test")
    assert baseline.measures["word_perplexity"] > baseline.measures["perplexity"]


def test_raw_text(folder):
    for split, text in TEXTS.items():
        name = f"wiki.{split}.raw"
        (folder / name).write_text(text.replace("<unk>", "ocelot"))
    task = subwords(folder, form=WikiTextForm.raw)
    task.prepare()
    assert "ocelot" in task.decode(np.asarray(task.split("train").tokens))
    assert "raw" in task.spec.source
    assert task.spec.data_hash != subwords(folder).spec.data_hash


@pytest.mark.parametrize("ending", [".zip", ".gz", "folder"])
def test_packed_forms_read_the_same(folder, tmp_path, ending):
    plain = words(folder)
    plain.prepare()
    place = tmp_path / "packed"
    place.mkdir()
    if ending == ".zip":
        place = place / "wikitext-2-v1.zip"
        with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
            for file in folder.iterdir():
                archive.write(file, f"wikitext-2/{file.name}")
    elif ending == "folder":
        shutil.copytree(folder, place / "wikitext-2")
    else:
        for file in folder.iterdir():
            (place / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
    task = words(place)
    task.prepare()
    for split in SPLITS:
        assert task.split(split).tokens.tolist() == plain.split(split).tokens.tolist()
    if ending == ".zip":
        inside = words(place.parent)
        assert inside.spec.data_hash == task.spec.data_hash


def test_rows_of_a_data_set_are_lines(folder, tmp_path):
    import pyarrow
    import pyarrow.parquet

    place = tmp_path / "parquet"
    place.mkdir()
    for split, name in zip(SPLITS, ("train", "valid", "test"), strict=True):
        rows = [line + "\n" if line.strip() else "" for line in TEXTS[name].split("\n")[:-1]]
        pyarrow.parquet.write_table(
            pyarrow.table({"text": rows}), place / f"{split}-00000-of-00001.parquet"
        )
    for make in (words, subwords):
        files, rows = make(folder), make(place, source=WikiTextSource.datasets)
        for task in (files, rows):
            task.prepare()
        for split in SPLITS:
            assert rows.split(split).tokens.tolist() == files.split(split).tokens.tolist()
    with pytest.raises(
        NotPrepared, match=r"is missing; download the parquet files of Salesforce/wikitext"
    ):
        words(tmp_path / "nowhere", source=WikiTextSource.datasets).prepare()


def test_the_hub_without_a_network_says_what_to_fetch(monkeypatch):
    import datasets

    def unreachable(name, config, *, revision, cache_dir):
        assert (name, config) == ("Salesforce/wikitext", "wikitext-103-v1")
        assert len(revision) == 40
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(NotPrepared, match=r"no network.*wikitext-103-v1.*task\.path"):
        WikiText(source=WikiTextSource.datasets).prepare()


def test_a_split_of_another_size_is_refused(folder):
    with pytest.raises(BadData, match=r"9 different words .*wanted 33,278.*vocabulary_size=9"):
        words(folder, partial=False, vocabulary_size=None).prepare()
    match = r"train split has 17 words.*wanted 2,088,628.*task\.partial=true"
    for task in (words(folder, partial=False), subwords(folder, partial=False)):
        with pytest.raises(BadData, match=match):
            task.prepare()
        assert not task.folder.exists()


def test_an_unpublished_count_may_differ_a_little(folder, monkeypatch):
    facts = wikitext_files.CORPORA[WikiTextCorpus.wikitext2]
    monkeypatch.setattr(
        wikitext_files.CorpusFacts, "words", {"train": 18, "validation": 8, "test": 6}
    )
    for unverified, refused in ((0, True), (1, False)):
        monkeypatch.setitem(
            wikitext_files.CORPORA, WikiTextCorpus.wikitext2, facts._replace(unverified=unverified)
        )
        task = words(folder, partial=False)
        if refused:
            with pytest.raises(BadData, match="has 17 words"):
                task.prepare()
        else:
            task.prepare()


def test_published_counts():
    words103 = wikitext_files.CORPORA[WikiTextCorpus.wikitext103]
    assert words103.words == {"train": 103_227_021, "validation": 217_646, "test": 245_569}
    assert words103.vocabulary == 267_735
    words2 = wikitext_files.CORPORA[WikiTextCorpus.wikitext2]
    assert words2.words == {"train": 2_088_628, "validation": 217_646, "test": 245_569}
    assert (words2.vocabulary, words2.unverified) == (33_278, 0)


def test_unknown_words(folder, caplog):
    (folder / "wiki.valid.tokens").write_text(VALID)
    with pytest.raises(BadData, match=r"wiki\.valid\.tokens, line 2: the word 'a' is not in"):
        words(folder).prepare()
    task = words(folder, unknown=Unknown.unk)
    task.prepare()
    assert task.split("validation").tokens.tolist() == [0, 1, 7, 8, 5, 7, 4, 0]
    assert "read 1 words that are missing from the vocabulary as <unk>" in caplog.text


def test_missing_damaged_and_empty_files(folder, tmp_path):
    with pytest.raises(NotPrepared, match=r"wikitext-2-v1\.zip \(SHA-256 92675f1d.*CC BY-SA"):
        words(tmp_path / "nowhere").prepare()
    (folder / "wiki.test.tokens").write_bytes(b"a \xff\n")
    with pytest.raises(BadData, match=r"wiki\.test\.tokens: byte 2 is not UTF-8"):
        words(folder).prepare()
    (folder / "wiki.test.tokens").write_bytes(b"")
    with pytest.raises(BadData, match=r"wiki\.test\.tokens is an empty file"):
        words(folder).prepare()
    (folder / "wiki.test.tokens").unlink()
    with pytest.raises(NotPrepared, match=r"lacks wiki\.test\.tokens"):
        words(folder).prepare()
    (folder / "wiki.test.tokens.gz").write_bytes(gzip.compress(TEST.encode() * 9)[:-9])
    with pytest.raises(BadData, match="truncated, damaged"):
        words(folder).prepare()
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as archive:
        archive.writestr("wikitext-2-raw/wiki.train.raw", "x")
    with pytest.raises(BadData, match=r"contains wiki\.train\.raw, but not wiki\.train\.tokens"):
        words(tmp_path / "other.zip").prepare()


def test_the_public_archive_is_looked_for_and_checked(tmp_path, monkeypatch):
    task = WikiText()
    assert task.spec.vocabulary == 267_735
    with pytest.raises(NotPrepared, match=r"wikitext-103-v1\.zip \(SHA-256 242ba0f2"):
        task.prepare()
    place = tmp_path / "cache" / "downloads"
    place.mkdir(parents=True)
    monkeypatch.setenv("LRA_DATA", str(place.parent))
    (place / "wikitext-103-v1.zip").write_bytes(b"PK")
    with pytest.raises(BadData, match=r"SHA-256 .*; wanted 242ba0f2"):
        WikiText().prepare()


def test_a_lost_vocabulary_is_made_again(folder):
    task = words(folder)
    task.prepare()
    shutil.rmtree(task.tokeniser._file.folder)
    with pytest.raises(NotPrepared, match="lra data prepare"):
        words(folder).describe("test", 0)
    words(folder).prepare()
    assert words(folder).describe("test", 0) == "<eos>\n= A dog"


def test_a_store_of_another_tokeniser_is_found(folder):
    task = subwords(folder)
    task.prepare()
    task.store().about["tokenizer_sha256"] = "0" * 64
    with pytest.raises(
        BadData, match=r"was made with another tokeniser \(bpe 262\) .*delete this folder"
    ):
        task.verify()


def test_a_given_tokenizer(folder, tmp_path):
    own = subwords(folder)
    own.prepare()
    file = tmp_path / "mine.json"
    shutil.copy(own.tokeniser._origin, file)
    task = subwords(folder, tokenizer=str(file))
    task.prepare()
    assert task.spec.tokenizer.startswith("given 262 ")
    assert task.split("test").tokens.tolist() == own.split("test").tokens.tolist()
    before = task.spec.data_hash
    file.write_bytes(file.read_bytes() + b"\n")
    assert subwords(folder, tokenizer=str(file)).spec.data_hash != before


def test_a_row_names_the_recipe(folder):
    names = {
        task.spec.tokenizer
        for task in (
            words(folder),
            subwords(folder),
            subwords(folder, subword_vocabulary=263),
            subwords(folder, subword_model=Algorithm.unigram),
        )
    }
    assert len(names) == 4
    options = {"regime": Regime.sliding, "stride": 2}
    assert words(folder, **options).spec.tokenizer in names


def test_a_text_of_ones_own_is_read_and_written(folder):
    task = words(folder)
    task.prepare()
    ids = task.encode("the cat\nthe <unk>")
    assert ids.tolist() == [1, 3, 0, 1, 5]
    assert task.decode(ids) == "the cat <eos>\nthe <unk>"
    with pytest.raises(ValueError, match="does not contain 'fish', 'Dog'; use other words"):
        task.encode("the fish saw fish Dog")
    task = subwords(folder)
    task.prepare()
    assert task.decode(task.encode("any wörd\n at all")) == "any wörd\n at all"


def test_articles_begin_with_a_heading_behind_an_empty_line():
    sign, line_end = 1, 0
    text = [
        [], [1, 5, 1], [], [7, 8], [1, 1, 6, 1, 1], [],  # a section's heading begins none
        [], [1, 5, 6, 1], [], [9], [1, 4, 1], [],  # behind a line with words, it is none either
        [], [1, 2, 1], [1, 1, 2, 1],
    ]  # fmt: skip
    tokens = np.array([token for line in text for token in (*line, line_end)], np.uint16)
    titles = [n for n, line in enumerate(text) if n in (7, 13) and line]
    starts = [sum(len(line) + 1 for line in text[:n]) for n in titles]
    assert article_starts(tokens, sign, line_end).tolist() == [0, *starts]
    assert article_starts(tokens[:0], sign, line_end).tolist() == [0]


def test_losses_by_position_in_the_document(folder):
    task = words(folder)
    task.prepare()
    assert task.document_starts("test").tolist() == [0]
    sample = WikiText(source=WikiTextSource.sample, corpus=WikiTextCorpus.wikitext2, length=16)
    sample.prepare()
    starts = sample.document_starts("test")
    sign, line_end = sample.encode("=\n").tolist()
    stream = sample.split("test").tokens
    assert len(starts) > 3
    assert {(int(stream[s]), int(stream[s - 1])) for s in starts[1:]} == {(sign, line_end)}
    for options in ({}, {"regime": "memory", "memory": 8}, {"regime": "sliding", "stride": 5}):
        task = WikiText(
            source=WikiTextSource.sample, corpus=WikiTextCorpus.wikitext2, length=16, **options
        )
        task.prepare()
        items = {}
        for batch in task.batches("test", batch_size=3, seed=0):
            nll = batch.document_position.double()  # so that a class's mean tells its members
            for (kind, part), (total, count) in task.tally(nll, nll > 0, batch).parts.items():
                if kind == "document_position":
                    before = items.get(part, (0.0, 0.0))
                    items[part] = before[0] + total, before[1] + count
        place = np.arange(1, len(stream))
        expected = place - np.array([max(s for s in starts if s <= p) for p in place])
        for first, last, part in ((0, 0, "0"), (1, 1, "1"), (8, 15, "8–15"), (64, 127, "64–127")):
            own = expected[(expected >= first) & (expected <= last)]
            assert items[part] == (own.sum(), len(own))
    assert next(task.batches("train", batch_size=1, seed=0)).document_position is None
    with_subwords = subwords(folder)
    with_subwords.prepare()
    assert next(with_subwords.batches("test", batch_size=1, seed=0)).document_position is None
