"""How core and worker reach each other. Messages are plain picklable data, so a process can stand in for the thread."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from queue import SimpleQueue

from albatross_plugin.config import EngineConfig
from albatross_plugin.engine.messages import Command, Down, Event, LoadFailed
from albatross_plugin.engine.step import WorkerSpec
from albatross_plugin.engine.turns import short_turns
from albatross_plugin.engine.worker import Worker, describe

logger = logging.getLogger(__name__)

Emit = Callable[[int, list[Event]], None]


class Transport(ABC):
    """One worker and the channel to it. ``emit(worker, events)`` is called from a thread of the transport's choice,
    in the order in which the worker produced the batches; the last event of the last batch is Down."""

    def __init__(self, spec: WorkerSpec, config: EngineConfig, emit: Emit) -> None:
        self.spec = spec
        self.config = config
        self.emit = emit

    @abstractmethod
    def start(self) -> None:
        """Start the worker. Returns at once; Loaded or LoadFailed follows as an event."""

    @abstractmethod
    def send(self, command: Command) -> None:
        """Queue a command. From any thread, a finalizer's included; never blocks; a worker that ended ignores it."""

    @abstractmethod
    def join(self, timeout: float) -> bool:
        """Wait up to ``timeout`` seconds for the worker to be gone; whether it is."""


class ThreadTransport(Transport):
    """The worker is a daemon thread ``albatross-worker-N`` of this process."""

    def __init__(self, spec: WorkerSpec, config: EngineConfig, emit: Emit) -> None:
        super().__init__(spec, config, emit)
        # SimpleQueue, because its put() may interrupt itself: an abort can come out of the garbage collector.
        self._commands: SimpleQueue[Command] = SimpleQueue()
        name = f"albatross-worker-{spec.worker}"
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def _run(self) -> None:
        number, emit = self.spec.worker, self.emit
        try:
            with short_turns():
                Worker(self.spec, self.config, self._commands, lambda events: emit(number, events)).run()
        except BaseException as error:
            # Whoever waits for this worker must hear of its end, whatever ended it.
            logger.exception("[worker_%d] the worker's thread failed", number)
            message = describe(error)
            emit(number, [LoadFailed(message), Down(message)])

    def start(self) -> None:
        self._thread.start()

    def send(self, command: Command) -> None:
        self._commands.put(command)

    def join(self, timeout: float) -> bool:
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()
