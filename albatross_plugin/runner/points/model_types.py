"""Plugins' model classes as virtual subclasses of the Runner's AbstractRWKV: its routes ask for that class everywhere."""

from __future__ import annotations

from types import ModuleType

from albatross_plugin.runner.host import RunnerHost
from albatross_plugin.runner.points.missing import member


def install(module: ModuleType, host: RunnerHost) -> None:
    """In ``utils.rwkv``."""
    base = member(module, "AbstractRWKV")
    for cls in host.plugins.model_types():
        base.register(cls)
