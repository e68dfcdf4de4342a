"""SteppedExecutor: the real executor on the CPU, whose load goes on only when a test says so, and tells how far it is."""

from __future__ import annotations

import queue
from collections.abc import Callable
from typing import Any

from albatross_plugin.engine.step import WorkerSpec
from albatross_plugin.model.executor import TorchExecutor

NAME = "ui.stepped_load:SteppedExecutor"
TOTAL = 4_000_000_000
SECONDS = 60.0

_words: queue.Queue[int | str] = queue.Queue()


def tell(word: int | str) -> None:
    """The load that waits reports this many bytes; it ends on "go", and fails with any other text."""
    _words.put(word)


class SteppedExecutor:
    """Everything but the load is the real executor's."""

    def __init__(self, spec: WorkerSpec, progress: Callable[[int, int], None]) -> None:
        while (word := _words.get(timeout=SECONDS)) != "go":
            if isinstance(word, str):
                raise RuntimeError(word)
            progress(word, TOTAL)
        self._inner = TorchExecutor(spec, progress)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)
