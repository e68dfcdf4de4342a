"""RunnerHost: the host object of the hooks over the Runner's own modules, looked up when they are needed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from albatross_plugin.runner.plugins import Plugins


class RunnerHost:
    """What plugins' routers get. Before the Runner's modules are imported, and before it has started, there is nothing to find."""

    def __init__(self, plugins: Plugins, *, keeps_builtin: bool = False, allowed_names: Sequence[str] = ()) -> None:
        self.plugins = plugins
        # Names of this machine by which pages may reach the plugins' routes, beside those that no site can have.
        self.allowed_names = tuple(allowed_names)
        self.brought: list[Any] = []
        # The Runner's own albatross mode stays in place.
        self.keeps_builtin = keeps_builtin

    def model(self) -> Any | None:
        return self._global("Model")

    def plugin_model(self) -> Any | None:
        """The loaded model, if a plugin made it."""
        model = self.model()
        return model if self.plugins.owns(model) else None

    def saved_config(self) -> dict[str, Any]:
        """The settings of ``/update-config`` and those that a load saved; only those that are set."""
        config = self._global("Model_Config")
        if config is None:
            return {}
        return {name: value for name, value in dict(config).items() if value is not None and name != "state"}

    def saved_state(self) -> str | None:
        """The path in the saved settings' ``state``; "" and None: no state file."""
        return getattr(self._global("Model_Config"), "state", None)

    def deployed(self) -> bool:
        return self._global("Deploy_Mode") is True

    def resolve(self, path: str) -> str:
        """Where the Runner finds a relative path; before v1.8.0 that is the current folder alone."""
        search = getattr(sys.modules.get("utils.rwkv"), "get_model_path", None)
        try:
            return str(search(path)) if search is not None else path
        except (OSError, ValueError):
            # A name that is too long, or that no system could have, is found nowhere.
            return path

    def release(self) -> None:
        """Unload a plugin's model; others are the Runner's affair. Blocks until its memory is free. Idempotent."""
        model = self.plugin_model()
        if model is not None:
            module = sys.modules["global_var"]
            module.set(module.Model, None)
            # Where the point that watches ``set`` is not in force.
            self.plugins.shutdown(model)

    def give_up_load(self) -> None:
        """A load has ended without the Runner's notice: no model is there, and the next one may come."""
        module: ModuleType = sys.modules["global_var"]
        if module.get(module.Model_Status) == module.ModelStatus.Loading:
            module.set(module.Model, None)
            module.set(module.Model_Status, module.ModelStatus.Offline)

    def _global(self, key: str) -> Any | None:
        module: ModuleType | None = sys.modules.get("global_var")
        if module is None or not hasattr(module, "GLOBALS"):
            return None
        return module.get(getattr(module, key))
