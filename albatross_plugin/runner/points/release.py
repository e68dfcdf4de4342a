"""Releasing a plugin's model: the Runner only drops its reference, on a switch and on "" alike."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from albatross_plugin.runner.host import RunnerHost
from albatross_plugin.runner.points.missing import member


def install(module: ModuleType, host: RunnerHost) -> None:
    """In ``global_var``, whose ``set`` every part of the Runner calls by that name."""
    original, key_of_model = member(module, "set"), member(module, "Model")

    @functools.wraps(original)
    def store(key: Any, value: Any) -> None:
        old = host.plugin_model() if key == key_of_model else None
        original(key, value)
        if old is not None and old is not value:
            host.plugins.shutdown(old)

    vars(module)["set"] = store
