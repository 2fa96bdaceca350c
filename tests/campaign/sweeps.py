"""Tiny sweeps in processes of their own, and what must be true of their store afterwards."""

import json
import os
import re
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from lra.runners.storage.formats import BadStore, rows_files
from lra.runners.store import read_rows_file
from tests import lra_process
from tests.campaign import fresh, machine
from tests.campaign.part import Found, Settings
from tests.lra.sweep.small_sweeps import settled

LONGEST_S = 600.0
"""A command that takes longer hangs."""
TINY = (
    "task=listops", "task.source=sample", "optim.steps=40", "optim.warmup_steps=0",
    "optim.batch_size=8", "model.backbone.dropout=0.1", "model.backbone.depth=1",
    "model.backbone.width=16", "runner.log_every_steps=5", "runner.checkpoint_every_s=0.05",
    "hardware.training_processes=2", "logger=none", "report=false",
    "runner.baselines=false",
)  # fmt: skip
"""A training of half a second, with some checkpoints; dropout shows whether draws went on."""
SHORT = ("-m", *TINY, "model=linear,performer", "seed=range(0,2)", "sweep=S")
"""What most parts disturb in the short form: it is run undisturbed once for all of them."""
SHARED = "undisturbed"
ENDS = (
    r"results +\S", r"interrupted: \d+ of \d+ runs are left; rerun the same command",
    r"\d+ of \d+ runs have no results yet; rerun the same command", r"lra: .{20}",
    r"\d+ of \d+ runs are finished already and are skipped", r"W&B  ",
    r"TensorBoard  ", r"rows  ", r"details  ", r"note  ",
)  # fmt: skip
"""What the last line of a sweep that was not killed begins with."""


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    said: str
    """Both of its outputs, in the order in which they came."""

    @property
    def last(self) -> str:
        """Its last line that holds something."""
        return next((line for line in reversed(self.said.splitlines()) if line.strip()), "")

    def clear(self) -> bool:
        """Return whether a person knows how it ended: no traceback, and a last line that says."""
        return (
            "Traceback" not in self.said
            and "this is a bug" not in self.said
            and any(re.match(end, self.last) for end in ENDS)
        )


class Bench:
    """A folder in which the commands of one case stand: results, temporary files, output."""

    def __init__(self, settings: Settings, name: str, words: tuple[str, ...] = ()) -> None:
        self.folder = (settings.folder.parent if name == SHARED else settings.folder) / name
        self.words = words
        """The sweep of the case."""
        # Sockets have names of at most 107 characters.
        self.temporary = Path(tempfile.mkdtemp(prefix="lra-campaign-"))
        weakref.finalize(self, shutil.rmtree, self.temporary, ignore_errors=True)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.results = self.folder / "results"
        self.data = settings.folder.parent / "data"
        self.number = 0

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return the variables of a command."""
        own = {"LRA_DATA": str(self.data), "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"}
        path = {"PYTHONPATH": str(lra_process.HOME), "PYTHONSAFEPATH": "1"}
        return {**os.environ, **own, **path, **(more or {})}

    def start(
        self,
        *words: str,
        more: Mapping[str, str] | None = None,
        prepare: Callable[[], object] = fresh.begin,
    ) -> "Running":
        """Start `lra WORDS`.

        Args:
            words: behind `lra`.
            more: variables.
            prepare: is called in the new process before all else.
        """
        self.number += 1
        output = self.folder / f"said-{self.number}.txt"
        with output.open("wb") as file, Path(os.devnull).open("rb") as nothing:
            program = lra_process.Program(
                words,
                cwd=self.folder,
                env=self.environment(more),
                prepare=prepare,
                files=(nothing.fileno(), file.fileno(), file.fileno()),
            )
        return Running(program, output)

    def run(self, *words: str, more: Mapping[str, str] | None = None) -> Ended:
        """Run `lra WORDS` to its end."""
        return self.start(*words, more=more).end()


class Running:
    """A command under way."""

    def __init__(self, program: lra_process.Program, output: Path) -> None:
        self.program, self.output = program, output
        self.pid = program.pid

    def over(self) -> bool:
        """Return whether it has ended."""
        return self.program.poll() is not None

    def end(self) -> Ended:
        """Wait for its end."""
        code = self.program.wait(LONGEST_S)
        return Ended(code, self.output.read_text(errors="replace"))


def undisturbed(settings: Settings, *words: str) -> Path:
    """Return the results of a sweep that nothing happened to; made once for the same words."""
    bench = Bench(settings, SHARED if words == SHORT else "whole")
    kept = bench.folder / "words.json"
    if kept.is_file() and json.loads(kept.read_text()) == [*words]:
        return bench.results
    ended = bench.run("run", *words, f"results={bench.results}")
    if ended.code:
        raise RuntimeError(f"the undisturbed sweep ended with {ended.code}:\n{ended.said[-2000:]}")
    kept.write_text(json.dumps(words))
    return bench.results


def done_cells(results: Path) -> int:
    """Return how many cells have rows."""
    return sum(1 for _ in results.glob("cells/*/*/rows-*.jsonl"))


def files_of(cell: Path) -> set[str]:
    """Return what lies in a cell's folder, but what its processes printed."""
    return {
        path.relative_to(cell).as_posix()
        for path in cell.rglob("*")
        if path.is_file() and path.name != "log.txt"
    }


def check_store(found: Found, results: Path, whole: Path, case: str) -> None:
    """Compare a store with that of an undisturbed sweep: lost, doubled, different, left behind."""
    cells = {folder.name: folder for folder in results.glob("cells/*/*") if folder.is_dir()}
    wanted = {folder.name: folder for folder in whole.glob("cells/*/*") if folder.is_dir()}
    lost = wanted.keys() - {key for key, folder in cells.items() if rows_files(folder)}
    found.check(not lost, f"{case}: lost cells {sorted(lost)[:5]}")
    found.figures["cells lost"] = found.figures.get("cells lost", 0) + len(lost)
    found.check(cells.keys() <= wanted.keys(), f"{case}: cells that nobody asked for")
    doubled = 0
    for key, folder in cells.items():
        files = rows_files(folder)
        found.check(len(files) == 1, f"{case}: {key} has {len(files)} files of rows")
        for file in files:
            rows = _rows(found, file, key, case)
            marks = Counter(
                (row["metric"], row["step"], json.dumps(row["labels"], sort_keys=True))
                for row in rows
            )
            twice = sum(count - 1 for count in marks.values())
            doubled += twice
            found.check(not twice, f"{case}: {key} has {twice} rows twice in {file.name}")
        if key in wanted:
            extra, missing = _compared(files_of(folder), files_of(wanted[key]))
            found.check(not extra, f"{case}: {key} has more files: {extra}")
            found.check(not missing, f"{case}: {key} lacks files: {missing}")
    found.figures["rows doubled"] = found.figures.get("rows doubled", 0) + doubled
    claims = [path.name for path in (results / "claims").glob("*")]
    found.check(not claims, f"{case}: claims are left: {claims[:5]}")
    own, others = (
        {p.name for p in results.glob("sweeps/*")},
        {p.name for p in whole.glob("sweeps/*")},
    )
    if own == others:
        for name in own:
            listed = {path.name for path in (results / "sweeps" / name).iterdir()}
            found.check(listed == wanted.keys(), f"{case}: sweep {name} lists {len(listed)} cells")
    _equal(found, results, whole, case)


def _rows(found: Found, file: Path, key: str, case: str) -> list[dict[str, Any]]:
    try:
        rows = read_rows_file(file, key)
    except BadStore as error:
        found.check(False, f"{case}: {error}")
        return []
    found.check(rows, f"{case}: no rows in {file}")
    return rows


def _compared(own: set[str], whole: set[str]) -> tuple[list[str], list[str]]:
    own = {name for name in own if not name.startswith("damaged-")}
    return sorted(own - whole)[:5], sorted(whole - own)[:5]


def _equal(found: Found, results: Path, whole: Path, case: str) -> None:
    try:
        rows, others = (_without_speeds(settled(root)) for root in (results, whole))
    except BadStore as error:
        found.check(False, f"{case}: {error}")
        return
    try:
        pd.testing.assert_frame_equal(rows, others)
    except AssertionError as error:
        found.check(False, f"{case}: rows differ from the undisturbed sweep's: {error}"[:600])
    else:
        found.check(True, "")
        found.figures["rows compared"] = found.figures.get("rows compared", 0) + len(rows)


def _without_speeds(rows: pd.DataFrame) -> pd.DataFrame:
    return rows[~rows["metric"].str.startswith("tokens_per_second")].reset_index(drop=True)


def check_left(found: Found, bench: Bench, case: str, *, killed: int = 0) -> None:
    """Check that nothing of a case is left on the machine.

    Args:
        killed: parents that ended by SIGKILL: each leaves the folder of its fork server's socket.
    """
    left = machine.left_processes(bench.folder)
    found.check(not left, f"{case}: processes are left: {left}")
    shared = machine.left_shared_memory(bench.folder)
    found.check(not shared, f"{case}: shared memory is left: {sorted(shared)[:5]}")
    files = machine.temporary_files(bench.temporary)
    found.check(len(files) <= killed, f"{case}: temporary files are left: {files[:5]}")
    if files:
        before = found.figures.get("temporary folders of killed parents", 0)
        found.figures["temporary folders of killed parents"] = before + len(files)
