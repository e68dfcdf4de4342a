"""A batch's stream as it came from a real engine, given again to the page, and what the page's work on it costs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pluggy
from fastapi import APIRouter, Request
from fastapi.responses import StreamingResponse
from ui import steps

if TYPE_CHECKING:
    from host.live import LiveHost
    from playwright.sync_api import CDPSession, Page
    from ui.browsing import Forwarder

hookimpl = pluggy.HookimplMarker("rwkv_runner")
PATH = "/albatross/batch/completions"
# Gathers what keeps the page from answering: tasks of more than 50 ms.
WATCH = """
window.longTasks = [];
new PerformanceObserver((list) => { for (const task of list.getEntries()) window.longTasks.push([task.startTime, task.duration]); })
  .observe({ type: "longtask", buffered: true });
"""


@dataclass(frozen=True)
class Recording:
    """Parts of a body with the second at which each arrived."""

    parts: tuple[tuple[float, bytes], ...]
    headers: dict[str, str]

    @property
    def seconds(self) -> float:
        return self.parts[-1][0]

    @property
    def size(self) -> int:
        return sum(len(part) for _, part in self.parts)


def record(host: LiveHost, body: dict[str, Any]) -> Recording:
    """Run a batch and keep its stream."""
    begin = time.monotonic()
    with host.client.stream("POST", PATH, json=body) as answer:
        assert answer.status_code == 200, answer.read()
        parts = tuple((time.monotonic() - begin, part) for part in answer.iter_raw())
        return Recording(parts, {name: answer.headers[name] for name in ("content-type", "x-batch-id")})


class Replay:
    """A plugin that answers every batch with ``recording``, ``speed`` times as fast. Registered last, its route is first."""

    def __init__(self) -> None:
        self.recording: Recording | None = None
        self.speed = 1.0
        self.calls: list[dict[str, Any]] = []

    @hookimpl
    def rwkv_runner_routers(self) -> list[APIRouter]:
        router = APIRouter()

        @router.post(PATH, include_in_schema=False)
        async def replay(request: Request) -> StreamingResponse:
            self.calls.append(await request.json())
            assert self.recording is not None
            return StreamingResponse(self._parts(self.recording), headers=self.recording.headers)

        return [router]

    async def _parts(self, recording: Recording) -> AsyncIterator[bytes]:
        begin = time.monotonic()
        for second, part in recording.parts:
            await asyncio.sleep(max(0.0, begin + second / self.speed - time.monotonic()))
            yield part


@dataclass(frozen=True)
class Cost:
    """Tasks over 50 ms, in milliseconds; heap in bytes and DOM nodes, after a collection of garbage."""

    tasks_ms: tuple[float, ...]
    heap: int
    nodes: int

    @property
    def longest_ms(self) -> float:
        return max(self.tasks_ms, default=0.0)


class Meter:
    """Measures a page from now on. The page must have been opened with ``WATCH`` as an init script."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._cdp: CDPSession = page.context.new_cdp_session(page)
        self._cdp.send("Performance.enable")
        self.begin()

    def begin(self) -> None:
        self._since: float = self._page.evaluate("performance.now()")

    def read(self) -> Cost:
        tasks = tuple(duration for start, duration in self._page.evaluate("window.longTasks") if start >= self._since)
        self._cdp.send("HeapProfiler.collectGarbage")
        metrics = {each["name"]: each["value"] for each in self._cdp.send("Performance.getMetrics")["metrics"]}
        return Cost(tasks, int(metrics["JSHeapUsedSize"]), int(metrics["Nodes"]))


def play(page: Page, way: Forwarder, replay: Replay, items: int) -> tuple[Cost, Cost]:
    """Open the page by ``way``, from a host that has ``replay``, and let it take the stream from its beginning to its end.

    Returns the cost before and after. ``way`` counts connections from the start of the batch on.
    """
    assert replay.recording is not None
    page.add_init_script(WATCH)
    page.goto(way.url + "/albatross/ui")
    steps.fill(page, "replayed", items)
    meter = Meter(page)
    before = meter.read()
    way.reset()
    meter.begin()
    steps.start(page)
    steps.ended(page, seconds=2 * replay.recording.seconds / replay.speed + 30)
    return before, meter.read()
