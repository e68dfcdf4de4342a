"""Streams of a plugin's model: chunks that are ready together in one write, and the source closed when the client has gone."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from albatross_plugin.runner.answers import PluginStream
from albatross_plugin.runner.host import RunnerHost
from albatross_plugin.runner.points.missing import member
from albatross_plugin.runner.points.tool_streams import ToolEvents


def install(module: ModuleType, host: RunnerHost) -> None:
    """In ``routes.completion``: the response that its routes make of a stream."""
    from albatross_plugin.serving.response import EventResponse, PreparedResponse

    original = member(module, "EventSourceResponse")

    @functools.wraps(original, updated=())
    def respond(content: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(content, PluginStream) and content.source is not None:
            return EventResponse(content.source)
        if isinstance(content, PluginStream):
            return PreparedResponse(functools.partial(_events, content))
        if isinstance(content, ToolEvents):
            return PreparedResponse(functools.partial(_prepared, content, original(content, *args, **kwargs)))
        return original(content, *args, **kwargs)

    vars(module)["EventSourceResponse"] = respond


async def _events(stream: PluginStream) -> Any:
    from albatross_plugin.serving.response import EventResponse

    return EventResponse(await stream.prepare())


async def _prepared(events: ToolEvents, response: Any) -> Any:
    await events.stream.prepare()
    return response
