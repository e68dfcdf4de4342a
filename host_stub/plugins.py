"""Finding plugins and asking them: one guarded load per entry point, one line in the log per failure."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy
from fastapi import APIRouter

from host_stub.hookspecs import PROJECT, HookSpecs
from host_stub.models import AbstractRWKV

logger = logging.getLogger(__name__)

# Clients ask for the status every second: what fails in these again and again in the same way is told once, until it works.
POLLED = frozenset(("rwkv_runner_status", "rwkv_runner_strategies", "rwkv_runner_device_modes"))
# Addresses, counts and times are no difference.
CHANGING = re.compile(r"0x[0-9a-f]+|[0-9]+", re.IGNORECASE)
# What the routes use on a model object, beside the abstract methods.
SURFACE = ("generate", "get_embedding", "shutdown")


class Plugins:
    """The loaded plugins. ``hook`` calls them; the methods below ask one question each and survive a plugin's failure."""

    def __init__(self) -> None:
        self.manager = pluggy.PluginManager(PROJECT)
        self.manager.add_hookspecs(HookSpecs)
        self._checked: set[type] = set()
        self._last_failures: dict[tuple[str, str], str] = {}

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

    def parse(self, strategy: str) -> Any | None:
        """What the first plugin that knows a strategy makes of it, else None. Raises what a plugin raises for a strategy that it offers."""
        name = "rwkv_runner_parse_strategy"
        for plugin, function in self._implementations(name, strategy=strategy):
            try:
                parsed = function()
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                if isinstance(error, Exception) and self._offers(plugin, strategy):
                    raise
                _log_failure(plugin, name, error)
            else:
                if parsed is not None:
                    return parsed
        return None

    def _offers(self, plugin: str, strategy: str) -> bool:
        """Whether the first word of ``strategy`` is a name or an alias in what the plugin offers."""
        names: set[str] = set()
        for each, function in self._implementations("rwkv_runner_strategies"):
            if each == plugin:
                with contextlib.suppress(Exception):
                    names |= {str(name).lower() for item in function() for name in (item.get("name"), *(item.get("aliases") or ()))}
        return any(word in names for word in strategy.lower().split()[:1])

    def register_model_types(self) -> None:
        """Make the plugins' classes virtual subclasses of AbstractRWKV. ABC.register checks nothing, so the host looks."""
        for cls in [cls for _, classes in self._ask_each("rwkv_runner_model_types", _classes) for cls in classes]:
            if cls in self._checked:
                continue
            self._checked.add(cls)
            missing = missing_surface(cls)
            if missing:
                logger.error("model class %s lacks %s", cls.__qualname__, ", ".join(missing))
            AbstractRWKV.register(cls)

    def strategies(self) -> list[dict[str, Any]]:
        return [item for _, items in self._ask_each("rwkv_runner_strategies", _mappings) for item in items]

    def device_modes(self) -> list[dict[str, Any]]:
        return [item for _, items in self._ask_each("rwkv_runner_device_modes", _mappings) for item in items]

    def status(self, model: object | None) -> dict[str, Any]:
        """The plugins' parts of ``/status``, one key each."""
        merged: dict[str, Any] = {}
        for _, answer in self._ask_each("rwkv_runner_status", _part, model=model):
            merged.update(answer)
        return merged

    def shutdown_model(self, model: object) -> None:
        self._ask_each("rwkv_runner_shutdown_model", lambda answer: answer, model=model)

    def routers(self, host: object) -> list[Any]:
        return [router for _, routers in self._ask_each("rwkv_runner_routers", _routers, host=host) for router in routers]

    def _ask_each(self, name: str, read: Callable[[Any], Any], **arguments: Any) -> list[tuple[str, Any]]:
        """Every plugin's answer to one hook as ``read`` takes it; what raises, or gives what cannot be read, is logged and left out."""
        answers = []
        for plugin, function in self._implementations(name, **arguments):
            try:
                answers.append((plugin, read(function())))
                self._last_failures.pop((plugin, name), None)
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                told = f"{type(error).__name__}: {CHANGING.sub('#', _one_line(error))}"
                if name not in POLLED or self._last_failures.get((plugin, name)) != told:
                    _log_failure(plugin, name, error)
                self._last_failures[plugin, name] = told
        return answers

    def _implementations(self, name: str, **arguments: Any) -> Iterator[tuple[str, Callable[[], Any]]]:
        for each in reversed(getattr(self.hook, name).get_hookimpls()):
            if not (each.wrapper or each.hookwrapper):
                yield each.plugin_name, functools.partial(each.function, *(arguments[argument] for argument in each.argnames))


def _mappings(answer: Any) -> list[dict[str, Any]]:
    """Descriptions that ``/status`` shows. Raises TypeError or ValueError for what is none."""
    return [_part(item) for item in answer or ()]


def _part(answer: Any) -> dict[str, Any]:
    """A part of an answer. Raises TypeError or ValueError for what is no mapping, or cannot be written as JSON."""
    if not isinstance(answer, Mapping | None):
        raise TypeError(f"{answer!r} is no mapping")
    part = dict(answer or {})
    json.dumps(part, ensure_ascii=False, allow_nan=False).encode()
    return part


def _classes(answer: Any) -> list[type]:
    classes = list(answer or ())
    for each in classes:
        if not isinstance(each, type):
            raise TypeError(f"{each!r} is no class")
    return classes


def _routers(answer: Any) -> list[Any]:
    routers = list(answer or ())
    for each in routers:
        if not isinstance(each, APIRouter):
            raise TypeError(f"{each!r} is no APIRouter")
    return routers


def _log_failure(plugin: str, name: str, error: BaseException) -> None:
    logger.error("plugin %s failed in %s: %s: %s", plugin, name, type(error).__name__, _one_line(error))


def missing_surface(cls: type) -> list[str]:
    """Names that a host needs on a model class and that are not callable there, or are truth traps."""
    wanted = [*sorted(AbstractRWKV.__abstractmethods__), *SURFACE]
    missing = [name for name in wanted if not callable(inspect.getattr_static(cls, name, None)) and not callable(getattr(cls, name, None))]
    traps = [name for name in ("__len__", "__bool__") if getattr(cls, name, None) is not None]
    return [f"{name}()" for name in missing] + [f"a plain truth value ({name} is defined)" for name in traps]


def _one_line(error: BaseException) -> str:
    try:
        return " ".join(str(error).split())[:500]
    except Exception as second:
        return f"its text cannot be had ({type(second).__name__})"
