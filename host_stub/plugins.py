"""Finding plugins and asking them: one guarded load per entry point, one line in the log per failure."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from host_stub.hookspecs import PROJECT, HookSpecs
from host_stub.models import AbstractRWKV

logger = logging.getLogger(__name__)

# What the routes use on a model object, beside the abstract methods.
SURFACE = ("generate", "get_embedding", "shutdown")


class Plugins:
    """The loaded plugins. ``hook`` calls them; the methods below ask one question each and survive a plugin's failure."""

    def __init__(self) -> None:
        self.manager = pluggy.PluginManager(PROJECT)
        self.manager.add_hookspecs(HookSpecs)
        self._checked: set[type] = set()

    @property
    def hook(self) -> Any:
        return self.manager.hook

    def load(self, points: Iterable[EntryPoint] | None = None) -> None:
        """Load every entry point of the group, each by itself: a plugin that fails costs one log line."""
        for point in entry_points(group=PROJECT) if points is None else points:
            try:
                if self.manager.has_plugin(point.name):
                    raise ValueError("another plugin has this name already")
                self.register(point.load(), point.name)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                # Extension modules may raise a BaseException (a panic), others sys.exit; neither must stop the host.
                logger.error("plugin %s (%s) was not loaded: %s: %s", point.name, point.value, type(error).__name__, _one_line(error))
                continue
            dist = point.dist
            source = f"{dist.name} {dist.version}" if dist is not None else point.value
            logger.info("found plugin %s (%s) through entry point %s", point.name, source, PROJECT)

    def register(self, plugin: object, name: str) -> None:
        """Add one plugin whose hooks match the specifications. Raises PluginValidationError otherwise."""
        try:
            self.manager.register(plugin, name)
        except BaseException:
            if self.manager.has_plugin(name):
                self.manager.unregister(name=name)
            raise

    def register_model_types(self) -> None:
        """Make the plugins' classes virtual subclasses of AbstractRWKV. ABC.register checks nothing, so the host looks."""
        for classes in self._ask("rwkv_runner_model_types"):
            for cls in classes or ():
                if cls in self._checked:
                    continue
                self._checked.add(cls)
                missing = missing_surface(cls)
                if missing:
                    logger.error("model class %s lacks %s", cls.__qualname__, ", ".join(missing))
                AbstractRWKV.register(cls)

    def strategies(self) -> list[dict[str, Any]]:
        return [dict(item) for answer in self._ask("rwkv_runner_strategies") for item in answer or ()]

    def device_modes(self) -> list[dict[str, Any]]:
        return [dict(item) for answer in self._ask("rwkv_runner_device_modes") for item in answer or ()]

    def status(self, model: object | None) -> dict[str, Any]:
        """The plugins' parts of ``/status``, one key each."""
        merged: dict[str, Any] = {}
        for answer in self._ask("rwkv_runner_status", model=model):
            merged.update(answer or {})
        return merged

    def shutdown_model(self, model: object) -> None:
        self._ask("rwkv_runner_shutdown_model", model=model)

    def routers(self, host: object) -> list[Any]:
        return [router for answer in self._ask("rwkv_runner_routers", host=host) for router in answer or ()]

    def _ask(self, name: str, **arguments: Any) -> list[Any]:
        """Every plugin's answer to one hook; a plugin that raises is logged and left out."""
        answers = []
        for implementation in reversed(getattr(self.hook, name).get_hookimpls()):
            if implementation.wrapper or implementation.hookwrapper:
                continue
            try:
                answers.append(implementation.function(*(arguments[arg] for arg in implementation.argnames)))
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                logger.error("plugin %s failed in %s: %s: %s", implementation.plugin_name, name, type(error).__name__, _one_line(error))
        return answers


def missing_surface(cls: type) -> list[str]:
    """Names that a host needs on a model class and that are not callable there, or are truth traps."""
    wanted = [*sorted(AbstractRWKV.__abstractmethods__), *SURFACE]
    missing = [name for name in wanted if not callable(inspect.getattr_static(cls, name, None)) and not callable(getattr(cls, name, None))]
    traps = [name for name in ("__len__", "__bool__") if getattr(cls, name, None) is not None]
    return [f"{name}()" for name in missing] + [f"a plain truth value ({name} is defined)" for name in traps]


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500]
