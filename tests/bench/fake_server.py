"""A small OpenAI-style server that speaks real HTTP and can be told to misbehave."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PATHS = ("/v1/chat/completions", "/v1/completions", "/chat/completions")


class FakeServer(ThreadingHTTPServer):
    """Answers any completion with ``max_tokens`` words. The attributes below change how."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.refuses: tuple[str, ...] = ()
        self.counts = True
        self.cut_after: int | None = None
        self.error_after: int | None = None
        self.garbage_after: int | None = None
        self.chunked = True
        self.silent = False
        self.refusal: tuple[int, dict[str, str], Any] | None = None
        self.capacity: int | None = None
        self.newer_limit = False
        self.profiles = True
        self.first_delay = 0.0
        self.bodies: list[dict[str, Any]] = []
        self.resets = 0
        self.now = 0
        self.most = 0
        self.lock = threading.Lock()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are part of the tests; anything else is a fault of this server."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._json(200, {"object": "list", "data": [{"id": "fake-model", "object": "model"}]})
        elif self.path == "/albatross/profile" and self.server.profiles:
            self._json(200, {"requests": len(self.server.bodies), "tokens": 3.0})
        else:
            self._json(404, {"error": {"message": "no such page"}})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/albatross/profile/reset":
            self.server.resets += 1
            self._json(200, {"success": True})
            return
        if self.path not in PATHS:
            self._json(404, {"detail": "Not Found"})
            return
        body = json.loads(raw)
        self.server.bodies.append(body)
        if self.server.refusal is not None:
            status, headers, value = self.server.refusal
            self._json(status, value, headers)
            return
        for name in self.server.refuses:
            if name in body:
                self._json(400, {"error": {"message": f"{name} is not supported", "param": name}})
                return
        if self.server.newer_limit and "max_tokens" in body:
            self._json(400, {"error": {"message": "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead."}})
            return
        with self.server.lock:
            self.server.now += 1
            self.server.most = max(self.server.most, self.server.now)
            full = self.server.capacity is not None and self.server.now > self.server.capacity
        try:
            if full:
                self._json(429, {"error": {"message": "the queue is full"}}, {"Retry-After": "7"})
            else:
                self._complete(body)
        finally:
            with self.server.lock:
                self.server.now -= 1

    def _complete(self, body: dict[str, Any]) -> None:
        tokens = body["max_completion_tokens" if self.server.newer_limit else "max_tokens"]
        usage = {"prompt_tokens": 5, "completion_tokens": tokens, "total_tokens": tokens + 5}
        if self.server.silent:
            time.sleep(1.5)
        if not body.get("stream"):
            choice = {"index": 0, "message": {"role": "assistant", "content": "w " * tokens}, "finish_reason": "length"}
            self._json(200, {"choices": [choice], **({"usage": usage} if self.server.counts else {})})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header(*(("Transfer-Encoding", "chunked") if self.server.chunked else ("Connection", "close")))
        self.end_headers()
        self.close_connection = True
        self._event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}]})
        time.sleep(self.server.first_delay)
        for number in range(tokens):
            if number == self.server.cut_after:
                return
            if number == self.server.error_after:
                self._event({"error": {"message": "out of albatrosses", "type": "server_error", "param": None, "code": None}})
                self._part(b"")
                return
            if number == self.server.garbage_after:
                self._part(b"data: {no JSON\r\n\r\n")
            self._event({"choices": [{"index": 0, "delta": {"content": f"wörd{number} "}, "finish_reason": None}]})
        self._event({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        if self.server.counts and (body.get("stream_options") or {}).get("include_usage"):
            self._event({"choices": [], "usage": usage})
        self._part(b"data: [DONE]\r\n\r\n")
        self._part(b"")

    def _event(self, value: dict[str, Any]) -> None:
        data = f"data: {json.dumps(value, ensure_ascii=False)}\r\n\r\n".encode()
        # Cut in the middle of an event, as networks do.
        self._part(data[:9])
        self._part(data[9:])

    def _part(self, data: bytes) -> None:
        if self.server.chunked:
            data = f"{len(data):x}\r\n".encode() + data + b"\r\n"
        self.wfile.write(data)
        self.wfile.flush()

    def _json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        """A ``value`` that is text goes out as it is."""
        data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
        self.send_response(status)
        for name, content in {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, content)
        self.end_headers()
        self.wfile.write(data)


@contextmanager
def serving(port: int = 0) -> Generator[FakeServer, None, None]:
    with FakeServer(port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
