"""Loads that fail: told in words and at once, nothing stays behind, and the next one works."""

from __future__ import annotations

import threading
import time

import psutil
import pytest
from faults.asking import PATIENCE, Faulty

LOADS = {
    "error": "this load was told to fail",
    "memory": "CUDA out of memory. Tried to allocate 20.00 GiB",
    "no_memory": "MemoryError",
    "panic": "this load was told to panic",
}
# The weights and states of the model that these tests load, and then some.
ONE_LOAD = 100e6


@pytest.mark.parametrize("kind", LOADS)
def test_lod_1_a_load_that_fails_says_why_and_the_next_one_works(faulty: Faulty, kind: str) -> None:
    faulty.serve()
    began = time.monotonic()
    answer = faulty.load(load=kind)
    assert time.monotonic() - began < PATIENCE
    assert answer.status_code == 500
    message = answer.json()["error"]["message"]
    assert message.startswith("failed to load: Albatross engine initialization failed: ") and LOADS[kind] in message
    status = faulty.live.status()
    assert status["status"] == 0 and status["model"] is None
    refused = faulty.ask()
    assert refused.status == 400 and refused.error is not None and "not loaded" in refused.error["message"]
    faulty.serve()
    faulty.check_serves()


def test_str_1_memory_and_threads_come_back_after_loads_that_ran_out_of_memory(faulty: Faulty) -> None:
    process = psutil.Process()

    def fail() -> tuple[int, int]:
        assert faulty.load(load="memory").status_code == 500
        return process.memory_info().rss, sum(thread.name.startswith("albatross") for thread in threading.enumerate())

    fail()
    first, _ = fail()
    for _ in range(3):
        last, threads = fail()
    assert threads == 0
    assert last - first < ONE_LOAD
    faulty.serve()
    faulty.check_serves()
