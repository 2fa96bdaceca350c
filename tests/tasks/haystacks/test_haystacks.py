"""Rows of bytes with needles, lists and facts, each read by a solver of its text."""

import hashlib
import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
from readers import READERS

from lra.tasks.contract import check_task
from lra.tasks.data.batching import Draw, random_words
from lra.tasks.diagnostics.base import NOT_ASKED
from lra.tasks.errors import BadData, NotPrepared
from lra.tasks.haystacks.byte_rows import Dice, scatter, spans, whole_words
from lra.tasks.haystacks.common_words import CommonWords
from lra.tasks.haystacks.facts import Facts
from lra.tasks.haystacks.frequent_words import FrequentWords
from lra.tasks.haystacks.key_value import KeyValue
from lra.tasks.haystacks.needle import Needle, Passkey
from lra.tasks.haystacks.variable_tracking import VariableTracking
from lra.tasks.haystacks.world import FactKind

FEW = {"train_examples": 120, "validation_examples": 30, "test_examples": 60}
SAMPLE = {"haystack": "text", "source": "sample"}
TASKS = {
    "needle": (Needle, {"length": 400}),
    "needle-text": (Needle, {"length": 500, **SAMPLE}),
    "needle-needles": (Needle, {"length": 600, "haystack": "needles", "value": "word"}),
    "needle-values": (Needle, {"length": 800, "values": 4, "keys": 2, "queries": 2}),
    "needle-hex": (Needle, {"length": 700, "key": "hex", "value": "hex", "queries": 3}),
    "needle-person": (Needle, {"length": 500, "key": "digits", "value": "person"}),
    "needle-synonym": (Needle, {"length": 500, "key": "synonym", "overlap": False, "queries": 2}),
    "passkey": (Passkey, {"length": 150}),
    "key_value": (KeyValue, {"length": 500}),
    "key_value-names": (KeyValue, {"length": 300, "form": "names"}),
    "key_value-first": (KeyValue, {"length": 500, "form": "names", "position": "first"}),
    "key_value-few": (KeyValue, {"length": 500, "pairs": 3}),
    "key_value-twice": (KeyValue, {"length": 501, "pairs": 2, "reads": 2}),
    "variable_tracking": (VariableTracking, {"length": 400}),
    "variable_tracking-one": (VariableTracking, {"length": 300, "chains": 1, "hops": 3}),
    "frequent_words": (FrequentWords, {"length": 700}),
    "common_words": (CommonWords, {"length": 700, "common": 4, "often": 5, "seldom": 2}),
    **{f"facts-{kind}": (Facts, {"length": 500, "kind": kind}) for kind in FactKind},
    "facts-text": (Facts, {"length": 700, "facts": 5, **SAMPLE}),
}


def made(name, **options):
    kind, known = TASKS[name]
    task = kind(**{**FEW, **known, **options})
    task.prepare()
    return task


def texts(task, split):
    """Yield each row as its text before the answers, and its answers."""
    tokens, answers, _ = task.rows(split)
    for row, asked in zip(tokens, answers, strict=True):
        text, parts = bytes(row.tolist()).decode(), spans(asked)
        yield text[: parts[0].start], [text[part] for part in parts]


@pytest.mark.parametrize("name", TASKS)
def test_a_reader_of_the_text_finds_every_answer(name):
    task = made(name, test_length=TASKS[name][1]["length"] + 211)
    for split, number in zip(("train", "validation", "test"), FEW.values(), strict=True):
        tokens, answers, _ = task.rows(split)
        length = task.length + (211 if split == "test" else 0)
        assert tokens.shape == answers.shape == (number, length)
        rows = [*texts(task, split)]
        for text, said in rows:
            assert READERS[type(task)](task, text) == said
            assert len(text) + sum(map(len, said)) + 2 * (len(said) - 1) == length
        asked = answers != NOT_ASKED
        assert (answers[asked] == np.roll(tokens, -1, axis=1)[asked]).all()
        assert asked[:, -2].all()
        assert not asked[:, -1].any()
        assert len({text for text, _ in rows}) == number


@pytest.mark.share(4)
@pytest.mark.parametrize("name", TASKS)
def test_rows_of_several_lengths_keep_the_contract(name):
    length = TASKS[name][1]["length"]
    task = made(name, min_length=length - 3, test_lengths=[length, length + 90])
    assert [finding for finding in check_task(task) if not finding.passed] == []
    labels = {"needle": ["depth"], "passkey": ["depth"], "key_value": ["depth"],
              "variable_tracking": ["depth", "hop"], "frequent_words": ["rank"],
              "common_words": []}  # fmt: skip
    wanted = labels.get(name.split("-")[0], [] if name == "facts-which_side" else ["depth"])
    for batch in task.batches("test", batch_size=32, seed=0):
        groups = task.groups(batch)
        both = ["length_and_depth"] if "depth" in wanted else []
        assert [*groups] == ["length", *wanted, *both]
        asked = batch.weight > 0
        assert set(groups["length"][asked].tolist()) <= {length, length + 90}
        for label in wanted:
            assert (groups[label][asked] >= 0).all()
        if both:
            length_and_depth = groups["length_and_depth"][asked]
            assert (length_and_depth // 100 == groups["length"][asked]).all()
            assert (length_and_depth % 100 == groups["depth"][asked]).all()


def test_depth_is_where_the_needle_is():
    task = made("needle-values", keys=2, queries=1)
    for batch in task.batches("test", batch_size=32, seed=0):
        depths = task.groups(batch)["depth"]
        for row, line in enumerate(batch.tokens[:, 0]):
            text = bytes(line.tolist()).decode()
            asked = np.where(batch.weight[row].numpy() > 0, 0, NOT_ASKED)
            parts = spans(asked)
            shown = [int(depths[row, part.start - 1]) for part in parts]
            places = [text.index(f" is {text[part]}. ") for part in parts]
            assert shown == [int(100 * p / parts[0].start) // 10 * 10 for p in places]
            assert shown == sorted(shown)  # values are asked in the order of the row


def test_every_depth_and_every_order_is_drawn():
    task = made("needle", length=1024, test_examples=1500, keys=2)
    depths = Counter()
    first = 0
    for batch in task.batches("test", batch_size=100, seed=0):
        depths.update(task.groups(batch)["depth"][batch.weight > 0].tolist())
    for text, _ in texts(task, "test"):
        asked, other = text.rsplit("value of ", 1)[1].rstrip("? "), "value of "
        first += text.index(f"{asked} is") < text.index(other) + 20
    assert set(depths) >= {*range(0, 90, 10)}
    assert max(depths.values()) < 2.2 * min(depths[depth] for depth in range(0, 80, 10))
    assert first / 1500 == pytest.approx(0.5, abs=0.05)


def test_reads_repeat_everything_before_the_question():
    task = made("key_value-twice", pairs=2)
    for text, _ in texts(task, "test"):
        context = text.rpartition("\n")[0]
        half = context[: task.room(501)]
        assert context.rstrip() == (half * 2).rstrip() or context.count(half.strip()) == 2
        assert Counter(re.findall(r"(\w{32}): \w", context)).most_common() == [
            (key, 2) for key in dict.fromkeys(re.findall(r"(\w{32}): \w", context))
        ]


def test_whole_words_and_sentences():
    assert whole_words(b"one two three", 7) == b"one two"
    assert whole_words(b"one two three", 6) == b"one   "
    assert whole_words(b"one two three", 9) == b"one two  "
    assert whole_words(b"one", 5) == b"one  "
    assert whole_words(b"one two", 2) == b"  "
    words = random_words(Draw.diagnostic, 9, 600).reshape(3, 200)
    background = b"It is so. They go on. All is well. " * 9
    for line in words:
        sentences = [b"S%d. " % n for n in range(50)]
        text = scatter(background, sentences, Dice(line))
        assert [text.index(sentence) for sentence in sentences] == sorted(
            text.index(sentence) for sentence in sentences
        )
        assert re.sub(rb"S\d+\. ", b"", text) == background
        assert all(place == 0 or text[place - 2 : place] == b". " for place in
                   (text.index(sentence) for sentence in sentences))  # fmt: skip


def test_dice_draw_different_numbers_and_orders():
    words = random_words(Draw.diagnostic, 6, 6000 * 3).reshape(-1, 3)
    orders = Counter(tuple(Dice(line).distinct(3, 4)) for line in words)
    assert len(orders) == 24
    assert max(orders.values()) < 1.35 * 250
    orders = Counter(tuple(Dice(line).order(3).tolist()) for line in words)
    assert len(orders) == 6
    assert max(orders.values()) < 1.15 * 1000


def floors(task):
    return {baseline.name: baseline.accuracy for baseline in task.baselines("test")}


def test_floors_of_needles():
    sizes = {"train_examples": 2000, "test_examples": 2000}
    found = floors(made("needle", **sizes))  # 4 keys: 1 of 4, and a digit in 10 of the others
    assert found["majority"] == pytest.approx(0.1, abs=0.01)
    assert found["last_value"] == pytest.approx(1 / 4 + 3 / 40, abs=0.04)
    assert found["first_value"] == pytest.approx(1 / 4 + 3 / 40, abs=0.04)
    found = floors(made("passkey", **sizes))
    assert found["majority"] == pytest.approx(0.1, abs=0.01)
    assert found["last_value"] == 1
    found = floors(made("key_value", **sizes))  # 6 pairs of hexadecimal digits
    pairs = (500 - 69) // 68
    assert found["majority"] == pytest.approx(1 / 16, abs=0.005)
    assert found["last_value"] == pytest.approx(1 / pairs + (1 - 1 / pairs) / 16, abs=0.04)
    assert floors(made("key_value-first"))["first_value"] == 1
    assert floors(made("variable_tracking-one"))["names_in_order"] == 1
    assert floors(made("variable_tracking"))["names_in_order"] < 0.4


def test_floors_of_lists_by_hand():
    for name, skipped in (("frequent_words", "......"), ("common_words", "")):
        task = made(name)
        right = total = 0
        for text, said in texts(task, "test"):
            words = re.findall(r"[a-z]{6}(?= )", text.rpartition("\n")[0] + " ")
            guesses = [word for word in dict.fromkeys(words) if word != skipped]
            for answer, guess in zip(said, guesses, strict=False):
                right += sum(map(str.__eq__, answer, guess))
                total += 6
        assert floors(task)["first_words"] == pytest.approx(right / total)
        assert right / total < 0.6


def test_floors_of_facts():
    sizes = {"train_examples": 500, "test_examples": 700}
    for kind in FactKind:
        task = made(f"facts-{kind}", **sizes)
        found = floors(task)
        assert found["majority"] == pytest.approx(1 / 6, abs=0.05), kind
        answers = Counter(said[0] for _, said in texts(task, "test"))
        assert len(answers) == 6
        if kind is FactKind.where_person:
            assert 0.25 < found["last_named"] < 0.6
    few = floors(made("facts-where_person", length=1000, facts=1))
    assert few["last_named"] == 1


def test_counts_differ_between_rows_and_ranks_are_in_order():
    task = made("frequent_words", length=1024)
    seen = set()
    for text, said in texts(task, "test"):
        counts = Counter(text.rpartition("\n")[0].split())
        ranked = [counts[word] for word in said]
        assert ranked == sorted(ranked, reverse=True)
        assert counts["......"] > ranked[0] > ranked[1] > ranked[2]
        assert all(n < ranked[2] for word, n in counts.items() if word not in (*said, "......"))
        seen.add(tuple(ranked))
    assert len(seen) > 2
    shares = np.arange(1.0, 20) ** -2.0
    total = sum(Counter(text.rpartition("\n")[0].split()).values())
    assert counts["......"] / total == pytest.approx(shares[0] / shares.sum(), abs=0.06)


def write_books(folder, words):
    for split, word in words.items():
        (folder / split).mkdir(parents=True)
        for number in (3, 12):
            text = f"The {word} was there.\r\nNobody saw the {word} {number}.\r\n\r\n" * 60
            (folder / split / f"{number}.txt").write_bytes(text.encode())


def test_books_of_a_split_stay_in_it(tmp_path):
    words = {"train": "sun", "validation": "moon", "test": "star"}
    write_books(tmp_path / "books", words)
    options = {"haystack": "text", "path": str(tmp_path / "books"), "length": 500, **FEW}
    task = Needle(**options)
    task.prepare()
    for split, word in words.items():
        for text, said in texts(task, split):
            assert READERS[Needle](task, text) == said
            assert word in text
            assert not any(other in text for other in words.values() if other != word)
            outside = re.sub(r"The value of .*? is .*?\. ", "", text)
            wanted = f"(The {word} was there. Nobody saw the {word} (3|12). )+"
            assert len(re.sub(wanted, "", outside)) < 200
    assert task.spec.source.startswith("files: books, generated, 1 of 4 keys")
    assert "public domain" in task.store().about["licence"]
    other = Needle(**{**options, "path": str(tmp_path / "books2")})
    (tmp_path / "books").rename(tmp_path / "books2")
    assert other.spec.data_hash == task.spec.data_hash
    (tmp_path / "books2" / "test" / "3.txt").write_text("Another book. " * 99)
    assert Needle(**{**options, "path": str(tmp_path / "books2")}).spec.data_hash != (
        task.spec.data_hash
    )


def test_new_rows_have_books_of_train(tmp_path):
    words = {"train": "sun", "validation": "moon", "test": "star"}
    write_books(tmp_path / "books", words)
    options = {"haystack": "text", "path": str(tmp_path / "books"), "length": 500, **FEW}
    task = Facts(**{**options, "train_examples": None, "facts": 4})
    task.prepare()
    batch = next(task.batches("train", batch_size=8, seed=3))
    for line in batch.tokens[:, 0]:
        assert "sun" in bytes(line.tolist()).decode()


def test_books_that_are_missing_or_short(tmp_path):
    missing = Needle(haystack="text", path=str(tmp_path / "none"))
    with pytest.raises(NotPrepared, match=r"none is missing; download"):
        missing.prepare()
    write_books(tmp_path / "books", {"train": "sun", "validation": "moon", "test": "star"})
    task = Needle(haystack="text", path=str(tmp_path / "books"), length=20_000, **FEW)
    with pytest.raises(BadData, match=r"the books of train have .* bytes, and a row needs"):
        task.prepare()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Needle(length=100), r"length must be at least 209, .* needs 4 sentences of up"),
        (lambda: Needle(test_lengths=[2000, 90]), r"task\.test_lengths must be at least"),
        (lambda: Needle(queries=5), r"task\.queries must be at most task\.keys=4: got 5"),
        (lambda: Needle(overlap=False), r"got task\.key=word; set task\.key=synonym"),
        (lambda: Needle(keys=0), r"must be at least 1: got task\.keys=0"),
        (lambda: Needle(value="digits", digits=1, keys=11), r"10 different texts, .* need 22"),
        (
            lambda: Needle(haystack="needles", length=600_000),
            r"task\.key=word has 8,277 .*=hex, or lower",
        ),
        (lambda: Needle(source="sample"), r"name books, which only task\.haystack=text reads"),
        (lambda: Passkey(length=60), r"task\.length must be at least"),
        (lambda: KeyValue(pairs=9, length=500), r"needs 9 pairs of up to 68 bytes"),
        (lambda: KeyValue(form="names", length=200_000), r"4,096 people, .* set task\.form=hex"),
        (lambda: KeyValue(reads=0), r"must be at least 1: got task\.reads=0"),
        (lambda: VariableTracking(length=100), r"needs 10 sentences of 15 bytes"),
        (lambda: FrequentWords(length=150), r"the counts \[.*\], which must fall: raise"),
        (lambda: FrequentWords(alpha=0.01), r"task\.alpha=0\.01 gives the most frequent of"),
        (lambda: CommonWords(length=300), r"needs a list of 61 items"),
        (lambda: CommonWords(often=2, seldom=2), r"task\.often must be above task\.seldom=2"),
        (lambda: Facts(facts=40), r"needs 40 facts of up to 37 bytes"),
        (lambda: Facts(facts=1), r"at least 2 for task\.kind=where_thing: got 1"),
        (lambda: Facts(kind="which_side", facts=6), r"at least 7 for task\.kind=which_side"),
        (lambda: Facts(path="books"), r"which only task\.haystack=text reads"),
    ],
)
def test_impossible_options(make, message):
    with pytest.raises(ValueError, match=message):
        make()


PINNED = {
    "needle": "48b49538febd",
    "needle-text": "82751c7eb9ae",
    "needle-synonym": "396b93d2f5c0",
    "needle-needles": "65daa83cfd5d",
    "needle-values": "cadfcf063078",
    "needle-hex": "2d73bba39595",
    "needle-person": "318e39c0e4d3",
    "passkey": "308f8941f016",
    "key_value": "549378b33a53",
    "key_value-names": "362f8e9d5f32",
    "key_value-first": "00d01e33c435",
    "key_value-few": "84e9fe676bdd",
    "key_value-twice": "8d0a8852fc86",
    "variable_tracking": "bfa2a3f5cc42",
    "variable_tracking-one": "e8a6d66cbf49",
    "frequent_words": "6a56dae2029d",
    "common_words": "74639430ec9d",
    "facts-where_person": "8a1a29dc3667",
    "facts-where_thing": "a94c890bbb94",
    "facts-where_thing_before": "afdf7f983e8d",
    "facts-which_side": "29e867484c2f",
    "facts-who_has": "383006aa947a",
    "facts-text": "198cc3fb4a5f",
}


def test_the_same_rows_for_ever():
    """Pinned: other rows are another version."""
    found = {}
    for name in TASKS:
        tokens, answers, _ = made(name).rows("train")
        stored = np.stack((tokens, answers)).astype("<i2").tobytes()
        found[name] = hashlib.sha256(stored).hexdigest()[:12]
    assert found == PINNED


def test_a_row_as_a_person_reads_it():
    lines = made("passkey").describe("test", 0).splitlines()
    found = re.search(r"The value of (\S+) is (\d{5})\. ", lines[0])
    assert lines[1:] == [f"What is the value of {found[1]}? ", f"answers: {found[2]}"]
    assert made("passkey").token_text(10) == "<10>"


def test_data_seeds_and_blocks_give_other_rows():
    rows = [made("passkey", data_seed=seed).rows("train").tokens for seed in (0, 1)]
    assert not np.array_equal(*rows)
    many = made("passkey", train_examples=2500).rows("train").tokens
    assert all(not np.array_equal(one, two) for one, two in pairwise(many[::1024]))
