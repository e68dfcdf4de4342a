"""Worker: the one loop. Commands come in, steps run, one batch of events per step goes out."""

from __future__ import annotations

import importlib
import logging
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from albatross_plugin.config import EngineConfig
from albatross_plugin.engine.collector import settle, unsettle
from albatross_plugin.engine.messages import (
    Abort,
    Broken,
    Command,
    Down,
    Event,
    Loaded,
    LoadFailed,
    LoadProgress,
    Shutdown,
    Started,
    Stats,
    Submit,
    Tokens,
)
from albatross_plugin.engine.meter import Meter
from albatross_plugin.engine.scheduler import Scheduler
from albatross_plugin.engine.step import Executor, Memory, StepPlan, WorkerSpec
from albatross_plugin.errors import DeviceLostError, printable

logger = logging.getLogger(__name__)

PROGRESS_INTERVAL = 0.1
GATHER_WINDOWS = 8
EXPECTED_LOAD_ERRORS = (ValueError, RuntimeError, OSError, ImportError)
"""What a user can cause; such an error's text stands for itself, any other is told with its type."""


class _LoadCancelled(BaseException):
    """Thrown out of the loader by its own progress calls when the model is no longer wanted."""


class Worker:
    """Runs one executor. ``run`` returns after a Shutdown or a fault; its last event is always Down.

    ``commands`` is read by this worker alone. ``emit`` takes a list of events and must not block.
    """

    def __init__(self, spec: WorkerSpec, config: EngineConfig, commands: SimpleQueue[Command], emit: Callable[[list[Event]], None]) -> None:
        self._spec = spec
        self._config = config
        self._commands = commands
        self._emit = emit
        self._scheduler: Scheduler
        self._meter = Meter(spec.worker, config.batch, config.tps_log_interval)
        self._tickets: deque[tuple[StepPlan, Any]] = deque()
        self._queues_steps = False
        self._outgoing: list[Event] = []
        self._shutdown: Shutdown | None = None
        self._progress_at = 0.0
        self._idle_reported = False
        self._memory = Memory(0, 0)

    def run(self) -> None:
        """Load, serve, release. Nothing that happens in here leaves as an exception."""
        message = ""
        settled = False
        executor: Executor | None = None
        try:
            executor = self._load()
            if executor is not None:
                settle()
                settled = True
                self._serve(executor)
        except BaseException as error:
            # Also what is no Exception: a panic in an extension module ends this engine, not its callers' waits.
            message = describe(error)
            logger.exception("[worker_%d] the engine's loop failed", self._spec.worker)
        if executor is not None:
            try:
                if message:
                    # At once: who hears of a failed request and asks for the status shall not be told that all is well.
                    self._outgoing.append(Broken(message))
                self._end_requests(message)
            finally:
                self._release(executor, drain=not message)
                if settled:
                    unsettle()
        self._emit([Down(message)])

    def _load(self) -> Executor | None:
        """Build the executor; None if that failed or was called off, which has then been reported."""
        try:
            module, _, name = self._spec.executor.partition(":")
            executor: Executor = getattr(importlib.import_module(module), name)(self._spec, self._on_progress)
        except _LoadCancelled:
            return None
        except BaseException as error:
            expected = isinstance(error, EXPECTED_LOAD_ERRORS) and str(error)
            logger.warning("[worker_%d] load failed: %s", self._spec.worker, describe(error), exc_info=not expected)
            self._emit([LoadFailed(str(error) if expected else describe(error))])
            return None
        # Not before: the executor is the one that refuses a batch for which there is no memory.
        self._scheduler = Scheduler(self._config, self._spec.kept)
        self._emit([Loaded(executor.info)])
        return executor

    def _on_progress(self, loaded: int, total: int) -> None:
        # While loading, the only command that can come is Shutdown: nothing is submitted to an engine that is not ready.
        if not self._commands.empty():
            raise _LoadCancelled
        now = monotonic()
        if loaded >= total or now - self._progress_at >= PROGRESS_INTERVAL:
            self._progress_at = now
            self._emit([LoadProgress(loaded, total)])

    def _serve(self, executor: Executor) -> None:
        """Keep up to ``pipeline_depth`` steps queued on the device; block, without polling, when there is nothing to do.

        Where steps are queued, a step's events go out after the next launch: whoever they wake competes for the interpreter's lock,
        which a launch needs and a wait for the device does not.
        """
        depth = max(1, executor.pipeline_depth)
        self._queues_steps = depth > 1
        while True:
            self._receive(executor)
            if self._shutdown is not None:
                return
            launched = len(self._tickets) < depth and self._launch(executor)
            self._send()
            if self._tickets and (not launched or len(self._tickets) >= depth):
                self._collect(executor)

    def _receive(self, executor: Executor) -> None:
        """Handle every command that is there; with nothing else to do, wait for one."""
        if not self._scheduler.busy and not self._tickets:
            if not self._idle_reported:
                self._outgoing.append(self._stats(executor))
            self._send()
            self._handle(self._commands.get())
            if self._scheduler.busy:
                self._gather()
                self._meter.wake()
                self._idle_reported = False
        while self._shutdown is None:
            try:
                self._handle(self._commands.get_nowait())
            except Empty:
                return

    def _gather(self) -> None:
        """Give the siblings of the request that woke the engine a moment, so that a burst shares one pass."""
        window = self._config.gather_seconds
        now = monotonic()
        last, quiet = now + window * GATHER_WINDOWS, now + window
        while self._shutdown is None and 0 < self._scheduler.waiting < self._scheduler.free_slots:
            timeout = min(quiet, last) - monotonic()
            if timeout <= 0:
                return
            try:
                command = self._commands.get(timeout=timeout)
            except Empty:
                return
            self._handle(command)
            if isinstance(command, Submit):
                quiet = monotonic() + window

    def _handle(self, command: Command) -> None:
        if isinstance(command, Submit):
            for request in command.requests:
                self._scheduler.add(request)
        elif isinstance(command, Abort):
            self._post(self._scheduler.abort(command.request_ids))
        else:
            self._shutdown = command

    def _launch(self, executor: Executor) -> bool:
        """Queue the next step, if there is one. A failure ends the requests of that step alone."""
        plan = self._scheduler.plan()
        if plan is None:
            return False
        if plan.admit:
            # Told before the step runs: the wait is over now, and the first step may take seconds.
            self._post([Started(admission.request.request_id) for admission in plan.admit])
        try:
            self._tickets.append((plan, executor.launch(plan)))
        except DeviceLostError:
            raise
        except Exception as error:
            self._step_failed(executor, plan, error)
        return True

    def _collect(self, executor: Executor) -> None:
        plan, ticket = self._tickets.popleft()
        try:
            result = executor.collect(ticket)
        except DeviceLostError:
            raise
        except Exception as error:
            self._step_failed(executor, plan, error)
            return
        assert result.step == plan.step, f"asked for step {plan.step}, got step {result.step}"
        events = self._scheduler.apply(result)
        generated = sum(len(event.token_ids) for event in events if isinstance(event, Tokens))
        self._report(executor, plan, generated, events)

    def _step_failed(self, executor: Executor, plan: StepPlan, error: Exception) -> None:
        logger.error("[worker_%d] step %d failed", self._spec.worker, plan.step, exc_info=error)
        self._report(executor, plan, 0, self._scheduler.fail_step(plan, describe(error)))

    def _report(self, executor: Executor, plan: StepPlan, generated: int, events: list[Event]) -> None:
        self._meter.record(plan, generated, self._active)
        if self._meter.due or not self._scheduler.busy:
            events.append(self._stats(executor))
        self._post(events)

    def _post(self, events: list[Event]) -> None:
        self._outgoing += events
        if not self._queues_steps:
            # The next launch may be a whole step.
            self._send()

    def _send(self) -> None:
        if self._outgoing:
            events, self._outgoing = self._outgoing, []
            self._emit(events)

    @property
    def _active(self) -> int:
        return self._config.batch - self._scheduler.free_slots

    def _stats(self, executor: Executor) -> Stats:
        self._idle_reported = not self._scheduler.busy
        try:
            self._memory = executor.memory()
        except Exception:
            # A figure for the status page is not worth a worker: the last one stands.
            logger.debug("[worker_%d] the memory in use cannot be told", self._spec.worker, exc_info=True)
        return self._meter.report(self._active, self._scheduler.waiting, self._memory)

    def _end_requests(self, message: str) -> None:
        reason = self._shutdown.reason if self._shutdown is not None else f"the engine went down: {message}"
        # Submits that crossed with the end are still in the channel; their callers wait for an answer too.
        while not self._commands.empty():
            command = self._commands.get()
            if isinstance(command, Submit):
                for request in command.requests:
                    self._scheduler.add(request)
        self._outgoing += self._scheduler.fail_all(reason)
        self._send()

    def _release(self, executor: Executor, drain: bool) -> None:
        """Let queued steps run out (unless the executor is the one that broke), then close the executor."""
        try:
            while drain and self._tickets:
                executor.collect(self._tickets.popleft()[1])
        except Exception:
            logger.debug("[worker_%d] a step failed during shutdown", self._spec.worker, exc_info=True)
        self._tickets.clear()
        try:
            executor.close()
        except BaseException:
            logger.exception("[worker_%d] the executor could not be closed", self._spec.worker)


def describe(error: BaseException) -> str:
    """Type and text of an error, for people."""
    try:
        text = printable(str(error))
    except Exception:
        # Extension modules bring errors without a text.
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
