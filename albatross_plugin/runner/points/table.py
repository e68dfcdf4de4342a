"""The interception points by name: which module of the Runner each one enters, and what puts it in force."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType

from albatross_plugin.runner.host import RunnerHost
from albatross_plugin.runner.points import (
    builtin,
    completions,
    embeddings,
    leave,
    loader,
    model_types,
    refusals,
    release,
    routes,
    sites,
    status,
    streams,
    switches,
    tool_streams,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Point:
    """``late``: its module is imported when a model is switched, not at the start. ``needed``: without it nothing is served."""

    name: str
    module: str
    install: Callable[[ModuleType, RunnerHost], None]
    late: bool = False
    needed: bool = False


POINTS = (
    Point("release", "global_var", release.install),
    Point("model types", "utils.rwkv", model_types.install, needed=True),
    Point("loader", "utils.rwkv", loader.install, needed=True),
    Point("completions", "routes.completion", completions.install, needed=True),
    Point("streams", "routes.completion", streams.install),
    Point("tool streams", "routes.completion", tool_streams.install),
    Point("embeddings", "routes.completion", embeddings.install),
    Point("exit", "routes.completion", leave.install),
    Point("routes", "routes.completion", routes.install),
    Point("switches", "routes.config", switches.install),
    Point("status", "routes.config", status.install),
    Point("refusals", "main", refusals.install),
    Point("sites", "main", sites.install),
    Point("own mode", "albatross_engine.config", builtin.install, late=True),
)


@dataclass
class Installed:
    """What came of each point so far: in force, or why not."""

    in_force: list[str] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)

    def install(self, point: Point, module: ModuleType, host: RunnerHost) -> None:
        """Never raises: the Runner starts without a point too."""
        try:
            point.install(module, host)
        except Exception as error:
            self.missing[point.name] = str(error) or type(error).__name__
            logger.debug("interception point %s", point.name, exc_info=True)
            if point.late:
                logger.error("interception point %s is not in force: %s", point.name, self.missing[point.name])
        else:
            self.in_force.append(point.name)
