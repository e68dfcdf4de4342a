"""The Runner's own albatross mode, from v1.9.11 on: strategies that a plugin knows are no longer its own."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from albatross_plugin.runner.host import RunnerHost
from albatross_plugin.runner.points.missing import member


def install(module: ModuleType, host: RunnerHost) -> None:
    """In ``albatross_engine.config``, which the Runner imports when a model is switched. Its own loader is reached then."""
    original = member(module, "is_albatross_strategy")

    @functools.wraps(original)
    def is_own(strategy: Any) -> bool:
        return host.plugins.parse(strategy) is None and bool(original(strategy))

    vars(module)["is_albatross_strategy"] = is_own
