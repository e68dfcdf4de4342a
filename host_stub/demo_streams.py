"""Many streams at once over HTTP, each with its times; and what those times say."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

PROMPTS = (
    "Tell me about the albatross.",
    "Write a line about the sea.",
    "What is a recurrent network?",
    "Name three rivers of Asia.",
    "How does a kettle work?",
    "Describe a quiet morning.",
    "Why is the sky blue?",
    "Count the moons of Mars.",
    "Give me a recipe for soup.",
    "Who wrote the Odyssey?",
    "Explain a mutex to a child.",
    "What do bees eat in winter?",
    "Suggest a name for a boat.",
    "How tall is a giraffe?",
    "What makes bread rise?",
    "Say something about time.",
)
# The same on both sides of the comparison; no penalties, and nothing that one of the two paths would refuse.
SAMPLING = {"temperature": 1.0, "top_p": 0.5, "top_k": 0, "presence_penalty": 0, "frequency_penalty": 0}


@dataclass
class Stream:
    """One request's life. Times are seconds of ``time.perf_counter``; None until it has come that far."""

    number: int
    prompt: str
    limit: int
    started: float | None = None
    first: float | None = None
    ended: float | None = None
    tokens: int = 0
    text: str = ""
    finish_reason: str | None = None
    error: str | None = None
    whole: bool = False

    @property
    def complete(self) -> bool:
        """Answered to the last token: no error, the end marker read, and as many tokens as were asked for."""
        return self.error is None and self.whole and self.finish_reason == "length" and self.tokens == self.limit

    @property
    def rate(self) -> float:
        """Tokens a second since the first one; 0 before there are two."""
        if self.first is None or self.tokens < 2:
            return 0.0
        return (self.tokens - 1) / max((self.ended or time.perf_counter()) - self.first, 1e-9)


def new_streams(limit: int) -> list[Stream]:
    return [Stream(number, prompt, limit) for number, prompt in enumerate(PROMPTS, 1)]


async def run_all(client: httpx.AsyncClient, streams: Sequence[Stream]) -> None:
    """Send every request at the same moment and read them all to their ends. A failure is noted on its stream."""
    await asyncio.gather(*(run_one(client, stream) for stream in streams))


async def run_one(client: httpx.AsyncClient, stream: Stream) -> None:
    body = {
        "messages": [{"role": "user", "content": stream.prompt}],
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": stream.limit,
        **SAMPLING,
    }
    stream.started = time.perf_counter()
    try:
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            if response.status_code != 200:
                await response.aread()
                stream.error = f"status {response.status_code}: {response.text[:200]}"
                return
            async for line in response.aiter_lines():
                if line.startswith("data:"):
                    _take(stream, line[5:].strip())
    except httpx.HTTPError as error:
        stream.error = f"{type(error).__name__}: {error}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        # One bad line ends this stream, not all of them.
        stream.error = f"not a chunk: {error}"
    finally:
        stream.ended = time.perf_counter()


def _take(stream: Stream, data: str) -> None:
    if data == "[DONE]":
        stream.whole = True
        return
    chunk: dict[str, Any] = json.loads(data)
    if "error" in chunk:
        stream.error = str(chunk["error"].get("message"))
        return
    for choice in chunk["choices"]:
        text = (choice.get("delta") or {}).get("content") or ""
        if text:
            if stream.first is None:
                stream.first = time.perf_counter()
            stream.text += text
            # A chunk is at least one token; the exact count comes with the usage at the end.
            stream.tokens += 1
        stream.finish_reason = choice.get("finish_reason") or stream.finish_reason
    if chunk.get("usage"):
        stream.tokens = int(chunk["usage"]["completion_tokens"])


def most_at_once(streams: Sequence[Stream]) -> int:
    """The largest number of streams that were between their first text and their end at one moment."""
    steps: list[tuple[float, int]] = []
    for stream in streams:
        if stream.first is not None and stream.ended is not None:
            steps += [(stream.first, 1), (stream.ended, -1)]
    most = now = 0
    # At equal times an end comes before a start, so that touching is not overlapping.
    for _, step in sorted(steps):
        now += step
        most = max(most, now)
    return most


def aggregate_rate(streams: Sequence[Stream]) -> float:
    """Tokens of all streams a second, from the first request's start to the last one's end."""
    starts = [stream.started for stream in streams if stream.started is not None]
    ends = [stream.ended for stream in streams if stream.ended is not None]
    if not starts or not ends:
        return 0.0
    return sum(stream.tokens for stream in streams) / max(max(ends) - min(starts), 1e-9)
