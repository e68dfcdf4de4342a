"""What can be said of the CUDA engine without a card: captured sizes, memory, refusals, what is given back, who is waited for."""

from __future__ import annotations

import re
import sys
import weakref
from typing import Any

import pytest
import torch

from albatross_plugin.engine.step import StepResult
from albatross_plugin.errors import CheckpointError, DeviceError
from albatross_plugin.model.cuda_executor import CudaExecutor, _check_sizes, _Ticket
from albatross_plugin.model.cuda_memory import check_fits, drop_locals, need
from albatross_plugin.model.cuda_steps import with_progress
from albatross_plugin.model.graphs import bucket_for, bucket_sizes, capture, pass_sizes
from albatross_plugin.model.spec import ModelSpec

SPEC = ModelSpec("1.5b", 24, 2048, 8192, 65536)
WEIGHTS = 3 << 30
GIB = 1 << 30


@pytest.mark.parametrize("batch", [1, 2, 3, 32, 33, 320, 960, 1024, 1025, 4096])
def test_every_number_of_rows_has_a_captured_size(batch: int) -> None:
    sizes = bucket_sizes(batch)
    assert sizes == sorted(set(sizes)) and sizes[-1] == batch
    for rows in range(1, batch + 1):
        size = bucket_for(rows, sizes)
        assert rows <= size <= batch and (size <= 2 * rows or size <= 4)
    with pytest.raises(ValueError, match="largest"):
        bucket_for(batch + 1, sizes)


@pytest.mark.parametrize("tokens", [1, 16, 17, 100, 513, 4096, 5057])
def test_a_pass_is_padded_by_little(tokens: int) -> None:
    sizes = pass_sizes(tokens)
    assert sizes == sorted(set(sizes)) and sizes[-1] >= tokens
    assert all(size % 16 == 0 for size in sizes)
    for count in range(16, tokens + 1):
        assert bucket_for(count, sizes) - count < max(16, count // 2 if count < 1024 else count // 4)


def test_str_1_a_refusal_names_the_largest_batch_that_fits() -> None:
    free = 20 * GIB
    with pytest.raises(DeviceError, match="CUDA out of memory") as raised:
        check_fits(SPEC, WEIGHTS, 4096, 4096, torch.float16, True, free)
    batch = int(re.search(r"Choose batch=(\d+) or fewer", str(raised.value))[1])  # type: ignore[index]
    assert check_fits(SPEC, WEIGHTS, batch, 4096, torch.float16, True, free).total <= free
    with pytest.raises(DeviceError):
        check_fits(SPEC, WEIGHTS, batch + 1, 4096, torch.float16, True, free)


def test_str_1_a_batch_of_any_length_of_digits_is_refused() -> None:
    for batch in (100_000_000, 10**40, 10**400):
        with pytest.raises(DeviceError, match=r"Choose batch=\d{4} or fewer"):
            check_fits(SPEC, WEIGHTS, batch, 4096, torch.float16, True, 20 * GIB)


def test_a_model_that_does_not_fit_at_all_is_told_apart() -> None:
    with pytest.raises(DeviceError, match="smaller model"):
        check_fits(SPEC, WEIGHTS, 4, 4096, torch.float16, True, 2 * GIB)


def test_a_slot_costs_what_its_state_and_tables_cost() -> None:
    half, single = (need(SPEC, WEIGHTS, 32, 4096, kind, True).slot for kind in (torch.float16, torch.float32))
    state = 24 * 32 * 64 * 64
    assert single - half == state * 2
    assert half == state * 2 + 24 * 2 * 2048 * 2 + 2 * 4 * 65536 + 4 * 65536 // 8 + 64 + 3 * 65536 // 8


@pytest.mark.parametrize(("hidden", "vocab", "named"), [(8192, 65540, "emb.weight is 65540"), (8200, 65536, "width is 8200")])
def test_lod_1_sizes_that_the_kernels_cannot_take(hidden: int, vocab: int, named: str) -> None:
    _check_sizes(SPEC)
    with pytest.raises(CheckpointError, match=named):
        _check_sizes(ModelSpec("odd", 24, 2048, hidden, vocab))


class _Mark:
    waits = 0

    def synchronize(self) -> None:
        self.waits += 1


def test_a_pass_that_samples_nobody_is_waited_for() -> None:
    mark: Any = _Mark()
    unloaded = object.__new__(CudaExecutor)
    result = unloaded.collect(_Ticket(7, (), None, None, mark, {3: "broken"}, {}))
    assert result == StepResult(7, [], {3: "broken"}, None, None) and mark.waits == 1


def test_mem_1_a_load_that_failed_holds_nothing() -> None:
    kept: list[weakref.ref[torch.Tensor]] = []

    def inner() -> None:
        weights = torch.zeros(8)
        kept.append(weakref.ref(weights))
        raise ValueError("no")

    def outer() -> None:
        states = torch.zeros(8)
        kept.append(weakref.ref(states))
        try:
            inner()
        except ValueError as error:
            raise RuntimeError("not at all") from error

    with pytest.raises(RuntimeError) as raised:
        outer()
    drop_locals(raised.value)
    assert len(kept) == 2 and all(reference() is None for reference in kept)


def test_a_capture_that_fails_tells_its_first_error(monkeypatch: pytest.MonkeyPatch) -> None:
    class Graph:
        def capture_begin(self, **_: object) -> None: ...

        def capture_end(self) -> None:
            raise RuntimeError("the capture was invalidated")

    class Stream:
        def synchronize(self) -> None: ...

    def run() -> None:
        raise RuntimeError("the real cause")

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    with pytest.raises(RuntimeError, match="the real cause"):
        capture(run)


def test_sizes_are_gone_through_without_a_console(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", None)
    assert list(with_progress([1, 2], "measuring", lambda: None)) == [1, 2]
