"""`lra report trend`: files of rows, changed options, and what is no row."""

from pathlib import Path

import pytest

from lra.cli import main
from lra.results.rows import file_of_rows

EXAMPLE = file_of_rows(Path("example"))


def test_a_folder_of_rows_is_read_by_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    for ending in (".json", ".jsonl"):
        text = EXAMPLE.with_suffix(ending).read_text()
        (tmp_path / f"rows{ending}").write_text(text)
    (tmp_path / "benchmark.jsonl").write_text('{"what": "linear"}\n')
    assert main(["report", "trend", "mamba2", "--rows", str(tmp_path), "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "step on mqar, states=16" in printed  # not the 128 of the YAML file
    assert (tmp_path / "trend-mamba2.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("family", "place", "says"),
    [
        ("mamba9", EXAMPLE, "run `lra run runner=scaling model=mamba9`"),
        ("linear", Path(), "the folder has no file of rows"),
    ],
)
def test_what_has_no_trend_is_said(family, place, says, capsys) -> None:
    assert main(["report", "trend", family, "--rows", str(place)]) == 2
    assert says in capsys.readouterr().err
