"""Rows under a grammar: they sit out the steps for which their mask is not there, and nobody waits for them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import pytest
from engine.fake_executor import END_AT, FakeExecutor, expected, make_request
from engine.fake_grammar import FakeGrammar
from engine.running import ends_of, engine, make_config, make_specs, read_sync, stage, submit_one, tokens_of

from albatross_plugin.engine import masks
from albatross_plugin.engine.messages import Event, Failed, Finished, Tokens
from albatross_plugin.engine.request import FinishReason, Request
from albatross_plugin.engine.scheduler import Scheduler
from albatross_plugin.engine.step import StepPlan


class Loop:
    """A scheduler and an executor that checks what it is fed, stepped by hand; ``depth`` steps are open at once."""

    def __init__(self, *requests: Request, depth: int = 1, **values: Any) -> None:
        config = make_config(**values)
        self.depth = depth
        self.executor = FakeExecutor(make_specs(config, depth=depth)[0], lambda loaded, total: None)
        self.scheduler = Scheduler(config)
        self.open: list[Any] = []
        self.plans: list[StepPlan] = []
        self.events: list[Event] = []
        for request in requests:
            self.scheduler.add(request)

    def turn(self) -> bool:
        """One launch and, once ``depth`` steps are open or nothing can be launched, one collect. Whether anything happened."""
        plan = self.scheduler.plan()
        if plan is not None:
            self.plans.append(plan)
            self.open.append(self.executor.launch(plan))
        if self.open and (plan is None or len(self.open) == self.depth):
            self.events += self.scheduler.apply(self.executor.collect(self.open.pop(0)))
            return True
        return plan is not None

    def run(self) -> Loop:
        for _ in range(1000):
            if not self.turn():
                assert not self.scheduler.busy and self.scheduler.free_slots == 4
                return self
        raise AssertionError("no end")

    def tokens(self, request: Request) -> list[int]:
        found: list[int] = []
        for event in self.events:
            if isinstance(event, Tokens):
                found += [t for i, t in zip(event.request_ids, event.token_ids, strict=True) if i == request.request_id]
        return found

    def end(self, request: Request) -> Event:
        (end,) = (e for e in self.events if isinstance(e, (Finished, Failed)) and e.request_id == request.request_id)
        return end


def steps_of(plans: Sequence[StepPlan], slot: int) -> list[int]:
    return [plan.step for plan in plans if slot in plan.sampled]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("length", [1, 2, 7, 20])
def test_a_complete_text_ends_with_stop_and_its_neighbours_go_on(depth: int, length: int) -> None:
    bound = make_request(1, 5, 12, grammar=FakeGrammar(length))
    others = [make_request(number, 3 * number, 9) for number in (2, 3)]
    loop = Loop(bound, *others, depth=depth).run()
    for request in (bound, *others):
        tokens, reason = expected(request)
        assert loop.tokens(request) == tokens
        end = loop.end(request)
        assert isinstance(end, Finished) and (end.reason, end.completion_tokens) == (reason, len(tokens))


def test_a_row_under_a_grammar_sits_out_the_step_before_its_token_is_known() -> None:
    bound, free = make_request(1, 5, 6, grammar=FakeGrammar(50)), make_request(2, 5, 11)
    loop = Loop(bound, free, depth=2).run()
    assert steps_of(loop.plans, 0) == [0, 2, 4, 6, 8, 10]
    assert steps_of(loop.plans, 1) == list(range(11)), "nobody waits for it"
    alone = Loop(make_request(1, 5, 6, grammar=FakeGrammar(50)), depth=2).run()
    assert steps_of(alone.plans, 0) == list(range(6))


def test_the_others_stay_one_group_beside_a_row_under_a_grammar() -> None:
    """While free rows only go on decoding, they are one list of slots and of ids, whatever row joins them for a step."""
    loop = Loop(make_request(1, 3, 30), make_request(2, 3, 30), make_request(3, 3, 9, grammar=FakeGrammar(50)), depth=2)
    for _ in range(12):
        loop.turn()
    plain = [plan.decode for plan in loop.plans if plan.allowed is None and not plan.prefill]
    assert plain[0] == [0, 1] and all(decode is plain[0] for decode in plain)
    ids = [event.request_ids for event in loop.events if isinstance(event, Tokens) and event.request_ids == [1, 2]]
    assert len(ids) > 8 and all(each is ids[0] for each in ids)
    loop.run()
    assert {len(loop.tokens(make_request(n))) for n in (1, 2)} == {30} and len(loop.tokens(make_request(3))) == 9


@pytest.mark.parametrize("depth", [1, 2])
def test_a_dead_end_fails_with_the_grammar_s_own_words_and_nobody_else_does(depth: int) -> None:
    bound, free = make_request(1, 5, 20, grammar=FakeGrammar(50, dead_end=3)), make_request(2, 5, 20)
    loop = Loop(bound, free, depth=depth).run()
    assert loop.end(bound) == Failed(1, "the grammar ends here", 500) and len(loop.tokens(bound)) == 3
    assert loop.tokens(free) == expected(free)[0]


def test_an_end_token_and_the_limit_end_a_text_under_a_grammar_too() -> None:
    ended = make_request(1, (7, END_AT + 4), 20, grammar=FakeGrammar(50))
    cut = make_request(2, 5, 1, grammar=FakeGrammar(50))
    both = make_request(3, 5, 3, grammar=FakeGrammar(3))
    loop = Loop(ended, cut, both).run()
    reasons = [loop.end(request).reason for request in (ended, cut, both)]  # type: ignore[union-attr]
    assert reasons == [FinishReason.STOP, FinishReason.LENGTH, FinishReason.STOP]
    assert loop.tokens(ended)[-1] == 0


def test_aborted_at_any_moment() -> None:
    for moment in range(8):
        loop = Loop(make_request(1, 3, 30, grammar=FakeGrammar(50)), make_request(2, 3, 6), depth=2)
        for _ in range(moment):
            loop.turn()
        loop.events += loop.scheduler.abort([1])
        loop.run()
        assert loop.tokens(make_request(2)) == expected(make_request(2, 3, 6))[0]


def test_a_step_that_fails_ends_the_rows_under_a_grammar_too() -> None:
    bound, free = make_request(1, 3, 9, grammar=FakeGrammar(50)), make_request(2, 3, 9)
    loop = Loop(bound, free)
    for _ in range(3):
        loop.turn()
    plan = loop.scheduler.plan()
    assert plan is not None and len(plan.decode) == 2, "both decode"
    loop.events += loop.scheduler.fail_step(plan, "broken")
    assert [loop.end(request) for request in (bound, free)] == [Failed(n, "broken", 500) for n in (1, 2)]
    assert not loop.scheduler.busy and loop.scheduler.free_slots == 4


def test_masks_that_take_long_are_worked_out_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    # However long the gate stays closed, the first mask shows a quick grammar.
    monkeypatch.setattr(masks, "SLOW", 60.0)
    grammar = FakeGrammar(50, slow=True)
    bound, free = make_request(1, 3, 3, grammar=grammar), make_request(2, 3, 40)
    loop = Loop(bound, free)
    grammar.gate.clear()
    for _ in range(10):
        loop.turn()
    assert steps_of(loop.plans, 0) == [0] and len(steps_of(loop.plans, 1)) == 10, "the others go on without it"
    grammar.gate.set()
    loop.run()
    assert grammar.threads[0] == "albatross-masks" and loop.tokens(bound) == expected(bound)[0]
    assert threading.current_thread().name in grammar.threads, "a grammar that was found quick is not kept aside"


def test_with_nothing_else_to_do_masks_are_waited_for() -> None:
    grammar = FakeGrammar(5, slow=True)
    loop = Loop(make_request(1, 3, 30, grammar=grammar), depth=2).run()
    assert len(loop.plans) == 5


def test_a_mask_that_took_long_puts_its_grammar_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(x * 0.01 for x in range(10_000))
    monkeypatch.setattr(masks, "perf_counter", lambda: next(now))
    grammar = FakeGrammar(50)
    loop = Loop(make_request(1, 3, 6, grammar=grammar)).run()
    assert grammar.slow and grammar.threads == [threading.current_thread().name] + ["albatross-masks"] * 4
    assert len(loop.plans) == 6


def test_more_masks_than_a_step_has_time_for_are_left_for_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masks, "BUDGET", 0.0)
    requests = [make_request(number, 3, 6, grammar=FakeGrammar(50)) for number in (1, 2, 3)]
    loop = Loop(*requests).run()
    assert max(len(plan.decode) for plan in loop.plans) == 1
    assert all(loop.tokens(request) == expected(request)[0] for request in requests)


@pytest.mark.parametrize("depth", [1, 2])
def test_through_an_engine(depth: int) -> None:
    with stage("grammar") as opened, engine(make_config(batch=8), stage="grammar", depth=depth) as core:
        opened.open()
        pairs = [submit_one(core, prompt=4, max_tokens=40, grammar=FakeGrammar(9 + n)) for n in range(4)]
        pairs += [submit_one(core, prompt=4, max_tokens=40) for _ in range(4)]
        for request, completion in pairs:
            found = read_sync(completion)
            tokens, reason = expected(request)
            assert tokens_of(found) == tokens
            (end,) = ends_of(found)
            assert isinstance(end, Finished) and end.reason is reason
