"""Server-sent events: framing, and a response that always closes its source."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Sequence
from typing import Any

import anyio
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from host_stub.errors import error_body, from_exception

logger = logging.getLogger(__name__)

DONE = "[DONE]"
# Tells plugins, in the request's scope, that what is below closes their generator as soon as the client has gone.
CLOSES_WHEN_GONE = "rwkv_runner.closes_when_gone"
HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def dumps(value: Any) -> str:
    """Compact JSON, safe for any string."""
    return json.dumps(value, separators=(",", ":"))


async def close(source: Any) -> None:
    """Run ``aclose()`` to its end, whatever happens to the task around it."""
    aclose = getattr(source, "aclose", None)
    if aclose is None:
        return
    with anyio.CancelScope(shield=True):
        try:
            await aclose()
        except Exception:
            logger.exception("closing a stream failed")


def error_event(error: BaseException) -> str:
    """The JSON text of an error that came after the headers were sent."""
    known = from_exception(error)
    if known is None:
        logger.error("a stream failed", exc_info=error)
        return dumps(error_body(500, f"{type(error).__name__}: {error}", code="internal_error"))
    return dumps(error_body(known.status, known.message, code=known.code, param=known.param))


async def frames(source: Any) -> AsyncIterator[bytes]:
    """Each chunk as one event; a failure becomes an error event and ends the stream without ``[DONE]``.

    A source with ``batches()`` says which chunks are ready at the same time: their events travel in one message.
    """
    batches = getattr(source, "batches", None)
    try:
        if batches is None:
            async for chunk in source:
                yield frame([chunk])
        else:
            async for chunks in batches():
                yield frame(chunks)
    except Exception as error:
        yield frame([error_event(error)])


def frame(chunks: Sequence[Any]) -> bytes:
    """One event per chunk."""
    if len(chunks) == 1 and isinstance(chunks[0], str):
        return f"data: {chunks[0]}\r\n\r\n".encode()
    texts = [chunk if isinstance(chunk, str) else dumps(chunk) for chunk in chunks]
    return ("data: " + "\r\n\r\ndata: ".join(texts) + "\r\n\r\n").encode()


class EventStream(StreamingResponse):
    """Streams ``source`` and ends when it ends or the client goes, also while nothing is sent.

    ``source.aclose()`` is called in every case, also when the first byte was never asked for.
    """

    def __init__(self, source: AsyncIterator[Any]) -> None:
        super().__init__(frames(source), media_type="text/event-stream", headers=HEADERS)
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with anyio.create_task_group() as group:

                async def watch() -> None:
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    group.cancel_scope.cancel()

                group.start_soon(watch)
                try:
                    await self.stream_response(send)
                except OSError:
                    # The client went away between two chunks.
                    logger.debug("client left during a stream")
                group.cancel_scope.cancel()
        finally:
            await close(self.body_iterator)
            await close(self._source)


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


async def while_connected(request: Request, work: Any) -> Any:
    """Await ``work``; when the client leaves first, cancel it and raise ClientGone. The request's body must have been read."""
    # No task group: what it costs would be a good part of what a short answer costs.
    with anyio.CancelScope() as scope:

        async def watch() -> None:
            while (await request.receive())["type"] != "http.disconnect":
                pass
            scope.cancel()

        watcher = asyncio.create_task(watch())
        try:
            return await work
        finally:
            watcher.cancel()
    raise ClientGone
