"""Plugins' model classes as virtual subclasses of the Runner's AbstractRWKV: its routes ask for that class everywhere."""

from __future__ import annotations

import logging
from types import ModuleType

from albatross_plugin.runner.host import RunnerHost
from albatross_plugin.runner.points.missing import member

logger = logging.getLogger(__name__)


def install(module: ModuleType, host: RunnerHost) -> None:
    """In ``utils.rwkv``."""
    base = member(module, "AbstractRWKV")
    for cls in host.plugins.model_types():
        # Registering checks nothing.
        lacking = [name for name in sorted(base.__abstractmethods__) if not callable(getattr(cls, name, None))]
        if lacking:
            logger.error("model class %s lacks %s", cls.__qualname__, ", ".join(lacking))
        try:
            base.register(cls)
        except Exception as error:
            # A class that the base itself derives from, say.
            logger.error("model class %s is not registered: %s", cls.__qualname__, error)
