"""An executor without a model: its tokens follow from the prompt, and it checks that it is fed as an executor must be."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from engine.fake_grammar import FakeGrammar

from albatross_plugin.engine.messages import ModelInfo, TokenLogprobs
from albatross_plugin.engine.request import FinishReason, Request, SamplingParams
from albatross_plugin.engine.step import Memory, StepPlan, StepResult, WorkerSpec
from albatross_plugin.errors import DeviceLostError

NAME = "engine.fake_executor:FakeExecutor"
END_AT = 60000
"""A prompt that ends in END_AT + k has token 0 as its k-th token."""
POISON_AT = 61000
"""A prompt that ends in POISON_AT + k fails at its k-th token."""
LIMIT = 30.0


class Violation(BaseException):
    """The executor was asked for something that no scheduler may ask for; ends the worker."""


class Stage:
    """What a test sees of the executors that carry its name, and how it holds them up."""

    def __init__(self) -> None:
        self.plans: list[StepPlan] = []
        self.closed = 0
        self.launched = threading.Semaphore(0)
        self._permits = threading.Semaphore(0)
        self._free = threading.Event()

    def open(self) -> None:
        """Let every step run freely from now on."""
        self._free.set()
        self._permits.release(1)

    def allow(self, steps: int = 1) -> None:
        self._permits.release(steps)

    def wait(self) -> None:
        if self._free.is_set():
            return
        if not self._permits.acquire(timeout=LIMIT):
            raise TimeoutError("the test let this step hang")
        if self._free.is_set():
            self._permits.release()

    def prefilled(self) -> set[int]:
        """Ids of the requests that ever got a slot."""
        return {admission.request.request_id for plan in list(self.plans) for admission in plan.admit}


STAGES: dict[str, Stage] = {}


def token_at(prompt: tuple[int, ...], position: int) -> int:
    """The token that follows ``position`` others; never 0 unless the prompt says so."""
    if END_AT <= prompt[-1] < POISON_AT and prompt[-1] - END_AT == position:
        return 0
    return (sum(prompt) * 31 + len(prompt) * 7 + position * 13) % 5000 + 1


def expected(request: Request) -> tuple[list[int], FinishReason]:
    """What a request must yield when nothing disturbs it."""
    tokens: list[int] = []
    while True:
        token = token_at(request.prompt_ids, len(tokens))
        tokens.append(token)
        if token in request.params.stop_token_ids or (token == 0 and not request.params.ignore_eos):
            return tokens, FinishReason.STOP
        if isinstance(request.params.grammar, FakeGrammar) and len(tokens) == request.params.grammar.length:
            return tokens, FinishReason.STOP
        if len(tokens) == request.params.max_tokens:
            return tokens, FinishReason.LENGTH


@dataclass
class _Row:
    request: Request
    fed: int = 0
    tokens: list[int] = field(default_factory=list)
    ended: int = 0


class FakeExecutor:
    """Options: ``depth``; ``stage`` (a key of STAGES, whose permits every collect waits for); ``fail_launch`` and
    ``fail_collect`` (steps that raise); ``die`` (step that raises a BaseException); ``lose_launch``
    and ``lose_collect`` (steps that find the device lost); ``load_error`` (an exception
    class's name in builtins); ``load_stage`` (a key of STAGES that the load waits for, reporting progress);
    ``only`` (the worker that the load options apply to); ``memory_error`` (asked for its memory, it raises)."""

    def __init__(self, spec: WorkerSpec, progress: Callable[[int, int], None]) -> None:
        options = spec.options
        self.pipeline_depth: int = options.get("depth", 1)
        self._options = options
        self._stage = STAGES.get(options.get("stage", ""))
        self._rows: dict[int, _Row] = {}
        self._kept: dict[int, tuple[int, ...]] = {}
        self.kept = spec.kept
        self._next = 0
        self._open = 0
        if options.get("only", spec.worker) == spec.worker:
            _load(options, progress)
        progress(100, 100)
        self.info = ModelInfo("fake", 2, 128, 65536, spec.device, "float32", 100, 10)

    def launch(self, plan: StepPlan) -> Any:
        self._check_plan(plan)
        if self._stage is not None:
            self._stage.plans.append(plan)
            self._stage.launched.release()
        if plan.step == self._options.get("die"):
            raise Violation("the device is gone")
        if plan.step in self._options.get("lose_launch", ()):
            raise DeviceLostError("the device is gone")
        if plan.step in self._options.get("fail_launch", ()):
            raise RuntimeError(f"launch {plan.step} failed")
        self._open += 1
        return self._run(plan)

    def collect(self, ticket: Any) -> StepResult:
        self._open -= 1
        if self._stage is not None:
            self._stage.wait()
        if ticket.step in self._options.get("lose_collect", ()):
            raise DeviceLostError("the device is gone")
        if ticket.step in self._options.get("fail_collect", ()):
            raise RuntimeError(f"collect {ticket.step} failed")
        result: StepResult = ticket
        return result

    def memory(self) -> Memory:
        if self._options.get("memory_error"):
            raise RuntimeError("the driver does not answer")
        return Memory(1000, 2000, 3000)

    def close(self) -> None:
        if self._stage is not None:
            self._stage.closed += 1

    def _check_plan(self, plan: StepPlan) -> None:
        _demand(plan.step == self._next, f"step {plan.step} came after {self._next - 1}")
        _demand(self._open < self.pipeline_depth, "too many open tickets")
        _demand(len(set(plan.slots)) == len(plan.slots), "a slot takes part twice")
        _demand(bool(plan.slots), "an empty step")
        bound = [slot for slot in plan.decode if self._bound(slot)]
        free = [slot for slot in plan.decode if not self._bound(slot)]
        _demand(plan.decode == sorted(free) + sorted(bound), "decode rows out of order")
        known = {admission.slot: admission.request for admission in plan.admit}
        needed = {slot for slot in plan.sampled if (known[slot].params.grammar if slot in known else self._bound(slot))}
        _demand(set(plan.allowed or ()) == needed, "masks for rows that take none, or none for rows that need one")
        self._next += 1

    def _run(self, plan: StepPlan) -> StepResult:
        for admission in plan.admit:
            self._rows[admission.slot] = _Row(admission.request)
        for kept, slot in plan.copy:
            row = self._row(slot)
            fed = self._kept.get(kept)
            _demand(fed is not None and fed == row.request.prompt_ids[:-1], "the state of another prompt was copied")
            _demand(row.fed == 0 and not row.tokens, "a state was copied over one that is in use")
            row.fed = len(row.request.prompt_ids) - 1
        result = StepResult(plan.step, [], {}, {}, {})
        for slot in plan.decode:
            row = self._row(slot)
            _demand(row.fed == len(row.request.prompt_ids), "decoding before the prompt is complete")
            _demand(row.ended < self.pipeline_depth, "decoding long after the end of the text")
            self._sample(slot, row, result, plan.allowed)
        for chunk in plan.prefill:
            row = self._row(chunk.slot)
            after = row.fed + len(chunk.token_ids)
            _demand(len(chunk.token_ids) > 0, "an empty chunk")
            _demand(tuple(chunk.token_ids) == row.request.prompt_ids[row.fed : after], "the wrong tokens were fed")
            _demand(chunk.final == (after == len(row.request.prompt_ids)), "a chunk is final when its prompt ends, and only then")
            if row.request.params.prompt_logprobs:
                numbers = [TokenLogprobs(token, -1.0) for token in row.request.prompt_ids[max(1, row.fed) : after]]
                assert result.prompt_logprobs is not None
                result.prompt_logprobs[chunk.slot] = numbers
            row.fed = after
            if chunk.final:
                self._sample(chunk.slot, row, result, plan.allowed)
        for kept, slot in plan.keep:
            row = self._row(slot)
            _demand(0 <= kept < self.kept, "there is no such row to keep a state in")
            _demand(not row.tokens, "a state was kept after its prompt")
            self._kept[kept] = row.request.prompt_ids[: row.fed]
        return result

    def _bound(self, slot: int) -> bool:
        return slot in self._rows and self._rows[slot].request.params.grammar is not None

    def _sample(self, slot: int, row: _Row, result: StepResult, allowed: dict[int, bytes] | None) -> None:
        prompt, params = row.request.prompt_ids, row.request.params
        _demand(len(row.tokens) < params.max_tokens, "planned past max_tokens")
        if prompt[-1] - POISON_AT == len(row.tokens):
            result.failures[slot] = "the logits are not finite"
        if params.grammar is not None:
            mask = (allowed or {})[slot]
            _demand(mask in (b"", b"%d" % len(row.tokens)), f"a mask for {mask!r} tokens after {len(row.tokens)}")
            if not mask:
                result.failures[slot] = "no token is allowed here"
        token = token_at(prompt, len(row.tokens))
        row.tokens.append(token)
        if row.ended or token in params.stop_token_ids or (token == 0 and not params.ignore_eos) or slot in result.failures:
            row.ended += 1
        result.tokens.append(token)
        if params.logprobs is not None:
            assert result.logprobs is not None
            result.logprobs[slot] = TokenLogprobs(token, -0.5)

    def _row(self, slot: int) -> _Row:
        row = self._rows.get(slot)
        if row is None:
            raise Violation(f"slot {slot} was never given to a request")
        return row


def _load(options: dict[str, Any], progress: Callable[[int, int], None]) -> None:
    if "load_stage" in options:
        progress(10, 100)
        STAGES[options["load_stage"]].wait()
        progress(20, 100)
    if "load_error" in options:
        import builtins

        raise getattr(builtins, options["load_error"])("cannot load this")


def _demand(condition: bool, message: str) -> None:
    if not condition:
        raise Violation(message)


def make_request(number: int, prompt: int | tuple[int, ...] = 5, max_tokens: int = 4, **more: Any) -> Request:
    """``prompt``: the tokens, or how many of them. ``more``: fields of Request, the others of SamplingParams."""
    ids = tuple(number * 17 % 900 + 1 + i for i in range(prompt)) if isinstance(prompt, int) else prompt
    of_request = {key: more.pop(key) for key in ("group", "priority", "initial_state", "shared") if key in more}
    return Request(number, ids, SamplingParams(max_tokens=max_tokens, **more), **of_request)
