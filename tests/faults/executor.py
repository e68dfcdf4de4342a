"""FaultyExecutor: the real executor on the CPU, with faults on purpose where a request or a load asks for one.

A request asks through its seed: ``seed("raise_launch", 2)`` means that the step that would sample its third token raises. A load asks through
the executor's options: ``{"load": "memory"}``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import torch

from albatross_plugin.engine.messages import ModelInfo
from albatross_plugin.engine.step import Memory, StepPlan, StepResult, WorkerSpec
from albatross_plugin.errors import DeviceLostError
from albatross_plugin.model.executor import TorchExecutor

NAME = "faults.executor:FaultyExecutor"
BASE = 7_000_000_000
KINDS = ("raise_launch", "raise_collect", "memory", "not_finite", "slow", "hang", "die", "lose")
PLACES = 1000
SLOW_SECONDS = 0.3
HANG_SECONDS = 600.0


def seed(kind: str, token: int = 0) -> int:
    """What a request puts into its ``seed`` so that the step that samples its token number ``token`` (from 0) has this fault."""
    return BASE + KINDS.index(kind) * PLACES + token


class Death(BaseException):
    """Ends a worker's thread, as a panic in an extension module does."""


class Hangs:
    """Where hanging steps and loads wait; a test that is done lets them go."""

    def __init__(self) -> None:
        self._released = threading.Event()
        self.waiting = 0

    def wait(self, seconds: float = HANG_SECONDS) -> None:
        self.waiting += 1
        self._released.wait(seconds)
        self.waiting -= 1

    def release(self) -> None:
        released, self._released = self._released, threading.Event()
        released.set()


hangs = Hangs()


class FaultyExecutor:
    """Options: ``load`` is one of error, memory, no_memory, panic and hang (default: none of them); ``hang_seconds``: how long a step hangs."""

    def __init__(self, spec: WorkerSpec, progress: Callable[[int, int], None]) -> None:
        self._due: dict[int, tuple[str, int]] = {}
        self._inner = TorchExecutor(spec, progress)
        self.info: ModelInfo = self._inner.info
        self.pipeline_depth = self._inner.pipeline_depth
        self._hang = spec.options.get("hang_seconds", HANG_SECONDS)
        # After the real one has taken its memory: that must come back.
        _fail_load(spec.options.get("load"))

    def launch(self, plan: StepPlan) -> Any:
        for admission in plan.admit:
            asked = admission.request.params.seed
            self._due.pop(admission.slot, None)
            if asked is not None and BASE <= asked < BASE + len(KINDS) * PLACES:
                self._due[admission.slot] = (KINDS[(asked - BASE) // PLACES], (asked - BASE) % PLACES)
        faults = self._faults_of(plan)
        kinds = set(faults.values())
        if "slow" in kinds:
            time.sleep(SLOW_SECONDS)
        if "hang" in kinds:
            hangs.wait(self._hang)
        if "die" in kinds:
            raise Death("this worker was told to die")
        if "lose" in kinds:
            raise DeviceLostError("this device was told to be lost")
        if "memory" in kinds:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        if "raise_launch" in kinds:
            raise RuntimeError("this launch was told to fail")
        return self._inner.launch(plan), faults

    def collect(self, ticket: Any) -> StepResult:
        inner, faults = ticket
        result = self._inner.collect(inner)
        if "raise_collect" in faults.values():
            raise RuntimeError("this step was told to fail")
        failures = {slot: "the logits of this row were told to be infinite" for slot, kind in faults.items() if kind == "not_finite"}
        return StepResult(result.step, result.tokens, {**result.failures, **failures}, result.logprobs, result.prompt_logprobs)

    def memory(self) -> Memory:
        return self._inner.memory()

    def close(self) -> None:
        self._inner.close()

    def _faults_of(self, plan: StepPlan) -> dict[int, str]:
        """The faults that fall into this step, by slot; counts the tokens of the rows that have one before them."""
        faults: dict[int, str] = {}
        for slot in plan.sampled:
            if slot not in self._due:
                continue
            kind, left = self._due[slot]
            if left == 0:
                faults[slot] = kind
                del self._due[slot]
            else:
                self._due[slot] = (kind, left - 1)
        return faults


def _fail_load(kind: str | None) -> None:
    if kind == "error":
        raise RuntimeError("this load was told to fail")
    if kind == "memory":
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
    if kind == "no_memory":
        raise MemoryError
    if kind == "panic":
        raise Death("this load was told to panic")
    if kind == "hang":
        hangs.wait()
