"""Training state on disk: damage is noticed, the one before it serves, nothing loops."""

import os
import tracemalloc
from pathlib import Path

import pytest
import torch

from lra.runners.storage import atomic
from lra.runners.training.checkpoint import PREVIOUS, RESUME, WEIGHTS, Checkpoints
from tests.faulty_calls import FOREVER, PASSING, Faults


def state(step: int) -> dict[str, object]:
    return {"step": step, "weights": torch.arange(4096.0) + step, "rows": [{"metric": "loss"}]}


def test_the_newest_state_comes_back(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path / "not" / "yet")
    assert newest(kept) is None
    for step in (1, 2, 3):
        kept.save(state(step))
    found = newest(kept)
    assert found is not None
    assert found["step"] == 3
    assert found["rows"] == [{"metric": "loss"}]
    assert torch.equal(found["weights"], torch.arange(4096.0) + 3)


def newest(kept: Checkpoints) -> dict[str, object] | None:
    return next((found for _, found in kept.states()), None)


@pytest.mark.parametrize("place", [0.1, 0.5, 0.9])
def test_one_changed_byte_is_noticed(place: float, tmp_path: Path, caplog) -> None:
    kept = Checkpoints(tmp_path)
    kept.save(state(1))
    kept.save(state(2))
    data = bytearray((tmp_path / RESUME).read_bytes())
    data[int(place * len(data))] ^= 0x10
    (tmp_path / RESUME).write_bytes(data)
    found = newest(kept)
    assert found is not None
    assert found["step"] == 1
    assert RESUME in caplog.text


def test_no_file_is_held_beside_its_tensors(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    kept.finish({"large": torch.zeros(1 << 22)})  # which Python's count of memory leaves out
    tracemalloc.start()
    try:
        assert kept.weights()["large"].numel() == 1 << 22
        (tmp_path / WEIGHTS).write_bytes(b"")
        os.truncate(tmp_path / WEIGHTS, 1 << 24)
        with pytest.raises(ValueError, match="is damaged"):
            kept.weights()
        assert tracemalloc.get_traced_memory()[1] < 1 << 23
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("can't allocate memory: 9 bytes")])
def test_a_state_for_which_there_is_no_memory_is_not_damaged(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Checkpoints(tmp_path)
    kept.save(state(1))

    def load(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("torch.load", load)
    with pytest.raises(MemoryError):
        newest(kept)


@pytest.mark.parametrize("left", [b"", b"PK\x03\x04", b"no archive at all"])
def test_two_damaged_files_mean_a_new_start(left: bytes, tmp_path: Path, caplog) -> None:
    kept = Checkpoints(tmp_path)
    kept.save(state(1))
    kept.save(state(2))
    for name in (RESUME, PREVIOUS):
        (tmp_path / name).write_bytes(left)
    assert newest(kept) is None
    assert RESUME in caplog.text
    assert PREVIOUS in caplog.text
    kept.save(state(3))
    found = newest(kept)
    assert found is not None
    assert found["step"] == 3


@pytest.mark.parametrize("name", [RESUME, PREVIOUS, WEIGHTS])
def test_what_is_no_file_gives_way_and_is_kept(name: str, tmp_path: Path, caplog) -> None:
    kept = Checkpoints(tmp_path / "checkpoint")
    kept.save(state(1))
    (tmp_path / "checkpoint" / name).unlink(missing_ok=True)
    (tmp_path / "checkpoint" / name).mkdir()
    (tmp_path / "checkpoint" / name / "mine.txt").write_text("kept")
    kept.save(state(2))
    kept.finish({"weight": torch.ones(2)})
    assert [*kept.weights()] == ["weight"]
    (aside,) = tmp_path.glob(f"damaged-*-{name}")
    assert (aside / "mine.txt").read_text() == "kept"
    assert str(aside) in caplog.text


def test_a_file_that_would_run_code_is_refused(tmp_path: Path, caplog) -> None:
    touched = tmp_path / "touched"

    class Harmful:
        def __reduce__(self) -> tuple[object, tuple[Path]]:
            return Path.touch, (touched,)

    torch.save({"step": 1, "weights": Harmful()}, tmp_path / RESUME)
    assert newest(Checkpoints(tmp_path)) is None
    assert Checkpoints(tmp_path).step() is None
    assert not touched.exists()
    assert "cannot be read" in caplog.text


def test_a_failed_write_leaves_the_old_state(tmp_path: Path, monkeypatch) -> None:
    kept = Checkpoints(tmp_path)
    kept.save(state(1))

    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(atomic.Unwritable, match="free some space"):
        kept.save(state(2))
    assert [path.name for path in tmp_path.iterdir()] == [RESUME]
    found = newest(kept)
    assert found is not None
    assert found["step"] == 1


def test_finishing_keeps_only_the_weights(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    kept.save(state(1))
    kept.save(state(2))
    kept.finish({"weight": torch.ones(3)})
    assert [path.name for path in tmp_path.iterdir()] == [WEIGHTS]
    found = torch.load(tmp_path / WEIGHTS, weights_only=True)
    assert torch.equal(found["weight"], torch.ones(3))


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_refused_by_name(number: float, tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path)
    kept.finish({"fine": torch.ones(3), "ids": torch.arange(2), "odd": torch.tensor([0.0, number])})
    with pytest.raises(
        ValueError, match=r"damaged \(the tensor odd contains numbers that are not finite\); delete"
    ):
        kept.weights()


def test_without_a_folder_nothing_is_kept() -> None:
    kept = Checkpoints(None)
    kept.save(state(1))
    kept.finish({})
    assert newest(kept) is None


@pytest.mark.parametrize("number", PASSING)
def test_an_error_of_the_system_begins_no_training_again(number: int, tmp_path, monkeypatch):
    kept = Checkpoints(tmp_path)
    kept.save(state(1))
    kept.save(state(2))
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    faults = Faults(monkeypatch)
    faults.fail(number, "resume", 2)
    found = newest(kept)
    assert found is not None
    assert found["step"] == 2
    faults.fail(number, "resume", FOREVER)
    for act in (lambda: newest(kept), lambda: kept.save(state(3)), kept.present):
        with pytest.raises(OSError, match="resume"):
            act()
    faults.left = 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


@pytest.mark.parametrize("number", PASSING)
def test_weights_that_cannot_be_read_are_neither_gone_nor_damaged(number, tmp_path, monkeypatch):
    kept = Checkpoints(tmp_path)
    kept.finish({"fine": torch.ones(3)})
    faults = Faults(monkeypatch)
    faults.fail(number, "weights")
    assert kept.finished()
    faults.fail(number, "weights")
    assert kept.weights()["fine"].sum() == 3
    for only in ("stat", "open"):
        faults.fail(number, "weights", FOREVER, only=only)
        with pytest.raises(OSError, match="weights") as caught:
            kept.weights()
        assert "damaged" not in str(caught.value)
