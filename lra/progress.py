"""What a person sees while a sweep runs: a bar with the time left, and one line per finished cell."""

import sys
import time

from tqdm import tqdm

from runners.records import Cell, Measurement, Progress, Status


class Board:
    """A bar on a terminal; in a log, only the lines."""

    def __init__(self, total: int, *, stream: object = None) -> None:
        self.total, self.finished, self.begin = total, 0, time.monotonic()
        self.partial: dict[str, tuple[float, str]] = {}
        self.started: dict[str, float] = {}
        self.bar = tqdm(
            total=float(total),
            disable=None,
            file=sys.stderr,
            bar_format="{percentage:3.0f}%|{bar:24}| {elapsed}, left {remaining} {postfix}",
        )

    def start(self, cell: Cell) -> None:
        """Note that `cell` begins."""
        self.started[cell.key] = time.monotonic()
        self.partial[cell.key] = (0.0, title(cell))
        self._refresh()

    def advance(self, cell: Cell, message: Progress) -> None:
        """Show how far `cell` is."""
        share = message.done / message.total if message.total else 0.0
        self.partial[cell.key] = (min(share, 0.99), f"{title(cell)} {message.text}".strip())
        self._refresh()

    def finish(self, cell: Cell, outcome: str) -> None:
        """Print the line of a finished cell."""
        self.partial.pop(cell.key, None)
        took = time.monotonic() - self.started.pop(cell.key, time.monotonic())
        self.finished += 1
        self.say(f"[{self.finished:>{len(str(self.total))}}/{self.total}] {title(cell)}: {outcome} ({took:.1f} s)")
        self._refresh()

    def say(self, line: str) -> None:
        """Print a line above the bar."""
        self.bar.write(line, file=sys.stdout)
        sys.stdout.flush()

    def close(self) -> None:
        """Remove the bar."""
        self.bar.close()

    def _refresh(self) -> None:
        self.bar.n = self.finished + sum(share for share, _ in self.partial.values())
        self.bar.set_postfix_str("; ".join(text for _, text in self.partial.values()), refresh=False)
        self.bar.refresh()


def title(cell: Cell) -> str:
    """Return a cell's name for people: what runs, on what, where on the axes."""
    columns = cell.columns
    if columns["runner"] == "scaling":
        return f"{columns['mode']} {columns['model']} at {columns['length']}"
    if columns["runner"] == "certify":
        return f"floors of {columns['task']}"
    return f"{columns['mode']} {columns['model']} on {columns['task']}, seed {columns['seed']}"


def headline(rows: list[Measurement]) -> str:
    """Return what a finished cell found, in a few words."""
    for row in rows:
        if row.status is not Status.ok and "reference" not in row.labels:
            return f"{row.status}: {row.reason.splitlines()[0]}"
    final = [row for row in rows if row.step is None and row.value is not None]
    scores = [row for row in final if row.metric == "accuracy" and row.labels.get("split") == "test"]
    if scores:
        return ", ".join(
            f"{row.model.removeprefix('floor/') + ' ' if row.model else 'accuracy '}{row.value:.3f}"
            for row in scores
        )
    times = [row.value for row in final if row.metric == "time" and row.value is not None]
    peaks = [row.value for row in final if row.metric == "peak_tensor_bytes" and row.value is not None]
    if times:
        memory = f", {peaks[0] / 2**20:.0f} MiB" if peaks else ""
        return f"{times[0] * 1e3:.1f} ms{memory}"
    return f"{len(rows)} rows"
