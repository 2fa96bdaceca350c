"""A server of W&B on the loopback, as far as a run or a view asks it; it remembers what it gets.

`synced` has W&B's own `wandb sync` send it the runs that lie in a results folder.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

KEY = "a" * 40


class ServedRun(NamedTuple):
    """What a server has of a run."""

    id: str
    name: str
    group: str
    kind: str
    config: dict[str, Any]
    history: list[dict[str, Any]]
    """Lines in order; keys of W&B's own are left out but for `_step`."""
    summary: dict[str, Any]
    exit_code: int | None
    """None: it has not ended."""
    sweep: str | None

    def values(self, key: str) -> list[Any]:
        return [line[key] for line in self.history if key in line]


class WandbServer:
    """What arrived, by run, and how the server behaves."""

    def __init__(self) -> None:
        self.url = ""
        self.known_key = True
        self.broken = False
        """Whether it answers everything with an error."""
        self.dies_after = ""
        """The query after which it is broken."""
        self.runs: dict[str, dict[str, Any]] = {}
        """The last that was said of each run: name, config and the rest."""
        self.history: dict[str, dict[int, dict[str, Any]]] = {}
        """Lines of each run by their place in its file."""
        self.exits: dict[str, int] = {}
        self.summaries: dict[str, dict[str, Any]] = {}
        self.views: dict[str, dict[str, Any]] = {}
        """What was last saved under each name."""

    def served(self) -> list[ServedRun]:
        """Return every run."""
        return [
            ServedRun(
                id=run,
                name=said["displayName"],
                group=said["groupName"],
                kind=said["jobType"],
                config={k: v["value"] for k, v in json.loads(said["config"]).items()},
                history=[
                    {k: v for k, v in line.items() if k[0] != "_" or k == "_step"}
                    for _, line in sorted(self.history.get(run, {}).items())
                ],
                summary=self.summaries.get(run, {}),
                exit_code=self.exits.get(run),
                sweep=said.get("sweep"),
            )
            for run, said in self.runs.items()
        ]

    def answer(self, query: str, variables: dict[str, Any]) -> Any:
        named = re.search(r"(?:query|mutation)\s+(\w+)", query)
        self.broken |= named is not None and named.group(1) == self.dies_after
        if "upsertView" in query:
            view = {"id": f"id-of-{variables['name']}", "name": variables["name"]}
            self.views[view["name"]] = variables
            return {"upsertView": {"view": view, "inserted": True}}
        if "viewer" in query:
            known = {
                "id": "1",
                "entity": "me",
                "username": "me",
                "teams": {"edges": []},
                "flags": "{}",
            }
            info = {"features": []} if "features" in query else None
            return {"viewer": known if self.known_key else None, "serverInfo": info}
        if "upsertBucket" in query:
            run = str(variables["name"])
            self.runs.setdefault(run, {}).update({k: v for k, v in variables.items() if v})
            return {
                "upsertBucket": {
                    "bucket": {
                        "id": run, "name": run, "displayName": variables.get("displayName"),
                        "description": "", "config": "{}", "sweepName": None, "historyLineCount": 0,
                        "project": {"name": "lra", "entity": {"name": "me"}},
                    },
                    "inserted": True,
                }
            }  # fmt: skip
        if "createRunFiles" in query:
            files = [{"name": name, "uploadUrl": f"{self.url}/put"} for name in variables["files"]]
            made = {"runID": str(variables["run"]), "uploadHeaders": [], "files": files}
            return {"createRunFiles": made}
        if "resumeStatus" in query.lower() or "RunResumeStatus" in query:
            return {"model": self.resumed(str(variables.get("name") or variables.get("run")))}
        return {}

    def resumed(self, run: str) -> Any:
        """Say where a run stands, as the server does when one is resumed."""
        lines = self.history.get(run)
        if not lines:
            return None
        last = lines[max(lines)]
        return {
            "bucket": {
                "id": run, "name": run, "summaryMetrics": json.dumps(last), "displayName": "n",
                "logLineCount": 0, "historyLineCount": len(lines), "eventsLineCount": 0,
                "historyTail": json.dumps([json.dumps(last)]), "eventsTail": "[]", "config": "{}",
                "tags": [], "wandbConfig": '{"t": 1}',
            },
            "project": {"name": "lra", "entity": {"name": "me"}}, "name": "lra",
        }  # fmt: skip

    def stream(self, path: str, body: dict[str, Any]) -> Any:
        run = path.rstrip("/").split("/")[-2]
        part = body.get("files", {}).get("wandb-history.jsonl")
        if part:
            lines = self.history.setdefault(run, {})
            for number, line in enumerate(part["content"], int(part["offset"])):
                lines[number] = json.loads(line)
        if part := body.get("files", {}).get("wandb-summary.json"):
            self.summaries[run] = json.loads(part["content"][-1])
        if body.get("complete"):
            self.exits[run] = int(body.get("exitcode", 0))
        return {}


def _handler(server: WandbServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if server.broken:
                self.send_error(500)
                return
            if self.path.endswith("/graphql"):
                said = json.loads(body)
                self.reply({"data": server.answer(said["query"], said.get("variables") or {})})
            elif "file_stream" in self.path:
                self.reply(server.stream(self.path, json.loads(body)))
            else:
                self.reply({})

        def do_GET(self) -> None:
            self.reply({})

        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.reply({})

        def reply(self, found: Any) -> None:
            data = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    return Handler


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """Say nothing: clients go when they have what they want."""


@contextmanager
def wandb_server() -> Iterator[WandbServer]:
    """Run a server."""
    server = WandbServer()
    http = _Quiet(("127.0.0.1", 0), _handler(server))
    server.url = f"http://127.0.0.1:{http.server_port}"
    thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server
    finally:
        http.shutdown()
        http.server_close()
        thread.join()


def synced(results: Path) -> list[ServedRun]:
    """Send copies of the runs of a results folder to a server, the oldest first."""
    with wandb_server() as server, tempfile.TemporaryDirectory() as copy:
        account = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": server.url}
        shutil.copytree(results / "wandb", copy, dirs_exist_ok=True)  # W&B marks what it has sent
        for folder in sorted(Path(copy).glob("*run-*")):
            done = subprocess.run(
                [sys.executable, "-m", "wandb", "sync", "--include-online", str(folder)],
                env=os.environ | account, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stderr
        return server.served()
