"""A server of W&B on the loopback, as far as saving a view asks it; it remembers what it gets."""

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

KEY = "0123456789" * 4
"""Of the length that W&B's client takes for a key."""


class Stub:
    """Views by name, and what was asked."""

    def __init__(self, url: str, status: int, delay_s: float) -> None:
        self.url, self.status, self.delay_s = url, status, delay_s
        self.project_there = False
        self.saved: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []

    def answer(self, query: str, told: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(query)
        if "upsertView" in query:
            view = {"id": f"id-of-{told['name']}", "name": told["name"]}
            self.saved[told["name"]] = told
            return {"upsertView": {"view": view, "inserted": True}}
        if "allViews" in query:
            if not self.project_there:
                return {"project": None}
            old = [told["name"]] if told["name"] in self.saved else []
            edges = [{"node": {"id": f"id-of-{name}", "name": name}} for name in old]
            return {"project": {"id": "p", "allViews": {"edges": edges}}}
        if "upsertModel" in query:
            self.project_there = True
            return {"upsertModel": {"model": {"id": "p", "name": "lra"}, "inserted": True}}
        viewer = {"id": "u", "entity": "somebody", "username": "somebody", "admin": False}
        return {"viewer": viewer, "serverInfo": {"features": []}}


@contextmanager
def serving(status: int = 200, delay_s: float = 0.0) -> Iterator[Stub]:
    """Answer on a free port until the block ends."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or "{}")
            time.sleep(stub.delay_s)
            body = {"errors": [{"message": "not allowed"}]}
            if stub.status == 200:
                body = {"data": stub.answer(told.get("query", ""), told.get("variables") or {})}
            data = json.dumps(body).encode()
            try:
                self.send_response(stub.status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:  # the client has left
                self.close_connection = True

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    stub = Stub(f"http://127.0.0.1:{server.server_address[1]}", status, delay_s)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
