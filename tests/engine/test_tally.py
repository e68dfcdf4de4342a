"""Figures of an engine: buckets, counts, the line of those who wait; none of them grows with the work."""

from __future__ import annotations

import pickle

import pytest
from engine.fake_executor import make_request
from engine.running import engine, make_config, read_sync, submit_one

from albatross_plugin.engine.histogram import STEP_BOUNDS, Histogram
from albatross_plugin.engine.line import SHOWN, Line


def test_a_value_on_a_bound_belongs_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value, times in ((0.5, 1), (1.0, 3), (1.5, 1), (2.0, 1), (9.0, 2)):
        histogram.observe(value, times)
    counts = histogram.counts()
    assert counts.cumulative() == [(1.0, 4), (2.0, 6), (float("inf"), 8)]
    assert counts.total == 0.5 + 3 + 1.5 + 2 + 18
    both = counts.plus(counts)
    assert both.cumulative()[-1] == (float("inf"), 16) and both.total == 2 * counts.total
    with pytest.raises(AssertionError):
        counts.plus(Histogram((1.0,)).counts())


def test_r30_records_that_nobody_reads_do_not_grow() -> None:
    with engine(make_config(batch=8)) as core:
        read_sync(submit_one(core)[1])
        before = len(pickle.dumps((core.tally.figures(), core.status())))
        for completion in [submit_one(core, max_tokens=500)[1] for _ in range(24)]:
            read_sync(completion)
        (figures,) = core.tally.figures()
        assert figures.stats is not None and figures.stats.step_times.cumulative()[-1][1] == figures.stats.steps >= 1500
        assert figures.stats.token_times.cumulative()[-1][1] == figures.stats.decode_rows == 24 * 499 + 3
        assert len(figures.stats.step_times.counts) == len(STEP_BOUNDS) + 1
        assert len(pickle.dumps((core.tally.figures(), core.status()))) < 1.3 * before


def test_a_worker_s_steps_are_counted_with_their_rows() -> None:
    with engine(make_config(batch=4)) as core:
        read_sync(core.submit([make_request(core.next_request_id(), 5, 4) for _ in range(3)], loop=None))
        (figures,) = core.tally.figures()
        assert (figures.running, figures.waiting) == (0, 0)
        assert figures.outcomes == {"stop": 0, "length": 3, "abort": 0, "error": 0}
        assert {name: sum(times.counts) for name, times in figures.times.items()} == {
            "queue": 3,
            "first_token": 3,
            "per_token": 3,
            "whole": 3,
        }
        assert figures.stats is not None and (figures.stats.prefill_rows, figures.stats.decode_rows) == (3, 9)


def test_calls_of_one_priority_are_listed_in_turns() -> None:
    line = Line()
    many, *_ = (line.add(0, 1, 10.0) for _ in range(3))
    line.add(0, 2, 11.0)
    line.add(-1, 3, 12.0)

    def order() -> list[tuple[int, int, float]]:
        return [(each["position"], each["waiting"], each["wait_s"]) for each in line.figures(20.0)["next"]]

    assert order() == [(1, 1, 8.0), (2, 3, 10.0), (3, 1, 9.0)]
    line.serve(many, 13.0)
    assert order() == [(1, 1, 8.0), (2, 1, 9.0), (3, 2, 10.0)]
    line.leave(many)
    line.leave(many)
    assert (len(line), order()) == (2, [(1, 1, 8.0), (2, 1, 9.0)])
    assert line.figures(20.0)["oldest_wait_s"] == 9.0


def test_lists_of_the_line_are_short_and_positions_count_everybody() -> None:
    line = Line()
    for priority in range(3):
        for group in range(6):
            for _ in range(2):
                line.add(priority, group, 1.0)
    figures = line.figures(1.0)
    assert figures["length"] == 36 and len(figures["next"]) == SHOWN
    assert [each["position"] for each in figures["next"]] == [1, 2, 3, 4, 5, 6, 13, 14]
    assert figures["priorities"][1] == {"priority": 1, "length": 12, "oldest_wait_s": 0.0}
