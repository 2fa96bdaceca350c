"""What hands the events of running cells to the process that writes them: never waits, never fails.

Events go through a bounded queue, in a thread, into the pipe of
`lra.reports.dashboard.live_writer`. Where that falls behind, numbers of running trainings are
dropped first, and counted; what is lost of a cell that ends is copied from the store at the end of
the sweep.
"""

import json
import queue
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from lra.reports.dashboard.child import WritingProcess
from lra.runners.records import legible

MOST = 20_000
"""Events that wait at most."""
MOST_NUMBERS = 1_000
"""Of these, while only numbers of running trainings would be added."""


class LiveRuns:
    """The runs of one sweep while its cells run."""

    def __init__(
        self,
        job: Mapping[str, Any],
        folder: Path,
        module: str,
        staged: Path | None,
        lock: int | None,
    ) -> None:
        """Start the process that writes; the first line that it gets is the job.

        Args:
            job: kind, mode, project and the rest, as `live_writer` reads it.
            folder: everything is written below it.
            module: whose `main` is the process: that of `live_writer`, with a store at its side.
            staged: folder of this process alone for what W&B is to send; None: it has no part.
            lock: descriptor with the lock of that folder, which the process holds until its end.
        """
        self.offline = ""
        """Why runs go into files although the server was wanted."""
        self.failed = ""
        """Why nothing is written at all."""
        self.ready = False
        """Whether key and server were tried."""
        self.dropped = 0
        """Events that found no room."""
        self.unsent: list[str] = []
        """Folders of runs that did not reach the server whole."""
        self.written: list[str] = []
        """Folders of runs that are whole, where they are to be."""
        folder.mkdir(parents=True, exist_ok=True)
        self._queue: queue.Queue[Mapping[str, Any] | None] = queue.Queue(MOST)
        self._answered, self._settled = threading.Event(), threading.Event()
        self._data, self._closed = staged, False
        self.lost = ""
        """Why something of a cell was not written."""
        self._writer = WritingProcess(
            module,
            folder,
            staged,
            user_settings=job["mode"] != "offline",
            lock=lock,
        )
        self._complaint = ""
        self._queue.put(job)
        self._threads = [
            threading.Thread(target=each, name=f"dashboard {each.__name__}", daemon=True)
            for each in (self._hand_over, self._listen, self._overhear)
        ]
        for thread in self._threads:
            thread.start()

    def put(self, event: Mapping[str, Any]) -> None:
        """Hand an event over, or drop it; returns at once."""
        numbers = event["event"] == "progress"
        if self.failed or (numbers and self._queue.qsize() >= MOST_NUMBERS):
            self.dropped += 1
            return
        try:
            self._queue.put_nowait(event)
        except queue.Full:
            self.dropped += 1

    def hand(self, event: Mapping[str, Any]) -> None:
        """Hand an event over that must not be dropped: waits for room while the process lives."""
        while not self.failed and self._writer.process.poll() is None:
            with suppress(queue.Full):
                self._queue.put(event, timeout=1.0)
                return

    @property
    def process_group(self) -> int:
        """Number of the group of all processes that write."""
        return self._writer.process.pid

    def wait_until_ready(self, seconds: float) -> None:
        """Wait, at most so long, until key and server were tried, or until that failed."""
        if self._answered.wait(seconds) and not (self.failed or self.ready):
            self.failed = self._complaint or "its process ended early"

    @property
    def alive(self) -> bool:
        """Whether the process can still write."""
        return not (self._closed or self.failed) and self._writer.process.poll() is None

    def settle(self, seconds: float) -> None:
        """Have the process end all runs, at most so long, and wait for more; see `alive`."""
        until = time.monotonic() + seconds
        with suppress(queue.Full):
            self._queue.put({"event": "settle"}, timeout=seconds)
        if not self._settled.wait(max(0.0, until - time.monotonic())):
            self.failed = self.failed or f"it took longer than {seconds:g} s to end its runs"

    def close(self, seconds: float) -> None:
        """Let the process finish what it has, at most so long, and end it; once."""
        if self._closed:
            return
        self._closed = True
        until = time.monotonic() + seconds
        with suppress(queue.Full):
            self._queue.put(None, timeout=seconds)
        process = self._writer.process
        try:
            process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.failed = self.failed or f"it took longer than {seconds:g} s to end"
        self._writer.end()
        for thread in self._threads:
            thread.join(1.0)
        if process.wait() > 0 and not self.failed:
            self.failed = self._complaint or "its process ended early"
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        self._writer.clear()
        if self._data is not None and not self.failed:
            shutil.rmtree(self._data, ignore_errors=True)

    def _hand_over(self) -> None:
        pipe = self._writer.process.stdin
        if pipe is None:
            return
        with suppress(OSError, ValueError):
            while (event := self._queue.get()) is not None:
                pipe.write(json.dumps(event) + "\n")
                pipe.flush()
        with suppress(OSError, ValueError):
            pipe.close()

    def _listen(self) -> None:
        for line in self._writer.process.stdout or ():
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if event["event"] == "offline":
                self.offline = self.offline or event["reason"]
            elif event["event"] == "failed":
                self.failed = event["reason"]
            elif event["event"] == "lost":
                self.lost = self.lost or event["reason"]
            elif event["event"] == "unsent":
                self.unsent.append(event["path"])
            elif event["event"] == "written":
                self.written.append(event["path"])
            elif event["event"] == "settled":
                self._settled.set()
            elif event["event"] == "ready":
                self.ready = True
            if self.ready or self.failed:
                self._answered.set()
        self._answered.set()
        self._settled.set()

    def _overhear(self) -> None:
        for line in self._writer.process.stderr or ():
            self._complaint = legible(line, 200) or self._complaint
