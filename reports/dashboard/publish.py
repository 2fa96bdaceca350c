"""From a planned dashboard to files for review, and to W&B's server.

What the library needs happens in a child process without a terminal and with a deadline: it asks
for keys, starts a service, and waits for servers.
"""

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from reports.dashboard.child import WritingProcess
from reports.dashboard.panels import Dashboard, Form, Panel, PanelSection
from reports.tables.table import escape_markdown

BUILD_S = 120.0
"""A second or two; more where the disk is slow and the library is imported for the first time."""


_SILENT = "service process is busy"
"""What W&B's client says where a server refuses connections or hangs."""


class MissingLibrary(ImportError):
    """wandb-workspaces cannot be imported; the message says how to have it."""


class NotBuilt(RuntimeError):
    """W&B's library refuses the dashboard; the message is its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What became of saving a dashboard."""

    urls: tuple[str, ...]
    """Of the workspace and of the report, as far as they were saved."""
    problem: str
    """Why not all of it was; "" where it was."""


def check_library() -> None:
    """Raise `MissingLibrary` where what makes dashboards is not installed."""
    if find_spec("wandb_workspaces") is None:
        raise MissingLibrary(
            "lra dashboard: wandb-workspaces is not installed: pip install 'lra[dashboard]'"
        )


def specification(dashboard: Dashboard, *, project: str, entity: str | None) -> dict[str, Any]:
    """Return workspace and report as W&B stores them: plain JSON, equal for equal dashboards.

    No key and no network are needed.

    Args:
        dashboard: what to show.
        project: of W&B.
        entity: account or team; None: the one that is logged in when it is saved.

    Raises:
        MissingLibrary: wandb-workspaces is not installed.
        NotBuilt: it refuses the dashboard, or takes longer than `BUILD_S`.
    """
    job = {"dashboard": dashboard.as_json(), "project": project, "entity": entity}
    events, complaint = _ask(job, BUILD_S)
    for event in events:
        if event["event"] == "missing":
            raise MissingLibrary(
                f"W&B's workspaces as code cannot be imported ({event['reason']}): "
                "pip install 'lra[dashboard]'"
            )
        if event["event"] == "made":
            made: dict[str, Any] = event["specification"]
            return made
    raise NotBuilt(f"the dashboard could not be built: {_why(events, complaint, BUILD_S)}")


def save(made: Mapping[str, Any], *, deadline_s: float) -> Saved:
    """Put a specification on W&B's server; raises nothing that wandb raises.

    Saved again, it takes the place of the one of the same project and sweep.

    Args:
        made: of `specification`.
        deadline_s: how long it may take.
    """
    job = {"save": made, "timeout_s": deadline_s / 2}
    events, complaint = _ask(job, deadline_s)
    urls = tuple(event["url"] for event in events if event["event"] == "saved")
    if len(urls) == 2:
        return Saved(urls=urls, problem="")
    return Saved(urls=urls, problem=_why(events, complaint, deadline_s))


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
        child = WritingProcess("reports.dashboard.workspace", folder, folder / "data")
        return child.ask(job, deadline_s)


# ----------------------------------------------------------------------------- the files


def write(made: Mapping[str, Any], dashboard: Dashboard, target: Path) -> list[Path]:
    """Write the specification, and beside it as Markdown what both show; return the two paths."""
    beside = target.with_suffix(".md")
    if beside == target:
        raise ValueError(
            f"--out {target}: wanted a name that ends in .json; {beside} stands beside"
        )
    target.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(made, indent=1, sort_keys=True, ensure_ascii=False)
    target.write_text(text + "\n", encoding="utf-8")
    beside.write_text(_markdown(dashboard), encoding="utf-8")
    return [target, beside]


def _markdown(dashboard: Dashboard) -> str:
    shows = f"the runs of the sweep {dashboard.sweep}" if dashboard.sweep else "all runs"
    lines = [
        f"# {escape_markdown(dashboard.title)}",
        "",
        f"A workspace and a report of W&B over {escape_markdown(shows)}; lines are grouped by "
        f"{', '.join(f'`{name}`' for name in dashboard.group_by)}.",
    ]
    for title, sections in (("Workspace", dashboard.workspace), ("Report", dashboard.report)):
        lines += ["", f"## {title}"]
        for section in sections:
            lines += ["", f"### {escape_markdown(section.title)}", *_described(section)]
    return "\n".join(lines) + "\n"


def _described(section: PanelSection) -> list[str]:
    lines = ["", section.text.rstrip()] if section.text else []
    return [*lines, "", *map(_sentence, section.panels)] if section.panels else lines


def _sentence(panel: Panel) -> str:
    values = ", ".join(f"`{key.place}:{key.name}`" for key in panel.values)
    along = panel.along
    against = f" against `{along.place}:{along.name}`" if along else ""
    scales = [key.log for key in (along, *panel.values) if key] if panel.form is Form.lines else []
    log = ", both axes logarithmic" if scales and all(scales) else ""
    return f"- {panel.form}, {escape_markdown(panel.title)}: {values}{against}{log}"
