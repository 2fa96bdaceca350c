"""Stores which workers were started for a plan, and by which engine."""

import re
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

from lra.cluster.engine import ChosenEngine, StartedJobs, WorkerGroup
from lra.conf.plain_files import Types
from lra.runners.storage.atomic import make_folder, write_whole
from lra.runners.storage.homes import Home
from lra.runners.storage.seals import NotSealed, read_sealed, seal

FOLDER = "submissions"
_NOTE: Types = {"cluster": str, "options": dict, "ids": list, "mark": str, "place": dict}
_ID = re.compile(r"[A-Za-z0-9][\w.:-]*")
_MARK = re.compile(r"[A-Za-z0-9][A-Za-z0-9._=,+-]*")


def check_place(plan: Path) -> None:
    """Raise `Unwritable` if submissions cannot be stored; called before anything is started."""
    make_folder(plan / FOLDER)


class Note:
    """A submission's file in the folder of a plan, written before it, and again with its job ids.

    If the command is killed in between, the jobs can still be found by the mark in the file. Raises
    `Unwritable`.

    Args:
        plan: the folder of the plan.
        engine: the engine that starts the workers.
        groups: the workers that are to be started.
    """

    def __init__(self, plan: Path, engine: ChosenEngine, groups: Sequence[WorkerGroup]) -> None:
        """Choose a mark that no other submission has, and write the file without job ids."""
        word = uuid4().hex[:6]
        self.mark = f"{plan.name}-{word}"
        self.content: dict[str, Any] = {
            "cluster": engine.name,
            "options": dict(engine.options),
            "ids": [],
            "mark": self.mark,
            "place": dict(engine.engine.place()),
            "groups": [asdict(group) for group in groups],
            "host": socket.gethostname(),
            "home": Home.from_folder(plan).plain(),
            "at": time.time(),
        }
        self.path = plan / FOLDER / f"{time.strftime('%Y%m%d-%H%M%S')}-{word}.json"
        self._write()

    def add(self, ids: Sequence[str]) -> None:
        """Store the ids of jobs that were started."""
        self.content["ids"] += ids
        self._write()

    def _write(self) -> None:
        # The digest protects the ids, so that `--stop` never ends other processes.
        write_whole(self.path, seal(self.content, indent=1))


def jobs_of(submission: dict[str, Any]) -> StartedJobs:
    """Return the mark, the place and the ids of the jobs of a stored submission."""
    return StartedJobs(submission["mark"], submission["place"], submission["ids"])


def submissions(plan: Path) -> list[dict[str, Any]]:
    """Return the submissions of a plan, the oldest first, without damaged ones.

    If the plan was copied or moved here, its former submissions are excluded: their workers work in
    the former folder.
    """
    return [note for note in _read_sound(plan) if not _find_former_home(note, plan)]


def strange_submissions(plan: Path) -> dict[str, list[dict[str, Any]]]:
    """Return submissions made before the plan was copied or moved here, by the former folder."""
    by_folder: dict[str, list[dict[str, Any]]] = {}
    for note in _read_sound(plan):
        if home := _find_former_home(note, plan):
            by_folder.setdefault(home.path, []).append(note)
    return by_folder


def _read_sound(plan: Path) -> list[dict[str, Any]]:
    return [note for _, note in _read_notes(plan) if note is not None]


def _find_former_home(submission: dict[str, Any], plan: Path) -> Home | None:
    """Return the folder for which a submission was made if that is not `plan`, else None."""
    home = Home.of_note(submission.get("home"))  # None if an older version wrote it
    return home if home is not None and home.is_strange(plan) else None


def damaged_files(plan: Path) -> list[Path]:
    """Return the files of submissions that are damaged."""
    return [path for path, note in _read_notes(plan) if note is None]


def _read_notes(plan: Path) -> Iterator[tuple[Path, dict[str, Any] | None]]:
    """Yield each file of a submission with its content; None: it is damaged."""
    for path in sorted((plan / FOLDER).glob("*.json")):
        try:
            note = read_sealed(path, _NOTE)
        except (OSError, NotSealed):
            yield path, None
        else:
            # an id that begins with a hyphen would be an option of the command that ends jobs
            yield path, note if _has_safe_words(note) else None


def _has_safe_words(note: dict[str, Any]) -> bool:
    """Return whether ids, mark and place are plain texts that are safe as arguments of commands."""
    return (
        all(isinstance(job, str) and _ID.fullmatch(job) for job in note["ids"])
        and bool(_MARK.fullmatch(note["mark"]))
        and all(isinstance(word, str) for word in note["place"].values())
    )
