"""Whatever is typed behind a key: it is read, or answered with words that are read."""

import random
import re
import shlex
import string
from pathlib import Path

import pytest
from fuzz import cases
from omegaconf import OmegaConf

from lra.cli import main
from lra.composition.binding import bind
from lra.composition.hydra_entry import entries
from lra.composition.words import as_text, legible, read_word

FOREIGN = re.compile(
    r"mismatched input|extraneous|NoViable|no viable|token recognition|<EOF>|Traceback|is a bug"
    r"|full_key|HydraException|Error parsing|Error merging|object_type|AttributeError|KeyError"
)
"""What Hydra and its parser say, and nobody who types a command knows."""
MOST_LINES, MOST_CHARACTERS = 4, 900
LETTERS = (
    *string.printable, *"éßñøłžğ数据好坏データ한글данныеδεδομένα", *"בצל", *"بيانات", "न", "ม",
    "🙂", "👩\u200d💻", "\u200c", "\u00a0", "\u3000", "\u2028", "\u202e", "\x1b", "\x7f", "\ud800",
    "−", "“", "”", "’", "，", "（", "）",
)  # fmt: skip
PIECES = (
    "${", "${b}", "${seed}", "${oc.env:NOPE}", "${nope:1}", "$(x)", "\\", "\\\\", "\\,", "'", '"',
    "[", "]", "{", "}", "(", ")", "(1)", "[1]", "{1}", ",", ", ", "=", ":", ";", "~", "~/", "#",
    "!", "a", "b.csv", "names/", " ", "  ", "é", "数据", "range(", "range(1,3)", "nope(1)", "-m",
    "choice(a,é)", "glob(*)", "null", "true", "1e5", "???", "x" * 90, "é" * 3000, "--", "@", "%",
    "&", "|", "*", "<", ">", "`", "^", "+",
)  # fmt: skip
KEYS = ("task.train", "task.labels", "model", "seed", "optim.schedule", "results", "sweep", "optim")
SHORT = {"task.train": "train", "task.labels": "labels"}
"""As behind `lra data`."""
COMMANDS = (
    "run task=table runner.dry_run=true", "run -m task=table runner.dry_run=true",
    "plan task=table", "plan -m task=table", "submit task=table", "show --cost task=table",
    "show --cost --run task=table",
)  # fmt: skip
OF_DATA = ("prepare", "verify", "show", "certify")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LRA_DEBUG", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("names/a=b.csv", "names/a=b.csv"),
        ("names/a(1).csv", "names/a(1).csv"),
        ("names/data (1).csv", "names/data (1).csv"),
        ("names/a#b.csv", "names/a#b.csv"),
        ("names/数据.csv", "names/数据.csv"),
        ("a&b;c!d^e`f>g.csv", "a&b;c!d^e`f>g.csv"),
        ("👩\u200d💻.csv", "👩\u200d💻.csv"),
        ("C:\\é\\", "C:\\é\\"),
        ("[好,坏]", ["好", "坏"]),
        ('["好","坏"]', ["好", "坏"]),
        ("[a (1).csv,b(2).é]", ["a (1).csv", "b(2).é"]),
        ("[ 好 , 坏 ,1]", ["好", "坏", 1]),
        ("[a=b,[c#d,e]]", ["a=b", ["c#d", "e"]]),
        ("{a: 好, b: [坏]}", {"a": "好", "b": ["坏"]}),
        ("${seed}", "${seed}"),
        ("1e5", 1e5),
        ("null", None),
        ("a\\=b", "a=b"),
    ],
)
def test_what_the_grammar_does_not_know_is_text(typed: str, value: object) -> None:
    word = legible(f"task.train={typed}")
    found = read_word(word)
    assert found is not None
    assert found.value() == value
    assert legible(word) == word


@pytest.mark.parametrize(
    "typed", ["a[1].csv", "a{1}.csv", "it's.csv", "a(b", "(a", "a]", "'a'b", "a,,é", "[a", "é\\=b"]
)
def test_what_it_has_a_meaning_for_is_not_taken_unseen(typed: str) -> None:
    assert read_word(legible(f"task.train={typed}")) is None


def test_values_of_a_sweep_are_texts_each() -> None:
    found = entries(["-m", "task=table", "task.train=a=b.csv,数据 (1).csv", "task.labels=[好,坏]"])
    assert [entry.config["task"]["train"] for entry in found] == ["a=b.csv", "数据 (1).csv"]
    assert found[0].config["task"]["labels"] == ["好", "坏"]
    for entry in found:  # what is stored, and printed by `lra show`, is the same run again
        (again,) = entries(shlex.split(shlex.join(entry.overrides)))
        assert again.config == entry.config
        assert again.overrides == entry.overrides


@pytest.mark.fuzz
def test_any_text_survives_its_quotes() -> None:
    draw = random.Random(11)
    for _ in range(cases(300)):
        text = "".join(draw.choices(LETTERS + PIECES, k=draw.randint(0, 6))).strip(" \t")
        found = read_word(f"task.train={as_text(text)}")
        assert found is not None, ascii(text)
        if "\ud800" not in text and text != "???":
            assert OmegaConf.create({"x": found.value()})["x"] == text, ascii(text)


def value_of(draw: random.Random) -> str:
    pool = draw.choice([LETTERS, PIECES, LETTERS + PIECES])
    value = "".join(draw.choices(pool, k=draw.randint(1, 5)))
    return value.replace("\0", "")  # which no process can be given


def command(draw: random.Random) -> tuple[list[str], str]:
    """Return the words of a command up to the last, and the key that this is about."""
    key = draw.choice(KEYS)
    if key in SHORT and draw.random() < 0.4:
        return ["data", draw.choice(OF_DATA), "table"], SHORT[key]
    return draw.choice(COMMANDS).split(), key


def said(argv: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    try:
        code = main(argv)
    except SystemExit as leave:
        code = int(leave.code or 0)
    err = capsys.readouterr().err
    return code, re.sub(r"(composing combination|planning run) \d+ of [\d,]+\n", "", err)


@pytest.mark.fuzz
def test_any_value_is_read_or_answered_with_what_is_read(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = random.Random(12)
    faults = []
    for _ in range(cases(60)):
        words, key = command(draw)
        value = value_of(draw)
        code, err = said([*words, f"{key}={value}"], capsys)
        fault = None
        if code not in (0, 2) or FOREIGN.search(err.replace(value, "")):
            fault = "not in the words of lra"
        elif len(err.splitlines()) > MOST_LINES or len(err) > MOST_CHARACTERS:
            fault = "too long"
        for typed in proposed(err):
            if (
                read_word(typed) is None
                or "have a special meaning" in said([*words, typed], capsys)[1]
            ):
                fault = f"no way out: {typed!a}"
        if fault:
            faults.append(f"{fault}\n{words} {ascii(f'{key}={value}')[:200]}\n{err[:1500]}")
    assert not faults, f"{len(faults)} faults\n" + "\n".join(faults)
    assert not list(here.glob("results/*"))


def proposed(err: str) -> list[str]:
    """Return the words, as a shell hands them over, that an answer proposes as one text."""
    found = re.findall(r"for plain text write (.*)$", err, re.MULTILINE)
    return [] if "…" in err else [shlex.split(each)[0] for each in found]


def test_a_text_that_looks_like_a_reference_reaches_the_task() -> None:
    def target(*, train: str, others: list[str]) -> None: ...

    text = "a\\${b}${c.csv"
    words = ["task=table", f"task.train={as_text(text)}", f"task.labels=[{as_text(text)},b]"]
    (entry,) = entries(words)
    task = entry.config["task"]
    assert task["train"] == text
    assert bind(target, {"train": text, "others": [text, "b"]}, "task")["others"] == task["labels"]


def test_long_words_are_named_by_their_beginning(capsys: pytest.CaptureFixture[str]) -> None:
    long, several = "x" * 9000, ",".join(map(str, range(2000)))
    for argv in (
        f"run model={long}", f"run {long}=3", f"run optim.{long}=3", f"run {long}",
        f"run seed={long}", f"run +experiment={long}", f"run task=table task.train={long}",
        f"run ~optim.{long}", f"run --{long}", f"run --config-dir={long}", f"data prepare {long}",
        f"show {long}", long, f"data prepare table train={long}", f"list {long}",
        f"verify {long}", f"report {long}", f"verify linear {long}=3", f"watch {long}",
        f"plan {long}", f"data {long}", f"generate {long}", f"data show listops --index {long}",
        f"doctor {long}", f"submit cluster={long}", f"run task=table task.labels=[{long},{long}y]",
        f"run -m seed={several}z",
    ):  # fmt: skip
        code, err = said(argv.split(), capsys)
        assert code == 2, argv[:60]
        assert len(err) < 2_200, (argv[:60], err[:3000])
        assert max(map(len, err.split())) < 400, (argv[:60], err[:1000])
