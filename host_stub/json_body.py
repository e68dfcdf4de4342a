"""JSON bodies: read off the event loop when they are large, and bounded in what one of them may hold."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from host_stub.errors import ApiError
from host_stub.heavy import LARGE, in_thread

# The parser holds the interpreter's lock until it is done, also in a thread: so what counts is how much there is for it to make.
MAX_ITEMS = 262_144
MAX_NAMES = 65_536
# Members of the body itself; the OpenAI reference has about 40.
MAX_MEMBERS = 256
BACKSLASH = ord("\\")


class JsonRoute(APIRoute):
    """A route whose body is JSON. Raises ApiError 400 for a body that is none, or that holds too much."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        answer = super().get_route_handler()
        if self.body_field is None:
            return answer

        async def handler(request: Request) -> Response:
            return await answer(await _JsonRequest.read(request))

        return handler


class _JsonRequest(Request):
    """A request whose body has been read already; FastAPI asks it for the value."""

    value: Any

    @classmethod
    async def read(cls, request: Request) -> Request:
        body = await request.body()
        if not body:
            return request
        read = cls(request.scope, request.receive)
        read._body = body
        read.value = await in_thread(lambda: parse(body)) if len(body) > LARGE else parse(body)
        return read

    async def json(self) -> Any:
        return self.value


def parse(body: bytes) -> Any:
    """The value that ``body`` holds. Raises ApiError 400."""
    if len(body) > LARGE:
        _check_size(body)
    try:
        value = json.loads(body.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise ApiError(400, "the body is not valid JSON", code="invalid_json") from None
    if isinstance(value, dict) and len(value) > MAX_MEMBERS:
        raise _too_large(f"has {len(value)} members, and {MAX_MEMBERS} are the most")
    return value


def _check_size(body: bytes) -> None:
    """Counts commas and colons outside of strings, in small steps: none of them holds up another thread."""
    items = names = at = 0
    while at < len(body):
        opening = body.find(b'"', at)
        end = len(body) if opening < 0 else opening
        items += body.count(b",", at, end)
        names += body.count(b":", at, end)
        if items > MAX_ITEMS:
            raise _too_large(f"holds more than {MAX_ITEMS} values; a longer list of token ids can be sent as text")
        if names > MAX_NAMES:
            raise _too_large(f"holds more than {MAX_NAMES} names")
        at = len(body) if opening < 0 else _after_string(body, opening + 1)


def _after_string(body: bytes, at: int) -> int:
    """Where the string ends whose first character stands at ``at``."""
    while (end := body.find(b'"', at)) >= 0:
        before = end
        while before > at and body[before - 1] == BACKSLASH:
            before -= 1
        if (end - before) % 2 == 0:
            return end + 1
        at = end + 1
    return len(body)


def _too_large(what: str) -> ApiError:
    return ApiError(400, f"the body {what}", code="body_too_complex")
