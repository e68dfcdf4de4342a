from __future__ import annotations

import pytest
from engine.fake_executor import END_AT, expected, make_request
from engine.running import make_config

from albatross_plugin.config import EngineConfig
from albatross_plugin.engine.feeder import fair_shares
from albatross_plugin.engine.messages import Event, Failed, Finished, Tokens
from albatross_plugin.engine.request import FinishReason, Request
from albatross_plugin.engine.scheduler import Scheduler
from albatross_plugin.engine.sequence import Category
from albatross_plugin.engine.step import StepPlan, StepResult


def make_scheduler(*requests: Request, **values: int) -> Scheduler:
    scheduler = Scheduler(make_config(**values))
    for request in requests:
        scheduler.add(request)
    return scheduler


def plan(scheduler: Scheduler) -> StepPlan:
    made = scheduler.plan()
    assert made is not None
    return made


def answer(scheduler: Scheduler, step: StepPlan, token: int = 9) -> list[Event]:
    return scheduler.apply(StepResult(step.step, [token] * len(step.sampled)))


def step(scheduler: Scheduler) -> StepPlan:
    """Plan and answer one step."""
    made = plan(scheduler)
    answer(scheduler, made)
    return made


def fed(step: StepPlan) -> dict[int, int]:
    return {chunk.slot: len(chunk.token_ids) for chunk in step.prefill}


def decoding_scheduler(**values: int) -> Scheduler:
    """One row decodes without end, in slot 0."""
    scheduler = make_scheduler(make_request(1, 1, 10**6), **values)
    step(scheduler)
    return scheduler


def test_nothing_to_do_is_no_step() -> None:
    assert make_scheduler().plan() is None


def test_req_47_categories_stand_in_the_article_s_order() -> None:
    assert [category.name for category in sorted(Category)] == ["DECODE", "ONE_PREFILL", "SUSPENDED", "SEQ_PREFILL", "FINISHED", "EMPTY"]


def test_req_47_every_category_and_the_order_of_rows() -> None:
    scheduler = decoding_scheduler(batch=6, max_prefill_count=8)
    scheduler.add(make_request(2, 40))
    scheduler.add(make_request(3, 5))
    scheduler.add(make_request(4, 3, 1))
    made = step(scheduler)
    assert made.decode == [0]
    assert [chunk.slot for chunk in made.prefill] == [2, 3, 1], "single tokens first, then long prompts"
    scheduler.add(make_request(5, 300))
    made = step(scheduler)
    assert fed(made) == {2: 1, 3: 1}
    last = plan(scheduler)
    assert fed(last) == {2: 1, 3: 1} and last.prefill[1].final
    kinds = [Category.DECODE, Category.DECODE, Category.ONE_PREFILL, Category.FINISHED, Category.SUSPENDED, Category.EMPTY]
    assert scheduler.categories() == kinds
    answer(scheduler, last)
    assert scheduler.categories()[3] is Category.EMPTY


def test_req_45_an_idle_engine_fills_every_slot_in_one_pass() -> None:
    scheduler = make_scheduler(*(make_request(n, 20) for n in range(1, 19)), batch=16)
    made = plan(scheduler)
    assert [admission.slot for admission in made.admit] == list(range(16))
    assert len(made.sampled) == 16 and scheduler.waiting == 2


@pytest.mark.parametrize(("batch", "setting", "admitted"), [(4, 0, 1), (16, 0, 2), (32, 0, 4), (16, 5, 5)])
def test_req_46_admissions_are_limited_while_rows_decode(batch: int, setting: int, admitted: int) -> None:
    scheduler = decoding_scheduler(batch=batch, max_prefill_count=setting)
    for number in range(2, 40):
        scheduler.add(make_request(number, 3))
    assert len(step(scheduler).admit) == admitted


def test_req_56_a_short_prompt_is_fed_one_token_a_step_beside_decoding_rows() -> None:
    scheduler = decoding_scheduler()
    scheduler.add(make_request(2, 9))
    sizes = [fed(step(scheduler)) for _ in range(9)]
    assert sizes == [{1: 1}] * 9
    assert plan(scheduler).decode == [0, 1]


def test_req_55_a_long_prompt_is_fed_once_per_ratio_and_at_most_a_chunk() -> None:
    scheduler = decoding_scheduler(decode_prefill_ratio=5)
    scheduler.add(make_request(2, 250))
    sizes = [fed(step(scheduler)).get(1, 0) for _ in range(14)]
    assert sizes == [100, 0, 0, 0, 0, 0, 100, 0, 0, 0, 0, 0, 50, 0]


def test_long_prompts_beside_decoding_rows_share_the_budget() -> None:
    scheduler = decoding_scheduler(batch=8, max_prefill_count=8, prefill_budget=64)
    for number in range(2, 6):
        scheduler.add(make_request(number, 200 if number > 2 else 12))
    sizes = fed(step(scheduler))
    assert sizes[1] == 12 and sum(sizes.values()) == 64
    assert max(sizes.values()) - min(sizes[slot] for slot in (2, 3, 4)) <= 1


def test_a_short_prompt_never_waits_for_a_long_one() -> None:
    scheduler = make_scheduler(make_request(1, 5000), make_request(2, 30), make_request(3, 2), prefill_budget=128)
    made = plan(scheduler)
    assert fed(made) == {0: 96, 1: 30, 2: 2}
    assert made.sampled == [1, 2]


def test_an_idle_engine_takes_a_long_prompt_in_whole_passes() -> None:
    assert fed(plan(make_scheduler(make_request(1, 5000)))) == {0: 512}


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_a_chunk_that_was_set_holds_in_an_idle_engine_too(chunk: int) -> None:
    scheduler = make_scheduler(make_request(1, 150), prefill_chunk=chunk)
    sizes = []
    while scheduler.categories() != [Category.DECODE] + [Category.EMPTY] * 3:
        sizes.append(fed(step(scheduler))[0])
    assert max(sizes) == min(chunk, 150) and sum(sizes) == 150 and len(sizes) == -(-150 // chunk)


def test_more_prompts_than_tokens_in_a_pass_all_make_progress() -> None:
    scheduler = make_scheduler(*(make_request(n, 4, 10**6) for n in range(1, 9)), batch=8, prefill_budget=3, min_forward_seq_len=10)
    steps = [step(scheduler) for _ in range(40)]
    assert all(sum(fed(each).values()) <= 3 for each in steps)
    assert steps[-1].decode == list(range(8))


def test_a_budget_of_one_starves_neither_long_nor_short_prompts() -> None:
    scheduler = decoding_scheduler(batch=8, prefill_budget=1, decode_prefill_ratio=1, max_prefill_count=8)
    scheduler.add(make_request(2, 40, 10**6))
    for number in range(3, 200):
        scheduler.add(make_request(number, 3, 1))
    for _ in range(600):
        if 1 in step(scheduler).decode:
            break
    assert scheduler.categories()[1] is Category.DECODE
    assert scheduler.waiting < 150


def test_fair_shares_add_up() -> None:
    assert fair_shares([1, 5, 100, 100], 64) == [1, 5, 29, 29]
    assert fair_shares([2, 2], 100) == [2, 2]
    assert fair_shares([1, 1, 1], 2) == [0, 1, 1]
    assert fair_shares([], 5) == []


def admitted_ids(scheduler: Scheduler, count: int) -> list[int]:
    """Whom a single slot serves, in order; each request takes one step."""
    order = []
    for _ in range(count):
        order += [admission.request.request_id for admission in step(scheduler).admit]
    return order


def test_r31_lower_priority_numbers_first() -> None:
    requests = [make_request(n, 1, 1, priority=p) for n, p in ((1, 5), (2, 0), (3, -1), (4, 0))]
    assert admitted_ids(make_scheduler(*requests, batch=1), 4) == [3, 2, 4, 1]


def test_groups_of_one_priority_take_turns() -> None:
    requests = [make_request(n, 1, 1, group=1) for n in range(1, 6)]
    requests += [make_request(11, 1, 1, group=2), make_request(21, 1, 1, group=3), make_request(12, 1, 1, group=2)]
    assert admitted_ids(make_scheduler(*requests, batch=1), 8) == [1, 11, 21, 2, 12, 3, 4, 5]


def test_free_slots_are_taken_lowest_first() -> None:
    scheduler = make_scheduler(*(make_request(n, 1, 10**6) for n in range(1, 5)))
    step(scheduler)
    scheduler.abort([2, 1, 4])
    scheduler.add(make_request(5, 1))
    assert [admission.slot for admission in step(scheduler).admit] == [0]


def test_events_of_a_whole_life() -> None:
    scheduler = make_scheduler(make_request(1, 3, 2))
    assert answer(scheduler, plan(scheduler), 11) == [Tokens([1], [11])]
    assert answer(scheduler, plan(scheduler), 12) == [Tokens([1], [12]), Finished(1, FinishReason.LENGTH, 3, 2)]
    assert not scheduler.busy and scheduler.plan() is None and scheduler.free_slots == 4


def test_a_pipelined_row_is_continued_before_its_token_is_known() -> None:
    scheduler = make_scheduler(make_request(1, 3, 3))
    first, second = plan(scheduler), plan(scheduler)
    assert second.decode == [0]
    answer(scheduler, first)
    third = plan(scheduler)
    assert third.decode == [0]
    assert scheduler.plan() is None, "three tokens are planned, and three is the limit"
    answer(scheduler, second)
    assert answer(scheduler, third)[-1] == Finished(1, FinishReason.LENGTH, 3, 3)


def test_a_stop_that_is_seen_late_costs_one_token_which_nobody_sees() -> None:
    scheduler = make_scheduler(make_request(1, 3, 50))
    first, second = plan(scheduler), plan(scheduler)
    assert answer(scheduler, first, 0)[-1] == Finished(1, FinishReason.STOP, 3, 1)
    assert answer(scheduler, second, 33) == []
    assert scheduler.plan() is None


@pytest.mark.parametrize("how", ["stop", "length", "abort"])
def test_a_result_is_never_credited_to_the_next_holder_of_the_slot(how: str) -> None:
    scheduler = make_scheduler(make_request(1, 3, 2 if how == "length" else 50), make_request(2, 3, 2), batch=1)
    first, second = plan(scheduler), plan(scheduler)
    events: list[Event] = []
    if how == "abort":
        events += scheduler.abort([1])
    else:
        events += answer(scheduler, first, 0 if how == "stop" else 9)
    third = plan(scheduler)
    assert [admission.slot for admission in third.admit] == [0]
    if how == "abort":
        events += answer(scheduler, first)
    events += answer(scheduler, second)
    assert [event for event in events if isinstance(event, Tokens) and 2 in event.request_ids] == []
    assert sum(isinstance(event, Finished) and event.request_id == 1 for event in events) == 1
    assert answer(scheduler, third, 44) == [Tokens([2], [44])]


def test_r24_aborts_in_the_queue_in_prefill_and_in_decode() -> None:
    scheduler = make_scheduler(make_request(1, 2, 50), make_request(2, 5000, 50), make_request(3, 4), batch=2)
    made = plan(scheduler)
    assert scheduler.abort([3, 77]) == [Finished(3, FinishReason.ABORT, 4, 0)]
    answer(scheduler, made)
    assert scheduler.abort([2, 2]) == [Finished(2, FinishReason.ABORT, 5000, 0)]
    assert scheduler.abort([1]) == [Finished(1, FinishReason.ABORT, 2, 1)]
    assert scheduler.abort([1, 2, 3]) == []
    assert scheduler.plan() is None and scheduler.free_slots == 2


def test_a_failed_step_ends_its_requests_only() -> None:
    scheduler = make_scheduler(make_request(1, 2, 50), make_request(2, 2, 50), make_request(3, 2, 1), batch=2)
    made = plan(scheduler)
    assert scheduler.fail_step(made, "no memory") == [Failed(1, "no memory", 500), Failed(2, "no memory", 500)]
    made = plan(scheduler)
    assert answer(scheduler, made)[-1] == Finished(3, FinishReason.LENGTH, 2, 1)


def test_a_failed_row_ends_alone() -> None:
    scheduler = make_scheduler(make_request(1, 2, 50), make_request(2, 2, 50))
    made = plan(scheduler)
    events = scheduler.apply(StepResult(made.step, [9, 9], failures={0: "not finite"}))
    assert events == [Tokens([2], [9]), Failed(1, "not finite", 500)]
    assert plan(scheduler).decode == [1]


def test_fail_all_ends_everybody() -> None:
    scheduler = make_scheduler(*(make_request(n, 2, 50) for n in range(1, 7)))
    first, second = plan(scheduler), plan(scheduler)
    assert {event.request_id for event in scheduler.fail_all("gone") if isinstance(event, Failed) and event.status == 503} == set(
        range(1, 7)
    )
    assert not scheduler.busy and scheduler.free_slots == 4
    assert answer(scheduler, first) == [] and answer(scheduler, second) == []


def test_a_request_is_added_once() -> None:
    scheduler = make_scheduler(make_request(1))
    with pytest.raises(AssertionError, match="added twice"):
        scheduler.add(make_request(1))


@pytest.mark.parametrize("length", [1, 2, 9, 10, 11, 15, 16, 17, 31, 32, 33, 166])
def test_sch_4_prompt_lengths_round_the_chunk_are_fed_once_and_in_order(length: int) -> None:
    for busy in (False, True):
        config = {"prefill_chunk": 16, "batch": 4}
        scheduler = decoding_scheduler(**config) if busy else make_scheduler(**config)
        request = make_request(2, length, 1)
        scheduler.add(request)
        seen: list[int] = []
        events: list[Event] = []
        while Finished(2, FinishReason.LENGTH, length, 1) not in events:
            assert len(seen) <= length
            made = plan(scheduler)
            seen += [token for chunk in made.prefill for token in chunk.token_ids]
            events = answer(scheduler, made)
        assert tuple(seen) == request.prompt_ids


def test_settings_keep_their_rules() -> None:
    assert EngineConfig().chunk_limit(True) == 100
    assert EngineConfig().chunk_limit(False) == EngineConfig().pass_budget
    assert EngineConfig(prefill_chunk=7).chunk_limit(True) == EngineConfig(prefill_chunk=7).chunk_limit(False) == 7


def test_the_helpers_tell_ends() -> None:
    assert expected(make_request(1, (3, END_AT + 1), 9))[1] is FinishReason.STOP


def test_rows_that_go_on_decoding_are_the_same_list_until_somebody_joins_or_leaves() -> None:
    scheduler = make_scheduler(make_request(1, 1, 100), make_request(2, 1, 5))
    step(scheduler)
    first, second = step(scheduler), step(scheduler)
    assert first.decode is second.decode == [0, 1]
    ids = [answer(scheduler, plan(scheduler))[0].request_ids for _ in range(2)]  # type: ignore[union-attr]
    assert scheduler.categories()[1] is Category.EMPTY, "its five tokens are there"
    assert ids == [[1, 2], [1, 2]]
    alone = step(scheduler)
    assert alone.decode == [0] and step(scheduler).decode is alone.decode
    scheduler.add(make_request(3, 2, 9))
    assert step(scheduler).decode is alone.decode, "a prompt beside them changes nothing for them"
    assert step(scheduler).decode is alone.decode
    assert step(scheduler).decode == [0, 1]


def test_counts_are_right_for_a_group_that_ran_long() -> None:
    scheduler = make_scheduler(*(make_request(n, 1, 40 + n) for n in range(1, 4)))
    ends: list[Event] = []
    flying = [plan(scheduler)]
    while flying:
        following = scheduler.plan()
        flying += [following] if following is not None else []
        ends += [event for event in answer(scheduler, flying.pop(0)) if isinstance(event, Finished)]
    assert ends == [Finished(n, FinishReason.LENGTH, 1, 40 + n) for n in range(1, 4)]


def test_a_stop_token_of_one_row_ends_that_row_alone() -> None:
    scheduler = make_scheduler(make_request(1, 1, 90, stop_token_ids=frozenset({77})), make_request(2, 1, 90))
    for _ in range(10):
        step(scheduler)
    assert answer(scheduler, plan(scheduler), 77) == [Tokens([1, 2], [77, 77]), Finished(1, FinishReason.STOP, 1, 11)]
    for _ in range(5):
        step(scheduler)
    assert scheduler.abort([2]) == [Finished(2, FinishReason.ABORT, 1, 16)]


def test_running_streams_are_in_every_pass_while_a_long_prompt_comes_in() -> None:
    scheduler = make_scheduler(*(make_request(n, 1, 10**6) for n in range(1, 65)), batch=65)
    step(scheduler)
    scheduler.add(make_request(100, 512, 1))
    for _ in range(40):
        made = plan(scheduler)
        assert made.decode == list(range(64)), "every stream gets its token in every pass"
        assert sum(fed(made).values()) <= 100, "and no pass is longer than one chunk makes it"
        if any(isinstance(event, Finished) for event in answer(scheduler, made)):
            return
    raise AssertionError("the prompt did not get through")
