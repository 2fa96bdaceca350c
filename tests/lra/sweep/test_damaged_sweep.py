"""A sweep over a store with damage: what is damaged runs again, and nothing is deleted."""

from pathlib import Path

from lra.cli import main
from lra.runners.store import read_rows

COMMAND = (
    "run", "-m", "model=identity", "seed=0,1", "task=listops", "task.source=sample",
    "optim.steps=4", "optim.warmup_steps=0", "optim.batch_size=8", "runner.timeout_s=300",
    "runner.baselines=false", "logger=none",
)  # fmt: skip


def test_a_cell_with_damaged_rows_runs_again(tmp_path: Path, capsys) -> None:
    command = (*COMMAND, f"results={tmp_path}", "report=false")
    assert main([*command]) == 0
    before = read_rows(tmp_path)
    one, other = sorted(tmp_path.glob("cells/*/*/rows-*.jsonl"))
    sound = other.read_bytes()
    half = b"".join(one.read_bytes().splitlines(keepends=True)[:2])
    one.write_bytes(half)
    capsys.readouterr()
    assert main([*command, "runner.dry_run=true"]) == 0
    assert "1 done, 1 to do" in capsys.readouterr().out
    assert main([*command]) == 0
    assert "1 of 2 runs are finished already" in capsys.readouterr().out
    assert other.read_bytes() == sound
    assert len(read_rows(tmp_path)) == len(before)
    (aside,) = tmp_path.glob("cells/*/*/damaged-*")
    assert aside.read_bytes() == half
    assert main(["doctor", "--store", "--results", str(tmp_path)]) == 0


def test_the_report_of_a_sweep_names_what_it_leaves_out(tmp_path: Path, capsys) -> None:
    command = (*COMMAND, f"results={tmp_path}")
    assert main([*command]) == 0
    bad = sorted(tmp_path.glob("cells/*/*/cell.json"))[0]
    bad.write_text("{")
    assert main([*command]) == 0
    assert f"excluded: {bad}: torn" in capsys.readouterr().out
    page = next(tmp_path.glob("reports/*/report.md")).read_text()
    assert f"{bad.parent.name}/cell.json" in page
