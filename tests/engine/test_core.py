from __future__ import annotations

import asyncio
import random
import threading
import time
from typing import Any

import pytest
from engine.fake_executor import END_AT, POISON_AT, expected, make_request
from engine.running import Engine, ends_of, engine, eventually, make_config, read, read_sync, stage, submit_one, tokens_of

from albatross_plugin.engine.core import AsyncEngineCore
from albatross_plugin.engine.messages import Failed, Finished, PromptLogprobs
from albatross_plugin.engine.request import FinishReason, Request
from albatross_plugin.engine.worker import describe
from albatross_plugin.errors import EngineInitError, EngineInitTimeout, RequestError


@pytest.mark.parametrize("depth", [1, 2])
def test_one_request_gets_its_tokens_and_one_end(depth: int) -> None:
    with engine(depth=depth) as core:
        request, completion = submit_one(core, max_tokens=7)
        deliveries = read_sync(completion)
        tokens, reason = expected(request)
        assert tokens_of(deliveries) == tokens
        assert ends_of(deliveries) == [Finished(request.request_id, reason, 5, 7)]
        assert completion.next_events_sync() == []


@pytest.mark.parametrize("depth", [1, 2])
def test_stop_tokens_limits_and_their_counts(depth: int) -> None:
    with engine(depth=depth) as core:
        cases: list[tuple[Request, FinishReason, int]] = []

        def case(reason: FinishReason, count: int, prompt: tuple[int, ...], **more: object) -> None:
            cases.append((make_request(core.next_request_id(), prompt, **more), reason, count))  # type: ignore[arg-type]

        stop = expected(make_request(1, (7, 8, 9), 5))[0][2]
        case(FinishReason.STOP, 4, (4, END_AT + 3), max_tokens=50)
        case(FinishReason.STOP, 1, (4, END_AT), max_tokens=50)
        case(FinishReason.LENGTH, 50, (4, END_AT + 3), max_tokens=50, ignore_eos=True)
        case(FinishReason.STOP, 4, (4, END_AT + 3), max_tokens=50, ignore_eos=True, stop_token_ids=frozenset({0}))
        case(FinishReason.STOP, 3, (7, 8, 9), max_tokens=50, stop_token_ids=frozenset({stop}))
        case(FinishReason.STOP, 3, (7, 8, 9), max_tokens=3, stop_token_ids=frozenset({stop}))
        case(FinishReason.LENGTH, 2, (7, 8, 9), max_tokens=2, stop_token_ids=frozenset({stop}))
        case(FinishReason.LENGTH, 1, (7, 8, 9), max_tokens=1)
        deliveries = read_sync(core.submit([request for request, _, _ in cases], loop=None))
        for index, (request, reason, count) in enumerate(cases):
            assert ends_of(deliveries, index) == [Finished(request.request_id, reason, len(request.prompt_ids), count)]
            assert tokens_of(deliveries, index) == expected(request)[0]


@pytest.mark.parametrize("batch", [10**8, 10**12, 10**30])
def test_str_1_slots_cost_nothing_before_they_are_used(batch: int) -> None:
    started = time.monotonic()
    with engine(make_config(batch=batch)) as core:
        requests = [make_request(core.next_request_id()) for _ in range(20)]
        deliveries = read_sync(core.submit(requests, loop=None))
        assert all(tokens_of(deliveries, index) == expected(request)[0] for index, request in enumerate(requests))
    assert time.monotonic() - started < 2


def test_a_worker_outlives_figures_that_cannot_be_had() -> None:
    with engine(memory_error=True) as core:
        for _ in range(2):
            request, completion = submit_one(core)
            assert tokens_of(read_sync(completion)) == expected(request)[0]
        assert core.status()["phase"] == "ready"


def test_logprobs_and_prompt_logprobs_come_with_their_tokens() -> None:
    with engine(make_config(prefill_chunk=3)) as core:
        request, completion = submit_one(core, prompt=8, max_tokens=3, logprobs=0, prompt_logprobs=True)
        _, other = submit_one(core)
        deliveries = read_sync(completion)
        first = deliveries[0].event
        assert isinstance(first, PromptLogprobs)
        assert [entry.token_id for entry in first.entries] == list(request.prompt_ids[1:])
        numbers = [entry for _, event in deliveries[1:-1] for entry in event.logprobs]  # type: ignore[union-attr]
        assert [entry.token_id for entry in numbers] == expected(request)[0]
        assert all(event.logprobs is None for _, event in read_sync(other)[:-1])  # type: ignore[union-attr]


@pytest.mark.parametrize(("depth", "workers"), [(1, 1), (2, 1), (2, 2)])
def test_two_hundred_requests_with_aborts_at_random_moments(depth: int, workers: int) -> None:
    dice = random.Random(7)

    async def client(core: AsyncEngineCore) -> None:
        await asyncio.sleep(dice.random() * 0.02)
        count = dice.choice([1, 1, 3])
        requests = [make_request(core.next_request_id(), dice.randint(1, 40), dice.randint(1, 30)) for _ in range(count)]
        completion = core.submit(requests, loop=asyncio.get_running_loop())
        victim = dice.choice([None, None, dice.randrange(count)])
        if victim is not None:
            asyncio.get_running_loop().call_later(dice.random() * 0.02, completion.abort, victim)
        deliveries = await read(completion)
        for index, request in enumerate(requests):
            (end,) = ends_of(deliveries, index)
            assert isinstance(end, Finished)
            tokens, reason = expected(request)
            seen = tokens_of(deliveries, index)
            assert end.completion_tokens == len(seen) and seen == tokens[: len(seen)]
            if index != victim:
                assert seen == tokens and end.reason is reason

    async def main(core: AsyncEngineCore) -> None:
        await asyncio.gather(*(client(core) for _ in range(200)))

    with engine(make_config(batch=8, workers=workers), depth=depth) as core:
        asyncio.run(main(core))
        status = core.status()
        assert status["slots"] == {"total": 8 * workers, "active": 0}
        assert status["queue"]["length"] == 0
        assert status["requests"]["accepted"] == sum(status["requests"][k] for k in ("stop", "length", "abort"))


def test_many_loops_and_threads_at_once() -> None:
    failures: list[BaseException] = []

    def consumer(core: AsyncEngineCore, number: int) -> None:
        try:
            for _ in range(5):
                if number % 2:
                    request, completion = submit_one(core, max_tokens=12)
                    deliveries = read_sync(completion)
                else:

                    async def once() -> tuple[Request, list]:  # type: ignore[type-arg]
                        request, completion = submit_one(core, asyncio.get_running_loop(), max_tokens=12)
                        return request, await read(completion)

                    request, deliveries = asyncio.run(once())
                assert tokens_of(deliveries) == expected(request)[0]
        except BaseException as error:
            failures.append(error)

    with engine(make_config(batch=8), depth=2) as core:
        threads = [threading.Thread(target=consumer, args=(core, number)) for number in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)
    assert not failures


def test_req_40_a_backlog_is_handed_over_in_few_hops_and_the_first_token_at_once() -> None:
    hops: list[int] = []

    class Loop(asyncio.SelectorEventLoop):
        def call_soon_threadsafe(self, callback: Any, *args: Any, context: Any = None) -> asyncio.Handle:  # type: ignore[override]
            hops.append(1)
            return super().call_soon_threadsafe(callback, *args, context=context)

    async def main(core: AsyncEngineCore) -> None:
        requests = [make_request(core.next_request_id(), 3, 40) for _ in range(8)]
        completion = core.submit(requests, loop=asyncio.get_running_loop())
        first = await completion.next_events()
        assert len({index for index, _ in first}) == 8, "the first tokens of one step come together"
        await read(completion)

    loop = Loop()
    with engine(make_config(batch=8)) as core:
        loop.run_until_complete(asyncio.wait_for(main(core), 20))
    loop.close()
    assert len(hops) <= 45, "one hop per step at most, not one per request"


@pytest.mark.parametrize("where", ["fail_launch", "fail_collect"])
@pytest.mark.parametrize("depth", [1, 2])
def test_sch_1_a_failing_step_ends_its_requests_and_no_others(where: str, depth: int) -> None:
    options: dict[str, Any] = {where: [3], "depth": depth, "stage": "failing"}
    with stage("failing") as control, engine(make_config(batch=2), **options) as core:
        completions = [submit_one(core, max_tokens=20)[1] for _ in range(2)]
        assert control.launched.acquire(timeout=10)
        waiting = [submit_one(core, max_tokens=3) for _ in range(2)]
        control.open()
        for completion in completions:
            (end,) = ends_of(read_sync(completion))
            assert isinstance(end, Failed) and end.status == 500 and "3 failed" in end.message
        for request, completion in waiting:
            assert tokens_of(read_sync(completion)) == expected(request)[0]
        assert core.status()["phase"] == "ready"
        request, completion = submit_one(core)
        assert tokens_of(read_sync(completion)) == expected(request)[0]


@pytest.mark.parametrize("depth", [1, 2])
def test_smp_5_a_bad_row_ends_that_request_alone(depth: int) -> None:
    with engine(depth=depth) as core:
        requests = [make_request(core.next_request_id(), prompt, 9) for prompt in ((5, POISON_AT + 4), (1, 2, 3), (8, POISON_AT), (9,))]
        deliveries = read_sync(core.submit(requests, loop=None))
        for index, sampled in ((0, 4), (2, 0)):
            (end,) = ends_of(deliveries, index)
            assert isinstance(end, Failed) and end.status == 500 and "not finite" in end.message
            assert len(tokens_of(deliveries, index)) == sampled
        for index in (1, 3):
            assert tokens_of(deliveries, index) == expected(requests[index])[0]


@pytest.mark.parametrize("fault", [{"die": 3}, {"lose_launch": [3]}, {"lose_collect": [3]}])
def test_sch_1_a_dead_worker_ends_every_request_and_refuses_new_ones(fault: dict[str, object]) -> None:
    with engine(make_config(batch=2), **fault, depth=2) as core:
        completions = [submit_one(core, max_tokens=50)[1] for _ in range(6)]
        for completion in completions:
            (end,) = ends_of(read_sync(completion))
            assert isinstance(end, Failed) and end.status == 503 and "device is gone" in end.message
        eventually(lambda: core.status()["phase"] == "down")
        with pytest.raises(RequestError) as caught:
            submit_one(core)
        assert (caught.value.status, caught.value.code) == (503, "model_unavailable")
        assert core.status()["workers"][0]["phase"] == "down"
        assert "device is gone" in core.status()["workers"][0]["error"]


def test_the_engine_goes_on_with_the_workers_that_are_left() -> None:
    with stage("left") as control, engine(make_config(batch=1, workers=2), die=2, stage="left") as core:
        completions = [submit_one(core, max_tokens=2)[1] for _ in range(1)]
        control.open()
        assert len(tokens_of(read_sync(completions[0]))) == 2
        _, doomed = submit_one(core, max_tokens=2)
        assert isinstance(ends_of(read_sync(doomed))[0], Failed)
        eventually(lambda: core.status()["slots"]["total"] == 1)
        assert core.status()["phase"] == "ready"
        request, completion = submit_one(core, max_tokens=2)
        assert tokens_of(read_sync(completion)) == expected(request)[0]


def test_requests_go_to_the_worker_with_most_room() -> None:
    with stage("room") as control, engine(make_config(batch=2, workers=2), stage="room") as core:
        completion = core.submit([make_request(core.next_request_id()) for _ in range(2)], loop=None)
        eventually(lambda: len(control.prefilled()) == 2)
        _, other = submit_one(core)
        assert [len(plan.admit) for plan in control.plans] == [1, 1], "one for each worker"
        control.open()
        assert len(read_sync(completion)) == 10 and len(read_sync(other)) == 5


def test_r31_the_queue_has_a_bound_and_admission_is_all_or_nothing() -> None:
    with stage("bound") as control, engine(make_config(batch=1, max_queue=2), stage="bound") as core:
        completions = [submit_one(core)[1] for _ in range(2)]
        with pytest.raises(RequestError) as caught:
            core.submit([make_request(core.next_request_id()) for _ in range(2)], loop=None)
        assert (caught.value.status, caught.value.code) == (429, "queue_full")
        assert 1 <= int(caught.value.headers["Retry-After"]) <= 60
        completions.append(submit_one(core)[1])
        assert control.launched.acquire(timeout=20)
        assert core.status()["queue"]["limit"] == 2
        control.open()
        for completion in completions:
            assert isinstance(ends_of(read_sync(completion))[0], Finished)
        assert core.status()["requests"]["rejected"] == 2


def test_r24_an_abort_in_the_queue_is_seen_before_a_slot_is_free() -> None:
    with stage("queued") as control, engine(make_config(batch=1), stage="queued") as core:
        _, running = submit_one(core, max_tokens=3)
        assert control.launched.acquire(timeout=10)
        gone = [submit_one(core) for _ in range(20)]
        last, completion = submit_one(core)
        for _, each in gone:
            each.abort()
            each.abort()
        control.allow(1)
        for request, each in gone:
            assert ends_of(read_sync(each)) == [Finished(request.request_id, FinishReason.ABORT, 5, 0)]
        assert not ends_of(running.next_events_sync(5)), "the slot is still taken"
        control.open()
        assert tokens_of(read_sync(completion)) == expected(last)[0]
        assert control.prefilled().isdisjoint({request.request_id for request, _ in gone})
        eventually(lambda: core.status()["queue"]["length"] == 0)


def test_abt_1_an_abort_frees_the_slot_for_the_next() -> None:
    with engine(make_config(batch=1), depth=2) as core:
        _, endless = submit_one(core, max_tokens=10**9)
        assert endless.next_events_sync(10)
        request, completion = submit_one(core)
        endless.abort()
        assert tokens_of(read_sync(completion)) == expected(request)[0]
        (end,) = ends_of(read_sync(endless))
        assert isinstance(end, Finished) and end.reason is FinishReason.ABORT
        assert core.status()["slots"]["active"] == 0


def test_a_reader_whose_loop_was_closed_loses_its_slot() -> None:
    with stage("closing") as control, engine(make_config(batch=1), stage="closing") as core:
        loop = asyncio.new_event_loop()
        submit_one(core, loop, max_tokens=10**9)
        assert control.launched.acquire(timeout=10)
        loop.close()
        control.open()
        request, completion = submit_one(core)
        assert tokens_of(read_sync(completion)) == expected(request)[0]


def test_mem_3_shutdown_ends_running_and_queued_requests_though_a_step_hangs(caplog: pytest.LogCaptureFixture) -> None:
    with stage("hanging") as control:
        running = Engine(make_config(batch=2), stage="hanging")
        running.start()
        core = running.core
        core.join_seconds = 0.2
        completions = [submit_one(core)[1] for _ in range(8)]
        assert control.launched.acquire(timeout=10)
        began = time.monotonic()
        future = asyncio.run_coroutine_threadsafe(core.shutdown("the model was switched"), running.loop)
        for completion in completions:
            (end,) = ends_of(read_sync(completion))
            assert isinstance(end, Failed) and end.status == 503 and "switched" in end.message
        future.result(10)
        assert time.monotonic() - began < 5
        assert "did not stop" in caplog.text
        with pytest.raises(RequestError) as caught:
            submit_one(core)
        assert caught.value.status == 503
        control.open()
        eventually(lambda: not any(t.name.startswith("albatross-worker") for t in threading.enumerate()))
        running.stop()


def test_r10_shutdown_stops_every_worker_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with stage("threads") as control:
        control.open()
        running = Engine(make_config(workers=3), stage="threads", depth=2)
        running.start()
        names = {thread.name for thread in set(threading.enumerate()) - before}
        assert names == {"albatross-engine", "albatross-worker-0", "albatross-worker-1", "albatross-worker-2"}
        completions = [submit_one(running.core, max_tokens=10**9)[1] for _ in range(20)]
        running.call(running.core.shutdown())
        running.call(running.core.shutdown())
        assert {t.name for t in set(threading.enumerate()) - before} == {"albatross-engine"}
        assert control.closed == 3
        assert all(isinstance(ends_of(read_sync(completion))[0], Failed) for completion in completions)
        assert running.core.status()["phase"] == "closed"
        running.stop()
    assert set(threading.enumerate()) == before


def test_workers_that_are_faster_than_the_loop_do_not_starve_it() -> None:
    """What they send piles up meanwhile, but whoever else wants the loop gets a turn."""
    with stage("fast") as control:
        control.open()
        running = Engine(make_config(workers=3, batch=2), stage="fast", depth=2)
        running.start()
        for _ in range(6):
            submit_one(running.core, max_tokens=10**9)
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            began = time.monotonic()
            running.call(asyncio.sleep(0))
            assert time.monotonic() - began < 2
        running.call(running.core.shutdown())
        running.stop()
        eventually(lambda: not any(t.name.startswith("albatross") for t in threading.enumerate()))


def test_an_engine_loop_that_vanished_does_not_leave_readers_waiting() -> None:
    with stage("vanished") as control:
        running = Engine(make_config(batch=1), stage="vanished")
        running.start()
        request, completion = submit_one(running.core)
        running.stop_loop()
        control.open()
        assert tokens_of(read_sync(completion)) == expected(request)[0]
        running.core.join_seconds = 0.1
        other = asyncio.new_event_loop()
        other.run_until_complete(running.core.shutdown())
        other.close()
        eventually(lambda: not any(t.name.startswith("albatross-worker") for t in threading.enumerate()))


def test_an_engine_that_was_shut_down_does_not_start() -> None:
    running = Engine(make_config())
    running.call(running.core.shutdown())
    with pytest.raises(EngineInitError, match="unloaded"):
        running.start()
    with pytest.raises(RuntimeError, match="started before"):
        running.start()
    running.stop()
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("albatross")]


@pytest.mark.parametrize("error", ["MemoryError", "ImportError", "KeyError", "SystemExit"])
def test_r12_a_failed_load_is_reported_at_once_and_stops_the_others(error: str) -> None:
    before = set(threading.enumerate())
    with stage("healthy") as control:
        control.open()
        running = Engine(make_config(workers=2), load_error=error, only=1, stage="healthy")
        began = time.monotonic()
        with pytest.raises(EngineInitError, match=r"^Albatross engine initialization failed: .*cannot load this"):
            running.start()
        assert time.monotonic() - began < 5
        running.stop()
        assert set(threading.enumerate()) == before
        assert control.closed == 1, "the worker that had loaded was released"


def test_req_36_a_load_has_a_time_limit_and_is_called_off() -> None:
    before = set(threading.enumerate())
    with stage("stuck") as control:
        running = Engine(make_config(load_timeout=0.2), load_stage="stuck")
        running.core.join_seconds = 0.2
        with pytest.raises(EngineInitTimeout, match=r"^Albatross engine initialization timed out$"):
            running.start()
        assert running.core.status()["phase"] == "closed"
        control.open()
        running.stop()
    eventually(lambda: set(threading.enumerate()) == before)


def test_unloading_while_loading_ends_the_load() -> None:
    with stage("slow") as control:
        running = Engine(make_config(), load_stage="slow")
        starting = asyncio.run_coroutine_threadsafe(running.core.start(), running.loop)
        eventually(lambda: running.core.status()["loaded_bytes"] == 10)
        status = running.core.status()
        assert (status["phase"], status["total_bytes"]) == ("loading", 100)
        with pytest.raises(RequestError, match="loading"):
            submit_one(running.core)
        stopping = asyncio.run_coroutine_threadsafe(running.core.shutdown(), running.loop)
        eventually(lambda: running.core.status()["phase"] == "closed")
        control.open()
        stopping.result(10)
        with pytest.raises(EngineInitError, match="unloaded"):
            starting.result(10)
        running.stop()


def test_sch_6_an_idle_engine_costs_nothing() -> None:
    with engine(make_config(workers=2)) as core:
        read_sync(submit_one(core)[1])
        began, used = time.monotonic(), time.process_time()
        threading.Event().wait(1.0)
        assert time.process_time() - used < 0.02 * (time.monotonic() - began)


def test_r29_a_burst_shares_one_pass_and_a_lone_request_hardly_waits() -> None:
    with stage("burst") as control, engine(make_config(batch=16, gather_ms=50.0), stage="burst") as core:
        control.open()
        completions = [submit_one(core)[1] for _ in range(16)]
        for completion in completions:
            read_sync(completion)
        assert len(control.plans[0].admit) == 16
    with engine(make_config(gather_ms=4.0)) as core:
        waits = []
        for _ in range(20):
            began = time.monotonic()
            submit_one(core)[1].next_events_sync(5)
            waits.append(time.monotonic() - began)
        assert sorted(waits)[10] < 0.03


def test_req_54_status_carries_the_figures() -> None:
    with stage("figures") as control, engine(make_config(batch=2), stage="figures") as core:
        completion = core.submit([make_request(core.next_request_id(), 6, 5) for _ in range(3)], loop=None)
        control.allow(1)
        completion.next_events_sync(10)
        status = core.status()
        assert status["phase"] == "ready"
        assert status["slots"] == {"total": 2, "active": 2}
        assert status["queue"]["length"] == 1 and status["queue"]["oldest_wait_s"] >= 0
        control.open()
        read_sync(completion)
        eventually(lambda: core.status()["workers"][0].get("active") == 0)
        status = core.status()
        assert status["tokens"] == {"prompt": 18, "generated": 15}
        assert status["requests"] == {"accepted": 3, "rejected": 0, "stop": 0, "length": 3, "abort": 0, "error": 0}
        (worker,) = status["workers"]
        assert (worker["generated_tokens"], worker["prefill_tokens"], worker["slots"]) == (15, 18, 2)
        assert worker["decode_tokens_per_second"] > 0 and worker["peak_memory_bytes"] == 2000
        assert status["decode_tokens_per_second"] == 0


def test_an_abort_that_empties_the_engine_shows_in_the_figures() -> None:
    with engine(make_config(batch=1)) as core:
        _, completion = submit_one(core, max_tokens=10**9)
        eventually(lambda: core.status()["workers"][0].get("active") == 1)
        completion.abort()
        read_sync(completion)
        eventually(lambda: core.status()["workers"][0]["active"] == 0)


def test_a_completion_tells_a_wrong_reader() -> None:
    async def main(core: AsyncEngineCore) -> None:
        _, completion = submit_one(core, asyncio.get_running_loop())
        with pytest.raises(RuntimeError, match="event loop"):
            completion.next_events_sync()
        _, other = submit_one(core)
        with pytest.raises(RuntimeError, match="synchronously"):
            await other.next_events()
        _, slow = submit_one(core, asyncio.get_running_loop(), max_tokens=10**9)
        await slow.next_events()
        slow.abort()
        await read(slow)

    with engine() as core:
        asyncio.run(main(core))


def test_a_wait_that_was_cancelled_loses_nothing() -> None:
    async def main(core: AsyncEngineCore) -> None:
        request, completion = submit_one(core, asyncio.get_running_loop())
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(completion.next_events(), 0.01)
        control.open()
        assert tokens_of(await read(completion)) == expected(request)[0]
        with pytest.raises(TimeoutError, match="no token"):
            submit_one(core, max_tokens=10**9)[1].next_events_sync(0)

    with stage("cancelled") as control, engine(stage="cancelled") as core:
        asyncio.run(main(core))


def test_a_slow_reader_gets_the_tokens_of_a_request_in_one_delivery() -> None:
    async def main(core: AsyncEngineCore) -> None:
        requests = [make_request(core.next_request_id(), max_tokens=20) for _ in range(3)]
        completion = core.submit(requests, loop=asyncio.get_running_loop())
        await asyncio.to_thread(eventually, lambda: core.status()["requests"]["length"] == 3)
        deliveries = await completion.next_events()
        assert len(deliveries) == 6, "tokens and an end for each"
        for index, request in enumerate(requests):
            assert tokens_of(deliveries, index) == expected(request)[0]
        assert await completion.next_events() == []

    with engine(depth=2) as core:
        asyncio.run(main(core))


def test_a_patient_reader_is_woken_for_urgent_tokens_and_ends_alone() -> None:
    async def main(core: AsyncEngineCore) -> None:
        request, completion = submit_one(core, asyncio.get_running_loop(), max_tokens=30)
        tokens = expected(request)[0]
        completion.urgent = lambda index, token: token == tokens[11]
        control.open()
        first = await completion.next_events()
        assert tokens_of(first)[:12] == tokens[:12]
        rest = await read(completion)
        assert tokens_of(first) + tokens_of(rest) == tokens
        assert len(rest) <= 2

    with stage("patient") as control, engine(depth=2, stage="patient") as core:
        asyncio.run(asyncio.wait_for(main(core), 20))


def test_readers_of_several_loops_and_threads_share_the_steps() -> None:
    with stage("shared") as control, engine(make_config(batch=6), depth=2, stage="shared") as core:
        loops = [asyncio.new_event_loop() for _ in range(2)]
        asked = [submit_one(core, loop, max_tokens=25, logprobs=0) for loop in (loops[0], None, loops[1], loops[0], None, loops[1])]
        assert control.launched.acquire(timeout=20)
        control.open()
        for request, completion in asked:
            deliveries = read_sync(completion) if completion.loop is None else completion.loop.run_until_complete(read(completion))
            assert tokens_of(deliveries) == expected(request)[0]
            numbers = [entry for _, event in deliveries[:-1] for entry in event.logprobs]  # type: ignore[union-attr]
            assert [entry.token_id for entry in numbers] == expected(request)[0]
        for loop in loops:
            loop.close()


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_the_text_of_any_error_can_be_told() -> None:
    assert describe(ValueError("half a pair: \ud800")) == "ValueError: half a pair: \\ud800"
    assert describe(_Mute()) == "_Mute" and describe(KeyError()) == "KeyError"
    assert "\\udcff.pth" in str(EngineInitError("model file not found: \udcff.pth"))
