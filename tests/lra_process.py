"""The program `lra` in processes of its own that do not import everything anew.

One process per test worker imports once what the program imports, and forks for every call. What
it forks has the words, folder, variables, files and limits of its call and runs `lra` as
`python -m lra` does. The fork server of its cells is a fork, too; all else is as in production.
What depends on the imports, on the start of Python, or on another path than this repository's
calls `subprocess` instead.
"""

import atexit
import gc
import importlib
import os
import pickle
import runpy
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache
from multiprocessing import util
from pathlib import Path
from typing import IO, Any, NamedTuple

HOME = Path(__file__).resolve().parent.parent
IMPORTED = (
    "torch._dynamo", "lra.cli", "lra.commands.report", "lra.commands.run",
    "lra.composition.composer", "lra.composition.combinations", "lra.composition.complaints",
    "lra.composition.hydra_entry", "lra.composition.protocol", "lra.sweep.cells",
    "lra.results.finish", "lra.execution.in_memory",
    "lra.sweep.overview", "lra.sweep.work", "lra.models.families.linear", "lra.reports.report",
    "lra.runners.measures.train", "lra.runners.training.loop",
    "lra.runners.training.optimisers.build", "lra.tasks.classification.listops.task",
)  # fmt: skip
"""What most calls import."""
HASHED = (
    "lra.models.backbone.model", "lra.models.families.linear", "lra.runners.measures.train",
    "lra.tasks.classification.listops.task",
)  # fmt: skip
"""Modules whose sources, with all that they import, most calls hash."""


def unpacked(folder: Path) -> Path:
    """Copy lra into a folder as a wheel has it; return the package."""
    ignored = shutil.ignore_patterns("__pycache__", "published")
    shutil.copytree(HOME / "lra", folder / "lra", ignore=ignored)
    for room in ("conf", "models", "reports", "runners", "tasks"):
        shutil.copytree(HOME / room, folder / "lra" / room, ignore=ignored)
    return folder / "lra"


SHORT = {
    "costs": {"LENGTHS": (64, 128, 256), "FURTHER_LENGTHS": (512, 1024, 2048)},
    "rounding": {"LENGTHS": (40, 200, 800)},
    "separation": {"LONG": 600},
}
"""Lengths of checks of the contract kit, where it is called and not what is tested."""


def count_short(put: Callable[..., None] = setattr) -> None:
    """Set the lengths of `SHORT`, for good or by `monkeypatch.setattr`."""
    for name, lengths in SHORT.items():
        for each, length in lengths.items():
            put(importlib.import_module(f"lra.models.contract.{name}"), each, length)


def forget_packages() -> None:
    """Look for installed packages anew, on the path of this call."""
    importlib.import_module("lra.composition.extensions").extensions.cache_clear()


NUMBER = struct.Struct("i")


class Call(NamedTuple):
    """What a program is started with."""

    words: list[str]
    folder: str
    environment: dict[str, str]
    prepare: Callable[[], object] | None


# -- in the process of the tests ------------------------------------------------------------------


class Program:
    """A running `lra`.

    Args:
        words: what stands behind `lra`.
        cwd: the current folder, if not that of the tests.
        env: all variables, if not those of the tests.
        prepare: is called in the new process before all else; pickled.
        files: numbers of the files that become its input, output and errors; as in `subprocess`,
            output and errors are a pipe that `stdout` reads, where nothing is given.
    """

    def __init__(
        self,
        words: Sequence[str],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
        prepare: Callable[[], object] | None = None,
        files: tuple[int, int, int] | None = None,
    ) -> None:
        environment = dict(os.environ if env is None else env)
        call = Call([*words], str(cwd or Path.cwd()), environment, prepare)
        self.returncode: int | None = None
        self.stdout: IO[bytes] | None = None
        self._reports, report = os.pipe()
        passed = [report]
        if files is None:
            reader, writer = os.pipe()
            self.stdout = os.fdopen(reader, "rb")
            files = (0, writer, writer)
            passed.append(writer)
        with tempfile.TemporaryFile() as request:
            pickle.dump(call, request)
            request.seek(0)
            socket.send_fds(server()[0], [b"!"], [*files, request.fileno(), report])
        for file in passed:
            os.close(file)
        self.pid = self._next()

    def _next(self) -> int:
        return int(NUMBER.unpack(os.read(self._reports, NUMBER.size))[0])

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end and return the exit code, minus its number for a signal."""
        if self.returncode is None:
            if not select.select([self._reports], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("lra", timeout or 0.0)
            self.returncode = os.waitstatus_to_exitcode(self._next())
            os.close(self._reports)
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def communicate(self, timeout: float) -> bytes:
        """Return the rest of the output once the program has ended: none, where it was read."""
        if self.stdout.closed:
            return b""
        end, read = time.monotonic() + timeout, []
        while select.select([self.stdout], [], [], max(0.0, end - time.monotonic()))[0]:
            read.append(self.stdout.read1())
            if not read[-1]:
                self.stdout.close()
                self.wait(max(0.0, end - time.monotonic()))
                return b"".join(read)
        raise subprocess.TimeoutExpired("lra", timeout, b"".join(read))

    def send_signal(self, number: int) -> None:
        """Send a signal, if the program still runs."""
        if self.poll() is None:
            os.kill(self.pid, number)


def run(
    words: Sequence[str], *, timeout: float = 300, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run `lra` to its end and return what it printed; options as for `Program`."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        program = Program(words, files=(0, out.fileno(), errors.fileno()), **options)
        try:
            code = program.wait(timeout)
        finally:
            program.send_signal(signal.SIGKILL)
        out.seek(0)
        errors.seek(0)
        return subprocess.CompletedProcess(["lra", *words], code, out.read(), errors.read())


def python(
    *words: object, cwd: Path = HOME, program: str = sys.executable, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a Python of its own to its end; `variables` are set beside those of the tests."""
    return subprocess.run(
        [program, *map(str, words)], cwd=cwd, env={**os.environ, **variables},
        capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip


@cache
def server() -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Start what forks, and return its socket: it ends once that is closed."""
    ours, theirs = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, "-P", __file__, str(theirs.fileno())],
        stdin=subprocess.DEVNULL,
        pass_fds=[theirs.fileno()],
        env=os.environ | {"PYTHONPATH": str(HOME)},
    )
    theirs.close()
    atexit.register(process.wait)  # the last that is registered comes first
    atexit.register(ours.close)
    return ours, process


# -- in the process that forks --------------------------------------------------------------------


def serve(control: socket.socket) -> tuple[Call, list[int]]:
    """Fork for every call; return in the new process, with its call and files."""
    while True:
        byte, received, _, _ = socket.recv_fds(control, 1, 5)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not byte:
            sys.exit()
        if os.fork() == 0:
            control.close()
            return _begun(received)
        for file in received:
            os.close(file)


def _begun(received: list[int]) -> tuple[Call, list[int]]:
    """Return in the new process; its parent waits for it and reports how it ends."""
    *files, request, report = received
    pid = os.fork()
    if pid == 0:
        os.close(report)
        with os.fdopen(request, "rb") as file:
            return pickle.load(file), files  # noqa: S301 - from the process of the tests
    for file in files:  # whoever reads them waits for the program alone
        os.close(file)
    os.write(report, NUMBER.pack(pid))
    os.write(report, NUMBER.pack(os.waitpid(pid, 0)[1]))
    os._exit(0)


# -- in the process of the program ----------------------------------------------------------------


def become(call: Call, files: list[int]) -> None:
    """Make of this process what a new one would be."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(call.folder)
    os.environ.clear()
    os.environ.update(call.environment)
    if call.prepare is not None:
        call.prepare()
    # Anew: the one of before the fork takes descriptor 1 for the file that it was.
    encoding = sys.stdout.encoding
    sys.stdout = sys.stderr = None  # as Python has them that begins with both closed
    with suppress(OSError):
        buffering = 1 if os.isatty(1) else -1
        sys.stdout = os.fdopen(1, "w", buffering, encoding=encoding, closefd=False)
    with suppress(OSError):
        sys.stderr = os.fdopen(2, "w", 1, encoding=encoding, closefd=False)
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    if not os.environ.get("PYTHONSAFEPATH"):
        path.insert(0, call.folder)
    sys.path[:] = [*path, *(entry for entry in sys.path if entry not in path)]
    sys.argv[1:] = call.words


def warm_up() -> None:
    """Plan a sweep of one cell: what its composition and its count keep serves every call."""
    before = [signal.getsignal(number) for number in signal.valid_signals()]
    with tempfile.TemporaryDirectory() as folder, Path(os.devnull).open("w") as nowhere:
        words = ("model=linear", "task=listops", "runner.dry_run=true", f"results={folder}")
        with redirect_stdout(nowhere), redirect_stderr(nowhere):
            code = importlib.import_module("lra.cli").main(["run", *words])
    if code or before != [signal.getsignal(number) for number in signal.valid_signals()]:
        raise RuntimeError(f"planning ended with {code}, or took signals")


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as listening:
        for name in IMPORTED:
            importlib.import_module(name)
        importlib.import_module("lra.runners.storage.fingerprint").digests(HASHED)
        warm_up()
        if threading.active_count() > 1:
            raise RuntimeError(f"a fork would lose threads: {threading.enumerate()}")
        gc.collect()
        gc.freeze()
        server = importlib.import_module("lra.runners.isolation.forked_server")
        util.spawnv_passfds = server.fork_server
        start = serve(listening)
    become(*start)
    runpy.run_module("lra", run_name="__main__", alter_sys=True)
