"""Streamed answers: one that closes its source in every case, and one that is prepared before its status is sent."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

import anyio
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from albatross_plugin.serving.sse import HEADERS, sse


class ClosingResponse(StreamingResponse):
    """Server-sent events that are framed already. However it ends, they are closed, and ``ended`` is called last."""

    def __init__(self, events: AsyncGenerator[bytes, None], ended: Callable[[], object], headers: Mapping[str, str] | None = None) -> None:
        self._events, self._ended = events, ended
        super().__init__(events, media_type="text/event-stream", headers={**HEADERS, **(headers or {})})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            # The generators run again to end, which a cancelled task would not let them.
            with anyio.CancelScope(shield=True):
                try:
                    await self._events.aclose()
                finally:
                    ended = self._ended()
                    if isinstance(ended, Awaitable):
                        await ended


class EventResponse(ClosingResponse):
    """Server-sent events from the chunks of an ``rwkv_runner_eval`` stream."""

    def __init__(self, chunks: AsyncGenerator[str, None]) -> None:
        super().__init__(sse(chunks), chunks.aclose)


class PreparedResponse(Response):
    """The response that ``prepare`` gives. What that raises reaches the application's error handlers, since nothing has been sent."""

    def __init__(self, prepare: Callable[[], Awaitable[ASGIApp]]) -> None:
        super().__init__()
        self._prepare = prepare

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = await self._prepare()
        await response(scope, receive, send)
