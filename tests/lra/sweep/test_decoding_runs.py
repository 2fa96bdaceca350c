"""Decoding as users run it: a cell for each mode and context, refusals, what comes after."""

from pathlib import Path

from lra.cli import main
from lra.runners.store import read_rows

TINY = (
    "task=mnist",
    "runner=decode",
    "runner.lengths=[8,16]",
    "runner.timed_tokens=20",
    "runner.timed_prefills=3",
    "runner.repeat_limit_s=0",
    "runner.retry=[]",  # whatever else this machine does
    "model.backbone.depth=1",
    "hardware.threads=1",
    "logger=none",
)


def run(results: Path, *words: str) -> int:
    return main(["run", *TINY, f"results={results}", *words])


def test_a_sweep_becomes_rows_and_a_report(tmp_path: Path, capsys) -> None:
    words = ("-m", "model=linear,reformer", "runner.lengths=[8]")
    assert run(tmp_path, *words) == 0
    out = capsys.readouterr().out
    assert "state linear at 8: " in out
    assert "ms per token, a state of 0.01 MiB" in out
    rows = read_rows(tmp_path)
    assert rows["causal"].all()  # whatever the task asks
    times = rows[rows["metric"] == "token_time"].set_index(["model", "mode", "length"])
    times = times.sort_index()
    assert len(times) == 4
    good = times[times["status"] == "ok"]
    assert set(good.index.droplevel("length")) == {
        ("linear", "state"), ("linear", "recompute"), ("reformer", "recompute"),
    }  # fmt: skip
    refused = times.loc[("reformer", "state")]
    assert set(refused["status"]) == {"unsupported"}
    assert refused["reason"].str.contains("no state that continues from token to token").all()
    (table,) = tmp_path.glob("reports/*/decoding.md")
    assert "reformer (recomputed)" in table.read_text()
    assert run(tmp_path, *words) == 0
    assert "4 of 4 runs are finished already" in capsys.readouterr().out


def test_what_decides_a_result_makes_another_cell(tmp_path: Path, capsys) -> None:
    words = ("-m", "runner.batch_size=1,2", "runner.top_k=null,5", "runner.dry_run=true")
    assert run(tmp_path, "model=linear", *words) == 0
    assert "16 runs" in capsys.readouterr().out


def test_a_family_that_sees_the_future_is_refused(tmp_path: Path) -> None:
    run(tmp_path, "model=nystromformer", "report=false")
    rows = read_rows(tmp_path)
    assert set(rows["status"]) == {"unsupported"}
    assert set(rows["metric"]) == {"token_time"}


def test_options_that_make_no_sense(tmp_path: Path, capsys) -> None:
    assert run(tmp_path, "runner.timed_tokens=5") == 2
    assert "timed_tokens must be at least 20" in capsys.readouterr().err
    assert run(tmp_path, "runner.mode=state") == 2
    assert "did you mean" in capsys.readouterr().err
