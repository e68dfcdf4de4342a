"""A host as a process of its own on a free port: an unmodified Runner behind the launcher, or any other command."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

START_SECONDS = 90
LLAMA = '''
"""Stands in for the llama.cpp binding: says which file it was given."""


class Llama:
    def __init__(self, model_path, **_):
        self.path = model_path

    def create_completion(self, **_):
        for word in ("llama", " has", " it"):
            yield {"choices": [{"text": word}]}

    def reset(self):
        pass


CreateCompletionStreamResponse = CreateChatCompletionStreamResponse = dict
'''


class Served:
    """``command`` is followed by ``--port`` and the port. ``folder`` is where it runs; ``log`` grows while it does."""

    def __init__(self, command: Sequence[str], *, environ: dict[str, str] | None = None, wait: bool = True) -> None:
        self._temporary = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self.folder = Path(self._temporary.name)
        (self.folder / "peers").mkdir()
        (self.folder / "peers" / "llama_cpp.py").write_text(LLAMA)
        (self.folder / "frontend" / "dist").mkdir(parents=True)
        (self.folder / "frontend" / "dist" / "index.html").write_text("<p>the front end</p>")
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        self.log: list[str] = []
        self.process = subprocess.Popen(
            [*command, "--port", str(port)],
            cwd=self.folder,
            env={
                **os.environ,
                "OMP_WAIT_POLICY": "passive",
                "PYTHONUNBUFFERED": "1",
                "PYTHONPATH": str(self.folder / "peers"),
                **(environ or {}),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        # A connection each: the Runner's server drops one without a word after an error of its own.
        self.client = httpx.Client(base_url=self.url, timeout=60, limits=httpx.Limits(max_keepalive_connections=0))
        if wait:
            self._wait()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.log.extend(iter(self.process.stdout.readline, ""))

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                self.client.get("/status")
                return
            except httpx.TransportError:
                time.sleep(0.05)
        self.close()
        raise RuntimeError("the host did not start:\n" + self.text())

    def text(self) -> str:
        return "".join(self.log)

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        return self.client.post(path, json=body)

    def switch(self, model: Path | str, strategy: str, **more: Any) -> httpx.Response:
        return self.post("/switch-model", {"model": str(model), "strategy": strategy, **more})

    def events(self, path: str, body: dict[str, Any], times: list[float] | None = None) -> list[str]:
        """The data of every event of a stream; ``times`` gets when each one came."""
        found = []
        with httpx.stream("POST", self.url + path, json={**body, "stream": True}, timeout=60) as response:
            assert response.status_code == 200, response.read()
            assert response.headers["content-type"].startswith("text/event-stream")
            for line in response.iter_lines():
                if line.startswith("data: "):
                    found.append(line[len("data: ") :])
                    if times is not None:
                        times.append(time.monotonic())
        return found

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self._reader.join(5)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.client.close()
        self._temporary.cleanup()

    def __enter__(self) -> Served:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def launcher(main: Path, *flags: str, python: str = sys.executable) -> list[str]:
    """The command that starts the Runner with this main.py behind the launcher."""
    return [python, "-m", "albatross_plugin.runner", str(main), *flags]


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
