"""Long calls in daemon threads: unlike those of a pool, nothing joins such a thread when the process ends."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")
THREAD_NAME = "host-load"


class Loads:
    """Runs calls in threads of their own. ``abandon()`` answers whoever still waits for one; the thread is left to itself."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[asyncio.Future[Any], asyncio.AbstractEventLoop] = {}
        self._error: Exception | None = None

    async def run(self, function: Callable[[], T]) -> T:
        """The outcome of ``function``, or the exception given to ``abandon()``, whichever comes first."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        with self._lock:
            if self._error is not None:
                raise self._error
            self._waiting[future] = loop
        threading.Thread(target=_work, args=(function, future, loop), name=THREAD_NAME, daemon=True).start()
        try:
            return await future
        finally:
            with self._lock:
                self._waiting.pop(future, None)

    def abandon(self, error: Exception) -> None:
        """End every wait, also those to come, with ``error``. Any thread; idempotent."""
        with self._lock:
            self._error = error
            waiting = list(self._waiting.items())
        for future, loop in waiting:
            _post(loop, future, None, error)


def _work(function: Callable[[], Any], future: asyncio.Future[Any], loop: asyncio.AbstractEventLoop) -> None:
    try:
        result = function()
    except BaseException as error:
        _post(loop, future, None, error)
    else:
        _post(loop, future, result, None)


def _post(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    def deliver() -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)

    # The loop is closed when the process ends during a load.
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(deliver)
