"""Bad words after the other verbs: a few lines that name them, never a traceback."""

import shlex
from pathlib import Path

import pytest

from lra import cli
from lra.composition.catalogue import names

NUMBERS = ("-1", "0", "x", "1e30", "inf", "9" * 30, "''", "null", "1.5")
FLAGS = ("--width", "--heads", "--max-length")
VERIFY = (
    *(f"verify linear {flag}={number}" for flag in FLAGS for number in NUMBERS),
    *(
        f"verify linear {word}"
        for word in (
            "chunk=inf", "chunk=x", "chunk=[1]", "'chunk={a: 1}'", "chunk=", "=3", "chunk",
            "chunk=[",
            "chunk=!!python/name:os.system", "chunk=1.5", "feature_map=nope", "feature_map=3",
            "nope=3", f"chunk={'9' * 40}", "chunk=true", "'chunk=\"8\"'",
        )
    ),
    *(
        f"verify {mixer}"
        for mixer in (
            "nope", ".", "a.b", "a:b", "os:system", "os.path:join", "models.mixer:Site",
            "models.families.linear", "models.families.linear:", "models.families:linear", ":x",
            "math:pi", "json:JSONDecoder", "models..x:Y",
            "tasks.classification.listops.task:ListOps", "lra.commands.run:main",
            "a/b:c", "é:x", "torch.nn:Linear", "tlb", "models.mixer:Unsupported",
        )
    ),
)  # fmt: skip
TASKS = (
    "nope", "listops max_length=-1", "listops max_length=x", "listops max_length=inf",
    "listops nope=1", "listops source=nope", "listops =", "listops max_depth=0",
    "listops train_examples=-5", "listops source=tsv path=/nope", "listops source=[",
    "listops source=tsv path=afile", "text source=nope", "text x", "table train=afile",
    "text --from nope", "text --from afile", "image --from empty", "listops data_seed=1.5",
    "listops data_seed=true", "listops processes=-1 source=sample", "listops class_path=os.system",
    "listops class_path=models.mixer.Site", "listops class_path=models.families", "mqar batch=3",
    "wikitext2 units=nope", "text8 source=sample length=0", "table train=/dev/null", "listops name",
    "'listops max_length=!!binary x'", "text8 memory=-1 source=sample", "induction length=0",
)  # fmt: skip
DATA = (
    *(f"data show {task}" for task in TASKS),
    "data", "data nope", "data show", "data show listops source=sample --index=-1",
    "data show listops source=sample --index=99999", "data show listops source=sample --count=0",
    "data show listops source=sample --count=x", "data show listops source=sample --sample=0",
    "data show listops source=sample --split=nope", "data certify listops --split=nope",
    "data show listops source=sample --picture=x.png",
)  # fmt: skip
BLANK = tuple(
    (verb, f"{flag} {word}")
    for verb, flag in (
        ("report", "--results"), ("report", "--out"), ("report", "--rows"), ("report", "--publish"),
        ("compare a b", "--results"), ("compare a b", "--rows"),
        ("show x", "--results"),
        ("watch x", "--results"), ("work x", "--results"), ("submit --stop x", "--results"),
        ("generate x", "--results"), ("generate x", "--prompt-file"), ("doctor", "--results"),
        ("list", "--config-dir"), ("verify linear", "--config-dir"),
        ("data show listops source=sample", "--picture"), ("plan model=linear", "--against"),
    )
    for word in ("''", "' '")
)  # fmt: skip
OTHERS = (
    "list nope", "list linear tasks", "list --config-dir=nope", "list --config-dir=afile",
    "list tasks --traits", "list models --nope", "show", "show x --results=nope",
    "show x --results=afile", "show x --results=empty", "show ../../x --results=empty",
    "show '' --results=empty", "report --results=nope", "report --results=afile",
    "report --results=empty", "report --results=empty --sweep=nope", "report --rows=nope",
    "report --results=empty --sweep=../x", "report --rows=afile", "report --rows=empty",
    "report --publish=x", "report --publish=x --sweep=y --results=empty", "report --nope",
    "compare", "compare a", "compare a b --results=nope", "compare a b --results=empty",
    "compare a b --rows=nope", "compare a b --rows=afile", "compare a b --nope",
    "report --config-dir=nope", "report --config-dir=afile", "doctor --nope",
    *(f"{verb} {option}" for verb, option in BLANK),
    "doctor x", "", "nope", "--nope", "-x",
)  # fmt: skip


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "afile").write_text("hi\n")
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LRA_DEBUG", raising=False)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("line", [*VERIFY, *DATA, *OTHERS])
def test_bad_words_are_answered(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(line)
    try:
        code = cli.main(words)
    except SystemExit as leave:
        code = int(leave.code or 0)
    out, err = capsys.readouterr()
    assert code == 2, (out, err)
    assert "Traceback" not in err
    assert "this is a bug" not in err
    assert len(err.splitlines()) <= 12  # a usage of several lines, and the complaint
    assert err or words == []  # without words the help is printed


def test_the_families_named_above_exist() -> None:
    assert {"linear", "tlb"} <= set(names("model"))


@pytest.mark.usefixtures("here")
def test_a_missing_package_of_a_runner_is_told_by_a_dry_run(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lra.runners.measures.compress.find_spec", lambda _: None)
    words = ("model=linear", "task=listops", "task.source=sample", "runner=compress",
             "runner.method=int8", "runner.dry_run=true")  # fmt: skip
    assert cli.main(["run", *words]) == 2
    assert "pip install 'lra[quantisation]'" in capsys.readouterr().err
