"""uvicorn's HTTP protocol with bounds on what comes before a body: so many bytes, and so many seconds."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from host_stub.guard import MAX_HEAD

# Seconds from a request's first byte, or from the connection's beginning, to the end of its headers.
HEAD_SECONDS = 30.0
TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: %d\r\n\r\n%b"
)


class BoundedProtocol(HttpToolsProtocol):
    """Answers 431 to headers above ``MAX_HEAD`` bytes before they are complete, and closes a connection whose headers do not come."""

    head_seconds = HEAD_SECONDS

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._head_bytes = 0
        self._head_complete = False
        self._head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not self._head_complete:
            self._await_head()
            self._head_bytes += len(data)
        super().data_received(data)
        if not self._head_complete and self._head_bytes > MAX_HEAD and not self.transport.is_closing():
            body = (
                b'{"error": {"message": "the headers are larger than %d bytes", "type": "invalid_request_error", "param": null, ' % MAX_HEAD
            )
            body += b'"code": "headers_too_large"}}'
            self.transport.write(TOO_LARGE % (len(body), body))
            self.transport.close()

    def on_headers_complete(self) -> None:
        self._head_complete = True
        self._end_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        super().on_message_complete()
        self._head_complete, self._head_bytes = False, 0

    def _await_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(self.head_seconds, self._close_idle)

    def _close_idle(self) -> None:
        self._head_timer = None
        # While an answer is on its way, the next request has time.
        if not self._head_complete and (self.cycle is None or self.cycle.response_complete):
            self.transport.close()

    def _end_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
