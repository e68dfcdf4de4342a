from __future__ import annotations

import time

import pytest
from engine.fake_executor import make_request

from albatross_plugin.engine.sequence import Sequence
from albatross_plugin.engine.waiting import WaitingQueue


def fill(*places: tuple[int, int]) -> tuple[WaitingQueue, list[Sequence]]:
    """Sequences 1, 2, ... of the given (priority, group)."""
    queue = WaitingQueue()
    sequences = [Sequence(make_request(n, 1, priority=p, group=g)) for n, (p, g) in enumerate(places, 1)]
    for sequence in sequences:
        queue.add(sequence)
    return queue, sequences


def drain(queue: WaitingQueue) -> list[int]:
    return [queue.pop().request.request_id for _ in range(len(queue))]


def test_priority_then_turns_of_the_groups_then_arrival() -> None:
    queue, _ = fill((1, 1), (0, 1), (0, 1), (0, 2), (-3, 9), (0, 1))
    assert drain(queue) == [5, 2, 4, 3, 6, 1]
    assert len(queue) == 0
    with pytest.raises(IndexError):
        queue.pop()


def test_a_group_that_comes_back_stands_at_the_end() -> None:
    queue, _ = fill((0, 1), (0, 2), (0, 3))
    assert queue.pop().request.request_id == 1
    queue.add(Sequence(make_request(9, 1, group=1)))
    assert drain(queue) == [2, 3, 9]


def test_removing_leaves_the_others_in_order() -> None:
    queue, sequences = fill((0, 1), (0, 1), (0, 2), (5, 1))
    queue.remove(sequences[0])
    queue.remove(sequences[2])
    assert drain(queue) == [2, 4]


def test_taking_out_does_not_walk_over_the_others() -> None:
    def cost(count: int) -> float:
        queue, sequences = fill(*((0, 1) for _ in range(count)))
        began = time.thread_time()
        for sequence in sequences[-500:]:
            queue.remove(sequence)
        return time.thread_time() - began

    assert min(cost(20000) for _ in range(3)) < 20 * min(cost(600) for _ in range(3)), "33 times as many waiters, the same work"
