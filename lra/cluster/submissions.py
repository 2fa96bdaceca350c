"""What was started for a plan, and by which engine."""

import json
import socket
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from uuid import uuid4

from lra.cluster.engine import ChosenEngine, WorkerGroup
from runners.storage.atomic import write_whole

FOLDER = "submissions"


def record(
    plan: Path, engine: ChosenEngine, ids: Sequence[str], groups: Sequence[WorkerGroup]
) -> None:
    """Note the jobs of a submission in the folder of its plan."""
    content = {
        "cluster": engine.name,
        "options": dict(engine.options),
        "ids": list(ids),
        "groups": [asdict(group) for group in groups],
        "host": socket.gethostname(),
        "at": time.time(),
    }
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{uuid4().hex[:6]}.json"
    write_whole(plan / FOLDER / name, json.dumps(content, indent=1).encode())


def submissions(plan: Path) -> list[dict[str, Any]]:
    """Return what was started for a plan, the oldest first."""
    found = []
    for path in sorted((plan / FOLDER).glob("*.json")):
        try:
            found.append(json.loads(path.read_bytes()))
        except (OSError, ValueError):
            continue  # half copied, or gone meanwhile
    return found
