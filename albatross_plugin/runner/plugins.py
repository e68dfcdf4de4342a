"""The plugins that are installed, and the questions that the launcher asks them."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import re
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from albatross_plugin.runner.hookspecs import PROJECT, HookSpecs

logger = logging.getLogger(__name__)

# Clients ask for the status every second: what fails in these again and again in the same way is told once, until it works.
POLLED = frozenset(("rwkv_runner_status", "rwkv_runner_strategies", "rwkv_runner_device_modes"))
# Addresses, counts and times are no difference.
CHANGING = re.compile(r"0x[0-9a-f]+|[0-9]+", re.IGNORECASE)


class Plugins:
    """Every plugin of the entry-point group, each loaded by itself: one that fails costs a line in the log, never the start."""

    def __init__(self, points: Iterable[EntryPoint] | None = None) -> None:
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(HookSpecs)
        self._models: list[weakref.ref[Any]] = []
        self._last_failures: dict[tuple[str, str], str] = {}
        self.names: list[str] = []
        for point in entry_points(group=PROJECT) if points is None else points:
            self._load(point)

    def _load(self, point: EntryPoint) -> None:
        try:
            if self._manager.has_plugin(point.name):
                raise ValueError("another plugin has this name already")
            self._manager.register(point.load(), point.name)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            # Extension modules may raise a BaseException (a panic), others sys.exit; neither must stop the Runner.
            if self._manager.has_plugin(point.name):
                self._manager.unregister(name=point.name)
            logger.error("plugin %s (%s) was not loaded: %s: %s", point.name, point.value, type(error).__name__, _one_line(error))
            return
        self.names.append(f"{point.dist.name} {point.dist.version}" if point.dist is not None else point.name)

    # --- strategies and models --------------------------------------------------------------------------------------

    def parse(self, strategy: Any) -> Any | None:
        """What the first plugin that knows a strategy makes of it, else None. Raises what a plugin raises for a strategy that it offers."""
        if not isinstance(strategy, str):
            return None
        name = "rwkv_runner_parse_strategy"
        for plugin, function in self._implementations(name, strategy=strategy):
            try:
                parsed = function()
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                first = strategy.lower().split()[:1]
                if isinstance(error, Exception) and self._offered(plugin).issuperset(first) and first:
                    raise
                _log_failure(plugin, name, error)
            else:
                if parsed is not None:
                    return parsed
        return None

    def _offered(self, plugin: str) -> set[str]:
        """Names and aliases of one plugin's strategies, in small letters."""
        names: set[str] = set()
        for each, function in self._implementations("rwkv_runner_strategies"):
            if each == plugin:
                with contextlib.suppress(Exception):
                    names |= {str(name).lower() for item in function() for name in (item.get("name"), *(item.get("aliases") or ()))}
        return names

    def create(self, parsed: Any, model_path: str, tokenizer: str | None) -> Any | None:
        """A loaded model. Raises with the reason, always an Exception: the Runner waits for ever after anything else."""
        try:
            model = self._manager.hook.rwkv_runner_create_model(strategy=parsed, model_path=model_path, tokenizer_path=tokenizer or None)
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise RuntimeError(str(error) or type(error).__name__) from error
        if model is not None:
            self._models = [*(each for each in self._models if each() is not None), weakref.ref(model)]
        return model

    def owns(self, model: Any) -> bool:
        """Whether a plugin made this model."""
        return model is not None and any(each() is model for each in self._models)

    def model_types(self) -> list[type]:
        return [cls for _, classes in self._ask_each("rwkv_runner_model_types", _classes) for cls in classes]

    def shutdown(self, model: Any) -> None:
        self._ask_each("rwkv_runner_shutdown_model", lambda answer: answer, model=model)

    # --- serving ----------------------------------------------------------------------------------------------------

    def evaluate(self, **arguments: Any) -> Any | None:
        """The answer of one completion as an async generator. Raises what the plugin raises; None: not a plugin's model."""
        return self._manager.hook.rwkv_runner_eval(**arguments)

    def status(self, model: Any | None) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for _, answer in self._ask_each("rwkv_runner_status", _part, model=model):
            merged.update(answer)
        return merged

    def strategies(self) -> list[dict[str, Any]]:
        return [item for _, items in self._ask_each("rwkv_runner_strategies", _mappings) for item in items]

    def device_modes(self) -> list[dict[str, Any]]:
        return [item for _, items in self._ask_each("rwkv_runner_device_modes", _mappings) for item in items]

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
        for each in reversed(getattr(self._manager.hook, name).get_hookimpls()):
            if not (each.wrapper or each.hookwrapper):
                yield each.plugin_name, functools.partial(each.function, *(arguments[argument] for argument in each.argnames))


def _mappings(answer: Any) -> list[dict[str, Any]]:
    """Descriptions that ``/status`` shows. Raises TypeError or ValueError for what is none."""
    return [_part(item) for item in answer or ()]


def _part(answer: Any) -> dict[str, Any]:
    """A part of an answer, encoded as the Runner would. Raises TypeError or ValueError for what is no mapping, or cannot be JSON."""
    if not isinstance(answer, Mapping | None):
        raise TypeError(f"{answer!r} is no mapping")
    from fastapi.encoders import jsonable_encoder

    part = dict(jsonable_encoder(dict(answer or {})))
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
        if not isinstance(getattr(each, "routes", None), list):
            raise TypeError(f"{each!r} is no APIRouter")
    return routers


def _log_failure(plugin: str, name: str, error: BaseException) -> None:
    logger.error("plugin %s failed in %s: %s: %s", plugin, name, type(error).__name__, _one_line(error))


def _one_line(error: BaseException) -> str:
    try:
        return " ".join(str(error).split())[:500]
    except Exception as second:
        return f"its text cannot be had ({type(second).__name__})"
