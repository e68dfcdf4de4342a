"""What a server's process holds, seen from outside, and what of it is a leak."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from albatross_plugin.bench.host import Host
from albatross_plugin.bench.memory_run import resident_bytes
from albatross_plugin.bench.openai_client import call

QUIET_SECONDS = 30.0


@dataclass(frozen=True)
class Holdings:
    """``files``: open descriptors, sockets among them (0 where the system cannot tell). ``resident`` in bytes."""

    threads: int
    files: int
    resident: int

    @classmethod
    def of(cls, pid: int) -> Holdings:
        """Needs psutil where there is no /proc."""
        if sys.platform == "linux":
            lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines()
            threads = next(int(line.split()[1]) for line in lines if line.startswith("Threads:"))
            return cls(threads, len(list(Path(f"/proc/{pid}/fd").iterdir())), resident_bytes(pid))
        import psutil  # type: ignore[import-untyped, unused-ignore]

        process = psutil.Process(pid)
        return cls(process.num_threads(), getattr(process, "num_fds", int)(), resident_bytes(pid))

    def __str__(self) -> str:
        return f"{self.threads} threads, {self.files} descriptors, {self.resident / 1e6:.1f} MB resident"


@dataclass(frozen=True)
class Level:
    """A server at rest: what its process holds, and its engine's figures."""

    holdings: Holdings
    engine: dict[str, Any]

    @property
    def unfinished(self) -> int:
        """Requests that were accepted and came to no end."""
        ends = self.engine["requests"]
        return int(ends["accepted"] - sum(ends[name] for name in ("stop", "length", "abort", "error")))


async def at_rest(host: Host, start: Level | None = None) -> Level:
    """Wait until nothing runs, and no more threads and descriptors are there than at the ``start``; what is there after half a minute."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + QUIET_SECONDS
    while True:
        # Idle threads of a host's pool end some time later, when the pool is used: this call does that, and changes nothing.
        await call(host.endpoint, "POST", "/update-config", {})
        engine = (await host.status())["albatross"]
        level = Level(Holdings.of(host.pid), engine)
        idle = engine["slots"]["active"] == 0 and engine["queue"]["length"] == 0 and level.unfinished == 0
        more = start is not None and (level.holdings.threads > start.holdings.threads or level.holdings.files > start.holdings.files)
        if (idle and not more) or loop.time() > deadline:
            return level
        await asyncio.sleep(0.5)


def leaks(start: Level, warm: Level, end: Level, drift: float, slack: int = 0) -> list[str]:
    """Each leak in words. ``drift``: by how much resident memory may have grown since the warm part, as a part of what it was then;
    ``slack``: what it may have grown by in any case, in bytes."""
    old, new, engine = start.holdings, end.holdings, end.engine
    found = []
    if engine["slots"]["active"]:
        found.append(f"slots: {engine['slots']['active']} are in use though nobody asks")
    if engine["queue"]["length"]:
        found.append(f"queue: {engine['queue']['length']} requests wait though nobody asks")
    if end.unfinished:
        found.append(f"unfinished requests: {end.unfinished}")
    if new.threads > old.threads:
        found.append(f"threads: {new.threads}, {old.threads} at the start")
    if new.files > old.files:
        found.append(f"descriptors: {new.files}, {old.files} at the start")
    allowed = max(warm.holdings.resident * drift, slack)
    if new.resident > warm.holdings.resident + allowed:
        was = warm.holdings.resident / 1e6
        found.append(f"resident memory: {new.resident / 1e6:.1f} MB, {was:.1f} when warm, more than {allowed / 1e6:.1f} MB above it")
    return found
