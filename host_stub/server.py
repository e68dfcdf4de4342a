"""The server's end: the model goes first, so that running requests end with an error instead of a cut connection."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
import threading
import time
from types import FrameType
from typing import Any

import uvicorn

from host_stub.guard import MAX_HEAD
from host_stub.loads import THREAD_NAME
from host_stub.state import HostState

logger = logging.getLogger(__name__)

# How long threads that hold the process up may still run after the server's end.
JOIN_SECONDS = 2.0


def server_config(app: Any, **more: Any) -> uvicorn.Config:
    """uvicorn's settings with bounds on a request's headers; without httptools, uvicorn's own parser has but that on their size."""
    try:
        from host_stub.protocol import BoundedProtocol
    except ImportError:
        return uvicorn.Config(app, h11_max_incomplete_event_size=MAX_HEAD, **more)
    return uvicorn.Config(app, http=BoundedProtocol, **more)


class Server(uvicorn.Server):
    """uvicorn's server for one host. ``state.exit`` becomes ``leave``."""

    def __init__(self, config: uvicorn.Config, state: HostState) -> None:
        super().__init__(config)
        self._state = state
        self._loop: asyncio.AbstractEventLoop | None = None
        self._releasing = False
        state.exit = self.leave

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        await super().serve(sockets)

    def leave(self) -> None:
        """Stop the server. Any thread; idempotent."""
        self.should_exit = True
        self._soon()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self._soon()

    def _soon(self) -> None:
        """A signal may come while the main thread holds the lock that starting a thread needs, so the loop starts it."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._release)

    def _release(self) -> None:
        if not self._releasing:
            self._releasing = True
            threading.Thread(target=self._state.close, name="host-close", daemon=True).start()


def raise_file_limit() -> None:
    """Let this process open as many files as the system allows it: every connection is one, and the usual limit is meant for programs."""
    try:
        import resource
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        # macOS says "no limit" and allows less.
        logger.debug("the limit of open files stays as it was", exc_info=True)


def end_process(code: int, seconds: float = JOIN_SECONDS) -> int:
    """``code`` when nothing keeps the interpreter from ending; otherwise the process ends here and now with it."""
    deadline = time.monotonic() + seconds
    for thread in _holding():
        thread.join(max(0.0, deadline - time.monotonic()))
    left = _holding()
    if not left:
        return code
    logger.warning("ending with threads that do not: %s", ", ".join(sorted(thread.name for thread in left)))
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _holding() -> list[threading.Thread]:
    """Threads that the interpreter would join, and loads: they run native code, which must not see the interpreter go."""
    here = threading.current_thread()
    return [thread for thread in threading.enumerate() if thread is not here and (not thread.daemon or thread.name == THREAD_NAME)]
