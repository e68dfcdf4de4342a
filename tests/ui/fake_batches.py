"""A small server that serves the page and speaks docs/batch.md from a script, and can be told to misbehave."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import albatross_plugin
from albatross_plugin.serving.page import HEADERS, TYPES

UI = Path(albatross_plugin.__file__).parent / "serving" / "ui"
DONE = b"data: [DONE]\n\n"
Step = bytes | float | threading.Event
Script = Callable[["FakeBatches", dict[str, Any]], Iterable[Step]]


def event(value: Any, ending: str = "\n") -> bytes:
    """One event of a stream."""
    return f"data: {json.dumps(value, ensure_ascii=False)}{ending}{ending}".encode()


def update(number: int, status: str, delta: str = "", tokens: int = 0, **more: Any) -> bytes:
    return event({"id": number, "status": status, "delta": delta, "tokens": tokens, "finish_reason": None, "error": None, **more})


def batch(body: dict[str, Any], status: str, **more: Any) -> bytes:
    return event(
        {
            "batch": {
                "id": body["batch_id"],
                "object": "albatross.batch",
                "created": 1,
                "model": "fake",
                "count": total(body),
                "status": status,
                **more,
            }
        }
    )


def total(body: dict[str, Any]) -> int:
    prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
    return len(prompts) * int(body["count"])


def text_of(number: int, pieces: int) -> str:
    return "".join(f"w{number}.{piece} " for piece in range(pieces))


def whole(server: FakeBatches, body: dict[str, Any]) -> Iterator[bytes]:
    """Every item says ``server.pieces`` pieces and ends."""
    count, pieces = total(body), server.pieces
    yield batch(body, "running")
    yield b"".join(update(number, "running", seed=body.get("seed", 7) + number) for number in range(count))
    for piece in range(pieces):
        yield b"".join(update(number, "running", f"w{number}.{piece} ", piece + 1) for number in range(count))
    yield b"".join(update(number, "done", "", pieces, finish_reason="stop") for number in range(count))
    yield batch(body, "done", counts={"done": count, "aborted": 0, "error": 0}) + DONE


def until_stopped(server: FakeBatches, body: dict[str, Any]) -> Iterator[Step]:
    """The first half of the items ends; the others have said ``half`` when the batch is stopped."""
    count = total(body)
    yield batch(body, "running")
    for number in range(count):
        yield update(number, "running", "half ", 1, seed=number)
    yield b"".join(update(number, "done", "done", 2, finish_reason="stop") for number in range(count // 2))
    yield server.stopped
    yield b"".join(update(number, "aborted", "", 1, finish_reason="abort") for number in range(count // 2, count))
    yield batch(body, "aborted", counts={"done": count // 2, "aborted": count - count // 2, "error": 0}) + DONE


class FakeBatches(ThreadingHTTPServer):
    """The attributes below change what it does. Steps of a script: bytes are written, a number is waited for in seconds, an event is
    waited for; the end of the steps without ``[DONE]`` is a cut."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.closing = threading.Event()
        self.reset()

    def reset(self) -> None:
        """As at the start; what still plays is let go."""
        self.script: Script = whole
        self.pieces = 3
        self.state = "ready"
        # Status, headers and body in place of a stream.
        self.refusal: tuple[int, dict[str, str], Any] | None = None
        # Whether a batch can be stopped, and whether the answer to the call for one waits for the end of the tests.
        self.deletes = True
        self.answer_delay = False
        # Bytes of at most so many go out at once.
        self.part: int | None = None
        self.bodies: list[dict[str, Any]] = []
        self.stops: list[str] = []
        self.begun = threading.Event()
        self.stopped = threading.Event()
        self.left = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def page(self) -> str:
        return f"{self.url}/albatross/ui#batch"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Pages that go away are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # Headers and body are written apart.
    wbufsize = -1
    server: FakeBatches

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path.startswith("/albatross/ui"):
            self._asset(self.path.removeprefix("/albatross/ui").strip("/") or "index.html")
        elif self.path == "/albatross/status":
            model = "fake" if self.server.state != "offline" else None
            value = {"model": model, "state": self.server.state, "engine": None, "batches": {"running": 0, "items": 0}, "version": "0"}
            self._json(200, value)
        elif self.path == "/status":
            status = {"offline": 0, "loading": 2}.get(self.server.state, 3)
            ready = {"phase": "ready"} if self.server.state == "ready" else None
            self._json(200, {"status": status, "model": "fake", "albatross": ready, "device_modes": [], "strategies": []})
        elif self.path == "/favicon.ico":
            # Asked for where a test opens a file of the page by itself.
            self._answer(204, b"", {})
        else:
            self._json(404, {"detail": "Not Found"})

    def _asset(self, name: str) -> None:
        path = UI / name
        if path.suffix not in TYPES or path.parent != UI or not path.is_file():
            return self._json(404, {"detail": "Not Found"})
        self._answer(200, path.read_bytes(), {"Content-Type": TYPES[path.suffix], **HEADERS})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path != "/albatross/batch/completions":
            return self._json(404, {"detail": "Not Found"})
        self.server.bodies.append(body)
        self.server.begun.set()
        if self.server.answer_delay:
            self.server.closing.wait()
            return
        if self.server.refusal is not None:
            status, headers, value = self.server.refusal
            return self._json(status, value, headers)
        self.send_response(200)
        for name, value in {"Content-Type": "text/event-stream", "X-Batch-Id": body["batch_id"], "Transfer-Encoding": "chunked"}.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        try:
            self._play(body)
        except OSError:
            self.server.left.set()

    def _play(self, body: dict[str, Any]) -> None:
        ended = False
        for step in self.server.script(self.server, body):
            if isinstance(step, bytes):
                ended = b"[DONE]" in step
                self._write(step)
            elif isinstance(step, float):
                time.sleep(step)
            else:
                self._wait(step)
        if ended:
            self._part(b"")

    def _wait(self, for_what: threading.Event) -> None:
        """With a comment now and then, by which a reader that has left is noticed; it ends no event that a script left open."""
        while not for_what.wait(0.05):
            if self.server.closing.is_set():
                return
            self._part(b": wait\n")

    def _write(self, data: bytes) -> None:
        size = self.server.part or max(1, len(data))
        for start in range(0, len(data), size):
            self._part(data[start : start + size])

    def _part(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def do_DELETE(self) -> None:
        self.server.stops.append(self.path.rsplit("/", 1)[-1])
        if not self.server.deletes:
            return self._json(404, {"error": {"message": "there is no such batch", "code": "batch_not_found"}})
        self.server.stopped.set()
        self._json(200, {"id": self.server.stops[-1], "object": "albatross.batch", "status": "aborted", "counts": {}})

    def _json(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        self._answer(status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


@contextmanager
def serving() -> Generator[FakeBatches, None, None]:
    with FakeBatches() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()
            thread.join()
