"""A server of the page's files beside an API that is told what to answer, byte by byte where that matters."""

from __future__ import annotations

import json
import select
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from albatross_plugin.serving.page import HEADERS, INDEX, assets

PAGE = "/albatross/ui"
DONE = "data: [DONE]\r\n\r\n"


def event(value: dict[str, Any]) -> str:
    return f"data: {json.dumps(value, ensure_ascii=False)}\r\n\r\n"


def said(text: str, finish: str | None = None) -> str:
    """A chunk of a streamed chat."""
    return event({"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish}]})


@dataclass
class Reply:
    """One answer to a chat: its parts, sent as they are. It waits for ``gate`` before part ``held``, or for the client to leave; without ``whole`` it breaks off."""

    parts: list[str | bytes]
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "text/event-stream"})
    held: int | None = None
    gate: threading.Event = field(default_factory=threading.Event)
    whole: bool = True


def refusal(status: int, message: str, **headers: str) -> Reply:
    body = json.dumps({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}})
    return Reply([body], status, {"Content-Type": "application/json", **headers})


class FakeApi(ThreadingHTTPServer):
    """``own`` and ``host`` answer /albatross/status and /status; None: the connection is closed without an answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.own: dict[str, Any] | None = {"model": None, "state": "offline", "engine": None}
        self.host: dict[str, Any] | None = {"status": 0}
        self.replies: list[Reply] = []
        self.bodies: list[dict[str, Any]] = []
        self.asked = 0
        self.asking = 0
        self.most = 0
        self.left = threading.Event()
        self.lock = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pages that leave are part of the tests; what else may fail here shows in them."""


@contextmanager
def fake_api() -> Iterator[FakeApi]:
    with FakeApi() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeApi

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == PAGE or self.path.startswith(f"{PAGE}/"):
            asset = assets()[self.path.removeprefix(PAGE).removeprefix("/") or INDEX]
            self._answer(200, asset.content, {**HEADERS, "Content-Type": asset.content_type})
            return
        server = self.server
        with server.lock:
            server.asked += self.path == "/albatross/status"
            server.asking += 1
            server.most = max(server.most, server.asking)
        value = {"/albatross/status": server.own, "/status": server.host}.get(self.path)
        if value is None:
            self.close_connection = True
            self._answered()
        else:
            self._answer(200, json.dumps(value).encode(), {"Content-Type": "application/json"}, before_last=self._answered)

    def _answered(self) -> None:
        with self.server.lock:
            self.server.asking -= 1

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        reply = self.server.replies.pop(0)
        self.send_response(reply.status)
        for name, value in {**reply.headers, "Transfer-Encoding": "chunked"}.items():
            self.send_header(name, value)
        self.end_headers()
        try:
            for number, part in enumerate(reply.parts):
                if number == reply.held:
                    self._hold(reply.gate)
                data = part.encode() if isinstance(part, str) else part
                self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
                self.wfile.flush()
            if reply.whole:
                self.wfile.write(b"0\r\n\r\n")
            else:
                self.close_connection = True
        except ConnectionError:
            self.server.left.set()
            self.close_connection = True

    def _hold(self, gate: threading.Event) -> None:
        """Raises ConnectionError when the client leaves meanwhile."""
        while not gate.wait(0.02):
            if select.select([self.connection], [], [], 0)[0] and not self.connection.recv(1, socket.MSG_PEEK):
                raise ConnectionError

    def _answer(self, status: int, body: bytes, headers: dict[str, str], before_last: Callable[[], None] = lambda: None) -> None:
        """``before_last`` is called before the last byte: with that the client has the answer, and may ask again at once."""
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body[:-1])
        before_last()
        self.wfile.write(body[-1:])
