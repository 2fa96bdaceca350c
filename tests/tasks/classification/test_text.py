import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lra.tasks.classification import text
from lra.tasks.classification.reviews import PUBLIC_SHA256, read_archive, read_datasets, read_folder
from lra.tasks.classification.text import Text, TextSource, Validation, held_out
from lra.tasks.errors import BadData, NotPrepared

REPOSITORY = Path(__file__).parents[3]
WORDS = {"neg": b"a dull film", "pos": b"a fine film"}


def reviews(train=20, test=6):
    """Return names and bytes as IMDb has them; one review is no valid UTF-8."""
    made = {}
    for part, number in (("train", train), ("test", test)):
        for sentiment, words in WORDS.items():
            for i in range(number):
                name = f"{part}/{sentiment}/{i}_{9 if sentiment == 'pos' else 2}.txt"
                made[name] = b"%d of %s: %b <br />" % (i, part.encode(), words)
    made["test/pos/0_9.txt"] = b"\xff\xfe caf\xe9"
    return made


def put(folder, contents):
    for name, content in contents.items():
        path = folder / "aclImdb" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder / "aclImdb"


def pack(path, contents):
    with tarfile.open(path, f"w:{path.suffix[1:]}") as packed:
        # Not in order, and with what the public archive holds besides.
        for name in ["README", "train/unsup/0_0.txt", "train/labeledBow.feat", *reversed(contents)]:
            content = contents.get(name, b"other")
            info = tarfile.TarInfo(f"aclImdb/{name}")
            info.size = len(content)
            packed.addfile(info, io.BytesIO(content))
    return path


@pytest.fixture
def folder(tmp_path):
    return put(tmp_path, reviews())


def rows(task, split):
    data = task.split(split)
    return [row.tobytes() for row in data.rows(np.arange(len(data.targets)))]


@pytest.mark.parametrize("kind", ["gz", "xz"])
def test_folder_and_archives_hold_the_same(tmp_path, folder, kind):
    archive = pack(tmp_path / f"aclImdb_v1.tar.{kind}", reviews())
    wanted = read_folder(folder)
    assert read_archive(archive) == read_folder(folder.parent) == wanted
    assert [text for text, _ in wanted["train"]][:3] == [
        b"0 of train: a dull film <br />",
        b"10 of train: a dull film <br />",
        b"11 of train: a dull film <br />",
    ]
    assert [label for _, label in wanted["test"]] == [0] * 6 + [1] * 6
    task = Text(path=str(archive), partial=True)
    task.prepare()
    assert rows(task, "test") == [text for text, _ in wanted["test"]]
    assert task.spec.source == f"files: aclImdb_v1.tar.{kind} (a part)"


def test_ids_are_bytes_plus_one_whether_utf8_or_not(folder):
    task = Text(path=str(folder), partial=True, max_length=7)
    task.prepare()
    seen = {}
    for batch in task.batches("test", batch_size=5, seed=0):
        seen |= dict(zip(batch.index.tolist(), batch.tokens[:, 0].tolist(), strict=True))
    assert seen[6] == [byte + 1 for byte in b"\xff\xfe caf\xe9"]
    assert seen[0] == [byte + 1 for byte in b"0 of te"]
    assert task.spec.vocabulary == 257
    assert task.spec.max_length == 7


def test_one_store_serves_every_length(folder):
    short, long = (
        Text(path=str(folder), partial=True, max_length=5),
        Text(path=str(folder), partial=True, max_length=4000),
    )
    assert short.folder == long.folder
    short.prepare()
    [batch] = long.batches("test", batch_size=99, seed=0)
    assert batch.tokens.shape[-1] == len(b"0 of test: a dull film <br />")
    assert "2 of test" in long.describe("test", 2)


def test_validation_is_held_out_by_text_and_stratified(folder):
    task = Text(path=str(folder), partial=True, validation_fraction=0.25)
    task.prepare()
    held, kept = rows(task, "validation"), rows(task, "train")
    assert (len(held), len(kept)) == (10, 30)
    assert task.split("validation").targets.tolist() == [0] * 5 + [1] * 5
    assert not set(held) & set(kept)
    dull = sorted(
        (row for row in held + kept if b"dull" in row), key=lambda row: hashlib.sha256(row).digest()
    )
    assert set(dull[:5]) == {row for row in held if b"dull" in row}


def test_copies_of_one_text_stay_together():
    pairs = [(b"%d" % (i // 2), 0) for i in range(200)] + [(b"x%d" % i, 1) for i in range(50)]
    held = held_out(pairs, 0.1)
    texts = [{pairs[i][0] for i in np.flatnonzero(side)} for side in (held, ~held)]
    assert not texts[0] & texts[1]
    assert held[:200].sum() == 20
    assert held[200:].sum() == 5


def test_named_switch_for_validating_on_test(folder):
    task = Text(path=str(folder), partial=True, validation=Validation.test)
    task.prepare()
    assert rows(task, "validation") == rows(task, "test")
    assert len(rows(task, "train")) == 40
    assert task.spec.data_hash != Text(path=str(folder), partial=True).spec.data_hash


def test_spec_follows_the_content_of_the_path(folder):
    before = Text(path=str(folder), partial=True).spec
    Text(path=str(folder), partial=True).prepare()
    assert Text(path=str(folder), partial=True).spec == before
    (folder / "test" / "neg" / "99_1.txt").write_bytes(b"more")
    assert Text(path=str(folder), partial=True).spec.data_hash != before.data_hash


def test_public_data_are_known_without_being_there():
    spec = Text().spec
    assert (spec.source, spec.sizes) == (
        "imdb",
        {"train": 22500, "validation": 2500, "test": 25000},
    )
    assert Text(validation=Validation.test).spec.sizes["validation"] == 25000
    assert Text(max_length=4000).spec.data_hash == spec.data_hash


def test_public_archive_of_another_hash_is_refused(tmp_path, monkeypatch):
    target = Path(os.environ["LRA_DATA"]) / "downloads" / "aclImdb_v1.tar.gz"
    target.parent.mkdir(parents=True)
    archive = pack(target, reviews())
    with pytest.raises(BadData, match=r"bytes; wanted 84125825 bytes"):
        Text().prepare()
    monkeypatch.setattr(text, "PUBLIC_SIZES", {"train": 40, "test": 12})
    monkeypatch.setattr(text, "PUBLIC_BYTES", archive.stat().st_size)
    with pytest.raises(BadData, match=rf"SHA-256 of the file is \w+; wanted {PUBLIC_SHA256}"):
        Text().prepare()
    monkeypatch.setattr(text, "PUBLIC_SHA256", hashlib.sha256(archive.read_bytes()).hexdigest())
    Text().prepare()


def test_public_archive_without_network_says_where_to_put_it(monkeypatch):
    monkeypatch.setattr(text, "PUBLIC_URL", "http://127.0.0.1:9/aclImdb_v1.tar.gz")
    with pytest.raises(
        NotPrepared, match=r"cannot be reached.*put it at .*downloads/aclImdb_v1.tar.gz.*Maas"
    ):
        Text().prepare()


def test_a_damaged_archive_leaves_no_store(tmp_path):
    archive = pack(tmp_path / "a.tar.gz", reviews(train=60))
    archive.write_bytes(archive.read_bytes()[:-200])
    task = Text(path=str(archive), partial=True)
    with pytest.raises(BadData, match=r"a.tar.*(truncated|no review in)"):
        task.prepare()
    assert not task.folder.exists()


def test_archive_of_something_else(tmp_path):
    path = tmp_path / "a.tar.gz"
    path.write_bytes(gzip.compress(b"not a tar"))
    with pytest.raises(BadData, match="unknown kind"):
        read_archive(path)
    other = pack(tmp_path / "b.tar.gz", {"train/pos/0_9.txt": b"x"})
    with pytest.raises(BadData, match="no review in train/neg, test/neg, test/pos"):
        read_archive(other)


def test_missing_path_and_missing_folder(tmp_path, folder):
    with pytest.raises(NotPrepared, match=r"nothing is missing; download https://.*source=sample"):
        Text(path=str(tmp_path / "nothing")).prepare()
    (folder / "test" / "neg").rename(tmp_path / "away")
    with pytest.raises(NotPrepared, match=r"test/neg is missing; .* subfolders train/neg"):
        Text(path=str(folder), partial=True).prepare()
    (folder / "aclImdb_v1.tar.gz").touch()
    with pytest.raises(NotPrepared, match=r"or to the archive .*aclImdb_v1\.tar\.gz"):
        Text(path=str(folder), partial=True).prepare()


def test_empty_review_and_strange_name_are_named(folder):
    path = folder / "train" / "pos" / "7_9.txt"
    path.write_bytes(b"")
    with pytest.raises(BadData, match=r"train/pos/7_9.txt is an empty text \(0 bytes\); delete it"):
        read_folder(folder)
    path.rename(path.with_name("notes.txt"))
    with pytest.raises(BadData, match=r"notes.txt is no review, .* ID_RATING.txt"):
        read_folder(folder)


TABLE = {
    part: {
        "text": [
            content.decode(errors="replace")
            for name, content in sorted(reviews().items())
            if name.startswith(part)
        ],
        "label": [int("pos" in name) for name in sorted(reviews()) if name.startswith(part)],
    }
    for part in ("train", "test")
}


def parquet(folder, tables):
    folder.mkdir(exist_ok=True)
    for part, columns in tables.items():
        pq.write_table(pa.table(columns), folder / f"{part}-00000-of-00001.parquet")
    return folder


def lines(folder, tables):
    folder.mkdir(exist_ok=True)
    for part, columns in tables.items():
        records = [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
        (folder / f"{part}.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    return folder


@pytest.mark.parametrize("write", [parquet, lines])
def test_datasets_read_local_files(tmp_path, write):
    task = Text(source=TextSource.datasets, path=str(write(tmp_path / "mine", TABLE)), partial=True)
    task.prepare()
    assert task.spec.source == "datasets: mine (a part)"
    assert rows(task, "test") == [line.encode() for line in TABLE["test"]["text"]]
    assert task.split("test").targets.tolist() == TABLE["test"]["label"]


def test_both_real_sources_hold_out_the_same_texts(tmp_path, folder):
    files = Text(path=str(folder), partial=True)
    through = Text(
        source=TextSource.datasets, path=str(parquet(tmp_path / "mine", TABLE)), partial=True
    )
    files.prepare()
    through.prepare()
    assert rows(files, "validation") == rows(through, "validation")


@pytest.mark.parametrize(
    ("tables", "wanted"),
    [
        ({"train": TABLE["train"]}, r"splits \['train'\]; wanted train, test"),
        (
            {"train": TABLE["train"], "test": {"text": ["x"], "mark": [1]}},
            r"train: the columns are .*mark",
        ),
        ({**TABLE, "test": {"text": ["x", ""], "label": [1, 0]}}, r"test, row 1 is an empty text"),
        (
            {**TABLE, "test": {"text": ["x"], "label": [-1]}},
            r"example 0 has the label -1 \(int\)",
        ),
        ({**TABLE, "test": {"text": [None, "x"], "label": [0, 1]}}, r"row 0: the text is None"),
    ],
)
def test_datasets_of_another_form(tmp_path, tables, wanted):
    folder = lines(tmp_path / "mine", tables)
    if "mark" in str(tables):
        # Columns must agree within one data set: make both splits lack the label.
        folder = lines(folder, {"train": {"text": ["y"], "mark": [0]}})
        wanted = r"train: the columns are .*mark"
    with pytest.raises(BadData, match=wanted):
        read_datasets(folder)


def test_datasets_missing_folder_empty_folder_and_broken_file(tmp_path):
    with pytest.raises(NotPrepared, match="is no folder"):
        read_datasets(tmp_path / "none")
    (tmp_path / "mine").mkdir()
    with pytest.raises(BadData, match=r"cannot load .*mine: .*wanted files such as"):
        read_datasets(tmp_path / "mine")
    (tmp_path / "mine" / "train.parquet").write_bytes(b"PAR1 cut short")
    with pytest.raises(BadData, match=r"is no complete parquet file \(ArrowInvalid"):
        read_datasets(tmp_path / "mine")


def test_hub_without_network_says_which_file_to_put_where():
    script = (
        "from lra.tasks.classification.text import Text\n"
        "task = Text(source='datasets')\ntask.prepare()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=REPOSITORY,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": os.environ["LRA_DATA"]},
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stderr.strip().splitlines()[-1]
    assert "NotPrepared: stanfordnlp/imdb cannot be reached" in last
    for wanted in ("train-00000-of-00001.parquet", "imdb-datasets", "task.path=", "no licence"):
        assert wanted in last


def test_sample_is_labelled_and_is_not_imdb():
    task = Text(source=TextSource.sample)
    assert task.spec.source == "sample (synthetic)"
    task.prepare()
    assert {split: len(rows(task, split)) for split in ("train", "validation", "test")} == {
        **task.spec.sizes
    }
    assert task.split("train").lengths.max() < 600


def test_too_few_texts_to_hold_any_out(tmp_path):
    folder = put(tmp_path, reviews(train=3))
    with pytest.raises(BadData, match=r"validation_fraction=0.1 would move 0 of 3 training texts"):
        Text(path=str(folder), partial=True).prepare()
