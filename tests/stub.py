"""The stub host as a real process on a free port, for tests that go through HTTP."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx

START_SECONDS = 60


class StubHost:
    """``python -m host_stub`` in a temporary folder; ``log`` grows while it runs."""

    def __init__(self, *arguments: str, environ: dict[str, str] | None = None) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.log: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "host_stub", "--port", "0", "--no-access-log", *arguments],
            cwd=self.folder.name,
            env={**os.environ, "OMP_WAIT_POLICY": "passive", "PYTHONWARNINGS": "default", **(environ or {})},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            encoding="utf-8",
        )
        self.url = ""
        self.loaded: tuple[str | Path, str] | None = None
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(START_SECONDS) or not self.url:
            self.close()
            raise RuntimeError("the stub host did not start:\n" + "".join(self.log))
        self.client = httpx.Client(base_url=self.url, timeout=120)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line)
            found = re.search(r"listening on (http://\S+)", line)
            if found:
                self.url = found.group(1)
                self._ready.set()
        self._ready.set()

    def switch(self, model: str | Path, strategy: str, **more: Any) -> httpx.Response:
        answer = self.client.post("/switch-model", json={"model": str(model), "strategy": strategy, **more})
        self.loaded = (model, strategy) if answer.status_code == 200 else None
        return answer

    def status(self) -> dict[str, Any]:
        return dict(self.client.get("/status").json())

    def engine(self) -> dict[str, Any]:
        return dict(self.status()["albatross"])

    def wait_for(self, condition: Any, seconds: float = 10) -> None:
        """Poll until ``condition()`` holds; fails with the log after ``seconds``."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "not reached in time\n" + "".join(self.log[-40:])
            time.sleep(0.02)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self._reader.join(5)
        if self.process.stdout is not None:
            self.process.stdout.close()
        if hasattr(self, "client"):
            self.client.close()
        self.folder.cleanup()

    def __enter__(self) -> StubHost:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
