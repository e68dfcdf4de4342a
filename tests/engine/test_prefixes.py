"""Prompts that requests share: fed once, and nobody waits for ever or gets what is not its own when one of them ends or a step fails."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from engine.fake_executor import POISON_AT, FakeExecutor, expected, make_request
from engine.running import make_config, make_specs

from albatross_plugin.engine.messages import Event, Failed, Finished, Tokens
from albatross_plugin.engine.request import FinishReason, Request
from albatross_plugin.engine.scheduler import Scheduler
from albatross_plugin.engine.step import StepPlan

PROMPT = tuple(range(100, 140))
KEY = (1, 0)


class Life:
    """A scheduler and an executor that checks what it is fed."""

    def __init__(self, batch: int = 4, kept: int = 2, depth: int = 2, **config: Any) -> None:
        self.config = make_config(batch=batch, **{"prefill_chunk": 8, "prefill_budget": 64, **config})
        self.executor = FakeExecutor(make_specs(self.config, depth=depth, kept=kept)[0], lambda loaded, total: None)
        self.scheduler = Scheduler(self.config, kept)
        self.depth = depth
        self.flying: deque[tuple[StepPlan, Any]] = deque()
        self.requests: dict[int, Request] = {}
        self.tokens: dict[int, list[int]] = {}
        self.ended: dict[int, Finished | Failed] = {}
        self.fed = 0
        self.plans: list[StepPlan] = []

    def add(self, count: int = 1, prompt: tuple[int, ...] = PROMPT, key: tuple[int, int] | None = KEY, **more: Any) -> list[int]:
        numbers = []
        for _ in range(count):
            number = len(self.requests) + 1
            self.requests[number] = make_request(number, prompt, **{"max_tokens": 3, **more}, shared=key)
            self.tokens[number] = []
            self.scheduler.add(self.requests[number])
            numbers.append(number)
        return numbers

    def launch(self) -> StepPlan | None:
        plan = self.scheduler.plan()
        if plan is not None:
            self.flying.append((plan, self.executor.launch(plan)))
            self.plans.append(plan)
            self.fed += sum(len(chunk.token_ids) for chunk in plan.prefill)
        return plan

    def collect(self, failure: str = "") -> None:
        plan, ticket = self.flying.popleft()
        result = self.executor.collect(ticket)
        self.note(self.scheduler.fail_step(plan, failure) if failure else self.scheduler.apply(result))

    def note(self, events: list[Event]) -> None:
        for event in events:
            if isinstance(event, Tokens):
                for number, token in zip(event.request_ids, event.token_ids, strict=True):
                    assert number not in self.ended
                    self.tokens[number].append(token)
            elif isinstance(event, (Finished, Failed)):
                assert event.request_id not in self.ended
                self.ended[event.request_id] = event

    def abort(self, *numbers: int) -> None:
        self.note(self.scheduler.abort(numbers))

    def until(self, happened: Any) -> StepPlan:
        """Step by step up to the plan for which ``happened(plan)`` holds; it is in flight then."""
        for _ in range(200):
            if len(self.flying) >= self.depth:
                self.collect()
            plan = self.launch()
            if plan is not None and happened(plan):
                return plan
            if plan is None:
                self.collect()
        raise AssertionError("it never happened")

    def finish(self) -> None:
        """To the end of everything; whoever did not fail and was not aborted has said what it must."""
        for _ in range(1000):
            if not (self.scheduler.busy or self.flying):
                break
            launched = len(self.flying) < self.depth and self.launch() is not None
            if self.flying and not launched:
                self.collect()
        assert self.ended.keys() == self.requests.keys(), "somebody waits for ever"
        assert self.scheduler.free_slots == self.config.batch and self.scheduler.waiting == 0
        for number, end in self.ended.items():
            if isinstance(end, Finished) and end.reason is not FinishReason.ABORT:
                assert (self.tokens[number], end.reason) == expected(self.requests[number])
                assert end.prompt_tokens == len(self.requests[number].prompt_ids)

    def failed(self) -> set[int]:
        return {number for number, end in self.ended.items() if isinstance(end, Failed)}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("batch", [1, 4, 16])
def test_a_shared_prompt_is_fed_once_and_its_last_token_by_everybody(batch: int, depth: int) -> None:
    life = Life(batch, depth=depth)
    life.add(12)
    life.finish()
    assert not life.failed()
    assert life.fed == len(PROMPT) - 1 + 12


def test_without_rows_everybody_feeds_its_own() -> None:
    life = Life(kept=0)
    life.add(5)
    life.finish()
    assert not life.failed() and life.fed == 5 * len(PROMPT)


def test_one_alone_feeds_its_prompt_in_one_go() -> None:
    life = Life(prefill_chunk=0)
    life.add(1)
    life.finish()
    assert [len(chunk.token_ids) for plan in life.plans for chunk in plan.prefill] == [len(PROMPT)]
    assert all(not plan.keep and not plan.copy for plan in life.plans)


def test_rows_are_for_so_many_prompts_at_a_time_and_come_back() -> None:
    life = Life(batch=8, kept=2)
    for number in range(4):
        life.add(3, tuple(range(1000 * number + 1, 1000 * number + 31)), (number + 1, 0))
    life.finish()
    assert not life.failed()
    assert 4 * 30 < life.fed < 12 * 30, "two of the four prompts are shared"
    before = life.fed
    life.add(3, tuple(range(9001, 9031)), (9, 0))
    life.finish()
    assert life.fed - before == 29 + 3


def test_late_comers_copy_what_is_kept() -> None:
    life = Life(batch=2)
    life.add(2)
    life.until(lambda plan: plan.keep)
    late = life.add(6)
    life.finish()
    assert not life.failed() and life.fed == len(PROMPT) - 1 + 8
    assert all(len(life.tokens[number]) == 3 for number in late)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_leader_that_ends_is_followed_by_the_next(depth: int) -> None:
    life = Life(depth=depth)
    first, *others = life.add(4)
    life.until(lambda plan: plan.prefill)
    life.abort(first)
    life.finish()
    assert not life.failed() and all(len(life.tokens[number]) == 3 for number in others)


def test_followers_that_end_are_forgotten() -> None:
    life = Life()
    numbers = life.add(4)
    life.until(lambda plan: plan.prefill)
    life.abort(*numbers[1:3])
    life.finish()
    assert not life.failed() and len(life.tokens[numbers[3]]) == 3
    assert life.fed == len(PROMPT) - 1 + 2


def test_a_follower_that_ended_leads_nobody() -> None:
    life = Life()
    numbers = life.add(4)
    life.until(lambda plan: plan.prefill)
    life.abort(numbers[1])
    life.abort(numbers[0])
    life.finish()
    assert not life.failed() and all(len(life.tokens[number]) == 3 for number in numbers[2:])


def test_all_of_them_may_end_at_once() -> None:
    life = Life()
    numbers = life.add(8)
    life.until(lambda plan: plan.prefill)
    life.abort(*numbers)
    life.add(3)
    life.finish()
    assert life.failed() == set()


def test_a_leader_that_ends_after_its_prompt_was_kept_takes_nothing_with_it() -> None:
    life = Life()
    first, *others = life.add(6)
    life.until(lambda plan: plan.keep)
    life.abort(first)
    life.finish()
    assert not life.failed() and all(len(life.tokens[number]) == 3 for number in others)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_step_that_should_keep_and_fails_ends_those_who_copied_and_no_others(depth: int) -> None:
    life = Life(batch=4, depth=depth)
    numbers = life.add(7)
    life.until(lambda plan: plan.keep)
    while len(life.flying) > 1:
        life.collect()
    if depth > 1:
        # The next step copies the state before anybody knows that the one before it failed.
        plan = life.launch()
        assert plan is not None and len(plan.copy) == 3
    life.collect("broken")
    # Who has not copied anything yet waits for the next one to feed the prompt.
    lost = set(numbers[: 4 if depth > 1 else 1])
    assert life.failed() == lost
    life.finish()
    assert life.failed() == lost and all(len(life.tokens[number]) == 3 for number in set(numbers) - lost)


def test_a_leader_whose_row_fails_is_no_source_for_the_others() -> None:
    """Its start state did not fit, say: the executor tells that with the row, in the very step that keeps it."""
    life = Life(batch=4, depth=2, prefill_chunk=0)
    numbers = life.add(6)
    plan = life.until(lambda plan: plan.keep)
    following = life.launch()
    assert following is not None and following.copy
    flown, ticket = life.flying.popleft()
    assert flown is plan
    result = life.executor.collect(ticket)
    result.failures[plan.keep[0].slot] = "its state does not fit"
    life.note(life.scheduler.apply(result))
    assert life.failed() == set(numbers[:4]), "the leader, and the three who copied it"
    life.finish()
    assert all(len(life.tokens[number]) == 3 for number in numbers[4:])


def test_an_error_at_a_token_is_each_request_s_own() -> None:
    life = Life()
    life.add(4, (*PROMPT, POISON_AT + 1))
    life.finish()
    assert len(life.failed()) == 4 and all(len(life.tokens[number]) == 1 for number in life.failed())


def test_prompt_logprobs_need_the_prompt_s_own_feeding() -> None:
    life = Life()
    life.add(2, logprobs=0, prompt_logprobs=True)
    life.finish()
    assert not life.failed() and life.fed == 2 * len(PROMPT)


def test_a_prompt_of_one_token_is_not_shared() -> None:
    life = Life()
    life.add(5, (7,))
    life.finish()
    assert not life.failed() and life.fed == 5


@pytest.mark.parametrize("copied", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_a_leader_whose_earlier_piece_failed_leaves_no_state_that_counts(whole: bool, copied: bool) -> None:
    """The step that keeps the state is in flight when the one before it, with the beginning of the prompt, turns out to have failed."""
    life = Life(batch=4, depth=3, prefill_chunk=20)
    numbers = life.add(7)
    keeping = life.until(lambda plan: plan.keep)
    if copied:
        plan = life.launch()
        assert plan is not None and len(plan.copy) == 3
    before, ticket = life.flying.popleft()
    assert before.prefill and life.flying[0][0] is keeping
    result = life.executor.collect(ticket)
    result.failures[before.prefill[0].slot] = "broken"
    life.note(life.scheduler.fail_step(before, "broken") if whole else life.scheduler.apply(result))
    # The leader; the three others where they have copied, or were admitted by the step that failed.
    lost = set(numbers[: 4 if whole or copied else 1])
    assert life.failed() == lost
    plan = life.launch()
    assert plan is not None and not plan.copy and plan.prefill[0].token_ids == PROMPT[:20], "the next one begins anew"
    life.finish()
    assert life.failed() == lost and all(len(life.tokens[number]) == 3 for number in set(numbers) - lost)


def test_who_copied_in_a_step_that_failed_fails_also_where_it_was_to_be_fed_later() -> None:
    """A pass with few tokens has no room for all who copied before it."""
    life = Life(batch=4, depth=1, prefill_budget=2)
    _, *others = life.add(4)
    plan = life.until(lambda plan: plan.copy)
    assert len(plan.copy) == 3 and len(plan.prefill) == 2
    life.collect("broken")
    assert life.failed() >= set(others)
    failed, late = life.failed(), life.add(2)
    life.finish()
    assert life.failed() == failed and all(len(life.tokens[number]) == 3 for number in late)
