"""Streams of a plugin's model: chunks that are ready together in one write, and the source closed when the client has gone."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from albatross_plugin.runner.answers import PluginStream
from albatross_plugin.runner.host import RunnerHost
from albatross_plugin.runner.points.missing import member


def install(module: ModuleType, host: RunnerHost) -> None:
    """In ``routes.completion``: the response that its routes make of a stream."""
    original = member(module, "EventSourceResponse")

    @functools.wraps(original, updated=())
    def respond(content: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(content, PluginStream):
            from albatross_plugin.serving.response import EventResponse

            return EventResponse(content.source)
        return original(content, *args, **kwargs)

    vars(module)["EventSourceResponse"] = respond
