"""Random lives of a scheduler, against an executor that checks what it is fed."""

from __future__ import annotations

from collections import deque
from typing import Any

from engine.fake_executor import END_AT, POISON_AT, FakeExecutor, expected, make_request
from engine.fake_grammar import FakeGrammar
from engine.running import make_config, make_specs
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from albatross_plugin.config import EngineConfig
from albatross_plugin.engine.messages import Event, Failed, Finished, Tokens
from albatross_plugin.engine.request import FinishReason, Request
from albatross_plugin.engine.scheduler import Scheduler
from albatross_plugin.engine.sequence import Category
from albatross_plugin.engine.step import StepPlan


class SchedulerLife(RuleBasedStateMachine):
    """Whatever comes in whatever order: every request ends once, with its own tokens, and no slot is lost."""

    @initialize(
        batch=st.integers(1, 4),
        chunk=st.integers(0, 8),
        budget=st.integers(1, 12),
        ratio=st.integers(1, 3),
        shortest=st.integers(1, 5),
        admissions=st.integers(0, 2),
        depth=st.integers(1, 2),
        kept=st.integers(0, 2),
    )
    def begin(self, batch: int, chunk: int, budget: int, ratio: int, shortest: int, admissions: int, depth: int, kept: int) -> None:
        self.config: EngineConfig = make_config(
            batch=batch,
            prefill_chunk=chunk,
            prefill_budget=budget,
            decode_prefill_ratio=ratio,
            min_forward_seq_len=shortest,
            max_prefill_count=admissions,
        )
        self.depth = depth
        self.executor = FakeExecutor(make_specs(self.config, depth=depth, kept=kept)[0], lambda loaded, total: None)
        self.scheduler = Scheduler(self.config, kept)
        self.flying: deque[tuple[StepPlan, Any]] = deque()
        self.requests: dict[int, Request] = {}
        self.tokens: dict[int, list[int]] = {}
        self.started: set[int] = set()
        self.ended: dict[int, Finished | Failed] = {}

    @rule(
        length=st.integers(1, 30),
        tokens=st.integers(1, 6),
        priority=st.integers(0, 2),
        group=st.integers(0, 2),
        last=st.integers(0, 20),
        bound=st.integers(-7, 7),
        slow=st.booleans(),
        shared=st.integers(0, 5),
    )
    def add(self, length: int, tokens: int, priority: int, group: int, last: int, bound: int, slow: bool, shared: int) -> None:
        number = len(self.requests) + 1
        prompt = (*range(number, number + length - 1), {1: END_AT + 1, 2: END_AT, 3: POISON_AT + 1}.get(last, 500 + number))
        if shared:
            # Prompts that have their tokens to themselves; the fourth fails at its second token.
            prompt = (*range(7000 + 100 * shared, 7000 + 100 * shared + 4 * shared), POISON_AT + 1 if shared == 4 else 900 + shared)
        grammar = FakeGrammar(bound, dead_end=bound - 3, slow=slow) if bound > 0 else None
        request = make_request(
            number, prompt, tokens, priority=priority, group=group, grammar=grammar, shared=(shared, 0) if shared else None
        )
        self.requests[number] = request
        self.tokens[number] = []
        self.scheduler.add(request)

    @rule(numbers=st.lists(st.integers(1, 40), max_size=4))
    def abort(self, numbers: list[int]) -> None:
        events = self.scheduler.abort(numbers)
        assert {event.request_id for event in events} == {n for n in numbers if n in self.requests and n not in self.ended}  # type: ignore[union-attr]
        self.note(events)

    @precondition(lambda self: len(self.flying) < self.depth)
    @rule()
    def launch(self) -> None:
        self.launch_one()

    def launch_one(self) -> bool:
        decoding = Category.DECODE in self.scheduler.categories()
        bound = any(request.params.grammar is not None and number not in self.ended for number, request in self.requests.items())
        plan = self.scheduler.plan()
        if plan is None:
            assert self.flying or not self.scheduler.busy, "work is left and nothing is planned"
            return False
        sizes = [len(chunk.token_ids) for chunk in plan.prefill]
        assert sum(sizes) <= self.config.pass_budget
        assert max(sizes, default=0) <= self.config.chunk_limit(decoding)
        assert bool(plan.decode) == decoding or (decoding and bound), "a row under a grammar may sit a step out, no other one"
        if plan.decode:
            assert len(plan.admit) <= self.config.admissions_per_step
        assert all(slot < self.config.batch for slot in plan.slots)
        starting = [admission.request.request_id for admission in plan.admit]
        assert self.started.isdisjoint(starting) and self.ended.keys().isdisjoint(starting)
        self.started.update(starting)
        self.flying.append((plan, self.executor.launch(plan)))
        return True

    @precondition(lambda self: self.flying)
    @rule()
    def collect(self) -> None:
        self.note(self.scheduler.apply(self.executor.collect(self.flying.popleft()[1])))

    @precondition(lambda self: self.flying)
    @rule(dice=st.integers(0, 4))
    def fail(self, dice: int) -> None:
        plan, ticket = self.flying.popleft()
        result = self.executor.collect(ticket)
        self.note(self.scheduler.fail_step(plan, "broken") if dice == 0 else self.scheduler.apply(result))

    @rule(dice=st.integers(0, 19))
    def fail_all(self, dice: int) -> None:
        if dice == 0:
            self.note(self.scheduler.fail_all("gone"))
            assert not self.scheduler.busy

    def note(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Tokens):
                for number, token in zip(event.request_ids, event.token_ids, strict=True):
                    assert number not in self.ended and number in self.started
                    self.tokens[number].append(token)
            elif isinstance(event, (Finished, Failed)):
                assert event.request_id not in self.ended
                self.ended[event.request_id] = event
                self.check(event)

    def check(self, end: Finished | Failed) -> None:
        request, seen = self.requests[end.request_id], self.tokens[end.request_id]
        tokens, reason = expected(request)
        assert seen == tokens[: len(seen)]
        if isinstance(end, Finished):
            assert (end.prompt_tokens, end.completion_tokens) == (len(request.prompt_ids), len(seen))
            assert end.reason in (reason, FinishReason.ABORT)
            assert end.reason is FinishReason.ABORT or seen == tokens

    @invariant()
    def counts_add_up(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        kinds = self.scheduler.categories()
        held = sum(kind not in (Category.EMPTY, Category.FINISHED) for kind in kinds)
        assert self.scheduler.free_slots == self.config.batch - held
        assert self.scheduler.busy == (len(self.ended) < len(self.requests))
        assert self.scheduler.waiting <= len(self.requests) - len(self.ended)

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        bound = 20 * sum(len(request.prompt_ids) + request.params.max_tokens for request in self.requests.values())
        while self.scheduler.busy or self.flying:
            assert bound > 0, "no progress"
            bound -= 1
            launched = len(self.flying) < self.depth and self.launch_one()
            if self.flying and not launched:
                self.collect()
        assert self.ended.keys() == self.requests.keys()
        assert self.scheduler.free_slots == self.config.batch and self.scheduler.waiting == 0


SchedulerLife.TestCase.settings = settings(max_examples=100, stateful_step_count=60, deadline=None, database=None, derandomize=True)
TestSchedulerLife = SchedulerLife.TestCase
