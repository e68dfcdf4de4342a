"""EngineThread: an engine on an event loop in a thread of its own, from its load to its end."""

from __future__ import annotations

import asyncio
import logging
import threading
from concurrent.futures import TimeoutError as FutureTimeout
from typing import Any

from albatross_plugin.engine.core import AsyncEngineCore
from albatross_plugin.engine.messages import ModelInfo

logger = logging.getLogger(__name__)

STOP_SECONDS = 60
JOIN_SECONDS = 10

_starting: list[AsyncEngineCore] = []


class EngineThread:
    """Runs ``core`` in the thread ``albatross-engine``. Knows nothing of whoever holds it, who may therefore be dropped while it runs."""

    def __init__(self, core: AsyncEngineCore) -> None:
        self.core = core
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="albatross-engine", daemon=True)

    def start(self) -> ModelInfo:
        """Load the model; back when it is ready. Raises as ``AsyncEngineCore.start``, and even then the thread stays until ``stop``."""
        self._thread.start()
        _starting.append(self.core)
        try:
            return asyncio.run_coroutine_threadsafe(self.core.start(), self._loop).result()
        finally:
            _starting.remove(self.core)

    def stop(self) -> None:
        """End the engine and the thread; waits for both, a bounded time, unless called on that very thread. To be called once."""
        if self._thread.ident is None:
            # The system gave no thread.
            self._loop.close()
            return
        if threading.current_thread() is self._thread:
            self._loop.create_task(self.core.shutdown()).add_done_callback(lambda _: self._loop.stop())
            return
        try:
            asyncio.run_coroutine_threadsafe(self.core.shutdown(), self._loop).result(timeout=STOP_SECONDS)
        except FutureTimeout:
            logger.warning("the engine did not stop within %d s", STOP_SECONDS)
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(timeout=JOIN_SECONDS)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()


def starting_status() -> dict[str, Any] | None:
    """Status of an engine whose load is still running, for a host that has no model object yet."""
    # A copy: the load may end on its own thread between a look and a grasp.
    running = list(_starting)
    return {"model": running[-1].name, **running[-1].status()} if running else None
