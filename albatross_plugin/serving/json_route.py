"""Routes that read JSON by themselves and refuse in OpenAI's form, whatever the host does about errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

import anyio
from anyio.lowlevel import RunVar
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from albatross_plugin.errors import GenerationError, RequestError
from albatross_plugin.serving.error_object import error_object

MAX_BODY = 16 * 1024 * 1024
# A longer body or prompt is worked on elsewhere than on the event loop, where every other request would feel it.
LARGE = 65_536
THREADS = 4
# The parser holds the interpreter's lock until it is done, also in a thread: so what counts is how much there is for it to make.
MAX_VALUES = 1_048_576
_limiter: RunVar[anyio.CapacityLimiter] = RunVar("albatross_plugin.serving.heavy")


class JsonRoute(APIRoute):
    """A route whose RequestErrors and GenerationErrors become answers."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await answer(request)
            except (RequestError, GenerationError) as error:
                return error_response(error)
            except ClientDisconnect:
                # In the middle of its body. Nobody reads this, and a server would log the exception whole.
                return Response(status_code=499)

        return handler


def error_response(error: RequestError | GenerationError) -> JSONResponse:
    """The error in OpenAI's form; ``detail`` is what clients of RWKV-Runner read."""
    content = error_object(error)
    headers = getattr(error, "headers", None)
    return JSONResponse({"error": content, "detail": content["message"]}, status_code=error.status, headers=headers)


async def in_thread(work: Callable[[], Any]) -> Any:
    """What ``work`` returns or raises; calls beyond ``THREADS`` wait."""
    limiter = _limiter.get(None)
    if limiter is None:
        limiter = anyio.CapacityLimiter(THREADS)
        _limiter.set(limiter)
    return await anyio.to_thread.run_sync(work, limiter=limiter)


async def read_object(request: Request) -> dict[str, Any]:
    """The body, a JSON object. Raises RequestError: 415 for another content type, 413 for a large body, 400 for one that is no object."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        # Forms and plain text are what a foreign page can send without asking first.
        raise RequestError(f"content type {kind or 'missing'!r}; send application/json", status=415, code="unsupported_media_type")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > MAX_BODY:
            raise RequestError(
                f"the body is larger than {MAX_BODY} bytes", status=413, code="body_too_large", headers={"Connection": "close"}
            )
    value = await in_thread(lambda: _parse(body)) if len(body) > LARGE else _parse(body)
    if not isinstance(value, dict):
        raise RequestError("the body must be a JSON object", code="invalid_json")
    return value


def _parse(body: bytearray) -> Any:
    if len(body) > LARGE and body.count(b",") + body.count(b":") > MAX_VALUES:
        raise RequestError("the body holds too many values; a long list of token ids can be sent as text", code="body_too_complex")
    try:
        return json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise RequestError("the body is not valid JSON", code="invalid_json") from None
