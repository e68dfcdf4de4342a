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
    from fastapi.responses import JSONResponse

    kinds = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
    kind = kinds.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    # A half of a surrogate pair, which a client may have sent, cannot be sent back.
    message = error.message.encode("utf-8", "backslashreplace").decode()
    content = {"error": {"message": message, "type": kind, "param": error.param, "code": error.code}, "detail": message}
    return JSONResponse(content, status_code=error.status, headers=error.headers)
