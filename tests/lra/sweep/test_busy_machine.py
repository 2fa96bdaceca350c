"""What a machine that was busy leaves behind: cells that the same command measures again."""

from dataclasses import replace
from pathlib import Path

import pytest

from lra.cli import main
from lra.commands import run as command
from lra.composition.hydra_entry import entries
from lra.execution.executor import ClaimedCell, Executor, Running
from lra.runners.records import DISTURBED, Measurement, Status
from lra.sweep.cell_list import build
from lra.sweep.planned_cells import NO_DATA, failure_row, is_done, known_ending, not_done, remains
from lra.sweep.sweep import Sweep

WORDS = (
    "task=listops", "task.source=sample", "runner=scaling", "runner.references=[]",
    "runner.modes=[step]", "model=linear", "logger=none",
)  # fmt: skip
BUSY = {DISTURBED: "load of other processes"}
GOOD = Measurement(metric="time", value=0.5, samples=(0.5,) * 3)
SHAKEN = replace(GOOD, labels=BUSY)
SKIPPED = Measurement(metric="time", status=Status.skipped, reason="one step took 4 s")


@pytest.fixture
def sweep(tmp_path: Path) -> Sweep:
    return planned(tmp_path)


def planned(root: Path, *words: str) -> Sweep:
    lengths = "runner.lengths=[8,16,32]"
    return build(entries([*WORDS, lengths, f"results={root}", *words]))


def write(sweep: Sweep, at: int, row: Measurement) -> None:
    sweep.store.write(sweep.planned[at].cell, [row], [], {})


@pytest.mark.parametrize("row", [SHAKEN, replace(SKIPPED, labels=BUSY)])
def test_what_was_disturbed_is_measured_again_by_the_same_command(
    sweep: Sweep, row: Measurement
) -> None:
    for at, each in enumerate((GOOD, row, SKIPPED)):
        write(sweep, at, each)
    (left,) = not_done(sweep.planned, sweep.store)
    assert left is sweep.planned[1]
    assert is_done(sweep.planned[0], sweep.store)
    as_it_is = planned(sweep.root, "runner.retry=[]")
    assert not_done(as_it_is.planned, as_it_is.store) == []


def test_only_a_quiet_machine_rules_out_longer_sequences(sweep: Sweep) -> None:
    longer = sweep.planned[1]
    for labels in (BUSY, NO_DATA):  # what lacked its data says nothing either
        write(sweep, 0, replace(SKIPPED, labels=labels))
        assert known_ending(longer, sweep.cells, sweep.store) is None
    write(sweep, 0, SKIPPED)
    found = known_ending(longer, sweep.cells, sweep.store)
    assert found[1].startswith("this length was not tried, because 8 tokens were too many")


def test_only_undisturbed_growth_rules_out_longer_sequences(tmp_path: Path) -> None:
    sweep = planned(tmp_path, "runner.step_limit_s=3", "runner.batch=fixed", "runner.batch_size=1")
    for at, seconds in enumerate((0.7, 2.8)):
        write(sweep, at, replace(GOOD, value=seconds))
    longest = sweep.planned[2]
    found = known_ending(longest, sweep.cells, sweep.store)
    assert found[0] is Status.skipped
    assert found[1].startswith(
        "not tried: judging by the times at 8 and 16 tokens, one step would take"
    )
    assert known_ending(longest, sweep.cells[1:], sweep.store) is None
    write(sweep, 0, replace(SHAKEN, value=0.7))
    assert known_ending(longest, sweep.cells, sweep.store) is None
    write(sweep, 0, replace(GOOD, value=0.7))
    write(sweep, 1, replace(SHAKEN, value=2.8))
    assert known_ending(longest, sweep.cells, sweep.store) is None
    for seconds, tried in ((1.4, True), (2.8, False)):  # by the processors' clock
        clock = Measurement(metric="processor_time", value=seconds)
        sweep.store.write(sweep.planned[1].cell, [replace(SHAKEN, value=9.0), clock], [], {})
        assert (known_ending(longest, sweep.cells, sweep.store) is None) is tried
    slower = Measurement(metric="time_ratio", value=0.1, labels={"reference": "sdpa"})
    sweep.store.write(sweep.planned[1].cell, [replace(GOOD, value=1.4), slower], [], {})
    assert known_ending(longest, sweep.cells, sweep.store) is None  # 2.8 s, by its own time


def test_a_failed_attempt_leaves_the_numbers_that_are_there(sweep: Sweep) -> None:
    executor = Executor(None, sweep.store, None, None)  # type: ignore[arg-type]
    running = Running(ClaimedCell(sweep.planned[0], None))  # type: ignore[arg-type]
    cell = running.cell
    assert not executor._write(running, [replace(SKIPPED, labels=BUSY)], [])
    for better in (SHAKEN, GOOD):
        assert not executor._write(running, [better], [])
        assert executor._write(running, [SKIPPED], [])
        (row,) = sweep.store.rows_of(cell)
        assert row["value"] == 0.5
        assert row["labels"].get(DISTURBED) == better.labels.get(DISTURBED)


def test_the_last_line_says_what_to_type(sweep: Sweep) -> None:
    typed = ["-m", "model=linear,sdpa", "sweep=my sweep"]
    for at, row in enumerate((GOOD, SHAKEN, SHAKEN)):
        write(sweep, at, row)
    line = command.advice_if_disturbed(sweep, typed)
    assert line.startswith("other processes disturbed 2 of 3 runs")
    assert line.endswith(": lra run -m model=linear,sdpa 'sweep=my sweep'")
    assert command.advice_if_disturbed(planned(sweep.root, "runner.retry=[]"), typed) == ""
    for at in (1, 2):
        write(sweep, at, GOOD)
    assert command.advice_if_disturbed(sweep, typed) == ""


def test_a_dry_run_says_why(sweep: Sweep, capsys: pytest.CaptureFixture[str]) -> None:
    write(sweep, 0, SHAKEN)
    words = [*WORDS, "runner.lengths=[8]", f"results={sweep.root}", "runner.dry_run=true"]
    assert main(["run", *words]) == 0
    out = capsys.readouterr().out
    assert "was disturbed while it was measured, and runner.retry repeats such runs" in out
    assert "0 done, 1 to do" in out
    assert "processes disturbed" not in out


def test_a_timeout_keeps_what_was_counted(sweep: Sweep) -> None:
    peak = Measurement(metric="peak_tensor_bytes", value=9.0)
    for status, kept in ((Status.timeout, [peak]), (Status.crashed, [])):
        ended = failure_row(sweep.cells[0], status, "why")
        assert remains([peak, GOOD], [], ended) == ([*kept, ended], [])


def test_a_sweep_stops_at_its_limit_of_time(
    sweep: Sweep, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        *WORDS,
        "runner.lengths=[8,16]",
        f"results={sweep.root}",
        "runner.sweep_timeout_s=0.01",
    ]
    assert main(["run", *words]) == 1
    out = capsys.readouterr().out
    assert "the time limit is over (runner.sweep_timeout_s=0.01): 2 of 2 runs are left" in out
    assert "rerun the same command to resume" in out
    for at in (0, 1):
        write(sweep, at, GOOD)
    assert main(["run", *words]) == 0


def test_a_sweep_of_several_runners_repeats_what_each_says(tmp_path: Path) -> None:
    words = ["-m", *WORDS[:2], "runner=scaling,certify", "logger=none", f"results={tmp_path}"]
    both = build(entries(words))
    assert both.control.retry == [DISTURBED]
    said = {each.cell.columns["runner"]: each.run.control.retry for each in both.planned}
    assert said == {"scaling": [DISTURBED], "certify": []}
