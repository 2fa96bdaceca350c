"""A batch that the data cannot fill is refused before anything is trained."""

from pathlib import Path

import pytest

from lra.cli import main
from lra.execution.executor import Executor


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        ("task=listops task.source=generated task.train_examples=20", "(source generated) has 20"),
        ("task=image optim.batch_size=60000", "`train` of task=image"),
        ("task=text8 task.source=sample optim.batch_size=300", "use optim.batch_size=106 or"),
        ("runner=transfer task=text8 task.source=sample optim.batch_size=300", "of 300 needs"),
    ],
)
def test_it_is_refused_by_its_numbers(
    words: str,
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(Executor, "run", lambda *_: pytest.fail("a cell began"))
    results = tmp_path / "results"
    assert main(["run", *words.split(), "logger=none", f"results={results}"]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert "or fewer" in said
    assert not [*results.glob("cells/*/*/rows*")]


def test_what_does_not_train_needs_no_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    words = ["runner=certify", "optim.batch_size=1000000", "runner.dry_run=true", "logger=none"]
    assert main(["run", *words]) == 0
    assert "1 to do" in capsys.readouterr().out
