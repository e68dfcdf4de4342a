"""Server-sent event framing, as RWKV-Runner frames its streams."""

from __future__ import annotations

from collections.abc import AsyncIterator

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def encode_sse_data(data: str) -> bytes:
    return b"data: " + data.encode() + b"\r\n\r\n"


async def sse(chunks: AsyncIterator[str]) -> AsyncIterator[bytes]:
    """Frame each chunk of an ``rwkv_runner_eval`` stream; closes the stream when its reader goes away."""
    try:
        async for chunk in chunks:
            yield encode_sse_data(chunk)
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()
