"""What stands in front of the routes: who may call them, from which page, with which body."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import json
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import anyio
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from host_stub.errors import ApiError, error_body

logger = logging.getLogger(__name__)

MAX_BODY = 16 * 1024 * 1024
# Of all headers of a request together, in bytes.
MAX_HEAD = 64 * 1024
# How much of a body that is refused is still read, so that the client gets to see the answer.
MAX_DRAIN = 8 * MAX_BODY
# Seconds between two parts of a body, and for all of it: half a request must not hold a connection and its memory for ever.
IDLE_SECONDS = 30.0
BODY_SECONDS = 300.0
LOOPBACK_NAMES = frozenset(("localhost", "ip6-localhost"))
OPEN_PATHS = frozenset(("/", "/health"))
HOST = re.compile(r"(?:\[([0-9a-f:.%\w-]+)\]|([^\[\]:\s/]+))(?::\d*)?")
SAFE_METHODS = frozenset(("GET", "HEAD", "OPTIONS"))


@dataclass(frozen=True)
class Rules:
    """``hosts``: names under which the server may be addressed, beside loopback names and IP addresses. ``origins``: pages of
    other origins that may call, for example ``http://localhost:3000``. ``max_body`` in bytes; ``idle_seconds``: longest pause in a
    body, ``body_seconds``: longest time for a whole one."""

    hosts: frozenset[str] = frozenset()
    origins: frozenset[str] = frozenset()
    api_key: str | None = None
    max_body: int = MAX_BODY
    idle_seconds: float = IDLE_SECONDS
    body_seconds: float = BODY_SECONDS

    @classmethod
    def of(cls, hosts: Iterable[str] = (), origins: Iterable[str] = (), api_key: str | None = None) -> Rules:
        return cls(frozenset(h.lower() for h in hosts), frozenset(o.lower().rstrip("/") for o in origins), api_key or None)


class Guard:
    """ASGI middleware. Checks the request line and headers, then the body's size, before any route is reached.

    ``public``: whether a call is answered without the API key.
    """

    def __init__(self, app: ASGIApp, rules: Rules, public: Callable[[Scope], bool] = lambda _: False) -> None:
        self.app, self.rules, self.public = app, rules, public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            elif scope["type"] == "websocket":
                # Nothing here speaks it; a close before the handshake makes the server answer 403.
                await receive()
                await send({"type": "websocket.close", "code": 1000})
            return
        headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in scope["headers"]}
        try:
            if sum(len(key) + len(value) + len(": \r\n") for key, value in scope["headers"]) > MAX_HEAD:
                raise ApiError(431, f"the headers are larger than {MAX_HEAD} bytes", code="headers_too_large")
            self._check(scope, headers)
            replay = await self._read(headers, receive)
        except ApiError as error:
            await refuse(_with_cors(error, headers, self.rules), _Body(receive, self.rules), send)
            return
        if replay is not None:
            await self._run(scope, headers, replay, send)

    async def _run(self, scope: Scope, headers: dict[str, str], receive: Receive, send: Send) -> None:
        """Answer an unforeseen error in the common shape. Left to the server, it would cost the client its connection."""
        started = False
        # A probe may ask for the head of an answer alone; the server leaves the body out.
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope

        async def tracked(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self.app(inner, receive, tracked)
        except Exception as error:
            if started:
                raise
            logger.exception("%s %s failed", scope["method"], scope["path"])
            failed = ApiError(500, f"{type(error).__name__}: {error}", code="internal_error")
            await refuse(_with_cors(failed, headers, self.rules), receive, send)

    def _check(self, scope: Scope, headers: dict[str, str]) -> None:
        check_host(headers.get("host", ""), self.rules)
        check_origin(headers, self.rules, navigation=scope["method"] == "GET" and headers.get("sec-fetch-mode") == "navigate")
        if scope["method"] not in SAFE_METHODS:
            check_content_type(headers)
        # A browser asks without the key whether it may send it.
        preflight = scope["method"] == "OPTIONS" and _is_allowed(headers, self.rules) and "access-control-request-method" in headers
        if self.rules.api_key is not None and scope["path"] not in OPEN_PATHS and not preflight and not self.public(scope):
            check_key(headers.get("authorization", ""), self.rules.api_key)

    async def _read(self, headers: dict[str, str], receive: Receive) -> Receive | None:
        """The whole body, then what follows it. None: the client left before its body was complete."""
        length = headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self.rules.max_body:
            raise _too_large(self.rules.max_body)
        if length in ("", "0") and "transfer-encoding" not in headers:
            return receive
        body = bytearray()
        parts = _Body(receive, self.rules)
        more = True
        while more:
            message = await parts()
            if message["type"] == "http.disconnect":
                return None
            body += message.get("body", b"")
            more = message.get("more_body", False)
            if len(body) > self.rules.max_body:
                raise _too_large(self.rules.max_body)
        first: list[Message] = [{"type": "http.request", "body": bytes(body), "more_body": False}]

        async def replay() -> Message:
            return first.pop() if first else await receive()

        return replay


class _Body:
    """Receives the parts of one body. Raises ApiError 408 when the next one, or the whole, does not come in time."""

    def __init__(self, receive: Receive, rules: Rules) -> None:
        self._receive = receive
        self._idle = rules.idle_seconds
        self._end = anyio.current_time() + rules.body_seconds

    async def __call__(self) -> Message:
        seconds = min(self._idle, self._end - anyio.current_time())
        with anyio.move_on_after(max(0.0, seconds)):
            return await self._receive()
        raise ApiError(408, "the body did not arrive in time", code="body_timeout", headers={"Connection": "close"})


def check_host(value: str, rules: Rules) -> None:
    """A name that is not ours means that some page points its own name at this server. Raises ApiError 403."""
    name = _host_name(value)
    if name in LOOPBACK_NAMES or name in rules.hosts or name.endswith(".localhost") or _is_address(name):
        return
    raise ApiError(403, f"host {name!r} is not served here; allow it with --allow-host", code="host_not_allowed")


def check_origin(headers: dict[str, str], rules: Rules, *, navigation: bool) -> None:
    """Pages of other origins may not call, unless they were allowed. Raises ApiError 403. Programs send no origin."""
    origin = headers.get("origin")
    if origin is not None:
        if _is_allowed(headers, rules) or _authority(origin) == headers.get("host", "").lower() != "":
            return
        raise ApiError(403, f"origin {origin!r} may not call this server; allow it with --allow-origin", code="origin_not_allowed")
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not navigation:
        raise ApiError(403, "another site may not call this server", code="origin_not_allowed")


def check_content_type(headers: dict[str, str]) -> None:
    """Forms and plain text are what a page can send without asking first. Raises ApiError 415."""
    has_body = headers.get("content-length", "0") not in ("", "0") or "transfer-encoding" in headers
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind in ("", "application/json") if not has_body else kind == "application/json":
        return
    raise ApiError(415, f"content type {kind or 'missing'!r}; send application/json", code="unsupported_media_type")


def check_key(authorization: str, key: str) -> None:
    scheme, _, given = authorization.partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), key.encode()):
        raise ApiError(401, "missing or wrong API key", code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _host_name(value: str) -> str:
    """The name in a Host header, without port, brackets and the root's dot, in lower case; "" for none."""
    match = HOST.fullmatch(value.lower())
    return "" if match is None else (match.group(1) or match.group(2)).removesuffix(".")


def _authority(origin: str) -> str:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return ""


def _is_allowed(headers: dict[str, str], rules: Rules) -> bool:
    return headers.get("origin", "").lower() in rules.origins


def _with_cors(error: ApiError, headers: dict[str, str], rules: Rules) -> ApiError:
    """A page that may call may also read why it was refused."""
    if _is_allowed(headers, rules):
        error.headers |= {"Access-Control-Allow-Origin": headers["origin"], "Vary": "Origin"}
    return error


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


def _too_large(limit: int) -> ApiError:
    return ApiError(413, f"the body is larger than {limit} bytes", code="body_too_large", headers={"Connection": "close"})


async def refuse(error: ApiError, receive: Receive, send: Send) -> None:
    """Answer without the application. After a 413 the rest of the body is read for a while, so that the client gets to see the answer."""
    content = error_body(error.status, error.message, code=error.code, param=error.param)
    data = json.dumps({**content, "detail": error.detail}).encode()
    headers: list[Any] = [(b"content-type", b"application/json"), (b"content-length", str(len(data)).encode())]
    headers += [(key.lower().encode(), value.encode()) for key, value in error.headers.items()]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": data, "more_body": error.status == 413})
    if error.status == 413:
        with contextlib.suppress(ApiError):
            await _drain(receive)
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _drain(receive: Receive) -> None:
    left = MAX_DRAIN
    while left > 0:
        message = await receive()
        if message["type"] == "http.disconnect" or not message.get("more_body", False):
            break
        left -= len(message.get("body", b""))
