"""The CUDA engine with and without graphs, when something fails, when it is closed, and below a whole engine. On a pretended card."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tiny
from engine.running import read, tokens_of
from gpu.card import generate, greedy, worker_spec
from model.plans import CUDA, SCRIPT, VOCAB, prompt
from model.pretended_card import Card

from albatross_plugin.adapter import AlbatrossRWKV
from albatross_plugin.config import EngineConfig
from albatross_plugin.engine.core import AsyncEngineCompletion, AsyncEngineCore
from albatross_plugin.engine.request import Request
from albatross_plugin.engine.step import StepPlan
from albatross_plugin.errors import DeviceLostError
from albatross_plugin.model import cuda_executor
from albatross_plugin.model.cuda_executor import CudaExecutor
from albatross_plugin.model.cuda_steps import CudaSteps

Make = Callable[..., CudaExecutor]

# --- graphs ------------------------------------------------------------------------------------------------------------


def test_without_graphs_every_step_is_launched_kernel_by_kernel(script: Path, make: Make, card: Card) -> None:
    executor = make(script, 4, graphs=False)
    replays = card.replays
    assert card.graphs == 0
    assert generate(executor, {0: [34], 3: [5, 34]}, greedy(), 7) == {0: SCRIPT[1:], 3: SCRIPT[1:]}
    assert card.replays == replays


def test_a_capture_that_fails_is_told_once(
    script: Path, make: Make, card: Card, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    real = CudaSteps._capture

    def failing(self: CudaSteps, tick: Callable[[], None]) -> None:
        # Not before: measuring takes captures of its own.
        card.refuse_after = 3
        real(self, tick)

    monkeypatch.setattr(CudaSteps, "_capture", failing)
    with caplog.at_level(logging.WARNING):
        executor = make(script, 4)
    assert [record.getMessage().count("no graphs today") for record in caplog.records] == [1]
    assert card.graphs == 0, "those that were captured before are given back"
    assert generate(executor, {0: [34], 3: [5, 34]}, greedy(), 7) == {0: SCRIPT[1:], 3: SCRIPT[1:]}


def test_a_step_that_fails_is_told_from_a_card_that_does(script: Path, make: Make, card: Card) -> None:
    executor = make(script, 4)
    said = generate(executor, {0: [34]}, greedy(), 3)
    card.problem = "no room for this one"
    with pytest.raises(RuntimeError, match="no room") as raised:
        executor.launch(StepPlan(9, [], [0]))
    assert not isinstance(raised.value, DeviceLostError)
    card.problem = ""
    assert generate(executor, {0: [34]}, greedy(), 3) == said
    ticket = executor.launch(StepPlan(9, [], [0]))
    card.problem, card.lost = "an illegal memory access was encountered", True
    for call in (lambda: executor.launch(StepPlan(10, [], [0])), lambda: executor.collect(ticket)):
        with pytest.raises(DeviceLostError, match="illegal memory access"):
            call()
    with pytest.raises(RuntimeError, match="illegal"):
        executor.close()
    assert card.graphs == 0


# --- life --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[weakref.ref[Any]]:
    """What the executor makes while it loads: weights, states, tables, working memory, steps."""
    made: list[weakref.ref[Any]] = []

    def watched(real: Any) -> Callable[..., Any]:
        def build(*arguments: Any) -> Any:
            thing = real(*arguments)
            made.append(weakref.ref(thing))
            return thing

        return build

    for name in ("load_cuda_weights", "StatePool", "CudaSampler", "Arena", "CudaRWKV7", "CudaSteps"):
        monkeypatch.setattr(cuda_executor, name, watched(getattr(cuda_executor, name)))
    return made


def test_mem_1_close_leaves_nothing(random_model: Path, make: Make, card: Card, held: list[weakref.ref[Any]]) -> None:
    executor = make(random_model, 4)
    generate(executor, {0: [34], 3: [5, 34]}, greedy(logprobs=1), 3)
    assert card.graphs and len(held) == 6
    gc.collect()
    gc.disable()
    try:
        executor.close()
        assert [reference() for reference in held] == [None] * 6, "something needs the collector"
    finally:
        gc.enable()
    assert card.graphs == 0
    executor.close()


class _CalledOff(BaseException):
    pass


def test_mem_1_a_load_that_is_called_off_leaves_nothing(
    script: Path, make: Make, card: Card, held: list[weakref.ref[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While weights are read, while products are measured, and while steps are captured. The error itself is kept all the while."""
    # Comparing checksums asks as often as it has to wait.
    monkeypatch.setattr(cuda_executor, "Checksums", lambda path, wanted: contextlib.nullcontext())
    calls, last = 0, -1

    def progress(loaded: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == last:
            raise _CalledOff

    make(script, 2, progress, pass_tokens=16).close()
    reached = set()
    total = calls
    for last in (*range(1, total, 6), total):
        calls = 0
        held.clear()
        with pytest.raises(_CalledOff) as raised:
            make(script, 2, progress, pass_tokens=16)
        assert [reference() for reference in held] == [None] * len(held) and card.graphs == 0, (raised, last)
        reached.add(len(held))
    assert reached == {0, 6}
    assert generate(make(script, 4), {0: [34]}, greedy(), 7)[0] == SCRIPT[1:]


def test_an_engine_gives_slots_on_while_older_steps_are_under_way(random_model: Path, card: Card, reference: Callable[..., Any]) -> None:
    """16 requests over 5 slots with chunked prompts, some of which are aborted: each says what it says alone."""
    params = {index: greedy(3 + index % 7, logprobs=2) for index in range(16)}
    requests = [Request(index + 1, prompt(1 + 5 * index % 37, 7), params[index], index) for index in range(16)]
    wanted = [tokens[: params[i].max_tokens] for i, tokens in enumerate(reference(random_model, requests, 9).tokens)]
    config = EngineConfig(batch=5, device="cpu", prefill_budget=16, prefill_chunk=6, decode_prefill_ratio=1, gather_ms=0.0)
    spec = worker_spec(random_model, 5, VOCAB, executor=CUDA, pass_tokens=config.pass_budget)

    async def abort(completion: AsyncEngineCompletion) -> None:
        await completion.next_events()
        completion.abort()
        await read(completion)

    async def run() -> list[list[int]]:
        core = AsyncEngineCore(config, [spec])
        await core.start()
        try:
            loop = asyncio.get_running_loop()
            endless = [core.submit([Request(100 + i, prompt(9, i), greedy(10**6))], loop=loop) for i in range(3)]
            open_ones = [core.submit([request], loop=loop) for request in requests]
            found = await asyncio.gather(*map(read, open_ones), *map(abort, endless))
            return [tokens_of(deliveries) for deliveries in found[: len(requests)]]
        finally:
            await core.shutdown()

    assert asyncio.run(run()) == wanted
    assert card.graphs == 0


def test_a_whole_engine_with_more_requests_than_slots(tmp_path: Path, card: Card) -> None:
    """16 at once over 5 slots: steps are queued ahead, slots are given on while older steps are under way."""
    words = "abcdefghijklmnop"
    ids = [ord(letter) + 1 for letter in words]
    path = tiny.write(tmp_path / "engine.pth", tiny.script_checkpoint(ids, 2, 64))
    config = EngineConfig(batch=5, device="cpu", prefill_budget=32, gather_ms=0.0)
    model = AlbatrossRWKV(str(path), 1, 5, config=config, executor=CUDA)
    options = model.options(SimpleNamespace(max_tokens=20, temperature=0.0, frequency_penalty=0.0))
    said: dict[int, str] = {}

    def talk(index: int) -> None:
        *_, last = model.open([[500] * 5 * index + [ids[index]]], options, loop=None)
        said[index] = last[1]

    try:
        threads = [threading.Thread(target=talk, args=(index,)) for index in range(len(words))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    finally:
        model.shutdown()
    assert said == {index: "".join(words[index + 1 :]) for index in range(len(words))}
    assert card.graphs == 0


# --- the rehearsal at load ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("batch", "words"), [(1, {}), (4, {"pass_tokens": 16}), (40, {}), (3, {"graphs": False})])
def test_the_rehearsal_leaves_no_trace(script: Path, make: Make, batch: int, words: dict[str, Any]) -> None:
    executor = make(script, batch, **words)
    assert not executor._requests and not executor._fed and not executor._broken
    last = batch - 1
    assert generate(executor, {last: [34]}, greedy(), 7) == {last: SCRIPT[1:]}, "with penalties, bans and masks of before it would differ"
    assert generate(executor, {0: [5, 34]}, greedy(), 7) == {0: SCRIPT[1:]}


def test_every_kind_of_step_is_rehearsed(script: Path, make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    plans: list[StepPlan] = []
    real = CudaExecutor.launch

    def recorded(self: CudaExecutor, plan: StepPlan) -> Any:
        plans.append(plan)
        return real(self, plan)

    monkeypatch.setattr(CudaExecutor, "launch", recorded)
    make(script, 32, pass_tokens=128)
    admitted = [admission.request for plan in plans for admission in plan.admit]
    assert {len(plan.admit) for plan in plans} == {0, 1, 17}
    assert any(plan.decode and plan.prefill and not plan.prefill[-1].final for plan in plans)
    assert any(plan.decode and plan.prefill and plan.prefill[-1].final for plan in plans)
    assert any(plan.allowed for plan in plans) and any(request.initial_state for request in admitted)
    for name in ("logprobs", "prompt_logprobs", "logit_bias", "global_penalty", "greedy", "ignore_eos"):
        assert any(getattr(request.params, name) for request in admitted), name
