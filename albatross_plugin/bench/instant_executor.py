"""An executor without a model, for measuring everything around one: a step takes no time, or as long as it is told to."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from albatross_plugin.engine.messages import ModelInfo
from albatross_plugin.engine.step import Memory, StepPlan, StepResult, WorkerSpec

NAME = "albatross_plugin.bench.instant_executor:InstantExecutor"
# Ids of the World vocabulary that stand for a whole character or more, none of which can begin the next turn of a chat.
FIRST_ID, IDS = 300, 4999
STRIDE = 17


class _Ticket(NamedTuple):
    step: int
    tokens: list[int]
    ready: float


class InstantExecutor:
    """Steps run one after the other, as on a card, each ``step_ms + row_us * rows + token_us * prompt tokens`` long (options; default 0).

    ``depth`` (option) steps may be queued, 2 if not said. Row i of step n gets a token that follows from i and n alone.
    """

    def __init__(self, spec: WorkerSpec, progress: Callable[[int, int], None]) -> None:
        options = spec.options
        self.pipeline_depth = int(options.get("depth", 2))
        self._step = options.get("step_ms", 0.0) / 1e3
        self._row = options.get("row_us", 0.0) / 1e6
        self._token = options.get("token_us", 0.0) / 1e6
        self._paced = bool(self._step or self._row or self._token)
        self._ready = 0.0
        self._table = [FIRST_ID + number * STRIDE % IDS for number in range(IDS)] * (1 + spec.rows // IDS + 1)
        self.idle_seconds = 0.0
        progress(1, 1)
        self.info = ModelInfo("instant", 1, 64, 65536, spec.device, "none", 0, 0)

    def launch(self, plan: StepPlan) -> _Ticket:
        rows = len(plan.decode)
        fed = 0
        for chunk in plan.prefill:
            rows += chunk.final
            fed += len(chunk.token_ids)
        start = plan.step % IDS
        if self._paced:
            now = time.perf_counter()
            if self._ready < now:
                self.idle_seconds += now - self._ready if self._ready else 0.0
                self._ready = now
            self._ready += self._step + self._row * rows + self._token * fed
        return _Ticket(plan.step, self._table[start : start + rows], self._ready)

    def collect(self, ticket: _Ticket) -> StepResult:
        if self._paced:
            # The wait gives the interpreter's lock away, as a wait for a card's event does.
            time.sleep(max(0.0, ticket.ready - time.perf_counter()))
        return StepResult(ticket.step, ticket.tokens)

    def memory(self) -> Memory:
        return Memory(0, 0)

    def close(self) -> None:
        pass
