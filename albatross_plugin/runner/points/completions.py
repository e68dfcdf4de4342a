"""Completions and chats: a plugin's model answers beside the Runner's lock; other models take the path that they had."""

from __future__ import annotations

import functools
import inspect
from types import ModuleType
from typing import Any

from albatross_plugin.runner.answers import begin
from albatross_plugin.runner.host import RunnerHost
from albatross_plugin.runner.points.missing import Missing, member

# What another point has started already for the call in whose scope it stands.
STARTED = "albatross_plugin.runner.started"
NEEDED = {"model", "request", "body", "prompt", "stream", "stop", "chat_mode"}


def install(module: ModuleType, host: RunnerHost) -> None:
    """In ``routes.completion``: ``eval``, up to v1.9.5 ``eval_rwkv``. The routes look the name up at each call.

    What stands there afterwards is a plain function: it checks and admits before the route answers, so that a refusal has its status.
    """
    original = member(module, "eval_rwkv", "eval")
    signature = inspect.signature(original)
    if not inspect.isasyncgenfunction(original) or not signature.parameters.keys() >= NEEDED:
        raise Missing(f"routes.completion.{original.__name__} takes {', '.join(signature.parameters)}")

    @functools.wraps(original)
    def evaluate(*args: Any, **kwargs: Any) -> Any:
        call = dict(signature.bind(*args, **kwargs).arguments)
        if not host.plugins.owns(call["model"]):
            return original(*args, **kwargs)
        started = call["request"].scope.pop(STARTED, None)
        return begin(host, module, call, lambda: original(*args, **kwargs)) if started is None else started

    vars(module)[original.__name__] = evaluate
    _hide_from_builtin_mode(module, host)


def _hide_from_builtin_mode(module: ModuleType, host: RunnerHost) -> None:
    """From v1.9.11 on the routes ask for models of the Runner's own albatross mode first, which loads that mode's modules."""
    original = getattr(module, "is_albatross_model", None)
    if original is not None:

        def is_own(model: Any) -> bool:
            return not host.plugins.owns(model) and bool(original(model))

        vars(module)["is_albatross_model"] = is_own
