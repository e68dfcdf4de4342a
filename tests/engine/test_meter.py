from __future__ import annotations

import logging

import pytest
from engine.running import engine, make_config, read_sync, submit_one

from albatross_plugin.engine.meter import Meter
from albatross_plugin.engine.step import Chunk, Memory, StepPlan


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_throughput_line_and_its_interval(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    meter = Meter(0, 16, 5.0, clock)
    clock.now += 1000
    meter.wake()
    for step in range(40):
        clock.now += 0.125
        meter.record(StepPlan(step, decode=list(range(16))), 16, 16)
    assert caplog.messages == ["[worker_0] Albatross decode throughput: 128.0 tok/s, active_batch=16, interval_tokens=640"]


@pytest.mark.parametrize(("interval", "tokens"), [(0.0, 5), (1.0, 0)])
def test_no_line_when_it_is_off_or_nothing_was_generated(caplog: pytest.LogCaptureFixture, interval: float, tokens: int) -> None:
    caplog.set_level(logging.INFO)
    clock = Clock()
    meter = Meter(0, 16, interval, clock)
    for step in range(5):
        clock.now += 1
        meter.record(StepPlan(step, prefill=[Chunk(0, (1, 2), False)]), tokens, 1)
    assert not caplog.messages


def test_a_pause_does_not_dilute_the_rates() -> None:
    clock = Clock()
    meter = Meter(0, 4, 0.0, clock)
    for step in range(2):
        clock.now += 50
        meter.wake()
        clock.now += 0.5
        meter.record(StepPlan(step, decode=[0], prefill=[Chunk(1, (1, 2, 3), True)]), 2, 2)
    stats = meter.report(2, 1, Memory(10, 20, 30))
    assert (stats.decode_tokens_per_second, stats.prefill_tokens_per_second, stats.step_seconds) == (4.0, 6.0, 0.5)
    assert (stats.steps, stats.decode_rows, stats.prefill_tokens, stats.generated_tokens) == (2, 2, 6, 4)
    again = meter.report(0, 0, Memory(10, 20))
    assert again.decode_tokens_per_second == 0 and again.generated_tokens == 4


def test_stats_are_due_twice_a_second() -> None:
    clock = Clock()
    meter = Meter(0, 4, 0.0, clock)
    assert not meter.due
    clock.now += 0.5
    assert meter.due
    meter.report(0, 0, Memory(0, 0))
    assert not meter.due


def test_a_worker_writes_the_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with engine(make_config(tps_log_interval=0.001)) as core:
        read_sync(submit_one(core, max_tokens=300)[1])
    assert any(line.startswith("[worker_0] Albatross decode throughput: ") for line in caplog.messages)
