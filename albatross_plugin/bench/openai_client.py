"""A light client of OpenAI-style servers for measuring: asyncio sockets, one connection a request, no dependency.

It shares the processor with the server that it measures, so it does little per chunk: split lines, parse one JSON object, note the time.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any
from urllib.parse import urlsplit

from albatross_plugin.bench.http_errors import broken, no_connection, refusal, unfinished


class HttpError(Exception):
    """The server could not be reached, or did not speak HTTP/1.1 as expected."""


@dataclass(frozen=True)
class Endpoint:
    """Where a server is. ``prefix`` stands before every path, without a slash at its end."""

    host: str
    port: int
    secure: bool = False
    prefix: str = ""
    api_key: str | None = None

    @classmethod
    def parse(cls, url: str, api_key: str | None = None) -> Endpoint:
        """From a base URL, with or without the ``/v1`` that OpenAI clients put at its end. Raises ValueError."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"not a server address: {url!r}; expected http://HOST:PORT")
        secure = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, parts.port or (443 if secure else 80), secure, prefix, api_key)


@dataclass
class Reply:
    """A whole answer to a plain call."""

    status: int
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Generation:
    """One completion as the client saw it. Times are seconds of ``time.perf_counter``; ``times``: when each piece of text came."""

    started: float = 0.0
    first: float | None = None
    ended: float = 0.0
    status: int = 0
    chunks: int = 0
    texts: list[str] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    usage: dict[str, int] | None = None
    finish_reason: str | None = None
    error: str | None = None
    whole: bool = False

    @property
    def ok(self) -> bool:
        return self.error is None and self.whole

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def tokens(self) -> int:
        """As the server counts them, else the chunks that carried text."""
        return self.usage["completion_tokens"] if self.usage else self.chunks

    @property
    def first_latency(self) -> float | None:
        return None if self.first is None else self.first - self.started

    @property
    def latency(self) -> float:
        return self.ended - self.started

    @property
    def token_gap(self) -> float | None:
        """Seconds a token from the first text to the last; None of fewer than two pieces of text, which have no time between them."""
        if len(self.times) < 2 or self.tokens < 2:
            return None
        return (self.times[-1] - self.times[0]) / (self.tokens - 1)

    def event_gaps(self) -> list[float]:
        """Seconds between each piece of text and the next one; several tokens may have come in one."""
        return [later - earlier for earlier, later in pairwise(self.times)]


async def call(endpoint: Endpoint, method: str, path: str, body: Mapping[str, Any] | None = None, timeout: float = 30) -> Reply:
    """One call. Raises HttpError, TimeoutError."""
    return await asyncio.wait_for(_call(endpoint, method, path, body), timeout)


async def _call(endpoint: Endpoint, method: str, path: str, body: Mapping[str, Any] | None) -> Reply:
    reader, writer = await send(endpoint, method, path, body)
    try:
        status, headers = await read_head(reader)
        return Reply(status, b"".join([part async for part in read_body(reader, status, headers)]))
    except (asyncio.IncompleteReadError, OSError) as error:
        raise HttpError(f"the connection ended early: {error}") from error
    finally:
        writer.close()


async def generate(
    endpoint: Endpoint, path: str, body: Mapping[str, Any], timeout: float = 120, into: Generation | None = None
) -> Generation:
    """Run one completion, streamed if ``body`` says so. Failures are told in ``error``, never raised.

    ``into``: filled while the answer comes, for somebody who watches.
    """
    result = Generation() if into is None else into
    result.started = time.perf_counter()
    try:
        await asyncio.wait_for(_generate(endpoint, path, body, result), timeout)
    except asyncio.TimeoutError:
        result.error = f"no end within {timeout:g} s"
    except HttpError as error:
        result.error = str(error)
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError, ValueError, TypeError, AttributeError) as error:
        result.error = broken(error, result.chunks)
    result.ended = time.perf_counter()
    return result


async def _generate(endpoint: Endpoint, path: str, body: Mapping[str, Any], result: Generation) -> None:
    reader, writer = await send(endpoint, "POST", path, body)
    try:
        result.status, headers = await read_head(reader)
        parts = read_body(reader, result.status, headers)
        if result.status == 200 and body.get("stream"):
            async for data in read_events(parts):
                take(result, data)
            if not result.whole and result.error is None:
                result.error = unfinished(result.chunks)
            return
        raw = b"".join([part async for part in parts])
        if result.status != 200:
            result.error = refusal(result.status, headers, raw, endpoint.prefix + path)
            return
        take(result, raw)
        result.whole = True
    finally:
        writer.close()


def take(result: Generation, data: bytes) -> None:
    """Add one event of a stream, or a whole answer, to ``result``."""
    if data == b"[DONE]":
        result.whole = True
        return
    now = time.perf_counter()
    chunk = json.loads(data)
    if "error" in chunk:
        error = chunk["error"]
        result.error = str(error.get("message", error) if isinstance(error, dict) else error)
        return
    for choice in chunk.get("choices", ()):
        part = choice.get("delta") or choice.get("message") or choice
        text = part.get("content") or part.get("text") or ""
        if text:
            if result.first is None:
                result.first = now
            result.chunks += 1
            result.times.append(now)
            result.texts.append(text)
        result.finish_reason = choice.get("finish_reason") or result.finish_reason
    result.usage = chunk.get("usage") or result.usage


def allow_files(wanted: int) -> None:
    """This process has a file descriptor for each of ``wanted`` connections. Raises OSError where the system's hard limit is lower."""
    try:
        import resource
    except ImportError:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        raise OSError(f"this process may open {hard} files, and {wanted} are needed")
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def send(
    endpoint: Endpoint, method: str, path: str, body: Mapping[str, Any] | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect and write a request. Raises HttpError."""
    reader, writer = await connect(endpoint)
    writer.write(request_bytes(endpoint, method, path, body))
    return reader, writer


async def connect(endpoint: Endpoint) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Raises HttpError."""
    context = ssl.create_default_context() if endpoint.secure else None
    try:
        return await asyncio.open_connection(endpoint.host, endpoint.port, ssl=context)
    except OSError as error:
        raise HttpError(no_connection(endpoint.host, endpoint.port, error)) from error


def request_bytes(endpoint: Endpoint, method: str, path: str, body: Mapping[str, Any] | None) -> bytes:
    """A whole request, after whose answer the connection is to be closed."""
    payload = b"" if body is None else json.dumps(body).encode()
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    lines = [f"{method} {endpoint.prefix}{path} HTTP/1.1", f"Host: {host}:{endpoint.port}", "Connection: close", "Accept: */*"]
    if body is not None or method == "POST":
        lines += ["Content-Type: application/json", f"Content-Length: {len(payload)}"]
    if endpoint.api_key:
        lines.append(f"Authorization: Bearer {endpoint.api_key}")
    return "\r\n".join([*lines, "", ""]).encode() + payload


async def read_head(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Status and headers of an answer, names in lower case. Raises HttpError, IncompleteReadError."""
    raw = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    words = raw[0].split(" ", 2)
    if len(words) < 2 or not words[0].startswith("HTTP/") or not words[1].isdigit():
        raise HttpError(f"not an HTTP answer: {raw[0][:80]!r}")
    pairs = (line.partition(":") for line in raw[1:] if line)
    return int(words[1]), {name.strip().lower(): value.strip() for name, _, value in pairs}


async def read_body(reader: asyncio.StreamReader, status: int, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
    """The parts of a body as they arrive: chunked, of a given length, or up to the end of the connection."""
    if status in (204, 304):
        return
    if "chunked" in headers.get("transfer-encoding", "").lower():
        while size := int((await reader.readuntil(b"\r\n")).split(b";")[0], 16):
            yield (await reader.readexactly(size + 2))[:-2]
    elif "content-length" in headers:
        yield await reader.readexactly(int(headers["content-length"]))
    else:
        while part := await reader.read(65536):
            yield part


async def read_events(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The data of each server-sent event; OpenAI-style events have one data line."""
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
