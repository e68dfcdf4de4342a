"""One step of the model: what the scheduler asks for, what the executor answers, and who the executor is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from albatross_plugin.engine.messages import ModelInfo, TokenLogprobs
from albatross_plugin.engine.request import Request


@dataclass(frozen=True)
class Admission:
    """Give ``slot`` to ``request``: write its start state and its row of sampling parameters."""

    slot: int
    request: Request


@dataclass(frozen=True)
class Chunk:
    """Prompt tokens to feed into ``slot``. ``final``: the prompt ends here, so the row is sampled."""

    slot: int
    token_ids: Sequence[int]
    final: bool


class Kept(NamedTuple):
    """The state of ``slot`` and the one that is kept in ``row``, which is counted from 0 beyond the executor's own rows."""

    row: int
    slot: int


def by_row(copies: Sequence[Kept]) -> list[tuple[int, list[int]]]:
    """Each kept row with the slots that get its state."""
    slots: dict[int, list[int]] = {}
    for row, slot in copies:
        slots.setdefault(row, []).append(slot)
    return list(slots.items())


@dataclass(frozen=True)
class StepPlan:
    """One packed pass. ``decode`` slots take as input the token sampled for them last, which the executor keeps.

    Rows are in the order decode, then prefill. While the same rows go on decoding, ``decode`` is the same list object from step to step
    (``plan.decode is previous.decode``), so that an executor may keep what it made of it; nobody may change that list. ``allowed`` is
    None or maps a slot to its bitmask of allowed tokens, ``int32 [ceil(V / 32)]`` as bytes: token i is bit ``i % 32`` of word ``i // 32``.
    ``copy``: slots that get a kept state after the admissions and before the pass; ``keep``: slots whose state is kept after the pass.
    """

    step: int
    admit: list[Admission] = field(default_factory=list)
    decode: list[int] = field(default_factory=list)
    prefill: list[Chunk] = field(default_factory=list)
    allowed: dict[int, bytes] | None = None
    copy: list[Kept] = field(default_factory=list)
    keep: list[Kept] = field(default_factory=list)

    @property
    def sampled(self) -> list[int]:
        """Slots that get a token in this step, in row order."""
        return self.decode + [chunk.slot for chunk in self.prefill if chunk.final] if self.prefill else self.decode

    @property
    def slots(self) -> list[int]:
        """Every slot that takes part, in row order."""
        return self.decode + [chunk.slot for chunk in self.prefill] if self.prefill else self.decode


@dataclass(frozen=True)
class StepResult:
    """``tokens`` parallel to ``StepPlan.sampled``; slots in ``failures`` have no valid token there."""

    step: int
    tokens: list[int]
    failures: dict[int, str] = field(default_factory=dict)
    logprobs: dict[int, TokenLogprobs] | None = None
    prompt_logprobs: dict[int, list[TokenLogprobs]] | None = None


@dataclass(frozen=True)
class WorkerSpec:
    """All that a worker needs to build its executor: ``executor`` is "module:Class". Picklable.

    ``rows`` is the number of state rows, one more than the requests that run at once: the last is scratch.
    ``token_limit``: only ids below it may be produced (the vocabulary file's end, or the model's).
    ``kept``: state rows beyond those, in which states are kept for a while.
    ``pass_tokens``: most tokens of one pass (prompt chunks and decoding rows together). ``state`` is "auto", "fp16" or
    "fp32", ``graphs`` whether whole steps may be captured: both are for a card alone.
    ``options`` is for executors outside the product (tests).
    """

    executor: str
    model_path: str
    device: str
    worker: int
    rows: int
    token_limit: int
    threads: int
    pass_tokens: int = 4096
    kept: int = 0
    state: str = "auto"
    graphs: bool = True
    options: dict[str, Any] = field(default_factory=dict)


class Memory(NamedTuple):
    """Bytes that the executor uses now, the most it used, and what is still free on its device (None: not known)."""

    used: int
    peak: int
    free: int | None = None


class Executor(Protocol):
    """Runs steps. Built inside the worker as ``Class(spec, progress)``; ``progress(loaded, total)`` counts bytes.

    ``launch`` queues a step and returns a ticket; ``collect`` waits for that ticket's result. At most
    ``pipeline_depth`` tickets are open at once, and they are collected in order. An exception from either
    ends the requests of that step and no others, but for DeviceLostError, which ends the worker. ``memory`` may be called between steps.
    """

    pipeline_depth: int
    info: ModelInfo

    def launch(self, plan: StepPlan) -> Any: ...

    def collect(self, ticket: Any) -> StepResult: ...

    def memory(self) -> Memory: ...

    def close(self) -> None: ...


ExecutorFactory = Callable[[WorkerSpec, Callable[[int, int], None]], Executor]
