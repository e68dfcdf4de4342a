"""Doing something to a module right after it was imported, without a change to its file."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

logger = logging.getLogger(__name__)

After = Callable[[ModuleType], None]


class AfterImport(MetaPathFinder):
    """``after``: dotted names of modules, and what is called with each one once its own code has run. Put it first in sys.meta_path."""

    def __init__(self, after: Mapping[str, After]) -> None:
        self._after = dict(after)

    def find_spec(self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        after = self._after.get(fullname)
        if after is None:
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, after)
        return spec


class _Loader(Loader):
    """Another loader, and what follows it."""

    def __init__(self, loader: Loader, after: After) -> None:
        self._loader, self._after = loader, after

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        # Whoever asks the module later, for its source say, shall find what would be there without this.
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._after(module)
