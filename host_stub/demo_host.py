"""The server process of the demo: start it, learn its address and what it reports, end it in every case."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from types import TracebackType

LISTENING = re.compile(r"^listening on (http://\S+)")
FOUND = "found plugin albatross"
START_SECONDS = 60
STOP_SECONDS = 15


class HostError(RuntimeError):
    """The server did not start, ended early, or refused what the demo asked of it."""


class HostProcess:
    """``python -m host_stub`` as a child. A context manager: leaving it ends the child, whatever happened inside."""

    def __init__(self, port: int = 0) -> None:
        self.url = ""
        self.lines: list[str] = []
        self._news = threading.Condition()
        self._ended = False
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
        command = [sys.executable, "-m", "host_stub", "--host", "127.0.0.1", "--port", str(port), "--no-access-log"]
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        self._reader = threading.Thread(target=self._read, name="demo-host-log", daemon=True)
        self._reader.start()

    def __enter__(self) -> HostProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def wait_listening(self, seconds: float = START_SECONDS) -> str:
        """The server's address, once it has printed it. Raises HostError with the end of its log."""
        with self._news:
            self._news.wait_for(lambda: bool(self.url) or self._ended, timeout=seconds)
        if not self.url:
            raise HostError(f"the host did not start:\n{self.tail()}")
        return self.url

    def plugin_line(self) -> str | None:
        """The message in the host's log that names the plugin and the way it was found."""
        for line in list(self.lines):
            if FOUND in line:
                return line[line.index(FOUND) :]
        return None

    def tail(self, count: int = 15) -> str:
        return "\n".join(f"  | {line}" for line in self.lines[-count:])

    def running(self) -> bool:
        return self._process.poll() is None

    def stop(self) -> None:
        """Ask it to end, then insist. Idempotent."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._reader.join(STOP_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def _read(self) -> None:
        # The pipe must be read to its end, or the server stops at a full one.
        assert self._process.stdout is not None
        for line in self._process.stdout:
            line = line.rstrip("\n")
            match = LISTENING.match(line)
            with self._news:
                self.lines.append(line)
                if match:
                    self.url = match.group(1)
                    self._news.notify_all()
        with self._news:
            self._ended = True
            self._news.notify_all()
