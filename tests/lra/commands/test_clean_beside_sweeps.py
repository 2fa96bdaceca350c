"""What sweeps and workers use, or are about to use, is not removed under them."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lra.cli import main
from lra.cluster.local import LocalEngine, job_id
from lra.execution import in_memory
from lra.execution.executor import Executor
from lra.runners.store import Store, read_rows
from lra.sweep.sweep import SweepOutcome

WORDS = (
    "task=text8", "task.source=sample", "task.length=256", "model=linear", "optim.steps=2",
    "optim.warmup_steps=0", "optim.batch_size=2", "model.backbone.width=16",
    "model.backbone.depth=1", "model.backbone.positions=none", "runner.evaluate_splits=[]",
    "logger=none", "report=false", "sweep=used",
)  # fmt: skip
KINDS = (("data",), ("sweeps", "used"), ("weights",), ("old",))


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LRA_DATA", str(tmp_path / "data"))
    folder = tmp_path / "data/text8-other"
    folder.mkdir(parents=True)
    (folder / "manifest.json").touch()
    return folder


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """Try to remove everything; return what was said to each, that it was refused."""

    def tried() -> list[str]:
        said = []
        for words in KINDS:
            capsys.readouterr()
            assert main(["clean", *words, "--yes"]) == 2, words
            said.append(capsys.readouterr().err)
        return said

    return tried


def filled() -> None:
    """Leave something of each kind behind."""
    assert main(["run", *WORDS, "seed=5"]) == 0
    (folder,) = Path("results").glob("cells/*/*")
    (folder / "damaged-1-rows").write_text("torn")


def test_a_sweep_that_starts_keeps_what_it_uses(
    data: Path, refused: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    filled()

    def preparing(*given: object) -> None:
        """Come before any cell is claimed."""
        assert Store(Path("results")).claims() == {}
        said.extend(refused())
        Path("elsewhere").mkdir()  # the data folder is one
        assert main(["clean", "data", "--yes", "--results", "elsewhere"]) == 2
        prepare(*given)

    said, prepare = list[str](), in_memory._prepare
    monkeypatch.setattr(in_memory, "_prepare", preparing)
    assert main(["run", *WORDS]) == 0
    assert len(said) == len(KINDS)
    assert all("sweep used in" in line and "then clean" in line for line in said)
    assert data.exists()
    assert set(read_rows(Path("results"))["status"]) == {"ok"}
    for words in KINDS:
        assert main(["clean", *words, "--yes"]) == 0, words
    assert not data.exists()


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Have workers be started that get no further for now."""
    processes: list[subprocess.Popen[bytes]] = []

    def submit(*_: object) -> list[str]:
        processes.append(subprocess.Popen(["sleep", "300"], start_new_session=True))
        return [job_id(processes[-1].pid)]

    monkeypatch.setattr(LocalEngine, "submit", submit)
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def test_workers_that_start_keep_what_they_will_use(
    data: Path, refused: Callable[[], list[str]], starting: list[subprocess.Popen[bytes]]
) -> None:
    filled()
    assert main(["submit", *WORDS]) == 0
    assert len(starting) == 1
    assert all("workers of sweep used are running or starting" in line for line in refused())
    starting[0].kill()
    starting[0].wait()
    for words in KINDS:
        assert main(["clean", *words, "--yes"]) == 0, words
    assert not data.exists()


def test_a_worker_keeps_what_it_uses_until_its_end(
    refused: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    filled()
    monkeypatch.setattr(LocalEngine, "submit", lambda *_: [])
    assert main(["submit", *WORDS]) == 0
    said: list[str] = []

    def running(_: Executor) -> SweepOutcome:
        said.extend(refused())
        return SweepOutcome()

    monkeypatch.setattr(Executor, "run", running)
    main(["work", "used", "--wait", "0"])
    assert all("sweep used in" in line for line in said[: len(KINDS)])
    assert len(said) >= len(KINDS)
    assert main(["clean", "data", "--yes"]) == 0


def test_one_that_was_killed_keeps_nothing(data: Path) -> None:
    """Its note stays, and is nobody's; the next one removes it."""
    filled()
    code = (
        "import os, signal; from pathlib import Path; from lra.sweep.users import at_work\n"
        "with at_work(Path('results'), 'used', data=True): os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], check=False, env=os.environ)
    folders = [Path("results/users"), data.parent / "locks/users"]
    assert [len([*folder.iterdir()]) for folder in folders] == [1, 1]
    assert main(["run", *WORDS]) == 0
    assert [[*folder.iterdir()] for folder in folders] == [[], []]
    assert main(["clean", "data", "--yes"]) == 0
