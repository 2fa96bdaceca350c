"""From a planned workspace to W&B's specification of it, and to its server.

What the library needs happens in a child process without a terminal and with a deadline: it asks
for keys, starts a service, and waits for servers.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lra.reports.dashboard.child import WritingProcess
from lra.reports.dashboard.panels import Workspace

BUILD_S = 120.0
"""A second or two; more where the disk is slow and the library is imported for the first time."""
_SILENT = "service process is busy"
"""What W&B's client says where a server refuses connections or hangs."""


class MissingLibrary(ImportError):
    """wandb-workspaces cannot be imported; the message says how to have it."""


class NotBuilt(RuntimeError):
    """W&B's library refuses the workspace; the message is its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What became of saving a workspace."""

    url: str
    """Where it is shown; "" where it was not saved."""
    problem: str
    """Why it was not; "" where it was."""


def check_library() -> None:
    """Raise `MissingLibrary` where what makes workspaces is not installed."""
    if find_spec("wandb_workspaces") is None:
        raise MissingLibrary(
            "lra dashboard: wandb-workspaces is not installed: pip install 'lra[dashboard]'"
        )


def specification(workspace: Workspace, *, project: str, entity: str | None) -> dict[str, Any]:
    """Return the workspace as W&B stores it: plain JSON, equal for equal workspaces.

    No key and no network are needed.

    Args:
        workspace: what to show.
        project: of W&B.
        entity: account or team; None: the one that is logged in when it is saved.

    Raises:
        MissingLibrary: wandb-workspaces is not installed.
        NotBuilt: it refuses the workspace, or takes longer than `BUILD_S`.
    """
    job = {"workspace": workspace.as_json(), "project": project, "entity": entity}
    events, complaint = _ask(job, BUILD_S)
    for event in events:
        if event["event"] == "missing":
            raise MissingLibrary(
                f"W&B's workspaces as code cannot be imported ({event['reason']}): "
                "pip install 'lra[dashboard]'"
            )
        if event["event"] == "made":
            content: dict[str, Any] = event["specification"]
            return content
    raise NotBuilt(f"the workspace could not be built: {_why(events, complaint, BUILD_S)}")


def save(content: Mapping[str, Any], *, deadline_s: float) -> Saved:
    """Put a specification on W&B's server; raises nothing that wandb raises.

    Saved again, it takes the place of the one of the same project and sweep.

    Args:
        content: of `specification`.
        deadline_s: how long it may take.
    """
    events, complaint = _ask({"save": content, "timeout_s": deadline_s / 2}, deadline_s)
    for event in events:
        if event["event"] == "saved":
            return Saved(url=str(event["url"]), problem="")
    return Saved(url="", problem=_why(events, complaint, deadline_s))


def _why(events: list[dict[str, Any]], complaint: str | None, deadline_s: float) -> str:
    for event in events:
        if event["event"] in ("failed", "missing"):
            reason = str(event["reason"])
            return f"it gave no answer in time ({reason})" if _SILENT in reason else reason
    if complaint is None:
        return f"no answer within {deadline_s:g} s"
    return complaint or "the process that does it ended early"


def _ask(job: Mapping[str, Any], deadline_s: float) -> tuple[list[dict[str, Any]], str | None]:
    with tempfile.TemporaryDirectory(prefix="lra-dashboard-") as temporary:
        folder = Path(temporary)
        child = WritingProcess("lra.reports.dashboard.workspace", folder, folder / "data")
        return child.ask(job, deadline_s)
