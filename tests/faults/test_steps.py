"""Steps that fail, are slow or never end, and workers that die, seen from the clients' side."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from faults.asking import PATIENCE, Faulty, failed, good
from faults.executor import SLOW_SECONDS, hangs
from host.live import wait_for

FAILING = {"raise_launch": "this launch was told to fail", "raise_collect": "this step was told to fail", "memory": "CUDA out of memory"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", FAILING)
def test_sch_1_a_step_that_raises_ends_its_requests_and_those_in_the_queue_go_on(faulty: Faulty, kind: str, stream: bool) -> None:
    faulty.serve(batch=1)
    affected, *others = faulty.together(partial(faulty.ask, stream, kind), partial(faulty.ask, not stream), partial(faulty.ask, stream))
    failed(affected, FAILING[kind], stream=stream)
    for answer in others:
        good(answer)
    faulty.check_serves()


def test_sch_1_a_step_that_raises_ends_everyone_in_it(faulty: Faulty) -> None:
    faulty.serve(batch=3)
    streams = (True, False, True, False)
    calls = [partial(faulty.ask, stream, None if number else "raise_launch", 3) for number, stream in enumerate(streams)]
    *running, queued = faulty.together(*calls)
    for answer, stream in zip(running, streams, strict=False):
        failed(answer, FAILING["raise_launch"], stream=stream)
    good(queued)
    faulty.check_serves()


@pytest.mark.parametrize("token", [0, 3])
def test_smp_5_a_row_that_is_not_finite_fails_alone(faulty: Faulty, token: int) -> None:
    faulty.serve(batch=4)
    calls = [
        partial(faulty.ask, True),
        partial(faulty.ask, True, "not_finite", token),
        partial(faulty.ask, False, "not_finite", token),
        partial(faulty.ask, False),
        partial(faulty.ask, True),
    ]
    ahead, streamed, whole, behind, queued = faulty.together(*calls)
    failed(streamed, "infinite", stream=True)
    failed(whole, "infinite")
    for answer in (ahead, behind, queued):
        good(answer)
    faulty.check_serves()


def test_a_slow_step_delays_and_nothing_else(faulty: Faulty) -> None:
    faulty.serve(batch=2)
    answers = faulty.together(partial(faulty.ask, True, "slow"), partial(faulty.ask, False), partial(faulty.ask, True))
    for answer in answers:
        good(answer)
    assert answers[0].seconds >= SLOW_SECONDS
    faulty.check_serves()


@pytest.mark.parametrize("kind", ["die", "lose"])
def test_r2_a_dead_worker_is_told_of_and_a_reload_helps(faulty: Faulty, kind: str) -> None:
    faulty.serve(batch=2)
    # Two run and two wait.
    answers = faulty.together(*(partial(faulty.ask, bool(i % 2), None if i else kind, 3) for i in range(4)))
    failed(answers[0], "was told to", 503)
    for number, answer in enumerate(answers[1:], 1):
        failed(answer, "was told to", 503, stream=bool(number % 2))
    status = faulty.engine()
    assert status["phase"] == "down" and "was told to" in status["error"] and status["workers"][0]["phase"] == "down"
    for stream in (False, True):
        refused = faulty.ask(stream)
        assert refused.status == 503 and refused.error is not None and refused.seconds < PATIENCE
        assert "must be loaded again" in refused.error["message"] and refused.error["code"] == "model_unavailable"
    assert faulty.live.client.get("/health").status_code == 200
    faulty.serve(batch=2)
    faulty.check_serves()


def test_r10_one_of_two_workers_dies_and_the_other_serves(faulty: Faulty) -> None:
    faulty.serve(batch=2, workers=2)
    # The first goes to the first worker, the second to the other one.
    dead, neighbour = faulty.together(partial(faulty.ask, False, "die", 4), partial(faulty.ask, True), workers=2)
    failed(dead, "was told to die", 503)
    good(neighbour)
    status = faulty.engine()
    assert [worker["phase"] for worker in status["workers"]] == ["down", "ready"] and status["slots"]["total"] == 2
    faulty.check_serves()


def test_sch_1_a_step_that_never_ends_is_given_up(faulty: Faulty) -> None:
    faulty.serve(batch=2, step_timeout=1.0)
    # Two run and two wait.
    answers = faulty.together(*(partial(faulty.ask, bool(i % 2), None if i else "hang", 1) for i in range(4)))
    for number, answer in enumerate(answers):
        failed(answer, "no step of worker 0 has ended for 1 s", 503, stream=bool(number % 2))
    status = faulty.engine()
    assert status["phase"] == "down" and "has ended for 1 s" in status["error"]
    refused = faulty.ask()
    assert refused.status == 503 and refused.error is not None and "must be loaded again" in refused.error["message"]
    # The thread hangs still; a model is loaded beside it.
    assert hangs.waiting == 1
    faulty.serve(batch=2)
    faulty.check_serves()
    hangs.release()
    wait_for(lambda: hangs.waiting == 0)
    faulty.check_serves()


def test_mem_3_a_switch_away_from_a_step_that_hangs_ends_its_requests(faulty: Faulty) -> None:
    faulty.serve(batch=1)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(faulty.ask, False, "hang", 1)]
        wait_for(lambda: hangs.waiting == 1)
        accepted = faulty.accepted
        asked.append(pool.submit(faulty.ask, True))
        wait_for(lambda: faulty.accepted == accepted + 1)
        switched = pool.submit(faulty.load)
        failed(asked[0].result(), "unloaded", 503)
        failed(asked[1].result(), "unloaded", 503, stream=True)
        hangs.release()
        assert switched.result().status_code == 200
    faulty.check_serves()
