"""The end by ``/exit`` and by a signal: a plugin's model is released first, which ends its streams and whole answers."""

from __future__ import annotations

import functools
import queue
import sys
import threading
from types import ModuleType
from typing import Any

from albatross_plugin.errors import RequestError
from albatross_plugin.runner.host import RunnerHost
from albatross_plugin.runner.points.missing import member


def install(module: ModuleType, host: RunnerHost) -> None:
    """In ``routes.completion``: a route in front of that of ``main``, which it calls in the end. And in the server's handler of signals."""
    _watch_signals(host)
    from fastapi import APIRouter

    router = APIRouter()

    @router.post("/exit", include_in_schema=False)
    def leave() -> Any:
        application = sys.modules.get("main")
        if application is None or not callable(getattr(application, "exit", None)):
            raise RequestError("this Runner has no /exit", status=404, code="not_found")
        if not host.deployed():
            host.release()
        return application.exit()

    member(module, "router").routes[0:0] = router.routes


def _watch_signals(host: RunnerHost) -> None:
    """The server waits for all answers when it is told to exit, so what makes these has to end."""
    from uvicorn import Server

    original, asked = Server.handle_exit, queue.SimpleQueue[None]()

    @functools.wraps(original)
    def handle_exit(self: Any, *args: Any) -> None:
        # Inside a handler of a signal nothing that takes a lock is safe; this is.
        asked.put(None)
        original(self, *args)

    def release() -> None:
        asked.get()
        host.release()

    threading.Thread(target=release, name="albatross-exit", daemon=True).start()
    server: Any = Server
    server.handle_exit = handle_exit
