import re
import time
from collections import Counter
from functools import partial

import pytest

from lra.cli import main
from lra.commands import data
from lra.tasks import contract
from lra.terminal.progress import still_running
from tests.lra_process import HOME

SMALL = (
    "train_examples=200", "validation_examples=70", "test_examples=80", "min_length=10",
    "max_length=60", "max_depth=3", "max_args=4", "processes=1",
)  # fmt: skip

WORDS = (("fine", "good"), ("dull", "bad"))


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_prepare_then_verify_then_show(capsys):
    assert main(["data", "prepare", "listops", *SMALL]) == 0
    text = capsys.readouterr().out
    assert "200 train, 70 validation, 80 test" in text
    assert "data hash " in text
    assert "arXiv:1804.06028" in text

    assert main(["data", "verify", "listops", *SMALL]) == 0
    text = capsys.readouterr().out
    assert "every file has its expected hash" in text
    assert "NO " not in text

    assert main(["data", "show", "listops", *SMALL, "--split", "test", "--index", "78"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("listops / generated / test / 78\n[")
    assert "number of tokens in each of 80 sequences" in text
    assert "share of each label among 80 examples" in text


def test_findings_are_printed_as_they_are_found(capsys, monkeypatch):
    seen = []

    def last(task):
        seen.append(capsys.readouterr().out)
        return contract.TaskFinding("baselines", True, "none here")

    monkeypatch.setattr(contract, "check_baselines", last)
    assert main(["data", "prepare", "listops", *SMALL]) == 0
    capsys.readouterr()
    assert main(["data", "verify", "listops", *SMALL]) == 0
    assert "ok  perfect " in seen[0]
    assert "ok  baselines  none here\n" in capsys.readouterr().out


def test_checks_that_last_are_told(capsys, monkeypatch):
    def long(task):
        time.sleep(0.3)
        return contract.TaskFinding("baselines", True, "none here")

    monkeypatch.setattr(contract, "check_baselines", long)
    monkeypatch.setattr("lra.commands.data.still_running", partial(still_running, first_s=0.1))
    assert main(["data", "prepare", "listops", *SMALL]) == 0
    assert main(["data", "verify", "listops", *SMALL]) == 0
    assert re.match(r"checking listops: \d\.\d s so far\n", capsys.readouterr().err)


def test_the_size_of_a_vocabulary_does_not_read_like_a_length(capsys):
    few = ("train_examples=20", "validation_examples=10", "test_examples=10")
    for verb in ("prepare", "show"):
        assert main(["data", verb, "mqar", *few]) == 0
        text = capsys.readouterr().out
        assert "generated, 4 pairs, vocabulary 8192" in text
        assert "of 8192 tokens" not in text


def test_a_damaged_file_fails_the_verification(capsys, root):
    assert main(["data", "prepare", "listops", *SMALL]) == 0
    largest = max(root.rglob("*test*"), key=lambda file: file.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[-1] ^= 1
    largest.write_bytes(content)
    capsys.readouterr()
    assert main(["data", "verify", "listops", *SMALL]) == 1
    assert "NO  files" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["verify", "show"])
def test_data_that_are_not_there_come_with_the_command_that_makes_them(capsys, verb):
    assert main(["data", verb, "listops", *SMALL]) == 2
    text = capsys.readouterr().err
    assert "lra data prepare listops train_examples=200" in text
    assert "Traceback" not in text


def test_options_may_stand_behind_flags(capsys):
    assert main(["data", "show", "listops", "--index", "1", "source=sample"]) == 2
    assert "lra data prepare listops source=sample" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["data", "show", "listops", "--index", "1", "--sauce", "a=b"])
    assert "unrecognized arguments: --sauce" in capsys.readouterr().err


def test_from_names_the_table_of_a_table(capsys, tmp_path):
    table = tmp_path / "mine.csv"
    rows = [f"{word} {number},{label}" for number in range(40) for word, label in WORDS]
    table.write_text("\n".join(["text,label", *rows]) + "\n")
    words = ["data", "prepare", "table", "--from", str(table), "labels=[good,bad]"]
    assert main(words) == 0
    assert "64 train, 8 validation, 8 test" in capsys.readouterr().out


def test_from_is_short_for_path(capsys, tmp_path):
    words = ["data", "prepare", "listops", "source=tsv"]
    assert main([*words, "--from", str(tmp_path / "nowhere")]) == 2
    short = capsys.readouterr().err
    assert str(tmp_path / "nowhere") in short
    assert main([*words, f"path={tmp_path / 'nowhere'}"]) == 2
    assert capsys.readouterr().err == short


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["show", "listop"], "unknown task 'listop': did you mean 'listops'?"),
        (["show", "listops", "max_dept=3"], "did you mean 'task.max_depth'"),
        (["show", "listops", "max_depth=deep"], "max_depth"),
        (["show", "listops", "max_depth"], "task.max_depth: wanted KEY=VALUE"),
        (["show", "listops", "--split", "tset"], "did you mean 'test'?"),
        (["certify", "listops", *SMALL, "--split", "tset"], "did you mean 'test'?"),
        (["show", "listops", *SMALL, "--index", "200"], "selects examples outside the split train"),
        (["show", "listops", *SMALL, "--index", "-1"], "which has 200 examples"),
        (["show", "listops", *SMALL, "--count", "0"], "selects examples outside the split"),
    ],
)
def test_a_slip_is_answered(capsys, words, complaint):
    assert main(["data", *words]) == 2
    assert complaint in capsys.readouterr().err


def test_statistics_of_lengths_and_labels():
    lengths = list(range(1, 101))
    text = data.statistics(data.Lengths(lengths, Counter({1: 30, 0: 10})))
    assert "shortest 1, median 51, 90 % 91, longest 100" in text
    assert "0: 25.0%, 1: 75.0%" in text
    assert "fewer examples than one batch" in data.statistics(data.Lengths([], Counter()))


def test_a_task_that_cannot_spell_shows_its_ids():
    from lra.composition.lookup import named_task

    task = named_task("listops", SMALL)
    task.prepare()
    text = data.raw(task, "validation", 69)
    assert text.startswith("token ids [[")
    assert "target" in text
    with pytest.raises(ValueError, match="has no example 70"):
        data.raw(task, "validation", 70)


def test_certify_prints_baselines_and_keeps_them(capsys, root):
    words = ["data", "certify", "listops", *SMALL]
    assert main(words) == 0
    text = capsys.readouterr().out
    for name in ("majority", "bag_of_tokens", "ngrams", "root_operator", "oracle_depth_3"):
        assert name in text
    assert "100.0%" in text  # trees of 3 levels
    (file,) = root.rglob("certificate-test-*.json")
    assert str(file) in text
    before = file.stat().st_mtime_ns
    assert main(words) == 0
    assert file.stat().st_mtime_ns == before
    assert main([*words, "--again"]) == 0
    assert file.stat().st_mtime_ns > before


def test_language_baselines_and_windows(capsys):
    words = ["text8", "source=sample", "length=100"]
    assert main(["data", "prepare", *words]) == 0
    assert "540 train, 30 validation, 30 test" in capsys.readouterr().out
    assert main(["data", "certify", *words]) == 0
    head = capsys.readouterr().out.splitlines()[1]
    assert head.split("  ")[0] == "baseline"
    assert "bits per character" in head
    assert main(["data", "show", *words, "--split", "test", "--index", "30"]) == 2
    assert "which has 30 examples" in capsys.readouterr().err
    assert main(["data", "show", *words, "--split", "test", "--index", "29"]) == 0
    assert "in each of 30 sequences: shortest 99, median 100" in capsys.readouterr().out


MINE = """
import lra.tasks.diagnostics.induction


class Mine(lra.tasks.diagnostics.induction.Induction):
    pass
"""
SPELT = [
    ("length=1_00", True), ("task.length=100", True), ("++task.length=100", True),
    ("length=null", False), ("length='100'", False), ("length=1.0", False),
    ("length=true", False), ("length=[100]", False), ("length=1e2", False),
    ("regime=sliding", False), ("regime=slidin", False), ("lenght=100", False),
    ("+length=100", False), ("+task.x=1", False), ("~task.length", False), ("path='a b'", False),
    ("length", False), ("length=1,2", False), ("length={a: 1}", False), ("contiguous=yes", False),
    ("contiguous=on", False), ("path=null", True), ("length=${seed}", False),
    ("length=${task.length}", False),
]  # fmt: skip


def of_the_task(word):
    """Spell a word for `lra run`."""
    signs = word[: len(word) - len(word.lstrip("+~"))]
    return word if "task." in word.partition("=")[0] else f"{signs}task.{word[len(signs) :]}"


@pytest.mark.parametrize("word", [word for word, _ in SPELT])
def test_options_are_read_as_lra_run_reads_them(word):
    """The same values, and the same words of complaint."""
    from lra.composition.compose import typed
    from lra.composition.hydra_entry import entries
    from lra.composition.lookup import named_task
    from lra.errors import ConfigError

    def ran():
        (entry,) = entries(["task=text8", "task.source=sample", of_the_task(word)])
        return typed(entry.config).task

    def said(build):
        try:
            task = build()
        except ConfigError as error:
            return str(error).replace("task.", "")
        kept = {k: v for k, v in vars(task).items() if not k.startswith("_")}
        return {**kept, "spec": task.spec}  # which one of the two may not have looked at yet

    named = said(lambda: named_task("text8", ["source=sample", word]))
    assert named == said(ran)
    assert isinstance(named, dict) is dict(SPELT)[word], named


def test_a_task_of_ones_own(capsys, tmp_path, monkeypatch):
    package = tmp_path / "my_own_package"
    package.mkdir()
    (package / "__init__.py").write_text(MINE)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine" / "task").mkdir(parents=True)
    ours = (HOME / "conf" / "task" / "induction.yaml").read_text()
    named = ours.replace("tasks.diagnostics.induction.Induction", "my_own_package.Mine")
    (tmp_path / "mine" / "task" / "own.yaml").write_text(named.replace("induction", "own", 1))
    few = ["train_examples=4", "validation_examples=4", "test_examples=4"]
    words = ["data", "prepare", "own", "--config-dir", str(tmp_path / "mine"), *few]
    assert main(words) == 2
    assert "plugins=[my_own_package]" in capsys.readouterr().err
    assert main([*words, "plugins=[my_own_package]"]) == 0
    assert "4 train, 4 validation, 4 test" in capsys.readouterr().out
    assert main(["data", "prepare", "ow", *words[3:]]) == 2
    assert "did you mean 'own'?" in capsys.readouterr().err


def test_a_prepare_sweeps_what_a_killed_one_left(root):
    left = root / ".pg19.0123abcd"
    left.mkdir(parents=True)
    assert main(["data", "prepare", "text8", "source=sample"]) == 0
    assert not left.exists()
