"""Runs of W&B as the writing process holds them: opened, filled, ended. Imports wandb when made.

What a run of W&B holds on disk, read back, so that a run can go on in another file.

W&B cannot resume a run without its server: a second file of the same run replaces the first when
both are sent. So a run that goes on takes the lines of its first file with it.
"""

import json
import math
import netrc
import os
import struct
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lra.conf.plain_files import NoJson, parse_json, read_bytes
from lra.reports.dashboard.backend import Backend, OpenRun
from lra.reports.dashboard.describe import Description
from lra.reports.dashboard.keys import AXES, LENGTH_AXIS, STEP_AXIS, TRAINING_AXES
from lra.reports.dashboard.plan import RunPlan

_MAGIC, _HEAD, _BLOCK = b":W&B", 7, 32768
_WHOLE, _LAST = 1, 4


def settings(wandb: Any, job: Mapping[str, Any], process: int | None = None) -> Any:
    """Return the settings of a run.

    Args:
        wandb: the module.
        job: with `init_timeout_s` and `finish_timeout_s`.
        process: whose use of the system is recorded with the run; None: nobody's.
    """
    wanted = {
        "silent": True,
        "quiet": True,
        "console": "off",
        "symlink": False,
        "use_dot_wandb": False,
        "disable_git": True,
        "save_code": False,
        "init_timeout": job["init_timeout_s"],
        "finish_timeout": job["finish_timeout_s"],
        "finish_timeout_raises": True,
        "x_disable_stats": process is None,
        "x_disable_meta": True,
        "x_disable_machine_info": process is None,
        "x_save_requirements": False,
        **({} if process is None else {"x_stats_pid": process}),
    }
    # settings come and go between versions; none of these changes what is written
    fields = set(wandb.Settings.model_fields)
    return wandb.Settings(**{k: v for k, v in wanted.items() if k in fields})


def history(folder: Path) -> list[tuple[int, dict[str, float]]]:
    """Return the lines of a run's history: step, and numbers by key.

    What a killed process left torn at the end is left out; a folder without a file holds nothing.
    """
    lines: dict[int, dict[str, float]] = {}
    for file in sorted(folder.glob("*.wandb")):
        for line in _history(_content(file)):
            step = line.pop("_step", None)
            numbers = {
                key: value
                for key, value in line.items()
                if key[0] != "_"
                and isinstance(value, (int, float))
                and not isinstance(value, bool)
                and math.isfinite(value)
            }
            if isinstance(step, int) and numbers:
                lines.setdefault(step, {}).update(numbers)
    return sorted(lines.items())


def _content(file: Path) -> bytes:
    try:
        return read_bytes(file)
    except OSError:
        return b""


def _history(data: bytes) -> Iterator[dict[str, Any]]:
    from wandb.proto import wandb_internal_pb2

    kind: Any = wandb_internal_pb2
    for payload in _payloads(data):
        record = kind.Record()
        try:
            record.ParseFromString(payload)
        except Exception:  # noqa: BLE001 - protobuf's own, which has no types: the end of a torn file
            return
        if record.WhichOneof("record_type") == "history":
            items = {
                ".".join(item.nested_key) or item.key: _value(item.value_json)
                for item in record.history.item
            }
            yield {"_step": record.history.step.num} | items


def _value(text: str) -> Any:
    try:
        return parse_json(text.encode())
    except NoJson:  # NaN is a number to W&B
        return None


def _payloads(data: bytes) -> Iterator[bytes]:
    """Yield what was appended to a log of LevelDB's kind: blocks, each with records and padding."""
    if data[: len(_MAGIC)] != _MAGIC:
        return
    at, parts = _HEAD, b""
    while at + _HEAD <= len(data):
        left = _BLOCK - at % _BLOCK
        if left < _HEAD:  # too little room for a header: padding up to the next block
            at += left
            continue
        _, size, kind = struct.unpack("<IHB", data[at : at + _HEAD])
        if at + _HEAD + size > len(data) or not _WHOLE <= kind <= _LAST:
            return
        parts += data[at + _HEAD : at + _HEAD + size]
        at += _HEAD + size
        if kind in (_WHOLE, _LAST):
            yield parts
            parts = b""


ANSWER_S = 5.0
"""How long the server may take to answer the first question."""


class WandbRun(OpenRun):
    """One run."""

    def __init__(self, run: Any, wandb: Any) -> None:
        self._run, self._wandb = run, wandb
        self.path = Path(run.settings.sync_dir)
        self.steps, self.there = 0, set()
        self._plan: RunPlan | None = None

    def log(self, values: Mapping[str, float], step: int, *, last: bool = False) -> None:
        """Add numbers at a step, which W&B sends once it has the next one, or is told."""
        self._run.log(dict(values), step=step, commit=last)

    def complete(self, plan: RunPlan) -> None:
        """Take over what the stored rows say, by which a run is judged."""
        self._plan = plan
        self._run.config.update(plan.config, allow_val_change=True)
        self._run.summary.update(plan.summary)

    def end(self, summary: Mapping[str, Any], exit_code: int) -> None:
        """Write what is left, and finish."""
        if self._plan is not None:
            self._log_files(self._plan)
        self._run.summary.update(dict(summary))
        self._run.finish(exit_code=exit_code)

    def _log_files(self, plan: RunPlan) -> None:
        for name, table in plan.tables.items():
            rows = self._wandb.Table(columns=table.columns, data=table.rows, allow_mixed_types=True)
            self._run.log({name: rows})
        for name, path in plan.images.items():
            self._run.log({name: self._wandb.Image(path)})
        for name, files in plan.artifact.items():
            safe = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)[:128]
            artifact = self._wandb.Artifact(name=safe, type="results")
            for path in files:
                artifact.add_file(path, name=Path(path).name)
            self._run.log_artifact(artifact)


class WandbRuns(Backend):
    """Opens runs on the server or, where it cannot be reached, into files."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        if job.get("agent"):  # by which W&B knows that the run is one of its sweep
            os.environ |= {
                "WANDB_RUN_ID": job["agent"]["run"],
                "WANDB_SWEEP_ID": job["agent"]["sweep"],
            }
        import wandb

        self._wandb, self._job = wandb, job
        self.mode = str(job["mode"])

    def check(self) -> str:
        """Try key and server; return why runs go into files instead, or ""."""
        reason = "" if self.mode != "online" else self._obstacle()
        if reason:
            self.mode = "offline"
        return reason

    def _obstacle(self) -> str:
        server = str(self._wandb.setup().settings.base_url).rstrip("/")
        key = os.environ.get("WANDB_API_KEY") or _stored_key(server)
        if key:
            return _refusal(server, key)
        with suppress(self._wandb.errors.Error):
            if self._wandb.login():  # by some other means than a key
                return ""
        return "No API key configured: `wandb login` stores one, WANDB_API_KEY gives one"

    def open(
        self,
        run: str,
        about: Description,
        *,
        curve: bool,
        process: int | None,
        before: Path | None,
    ) -> WandbRun:
        """Open a run, or go on with it; lines of its file before are in it again."""
        job, wandb = self._job, self._wandb
        opened = wandb.init(
            id=run,
            name=about.name,
            group=job["sweep"],
            job_type=about.job_type,
            tags=about.tags,
            config=about.config,
            project=job["project"],
            entity=job["entity"],
            dir=job["dir"],
            mode=self.mode,
            reinit="create_new",
            resume="allow" if before is not None and self.mode == "online" else None,
            settings=settings(wandb, job, process),
        )
        for axis, metrics in (AXES if curve else TRAINING_AXES).items():
            opened.define_metric(axis, hidden=True)
            for metric in metrics:
                opened.define_metric(metric, step_metric=axis)
        continued = WandbRun(opened, wandb)
        continued.steps = int(opened.step)  # above 0 where the server knows the run
        axis = LENGTH_AXIS if curve else STEP_AXIS
        for step, numbers in history(before) if before is not None else ():
            continued.there |= {(numbers.get(axis, step), key) for key in numbers}
            if step >= continued.steps:
                continued.log(numbers, step=step)
                continued.steps = step + 1
        return continued

    def finish(self) -> None:
        """End W&B's service, which waits until what was written is whole."""
        self._wandb.teardown()


def _refusal(server: str, key: str) -> str:
    """Ask the server whose key this is; return what is wrong, or ""."""
    question = urllib.request.Request(
        f"{server}/graphql",
        data=json.dumps({"query": "query { viewer { username } }"}).encode(),
        headers={
            "Content-Type": "application/json",
            "Authorization": "Basic " + b64encode(f"api:{key}".encode()).decode(),
        },
    )
    unknown = f"{server} does not know the API key: `wandb login --relogin` stores another"
    try:
        with urllib.request.urlopen(question, timeout=ANSWER_S) as answer:
            reply = json.load(answer)
    except urllib.error.HTTPError as error:
        denied = error.code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN)
        return unknown if denied else f"{server} answers with error {error.code}"
    except (OSError, ValueError) as error:
        return f"{server} does not answer: {getattr(error, 'reason', error)}"
    data = reply.get("data") if isinstance(reply, Mapping) else None
    return "" if isinstance(data, Mapping) and data.get("viewer") else unknown


def _stored_key(server: str) -> str | None:
    """Return the key that `wandb login` keeps for a server."""
    file = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    try:
        entry = netrc.netrc(str(file)).authenticators(urlsplit(server).hostname or "")
    except (OSError, netrc.NetrcParseError):
        return None
    return entry[2] if entry else None
