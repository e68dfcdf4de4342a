"""Refusals and failures with their status, as OpenAI's clients read them; ``detail`` is what the Runner's own clients read."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from albatross_plugin.errors import RequestError
from albatross_plugin.runner.host import RunnerHost
from albatross_plugin.runner.points.missing import member


def install(module: ModuleType, host: RunnerHost) -> None:
    """In ``main``, on the application."""
    member(module, "app").add_exception_handler(RequestError, answer)


async def answer(_: Any, error: RequestError) -> Any:
    from albatross_plugin.serving.json_route import error_response

    return error_response(error)
