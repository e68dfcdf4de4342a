"""Changing what answers a path of one of the Runner's routers, before its application takes the routes over."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from albatross_plugin.runner.points.missing import Missing, member


def wrap(module: ModuleType, ending: str, change: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace the endpoint of every route of ``module.router`` whose path ends so. Raises Missing where there is none."""
    found = [route for route in member(module, "router").routes if route.path.endswith(ending)]
    if not found:
        raise Missing(f"{module.__name__} has no route {ending}")
    # One function may stand behind several paths.
    changed = {endpoint: change(endpoint) for endpoint in {route.endpoint for route in found}}
    for route in found:
        route.endpoint = changed[route.endpoint]
