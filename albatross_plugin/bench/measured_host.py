"""The stub host with pages that say what it costs: processor time of each thread, waits for the interpreter's lock, lag of the event loop.

    python -m albatross_plugin.bench.measured_host --port 8000 --model FILE --strategy "albatross batch=320"
    ALBATROSS_INSTANT='{"step_ms": 1.6, "row_us": 9.8, "batch": 320}' python -m albatross_plugin.bench.measured_host --port 8000

Options are those of the stub host. ``/bench/threads`` has the times and the waits, ``/bench/loop`` the lag, ``/bench/bare`` a stream of its
own to compare with. In the second form the engine has no model but an InstantExecutor, whose options the variable holds.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from albatross_plugin import hooks
from albatross_plugin.bench.chosen_executor import ChosenExecutor
from albatross_plugin.bench.instant_executor import NAME

if TYPE_CHECKING:
    from fastapi import APIRouter

hookimpl = pluggy.HookimplMarker("rwkv_runner")
VARIABLE = "ALBATROSS_INSTANT"
STRATEGY = "instant"
PROBE_SECONDS = 0.01
LOOP_SECONDS = 0.005
QUIET_STEPS = 100


class InstantPlugin:
    """Answers to the strategy ``instant`` with the plugin's own model object over an InstantExecutor."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._batch = int(options.pop("batch", 320))
        self._options = options

    @hookimpl
    def rwkv_runner_parse_strategy(self, strategy: str) -> str | None:
        return strategy if strategy == STRATEGY else None

    @hookimpl
    def rwkv_runner_create_model(self, strategy: object, model_path: str, tokenizer_path: str | None) -> Any | None:
        if strategy != STRATEGY:
            return None
        from albatross_plugin.adapter import AlbatrossRWKV

        return AlbatrossRWKV(model_path, 1, self._batch, tokenizer_path, device="cpu", executor=NAME, options=self._options)


class LockProbe:
    """Sleeps again and again, and sums by how much it overslept: the time that a thread needs to get the interpreter's lock.

    Includes what the system's scheduler takes, which is all of it on an idle server.
    """

    def __init__(self) -> None:
        self.samples, self.seconds, self.longest = 0, 0.0, 0.0
        threading.Thread(target=self._run, name="bench-lock-probe", daemon=True).start()

    def _run(self) -> None:
        while True:
            began = time.perf_counter()
            time.sleep(PROBE_SECONDS)
            late = time.perf_counter() - began - PROBE_SECONDS
            self.samples += 1
            self.seconds += late
            self.longest = max(self.longest, late)


class LoopProbe:
    """A task of the event loop that sleeps again and again; by how much it overslept is how late the loop was for anything else."""

    def __init__(self) -> None:
        self._late: list[float] = []
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(LOOP_SECONDS)
            self._late.append(time.perf_counter() - began - LOOP_SECONDS)

    def take(self) -> list[float]:
        """Seconds, one for each sleep since the last call."""
        taken, self._late = self._late, []
        return taken


class PagesPlugin:
    """Brings the pages."""

    def __init__(self) -> None:
        self._probe: LockProbe | None = None
        self._loop_probe: LoopProbe | None = None
        self._events: list[bytes] = []
        self._clock = StepClock(0.0)

    @hookimpl
    def rwkv_runner_routers(self, host: object) -> list[Any]:
        from fastapi import APIRouter

        router = APIRouter()

        @router.get("/bench/threads")
        async def threads() -> dict[str, Any]:
            """Sums since the first call. Seconds; ``threads`` is empty where the system cannot tell."""
            probe = self._probe = self._probe or LockProbe()
            longest, probe.longest = probe.longest, 0.0
            return {
                "threads": thread_seconds(),
                "process": time.process_time(),
                "lock": {"samples": probe.samples, "seconds": probe.seconds, "longest_since_last_call": longest},
            }

        @router.get("/bench/loop")
        async def loop() -> dict[str, list[float]]:
            """How late the event loop was, in milliseconds, at each of its looks since the last call; they begin with the first call."""
            probe = self._loop_probe = self._loop_probe or LoopProbe()
            return {"late_ms": [round(1e3 * late, 3) for late in probe.take()]}

        self._add_bare(router)
        return [router]

    def _add_bare(self, router: APIRouter) -> None:
        """``/bench/record`` takes a stream's events, or one whole answer; ``/bench/bare`` answers with their bytes and no more."""
        from starlette.responses import Response, StreamingResponse

        @router.post("/bench/record")
        async def record(body: dict[str, Any]) -> int:
            self._events = [event.encode() for event in body["events"]]
            self._clock = StepClock(body.get("step_ms", 0.0) / 1e3)
            return len(self._events)

        async def bare(request: Any) -> Response:
            await request.body()
            if len(self._events) == 1:
                return Response(self._events[0], media_type="application/json")
            return StreamingResponse(self._replay(), media_type="text/event-stream")

        # Not by the router's own way, which would read the body as JSON and check it.
        router.add_route("/bench/bare", bare, methods=["POST"])

    async def _replay(self) -> AsyncIterator[bytes]:
        clock = self._clock
        for event in self._events:
            await clock.step()
            yield event


class StepClock:
    """Wakes everybody who waits for the next step, as often as an engine would; 0 seconds: nobody waits."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    async def step(self) -> None:
        if not self._seconds:
            return
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        waiter = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        await waiter

    async def _run(self) -> None:
        due = time.perf_counter() + self._seconds
        quiet = 0
        while quiet < QUIET_STEPS:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            due = max(due + self._seconds, time.perf_counter())
            waiting, self._waiting = self._waiting, []
            quiet = 0 if waiting else quiet + 1
            for each in waiting:
                if not each.done():
                    each.set_result(None)


def thread_seconds() -> dict[str, float]:
    """Processor time of each Python thread by its name; threads of one name are added up."""
    found: dict[str, float] = {}
    if not hasattr(time, "pthread_getcpuclockid"):
        return found
    for thread in threading.enumerate():
        if thread.ident is not None:
            try:
                seconds = time.clock_gettime(time.pthread_getcpuclockid(thread.ident))
            except OSError:
                # It ended a moment ago.
                continue
            found[thread.name] = found.get(thread.name, 0.0) + seconds
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    from host_stub.__main__ import main as host
    from host_stub.plugins import Plugins

    given = list(sys.argv[1:] if arguments is None else arguments)
    plugins = Plugins()
    plugins.register(hooks, "albatross")
    plugins.register(PagesPlugin(), "bench-pages")
    plugins.register(ChosenExecutor(), "bench-executor")
    with tempfile.TemporaryDirectory(prefix="albatross-instant-") as folder:
        if os.environ.get(VARIABLE):
            plugins.register(InstantPlugin(json.loads(os.environ[VARIABLE])), "bench-instant")
            model = Path(folder) / "instant.pth"
            model.touch()
            given += ["--model", str(model), "--strategy", STRATEGY]
        return host(given, plugins)


if __name__ == "__main__":
    sys.exit(main())
