"""Embeddings of a model that has none: a refusal in words with status 400, and the Runner's count of requests stays right."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from albatross_plugin.errors import RequestError
from albatross_plugin.runner.host import RunnerHost
from albatross_plugin.runner.points import endpoints


def install(module: ModuleType, host: RunnerHost) -> None:
    """In ``routes.completion``: all four paths of embeddings."""

    def change(original: Any) -> Any:
        @functools.wraps(original)
        async def embeddings(*args: Any, **kwargs: Any) -> Any:
            _refuse(host.plugin_model())
            return await original(*args, **kwargs)

        return embeddings

    endpoints.wrap(module, "/embeddings", change)


def _refuse(model: Any | None) -> None:
    """Raises RequestError for a plugin's model that offers none. Asked before the Runner counts the request and takes its lock."""
    if model is None:
        return
    try:
        model.get_embedding("\n", True)
    except NotImplementedError as error:
        raise RequestError(str(error), code="unsupported", param="model") from error
