"""Streamed chats with tools: the call is admitted before the stream begins, and what the Runner's reader cannot read is kept from it."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import AsyncGenerator, AsyncIterator
from types import ModuleType
from typing import Any

from albatross_plugin.runner.answers import PluginStream, begin
from albatross_plugin.runner.host import RunnerHost
from albatross_plugin.runner.points.completions import STARTED
from albatross_plugin.runner.points.missing import Missing, member


class _Failed(Exception):
    """The engine's error event, which is no chunk of text."""

    def __init__(self, event: str) -> None:
        super().__init__(event)
        self.event = event


class _TextChunks:
    """The chunks with text, as the Runner reads them to find calls."""

    def __init__(self, source: PluginStream) -> None:
        self._source = source
        # The last chunk of a stream with usage has no choices, which the Runner's reader takes for granted.
        self.usage: str | None = None

    def __aiter__(self) -> AsyncIterator[str]:
        return self

    async def __anext__(self) -> str:
        while True:
            chunk = await self._source.__anext__()
            if chunk == "[DONE]":
                return chunk
            content = json.loads(chunk)
            if "error" in content:
                raise _Failed(chunk)
            if content["choices"]:
                return chunk
            self.usage = chunk

    async def aclose(self) -> None:
        await self._source.aclose()


class ToolEvents:
    """The Runner's events of such a chat, and the stream that they are made from, which is to be prepared before they are sent."""

    def __init__(self, events: AsyncGenerator[str, None], stream: PluginStream) -> None:
        self._events, self.stream = events, stream

    def __aiter__(self) -> AsyncIterator[str]:
        return self._events

    async def aclose(self) -> None:
        await self._events.aclose()


def install(module: ModuleType, host: RunnerHost) -> None:
    """In ``routes.completion``, from v1.8.6 on; older ones know no tools."""
    original = member(module, "async_generator_stream_response_tool_call")
    signature = inspect.signature(original)
    if not {"model", "body", "request", "completion_text"} <= signature.parameters.keys():
        raise Missing(f"{original.__name__} takes {', '.join(signature.parameters)}")

    @functools.wraps(original)
    def events(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs).arguments
        model, body, request = call["model"], call["body"], call["request"]
        if not host.plugins.owns(model):
            return original(*args, **kwargs)
        asked = {"model": model, "request": request, "body": body, "prompt": call["completion_text"], "stream": True}
        stream = begin(host, module, {**asked, "stop": body.stop, "chat_mode": True}, lambda: None)
        if stream is None:
            return original(*args, **kwargs)
        chunks = request.scope[STARTED] = _TextChunks(stream)
        return ToolEvents(_with_errors(original(*args, **kwargs), chunks), stream)

    vars(module)["async_generator_stream_response_tool_call"] = events


async def _with_errors(events: AsyncIterator[str], chunks: _TextChunks) -> AsyncGenerator[str, None]:
    try:
        async for event in events:
            if event == "[DONE]" and chunks.usage is not None:
                yield chunks.usage
            yield event
    except _Failed as failed:
        yield failed.event
    finally:
        await chunks.aclose()
