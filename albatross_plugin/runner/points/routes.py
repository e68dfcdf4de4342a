"""The plugins' routes, in front of the Runner's own, also with ``--webui``, which takes all paths that come after"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from albatross_plugin.runner.host import RunnerHost
from albatross_plugin.runner.points.missing import member


def install(module: ModuleType, host: RunnerHost) -> None:
    """In ``routes.completion``, whose router the Runner includes first."""
    own = member(module, "router").routes
    brought = [route for router in host.plugins.routers(host) for route in router.routes]
    if host.keeps_builtin:
        taken = {_place(route) for route in own}
        brought = [route for route in brought if _place(route) not in taken]
    own[0:0] = brought
    host.brought = brought


def _place(route: Any) -> tuple[str, frozenset[str]]:
    return route.path, frozenset(route.methods)
