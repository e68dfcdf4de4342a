"""Counters of the serving path, kept while ALBATROSS_PROFILE=1 and read at /albatross/profile."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, fields


@dataclass
class RequestProfile:
    """What one request adds; times in nanoseconds."""

    requests: int = 1
    stream_requests: int = 0
    tokens: int = 0
    stream_chunks: int = 0
    bytes: int = 0
    completion_wait_ns: int = 0
    disconnect_check_ns: int = 0
    json_dump_ns: int = 0
    yield_resume_ns: int = 0
    request_wall_ns: int = 0


class ProfileAccumulator:
    """Sums of finished requests, from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sum = RequestProfile(requests=0)

    def add(self, profile: RequestProfile) -> None:
        with self._lock:
            for item in fields(RequestProfile):
                setattr(self._sum, item.name, getattr(self._sum, item.name) + getattr(profile, item.name))

    def snapshot(self, reset: bool = False) -> dict[str, float]:
        """The sums, times in milliseconds under names that end in ``_ms``."""
        with self._lock:
            values = vars(self._sum).copy()
            if reset:
                self._sum = RequestProfile(requests=0)
        return {
            (name[:-3] + "_ms" if name.endswith("_ns") else name): (value / 1e6 if name.endswith("_ns") else value)
            for name, value in values.items()
        }

    def reset(self) -> None:
        self.snapshot(reset=True)


profile = ProfileAccumulator()


def no_clock() -> int:
    """Stands in for ``time.perf_counter_ns`` while profiling is off."""
    return 0


clock = time.perf_counter_ns
