"""A process that writes runs: its surroundings, and its end. W&B lives in such ones alone."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

# These would give all runs one identity, or send them elsewhere than the arguments say.
_FOREIGN = (
    "WANDB_RUN_ID", "WANDB_RESUME", "WANDB_NAME", "WANDB_RUN_GROUP", "WANDB_JOB_TYPE",
    "WANDB_TAGS", "WANDB_NOTES", "WANDB_SWEEP_ID", "WANDB_DIR", "WANDB_MODE", "WANDB_SERVICE",
    "WANDB_DISABLED", "WANDB_CONFIG_PATHS", "WANDB_ANONYMOUS",
)  # fmt: skip


class WritingProcess:
    """A Python process with pipes, without a terminal, in a group of its own."""

    def __init__(
        self,
        module: str,
        folder: Path,
        data: Path | None = None,
        *,
        user_settings: bool = True,
        lock: int | None = None,
    ) -> None:
        """Start it.

        Args:
            module: whose `main` it runs.
            folder: everything is written below it; it exists.
            data: where W&B stages what it is to send; None: it has no part in it.
            user_settings: whether the user's settings of W&B, which may name a server, count.
            lock: a descriptor that it inherits.
        """
        # of its own: another shard may be writing into the same folder, and ends at another time
        self.temporary = Path(tempfile.mkdtemp(prefix="tmp-", dir=folder))
        # -P: the folder where the user happens to stand must not shadow a module
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", f"from {module} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=_environment(folder, data, self.temporary, user_settings=user_settings),
            pass_fds=() if lock is None else (lock,),
            start_new_session=True,  # no terminal to ask on, and one group to end
        )

    def ask(
        self, job: Mapping[str, Any], seconds: float
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Hand over a job, wait for the end, and clear up; once.

        Args:
            job: plain JSON, the whole input.
            seconds: after which it is ended.

        Returns:
            The events that it printed, and the last line that it complained with: "" for none,
            None where its time was up.
        """
        late = False
        try:
            out, complaint = self.process.communicate(json.dumps(job), timeout=seconds)
        except subprocess.TimeoutExpired:
            late = True
            self.end()
            out, complaint = self.process.communicate()
        finally:
            self.end()
            self.clear()
        events = [json.loads(line) for line in out.splitlines() if line.startswith('{"event"')]
        return events, None if late else (complaint.strip().splitlines() or [""])[-1]

    def end(self) -> None:
        """End whatever is left of the group: W&B's service may outlive its client."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def clear(self) -> None:
        """Remove its temporary files; after its end."""
        shutil.rmtree(self.temporary, ignore_errors=True)


def _environment(
    folder: Path, data: Path | None, temporary: Path, *, user_settings: bool
) -> dict[str, str]:
    keep = {k: v for k, v in os.environ.items() if k not in _FOREIGN}
    inside = {"TMPDIR": temporary}
    if data is not None:
        inside |= {
            "WANDB_CACHE_DIR": folder / "cache",
            "WANDB_DATA_DIR": data,
            "WANDB_ARTIFACT_DIR": folder / "artifacts",
        }
        if not user_settings:
            inside["WANDB_CONFIG_DIR"] = folder / "config"
    for path in inside.values():
        path.mkdir(parents=True, exist_ok=True)
    house = str(Path(__file__).resolve().parents[2])
    paths = [house, *filter(None, [os.environ.get("PYTHONPATH")])]
    return (
        keep
        | {k: str(v) for k, v in inside.items()}
        | {
            "PYTHONPATH": os.pathsep.join(paths),
            "WANDB_SILENT": "true",
            "WANDB_ERROR_REPORTING": "false",
        }
    )
