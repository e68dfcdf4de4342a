"""The plugins that are installed, and the questions that the launcher asks them."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterable
from importlib.metadata import EntryPoint, entry_points
from typing import Any

import pluggy

from albatross_plugin.runner.hookspecs import PROJECT, HookSpecs

logger = logging.getLogger(__name__)


class Plugins:
    """Every plugin of the entry-point group, each loaded by itself: one that fails costs a line in the log, never the start."""

    def __init__(self, points: Iterable[EntryPoint] | None = None) -> None:
        self._manager = pluggy.PluginManager(PROJECT)
        self._manager.add_hookspecs(HookSpecs)
        self._models: list[weakref.ref[Any]] = []
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
        """What the first plugin that knows a strategy makes of it, else None."""
        return self._manager.hook.rwkv_runner_parse_strategy(strategy=strategy) if isinstance(strategy, str) else None

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
        return [cls for classes in self._ask("rwkv_runner_model_types") for cls in classes or ()]

    def shutdown(self, model: Any) -> None:
        self._ask("rwkv_runner_shutdown_model", model=model)

    # --- serving ----------------------------------------------------------------------------------------------------

    def evaluate(self, **arguments: Any) -> Any | None:
        """The answer of one completion as an async generator. Raises what the plugin raises; None: not a plugin's model."""
        return self._manager.hook.rwkv_runner_eval(**arguments)

    def status(self, model: Any | None) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for answer in self._ask("rwkv_runner_status", model=model):
            merged.update(answer or {})
        return merged

    def strategies(self) -> list[dict[str, Any]]:
        return [dict(item) for answer in self._ask("rwkv_runner_strategies") for item in answer or ()]

    def device_modes(self) -> list[dict[str, Any]]:
        return [dict(item) for answer in self._ask("rwkv_runner_device_modes") for item in answer or ()]

    def routers(self, host: object) -> list[Any]:
        return [router for answer in self._ask("rwkv_runner_routers", host=host) for router in answer or ()]

    def _ask(self, name: str, **arguments: Any) -> list[Any]:
        """Every plugin's answer to one hook; a plugin that raises is logged and left out."""
        answers = []
        for implementation in reversed(getattr(self._manager.hook, name).get_hookimpls()):
            try:
                answers.append(implementation.function(*(arguments[each] for each in implementation.argnames)))
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                logger.error("plugin %s failed in %s: %s: %s", implementation.plugin_name, name, type(error).__name__, _one_line(error))
        return answers


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:500]
