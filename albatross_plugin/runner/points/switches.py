"""Switches of the model: one at a time, and each to its end.

The Runner looks at its status and sets it in two steps, between which another switch may begin. And it tells a failed load on its output
before it takes note of it: where that cannot be written, it would answer every later switch as if the load still ran.
"""

from __future__ import annotations

import functools
import logging
import threading
from types import ModuleType
from typing import Any

from albatross_plugin.engine.worker import describe
from albatross_plugin.errors import printable
from albatross_plugin.runner.host import RunnerHost
from albatross_plugin.runner.points import endpoints

logger = logging.getLogger(__name__)


def install(module: ModuleType, host: RunnerHost) -> None:
    """In ``routes.config``. A switch that comes while another one runs gets 304, the Runner's own answer during a load; one that ends in
    anything but an answer leaves no model, and gets 500 with the reason."""
    from starlette.exceptions import HTTPException

    switching = threading.Lock()

    def change(original: Any) -> Any:
        @functools.wraps(original)
        def switch(*args: Any, **kwargs: Any) -> Any:
            # In deploy mode the Runner refuses every one.
            if not switching.acquire(blocking=False):
                return original(*args, **kwargs) if host.deployed() else _not_modified()
            try:
                return original(*args, **kwargs)
            except HTTPException as refusal:
                # The text may hold a path that cannot be sent back as it is.
                refusal.detail = printable(refusal.detail) if isinstance(refusal.detail, str) else refusal.detail
                raise
            except Exception as error:
                logger.exception("a switch of the model failed")
                host.give_up_load()
                raise HTTPException(500, f"failed to load: {describe(error)}") from error
            finally:
                switching.release()

        return switch

    endpoints.wrap(module, "/switch-model", change)


def _not_modified() -> Any:
    from starlette.responses import Response

    return Response(status_code=304)
