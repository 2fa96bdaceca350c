"""What a cluster says of the jobs that were submitted for a sweep."""

import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lra.cluster.engine import ENDED, FORGOTTEN, LOCAL, QUEUED, RUNNING, started_by
from lra.cluster.submissions import submissions
from lra.errors import ConfigError

EVERY_S = 30.0
"""Between two questions: a controller serves everybody, and is not to be asked all the time."""
MEANINGS = (
    ("Resources", "no node is free"),
    ("Priority", "others come first"),
    ("QOS", "a limit of the QOS"),
    ("Assoc", "a limit of the account"),
    ("BeginTime", "queued again, starts soon"),
    ("ReqNodeNotAvail", "its nodes are down or reserved"),
    ("NodeDown", "its nodes are down"),
    ("Partition", "the partition does not take it"),
    ("Held", "held: scontrol release"),
    ("held", "held: scontrol release"),
)
"""Of SLURM's reasons, by a part of their names; the first that fits."""


@dataclass(slots=True, kw_only=True)
class JobStanding:
    """The jobs of a sweep on one cluster."""

    cluster: str
    states: Counter[str] = field(default_factory=Counter)
    """Jobs by state: queued, running, ended, forgotten, or a word of the cluster."""
    reasons: Counter[str] = field(default_factory=Counter)
    """Of those that are queued, by the reason that the cluster gives."""
    note: str = ""
    """Why nothing is known of them here; "" where something is."""

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "cluster": self.cluster,
            "states": dict(self.states),
            "reasons": dict(self.reasons),
            "note": self.note,
        }


class JobWatcher:
    """Asks the engines of a plan's submissions now and then; processes of `local` tell nothing."""

    def __init__(self, plan: Path) -> None:
        self.plan = plan
        self._standings: list[JobStanding] = []
        self._next = 0.0

    def look(self) -> list[JobStanding]:
        """Return what was last heard of the jobs, of each cluster."""
        if time.monotonic() >= self._next:
            self._standings = [_asked(*cluster) for cluster in _by_cluster(self.plan)]
            # One that gives no answer has already cost its caller a wait.
            silent = any(standing.note for standing in self._standings)
            self._next = time.monotonic() + EVERY_S * (4 if silent else 1)
        return self._standings


def job_lines(jobs: Sequence[JobStanding]) -> Iterator[str]:
    """Yield a line for each cluster."""
    for standing in jobs:
        if standing.note:
            yield f"{standing.cluster} is not asked: {standing.note}"
            continue
        first = {RUNNING: 0, QUEUED: 1, ENDED: 3, FORGOTTEN: 4}
        states = sorted(standing.states.items(), key=lambda item: (first.get(item[0], 2), item[0]))
        parts = []
        for state, count in states:
            if state == FORGOTTEN:
                parts.append(f"{count:,} over, and forgotten by {standing.cluster}")
            elif state == QUEUED and standing.reasons:
                why = "; ".join(_explained(*pair) for pair in standing.reasons.most_common())
                parts.append(f"{count:,} {state} ({why})")
            else:
                parts.append(f"{count:,} {state.replace('_', ' ')}")
        yield f"{standing.cluster}: jobs {', '.join(parts)}"


def _explained(reason: str, count: int) -> str:
    meaning = next((words for part, words in MEANINGS if part in reason), "")
    return f"{count:,} {reason}: {meaning}" if meaning else f"{count:,} {reason}"


def _by_cluster(plan: Path) -> Iterator[tuple[str, dict[str, Any], list[str]]]:
    """Yield name, options of the last submission, and the ids of all, of each cluster."""
    by_name: dict[str, tuple[dict[str, Any], list[str]]] = {}
    for submission in submissions(plan):
        if (name := submission["cluster"]) != LOCAL:
            before = by_name.get(name, ({}, []))[1]
            by_name[name] = (submission["options"], [*before, *submission["ids"]])
    for name, (options, ids) in by_name.items():
        yield name, options, ids


def _asked(cluster: str, options: dict[str, Any], ids: list[str]) -> JobStanding:
    standing = JobStanding(cluster=cluster)
    try:
        states = started_by({"cluster": cluster, "options": options}).states(ids)
    except (ConfigError, OSError, subprocess.SubprocessError) as error:
        standing.note = str(error).removeprefix(f"cluster={cluster}: ")
        return standing
    for state in states.values():
        standing.states[state.state] += 1
        if state.state == QUEUED and state.reason:
            standing.reasons[state.reason] += 1
    return standing
