"""The child of the W&B mirror: imports wandb in a process of its own.

W&B keeps a service process, temporary folders, environment variables and exit hooks. Here they
end with the child, and a call that hangs can be ended from outside.
"""

import json
import sys
from pathlib import Path
from typing import Any

from reports.dashboard.events import one_line, say
from reports.dashboard.wandb_settings import settings

LONGEST = 120
"""Characters of an error's text."""


def main() -> None:
    """Read a job from standard input, write its runs, print one JSON line per event."""
    job = json.load(sys.stdin)
    try:
        import wandb
    except ImportError as error:
        say(event="failed", reason=f"wandb cannot be imported ({error})")
        return
    try:
        for plan in job["plans"]:
            path = _write(wandb, plan, job)
            say(event="written", id=plan["id"], path=path, mode=job["mode"])
    except (wandb.errors.Error, OSError) as error:  # no key, no network, a refused key, full disk
        say(event="failed", reason=one_line(error, LONGEST))
    finally:
        wandb.teardown()


def _write(wandb: Any, plan: dict[str, Any], job: dict[str, Any]) -> str:
    """Write one run; return its folder."""
    run = wandb.init(
        id=plan["id"],
        name=plan["name"],
        group=plan["group"],
        job_type=plan["job_type"],
        tags=plan["tags"],
        config=plan["config"],
        project=job["project"],
        entity=job["entity"],
        dir=job["dir"],
        mode=job["mode"],
        settings=settings(wandb, job),
    )
    try:
        for axis, metrics in job["axes"].items():
            run.define_metric(axis, hidden=True)
            for metric in metrics:
                run.define_metric(metric, step_metric=axis)
        for line in plan["history"]:
            run.log(line)
        media: dict[str, Any] = {
            name: wandb.Table(columns=t["columns"], data=t["rows"], allow_mixed_types=True)
            for name, t in plan["tables"].items()
        }
        media |= {name: wandb.Image(path) for name, path in plan["images"].items()}
        if media:
            run.log(media)
        for name, files in plan["artifact"].items():
            artifact = wandb.Artifact(name=_artifact_name(name), type="results")
            for path in files:
                artifact.add_file(path, name=Path(path).name)
            run.log_artifact(artifact)
        run.summary.update(plan["summary"])
        folder = Path(run.settings.sync_dir)
    finally:
        run.finish()
    return str(folder)


def _artifact_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:128]


if __name__ == "__main__":
    main()
