"""Helpers: an engine on a loop thread of its own, as a host has it, and readers that never wait without a limit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from engine.fake_executor import NAME, STAGES, Stage, make_request

from albatross_plugin.config import EngineConfig
from albatross_plugin.engine.core import AsyncEngineCompletion, AsyncEngineCore, Delivery, NewTokens
from albatross_plugin.engine.messages import Failed, Finished
from albatross_plugin.engine.request import Request
from albatross_plugin.engine.step import WorkerSpec
from albatross_plugin.engine.transport import ThreadTransport

LIMIT = 20.0


def make_config(**values: Any) -> EngineConfig:
    return EngineConfig(**{"device": "cpu", "batch": 4, "gather_ms": 0.0, "tps_log_interval": 0.0, **values})


def make_specs(config: EngineConfig, **options: Any) -> list[WorkerSpec]:
    kept = options.pop("kept", 0)
    return [
        WorkerSpec(NAME, "fake.pth", config.device, k, config.batch + 1, 65530, 1, kept=kept, options=options)
        for k in range(config.workers)
    ]


@contextmanager
def stage(name: str) -> Iterator[Stage]:
    STAGES[name] = Stage()
    try:
        yield STAGES[name]
    finally:
        STAGES.pop(name).open()


class Engine:
    """A core and the thread of its loop."""

    def __init__(self, config: EngineConfig, transport: Callable[..., Any] = ThreadTransport, **options: Any) -> None:
        self.core = AsyncEngineCore(config, make_specs(config, **options), transport)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="albatross-engine", daemon=True)
        self.thread.start()

    def call(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(LIMIT)

    def start(self) -> Any:
        return self.call(self.core.start())

    def stop(self) -> None:
        if self.loop.is_closed():
            return
        self.call(self.core.shutdown())
        self.stop_loop()

    def stop_loop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(LIMIT)
        self.loop.close()


@contextmanager
def engine(
    config: EngineConfig | None = None, transport: Callable[..., Any] = ThreadTransport, **options: Any
) -> Iterator[AsyncEngineCore]:
    """A started engine; everything it had is gone when the block ends."""
    running = Engine(config or make_config(), transport, **options)
    try:
        running.start()
        yield running.core
    finally:
        running.stop()


def submit_one(
    core: AsyncEngineCore,
    loop: asyncio.AbstractEventLoop | None = None,
    prompt: int | tuple[int, ...] = 5,
    **more: Any,
) -> tuple[Request, AsyncEngineCompletion]:
    """A request of its own submission; the arguments are those of ``make_request``."""
    request = make_request(core.next_request_id(), prompt, **more)
    return request, core.submit([request], loop=loop)


async def read(completion: AsyncEngineCompletion) -> list[Delivery]:
    """Everything up to the end."""
    found: list[Delivery] = []
    while events := await asyncio.wait_for(completion.next_events(), LIMIT):
        found += events
    return found


def read_sync(completion: AsyncEngineCompletion) -> list[Delivery]:
    found: list[Delivery] = []
    while events := completion.next_events_sync(LIMIT):
        found += events
    return found


def tokens_of(deliveries: Sequence[Delivery], index: int = 0) -> list[int]:
    return [token for i, event in deliveries if i == index and isinstance(event, NewTokens) for token in event.token_ids]


def ends_of(deliveries: Sequence[Delivery], index: int = 0) -> list[Finished | Failed]:
    return [event for i, event in deliveries if i == index and isinstance(event, (Finished, Failed))]


def eventually(condition: Callable[[], bool], seconds: float = LIMIT) -> None:
    """Poll with a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "this did not become true in time"
        time.sleep(0.002)
