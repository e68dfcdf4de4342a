"""One switch of the model at a time: the Runner looks at its status and sets it in two steps, between which another switch may begin."""

from __future__ import annotations

import functools
import threading
from types import ModuleType
from typing import Any

from albatross_plugin.runner.host import RunnerHost
from albatross_plugin.runner.points import endpoints


def install(module: ModuleType, host: RunnerHost) -> None:
    """In ``routes.config``. A switch that comes while another one runs gets 304, the Runner's own answer during a load."""
    switching = threading.Lock()

    def change(original: Any) -> Any:
        @functools.wraps(original)
        def switch(*args: Any, **kwargs: Any) -> Any:
            # In deploy mode the Runner refuses every one.
            if not switching.acquire(blocking=False):
                return original(*args, **kwargs) if host.deployed() else _not_modified()
            try:
                return original(*args, **kwargs)
            finally:
                switching.release()

        return switch

    endpoints.wrap(module, "/switch-model", change)


def _not_modified() -> Any:
    from starlette.responses import Response

    return Response(status_code=304)
