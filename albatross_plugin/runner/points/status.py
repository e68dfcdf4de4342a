"""The plugins' parts of ``/status``: how far a load is, and what the engine does."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from albatross_plugin.runner.host import RunnerHost
from albatross_plugin.runner.points import endpoints


def install(module: ModuleType, host: RunnerHost) -> None:
    """In ``routes.config``. Members of the Runner's own answer are left as they are."""

    def change(original: Any) -> Any:
        @functools.wraps(original)
        def status() -> Any:
            own = original()
            if not isinstance(own, dict):
                return own
            plugins = host.plugins
            offered = {"strategies": plugins.strategies(), "device_modes": plugins.device_modes()}
            return {**offered, **plugins.status(host.model()), **own}

        return status

    endpoints.wrap(module, "/status", change)
