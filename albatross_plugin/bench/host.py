"""The server under test: ``python -m host_stub`` in a process of its own, and what can be asked of it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from albatross_plugin.bench.openai_client import Endpoint, call

LISTENING = re.compile(r"^listening on (http://\S+)$", re.MULTILINE)


class HostFailed(RuntimeError):
    """The server did not start, or refused to load a model; the message ends with its log."""


class Host:
    """A context manager around one server. ``environment`` is added to this process's own.

    ``module``: the program, where it is not the stub host itself. ``files``: the most descriptors that it may open, if a shell can say so.
    """

    def __init__(self, environment: Mapping[str, str], *, module: str | None = None, files: int | None = None) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="albatross-bench-", ignore_cleanup_errors=True)
        self._log_path = Path(self._folder.name) / "host.log"
        command = [sys.executable, "-m", module or "host_stub", "--host", "127.0.0.1", "--port", "0", "--no-access-log"]
        if files is not None:
            command = ["sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", *command]
        variables = {**os.environ, "PYTHONUNBUFFERED": "1", **environment}
        # A file, not a pipe: a pipe needs a reading thread in the process that measures.
        with self._log_path.open("wb") as log:
            self._process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)
        self.endpoint = Endpoint("127.0.0.1", 0)

    def __enter__(self) -> Host:
        try:
            self.endpoint = Endpoint.parse(self._address(seconds=60))
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_seconds(self) -> float | None:
        """Processor time that the server has used, all its threads together; None where /proc is not there to tell."""
        try:
            # The name of the process, in parentheses, may hold spaces.
            fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        except OSError:
            return None
        return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))

    def log(self) -> str:
        return self._log_path.read_text(encoding="utf-8", errors="replace")

    def _address(self, seconds: float) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self._process.poll() is None:
            match = LISTENING.search(self.log())
            if match:
                return match.group(1)
            time.sleep(0.05)
        raise HostFailed(f"the host did not start (exit status {self._process.poll()}):\n{self.log()[-2000:]}")

    async def switch(self, model: str, strategy: str, timeout: float = 600) -> None:
        """Load a model ("" unloads). Raises HostFailed with the host's reason."""
        reply = await call(self.endpoint, "POST", "/switch-model", {"model": model, "strategy": strategy}, timeout)
        if reply.status != 200:
            raise HostFailed(f"{strategy!r}: {reply.status} {reply.body.decode(errors='replace')[:1000]}\n{self.log()[-2000:]}")

    async def status(self) -> dict[str, Any]:
        answer: dict[str, Any] = (await call(self.endpoint, "GET", "/status")).json()
        return answer

    def stop(self) -> None:
        """Ask the process to end, then insist. Idempotent."""
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._folder.cleanup()
