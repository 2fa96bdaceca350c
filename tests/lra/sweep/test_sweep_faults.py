"""Sweeps among faults: a cell's own are its row, the storage's and a stranger's signal are none."""

import errno
import os
import signal
from pathlib import Path

import pandas as pd
import pytest
from faulty_mixers import CONSTRUCTORS
from fuzz import cases
from small_sweeps import FAULTY, TINY, run, settled

from lra.composition.hydra_entry import entries
from lra.runners.isolation.process import Child
from lra.runners.store import Store, read_outcomes, read_rows
from lra.sweep.cell_list import build

EACH_STEP = ("runner.checkpoint_every_s=1e-9", "runner.log_every_steps=2", "model.backbone.depth=1")
SHORT = (*FAULTY, *EACH_STEP)


@pytest.fixture(scope="module")
def whole(tmp_path_factory, data):
    """The undisturbed run that every resumed one is compared with."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LRA_DATA", str(data))
        assert run(folder / "results", *SHORT) == 0
    return settled(folder / "results")


# -- the storage ----------------------------------------------------------------------------------

REFUSALS = ("ENOSPC", "EDQUOT", "EFBIG", "EACCES", "EPERM", "EROFS", "EIO", "ESTALE")
IN_THE_CHILD = (
    "resume.pt 0", "resume.pt 1", "resume.pt 4", "resume-previous.pt 0", "weights.pt 0",
)  # fmt: skip
IN_THE_PARENT = ("rows-", "outcomes-", "cell.json", "environment-")
PLACES = (*IN_THE_CHILD, *IN_THE_PARENT)
# Each place once in the short form; all pairs from LRA_FUZZ=8 on.
PAIRS = [
    (place, REFUSALS[(number + turn) % len(REFUSALS)])
    for turn in range(len(REFUSALS))
    for number, place in enumerate(PLACES)
][: cases(len(PLACES))]


def refuse(patch, place, number):
    """Have the storage refuse at a place, in this process or in the cells'."""
    if place in IN_THE_CHILD:
        patch.setenv("LRA_TEST_REFUSAL", f"{number} {place}")
        return
    real = Path.replace

    def refusing(self, target):
        if Path(target).name.startswith(place):
            raise OSError(number, os.strerror(number), str(target))
        return real(self, target)

    patch.setattr(Path, "replace", refusing)


@pytest.mark.fuzz
@pytest.mark.parametrize("pair", PAIRS, ids=" ".join)
def test_a_refusing_storage_ends_the_sweep_and_the_same_command_goes_on(
    pair, whole, tmp_path, monkeypatch, capsys
):
    place, number = pair[0], getattr(errno, pair[1])
    with monkeypatch.context() as patch:
        refuse(patch, place, number)
        assert run(tmp_path, *SHORT) == 2
    said = capsys.readouterr()
    assert os.strerror(number) in said.err
    assert str(tmp_path / "cells") in said.err
    assert "Rerun the same command to resume" in said.err
    assert "1 of 1 runs are left" in said.out
    assert not list(tmp_path.rglob("rows-*"))
    assert not list((tmp_path / "claims").iterdir())
    assert run(tmp_path, *SHORT) == 0
    pd.testing.assert_frame_equal(settled(tmp_path), whole)


@pytest.mark.parametrize("place", ["claims", "sweeps"])
def test_claims_and_sweeps_that_cannot_be_written(place, tmp_path, capsys):
    (tmp_path / place).write_text("in the way")
    assert run(tmp_path, *SHORT) == 2
    assert str(tmp_path / place) in capsys.readouterr().err
    assert not list(tmp_path.rglob("rows-*"))
    (tmp_path / place).unlink()
    assert run(tmp_path, *SHORT) == 0


@pytest.mark.parametrize("work", ["wrapped", "said", "temporary"])
def test_a_stranger_whose_storage_refuses(work, tmp_path, capsys):
    assert run(tmp_path, *SHORT, f"+model.mixer.work={work}") == 2
    said = capsys.readouterr()
    assert "lra: " in said.err
    assert "Traceback" not in said.err
    assert "Rerun the same command to resume" in said.err
    assert not list(tmp_path.rglob("rows-*"))


def test_side_by_side_the_first_refusal_ends_all(tmp_path, monkeypatch, capsys):
    many = ("-m", "seed=0,1,2,3", "hardware.training_processes=2", "optim.steps=2000", *SHORT)
    with monkeypatch.context() as patch:
        patch.setenv("LRA_TEST_REFUSAL", f"{errno.ENOSPC} resume.pt 3")
        assert run(tmp_path, *many) == 2
    said = capsys.readouterr()
    assert "4 of 4 runs are left" in said.out
    assert said.err.count("No space left on device") == 1
    assert not list(tmp_path.rglob("rows-*"))
    assert len(list(tmp_path.glob("cells/*/*"))) <= 2  # the others were not begun


# -- constructors, and what a failed cell leaves ---------------------------------------------------


def test_whatever_a_constructor_does_is_its_row(tmp_path, capsys):
    """Only the cell that hangs has a short limit: a busy machine is slow to begin the others."""
    faults = ",".join(f'"{name}"' for name in CONSTRUCTORS if name != "hangs")
    assert run(tmp_path, "-m", *SHORT, f"+model.mixer.constructor={faults},''") == 1
    assert "[9/9]" in capsys.readouterr().out
    words = ("+model.mixer.constructor=hangs", "runner.timeout_s=2")
    assert run(tmp_path, *SHORT, *words) == 1
    rows = read_rows(tmp_path)
    store = Store(tmp_path)
    ended = {}
    for key, own in rows.groupby("cell"):
        constructor = store.describe(key)["described"]["mixer"]["constructor"]
        ended[constructor] = set(own["status"])
        if constructor:
            (row,) = own.itertuples()
            assert (row.metric, row.labels["split"], len(row.samples)) == ("accuracy", "test", 0)
            assert row.reason
    crashed = {"crashed"}
    assert ended == {
        **dict.fromkeys(CONSTRUCTORS, crashed), "refuses": {"unsupported"}, "hangs": {"timeout"},
        "huge": {"out_of_memory"}, "": {"ok"},
    }  # fmt: skip


def test_a_constructor_that_reads_its_weights_works(tmp_path):
    assert run(tmp_path, *SHORT, "+model.mixer.constructor='reads weights'") == 0
    assert set(read_rows(tmp_path)["status"]) == {"ok"}


@pytest.mark.parametrize("constructor", ["refuses", "raises"])
def test_what_needs_a_training_that_could_not_be_built(constructor, tmp_path):
    words = (*SHORT[:-3], "runner=span", f"+model.mixer.constructor={constructor}")
    assert run(tmp_path, *words) == (constructor == "raises")
    rows = read_rows(tmp_path)
    status = {row.runner: (row.status, row.reason) for row in rows.itertuples()}
    if constructor == "refuses":
        assert status["span"] == status["train"] == ("unsupported", "cannot do this")
    else:
        assert status["train"][0] == "crashed"
        assert status["span"][0] == "skipped"
        assert "this training ended with the status crashed: KeyError" in status["span"][1]


@pytest.mark.parametrize(
    ("work", "status", "curve"),
    [("raises", "crashed", 0), ("hangs", "timeout", 3), ("no memory", "out_of_memory", 3)],
)
def test_a_failed_cell_has_no_score(work, status, curve, tmp_path, monkeypatch):
    """It fails in the evaluation of the second split, when there are scores of the first."""
    looks, poll = [], Child.poll
    monkeypatch.setattr(Child, "poll", lambda child: looks.append(child) or poll(child))
    calls = 6 + 50 + 10  # steps, all batches of the first split and some of the second
    limit = ("runner.timeout_s=6",) if status == "timeout" else ()
    words = ("runner.evaluation_batch_size=8", f"+model.mixer.work='{work}'", *limit)
    run(tmp_path, *SHORT, *words, f"+model.mixer.call={calls}")
    assert len(looks) < 500  # also while one that hangs is given time to end
    rows = read_rows(tmp_path)
    (failed,) = rows[rows["status"] != "ok"].itertuples()
    assert failed.status == status
    good = rows[rows["status"] == "ok"]
    assert len(good) == curve
    assert good["step"].notna().all()
    assert set(good["metric"]) <= {"train_loss"}
    assert read_outcomes(tmp_path, failed.cell) == []


# -- signals to a cell ----------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])  # saved, and not
def test_a_lone_cell_that_is_stopped_from_outside(number, whole, tmp_path, monkeypatch, capsys):
    with monkeypatch.context() as patch:
        patch.setenv("LRA_TEST_SIGNAL", f"{int(number)} 4 {tmp_path / 'once'}")
        assert run(tmp_path / "results", *SHORT) == 1
    said = capsys.readouterr().out
    assert "something outside lra stopped 1 of 1 runs" in said
    assert "1 of 1 runs have no results yet; rerun the same command to resume" in said
    assert "again" not in said
    assert "rows   " not in said
    assert run(tmp_path / "results", *SHORT) == 0
    assert "rows   " in capsys.readouterr().out
    pd.testing.assert_frame_equal(settled(tmp_path / "results"), whole)


def test_sigint_to_a_cell_alone_changes_nothing(whole, tmp_path, monkeypatch):
    monkeypatch.setenv("LRA_TEST_SIGNAL", f"{int(signal.SIGINT)} 4 {tmp_path / 'once'}")
    assert run(tmp_path / "results", *SHORT) == 0
    pd.testing.assert_frame_equal(settled(tmp_path / "results"), whole)


def test_one_of_many_that_is_stopped_from_outside(tmp_path, monkeypatch, capsys):
    many = ("-m", "seed=0,1,2", *SHORT)
    with monkeypatch.context() as patch:
        patch.setenv("LRA_TEST_SIGNAL", f"{int(signal.SIGTERM)} 4 {tmp_path / 'once'}")
        assert run(tmp_path / "results", *many, "report=true") == 1
    said = capsys.readouterr().out
    assert said.count("saved half-way: stopped after step 4; rerun the command to resume") == 1
    assert "something outside lra stopped 1 of 3 runs" in said
    assert "1 of 3 runs have no results yet" in said
    assert "page" in said  # of the two that are there
    assert read_rows(tmp_path / "results")["cell"].nunique() == 2
    assert run(tmp_path / "results", *many) == 0
    assert read_rows(tmp_path / "results")["cell"].nunique() == 3


def test_a_training_that_is_stopped_leaves_what_needs_it_for_later(tmp_path, monkeypatch, capsys):
    words = (*SHORT[:-3], "runner=span")
    with monkeypatch.context() as patch:
        patch.setenv("LRA_TEST_SIGNAL", f"{int(signal.SIGTERM)} 4 {tmp_path / 'once'}")
        assert run(tmp_path / "results", *words) == 1
    said = capsys.readouterr().out
    assert "something outside lra stopped 1 of 2 runs" in said
    assert "2 of 2 runs have no results yet" in said
    assert run(tmp_path / "results", *words) == 0
    assert set(read_rows(tmp_path / "results")["runner"]) == {"train", "span"}


# -- threads --------------------------------------------------------------------------------------


def keys(*words):
    return [cell.key for cell in build(entries([*TINY, *words]), elsewhere=True).cells]


@pytest.mark.parametrize("runner", ["train", "transfer", "span"])
def test_threads_that_move_numbers_are_in_the_key(runner):
    found = {
        threads: keys(f"runner={runner}", f"hardware.training_threads={threads}")
        for threads in (1, 2, 3)
    }
    every = [key for own in found.values() for key in own]
    assert len(set(every)) == len(every)
    assert keys(f"runner={runner}") == found[1]


@pytest.mark.parametrize("words", [("runner=certify",), ("runner=scaling", "runner.lengths=[8]")])
def test_threads_of_training_are_not_in_other_keys(words):
    assert keys(*words, "hardware.training_threads=2") == keys(*words)


# -- processes ------------------------------------------------------------------------------------


def test_several_processes_leave_the_key_of_a_training_alone():
    assert keys("hardware.processes=2") == keys()


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (("runner=scaling", "runner.lengths=[8]"), "a run of this runner uses one process"),
        (("-m", "hardware.processes=1,2"), "one number in a sweep"),
        (("optim.batch_size=1",), "at least one row for each"),
        (("optim.batch_size=3", "hardware.sharded=true"), "a multiple of 2"),
        (("hardware.sharded=true", "hardware.precision=float16"), "float32 or bfloat16"),
    ],
)
def test_what_several_processes_cannot_do_is_refused_before_anything_runs(
    words, wanted, tmp_path, capsys
):
    assert run(tmp_path, "runner.dry_run=true", "hardware.processes=2", *words) == 2
    assert wanted in capsys.readouterr().err
