"""Sweeps as users run them: skipped, split, stopped, failed, and two at once."""

from pathlib import Path

import pandas as pd
import pytest
from small_sweeps import BRIEF, run, start

from lra.runners.store import read_rows


def test_a_sweep_is_stored_and_not_repeated(tmp_path: Path, capsys, monkeypatch) -> None:
    words = ("-m", "model=linear,identity", "seed=0,1")
    assert run(tmp_path, *words, "runner.dry_run=true") == 0
    assert "4 runs" in (listed := capsys.readouterr().out)
    assert "0 done, 4 to do" in listed
    assert not list(tmp_path.iterdir())
    assert run(tmp_path, *words) == 0
    assert "[4/4]" in capsys.readouterr().out
    assert not {"hydra", "multirun.yaml"} & {path.name for path in tmp_path.iterdir()}
    before = read_rows(tmp_path)
    server = "lra.runners.isolation.isolate.forkserver.ensure_running"
    monkeypatch.setattr(server, lambda: pytest.fail("a fork server for nothing"))
    assert run(tmp_path, *words) == 0
    assert "4 of 4 runs are finished already" in capsys.readouterr().out
    pd.testing.assert_frame_equal(read_rows(tmp_path), before)
    assert set(before["model"]) == {"linear", "identity"}
    assert run(tmp_path, *words, "runner.dry_run=true") == 0
    assert "4 done, 0 to do" in capsys.readouterr().out


def test_shards_cover_the_sweep_once(tmp_path: Path, capsys) -> None:
    seen: list[str] = []
    for part in ("1/3", "2/3", "3/3"):
        words = ("-m", "seed=0,1,2,3", f"runner.shard={part}", "runner.dry_run=true")
        assert run(tmp_path, *words) == 0
        seen += [line.split()[0] for line in capsys.readouterr().out.splitlines()[:-1]]
    assert len(seen) == len(set(seen)) == 4


def test_runs_with_other_options_are_other_cells(tmp_path: Path, capsys) -> None:
    words = ("-m", "optim.steps=6,7", "task.processes=1,2", "runner.dry_run=true")
    assert run(tmp_path, *words) == 0
    assert "2 runs" in capsys.readouterr().out  # the number of processes changes no number


@pytest.mark.parametrize(
    ("words", "status", "reason"),
    [
        (("optim.peak_learning_rate=1e30", "optim.clip=null"), "diverged", "lower optim.peak"),
        (("runner.timeout_s=0.05",), "timeout", "0.05"),
        (
            ("model.backbone.width=1024", "hardware.memory_limit_bytes=30000000"),
            "out_of_memory",
            "30,000,000 bytes",
        ),
    ],
)
def test_a_failure_is_a_row_with_its_reason(
    words: tuple[str, ...], status: str, reason: str, tmp_path: Path, capsys
) -> None:
    assert run(tmp_path, *words) == 1
    rows = read_rows(tmp_path)
    failed = rows[rows["status"] != "ok"]
    assert list(failed["status"]) == [status], failed["reason"].tolist()
    assert reason in failed["reason"].iloc[0]
    assert status in capsys.readouterr().out
    assert run(tmp_path, *words) == 0  # complete: failures are repeated on demand only
    assert "finished already" in capsys.readouterr().out
    if status == "timeout":
        assert run(tmp_path, *words[:-1], "runner.retry=[timeout]") == 0
        assert set(read_rows(tmp_path)["status"]) == {"ok"}


def test_a_length_beyond_one_that_was_too_much_is_not_tried(tmp_path: Path) -> None:
    words = ("runner=scaling", "runner.modes=[forward,step]", "runner.references=[]", *BRIEF)
    limits = ("runner.timeout_s=1e-3", "runner.lengths=[8,16,32]", "model=identity")
    assert run(tmp_path, *words, *limits) == 0
    rows = read_rows(tmp_path).sort_values(["mode", "length"])
    assert set(rows["status"]) == {"timeout", "skipped"}
    first, *later = rows[rows["mode"] == "step"]["reason"]
    assert "0.001" in first
    assert all(
        reason.startswith("this length was not tried, because 8 tokens were too many")
        for reason in later
    )
    # another curve of the same store is tried by itself
    assert run(tmp_path, *words, *limits[:2], "model=linear") == 0
    rows = read_rows(tmp_path)
    assert (rows["reason"].str.contains("not tried").groupby(rows["model"]).sum() == 4).all()


SWEEP = ("-m", "model=linear,performer", "seed=0,1", "model.backbone.depth=1")


@pytest.mark.slow
def test_two_sweeps_at_once_share_the_work(tmp_path: Path) -> None:
    pair = [start(tmp_path, *SWEEP) for _ in range(2)]
    for process in pair:
        text = process.communicate(timeout=300).decode()
        assert process.returncode == 0, text
    rows = read_rows(tmp_path)
    assert rows["cell"].nunique() == 4
    final = rows[(rows["metric"] == "accuracy") & rows["step"].isna()]
    assert len(final) == 8  # two splits, once each


def test_every_row_names_the_variant_of_its_family(tmp_path: Path) -> None:
    words = ("-m", "model=linformer", "model.mixer.variant=faithful,lra", "runner=scaling")
    cost = ("runner.lengths=[16]", "runner.modes=[forward]", "runner.references=[]", *BRIEF)
    assert run(tmp_path, *words, *cost) == 0
    labels = [dict(labels) for labels in read_rows(tmp_path)["labels"]]
    assert {label["variant"] for label in labels} == {"faithful", "lra"}


def test_layers_may_be_of_other_families(tmp_path: Path) -> None:
    cost = ("runner=scaling", "runner.lengths=[16]", "runner.modes=[forward]", *BRIEF)
    words = ("-m", "model=fnet", "model.layers=[],[fnet,sdpa]", "model.backbone.padding=zeroed")
    assert run(tmp_path, *words, *cost, "runner.references=[]", "report=true") == 0
    labels = [dict(labels) for labels in read_rows(tmp_path)["labels"]]
    assert {label.get("layers") for label in labels} == {None, "fnet + sdpa"}
    (table,) = tmp_path.glob("reports/*/efficiency-forward.md")
    assert "fnet (fnet + sdpa)" in table.read_text()
    assert "others" not in table.read_text()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("model.layers=[sdpa]",), "got 1 names of families; wanted 2 names, one"),
        (("model.layers=[sdpa,lineer]",), "did you mean 'linear'"),
        (("model.layers=[sdpa,tlb]",), "tlb is a whole stack"),
        (("model=tlb", "model.layers=[sdpa,sdpa]"), "tlb is a whole stack"),
    ],
)
def test_layers_that_cannot_be(words: tuple[str, ...], reason: str, tmp_path: Path, capsys) -> None:
    assert run(tmp_path, *words) == 2
    assert reason in capsys.readouterr().err
