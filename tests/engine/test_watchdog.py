"""Workers that fall silent."""

from __future__ import annotations

import asyncio
import logging

import pytest
from engine.running import ends_of, engine, eventually, make_config, read_sync, stage, submit_one

from albatross_plugin.engine.messages import Failed
from albatross_plugin.engine.watchdog import Watchdog
from albatross_plugin.errors import RequestError


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_silence_counts_from_the_last_word_or_the_oldest_request() -> None:
    clock = Clock()
    dog = Watchdog(10.0, clock)
    assert not dog.stuck(0, 95.0) and not dog.stuck(0, 90.0) and dog.stuck(0, 89.0)
    dog.heard(0)
    clock.now = 110.0
    assert not dog.stuck(0, 50.0) and dog.stuck(1, 99.0)
    clock.now = 110.1
    # Idle workers are silent, and owe nothing.
    assert dog.stuck(0, 50.0) and not dog.stuck(0, 105.0)


def test_looks_come_often_enough() -> None:
    assert Watchdog(1.0).interval == 0.25 and Watchdog(600.0).interval == 5.0


def test_a_worker_that_comes_back_after_it_was_given_up_works_for_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with stage("hang") as hang, engine(make_config(step_timeout=0.2), stage="hang") as core:
        _, running = submit_one(core, max_tokens=1000)
        _, queued = submit_one(core)
        for completion in (running, queued):
            (end,) = ends_of(read_sync(completion))
            assert isinstance(end, Failed) and end.status == 503 and "no step of worker 0 has ended for 0.2 s" in end.message
        assert core.status()["phase"] == "down"
        with pytest.raises(RequestError, match="must be loaded again") as refused:
            submit_one(core)
        assert refused.value.status == 503
        hang.open()
        eventually(lambda: hang.closed == 1)
        # On a busy machine it was given up before its first step.
        assert len(hang.plans) <= 1
    assert not [record for record in caplog.records if record.levelno == logging.WARNING and "left behind" in record.message]


def test_a_shutdown_does_not_wait_for_a_worker_that_hangs(caplog: pytest.LogCaptureFixture) -> None:
    with stage("hang") as hang, engine(make_config(step_timeout=0.2), stage="hang") as core:
        _, running = submit_one(core)
        assert ends_of(read_sync(running))
        assert core._loop is not None
        asyncio.run_coroutine_threadsafe(core.shutdown(), core._loop).result(1)
        assert [record for record in caplog.records if "left behind" in record.message]
        hang.open()
        eventually(lambda: hang.closed == 1)
