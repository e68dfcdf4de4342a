"""What the collector sees while engines run."""

from __future__ import annotations

import gc

from albatross_plugin.engine.collector import settle, unsettle


def test_the_last_engine_that_ends_gives_the_heap_back() -> None:
    before = gc.get_freeze_count()
    settle()
    settle()
    frozen = gc.get_freeze_count()
    assert frozen > before + 1000
    unsettle()
    assert gc.get_freeze_count() >= frozen - 100
    unsettle()
    assert gc.get_freeze_count() == 0


def test_cycles_that_are_made_later_are_collected() -> None:
    settle()
    try:
        for _ in range(10):
            cycle: list[object] = []
            cycle.append(cycle)
        del cycle
        assert gc.collect() >= 10
    finally:
        unsettle()
