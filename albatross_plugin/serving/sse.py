"""Server-sent event framing, as RWKV-Runner frames its streams."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable

from albatross_plugin.serving.stream import ChunkStream

HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


def encode_sse_data(data: str) -> bytes:
    return b"data: " + data.encode() + b"\r\n\r\n"


def encode_sse_batch(chunks: Iterable[str]) -> bytes:
    """One event per chunk, as one piece of bytes."""
    return ("data: " + "\r\n\r\ndata: ".join(chunks) + "\r\n\r\n").encode()


async def sse(chunks: AsyncIterator[str]) -> AsyncGenerator[bytes, None]:
    """Frame each chunk of an ``rwkv_runner_eval`` stream; closes the stream when its reader goes away."""
    try:
        if isinstance(chunks, ChunkStream):
            async for batch in chunks.batches():
                yield encode_sse_batch(batch)
        else:
            async for chunk in chunks:
                yield encode_sse_data(chunk)
    finally:
        close = getattr(chunks, "aclose", None)
        if close is not None:
            await close()
