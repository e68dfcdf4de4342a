"""The end by ``/exit``: the Runner kills its own process, so a plugin's model is released first."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

from albatross_plugin.errors import RequestError
from albatross_plugin.runner.host import RunnerHost
from albatross_plugin.runner.points.missing import member


def install(module: ModuleType, host: RunnerHost) -> None:
    """In ``routes.completion``: a route in front of that of ``main``, which it calls in the end."""
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
