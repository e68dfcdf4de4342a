"""What the engine's worker relies on: information, memory, release, workers side by side, bad plans that stay their own."""

from __future__ import annotations

import gc
import pickle
import threading
import time
import weakref
from types import SimpleNamespace

import psutil
import pytest
import tiny
import torch
from model import kept_states

from albatross_plugin.adapter import AlbatrossRWKV
from albatross_plugin.engine.request import Request, SamplingParams
from albatross_plugin.engine.step import Admission, Chunk, StepPlan
from albatross_plugin.errors import EngineInitError
from albatross_plugin.model.batch import pack, time_major
from albatross_plugin.model.sampler import Sampler
from albatross_plugin.model.state import StatePool
from albatross_plugin.model.weights import shared_weights

GREEDY = SamplingParams(temperature=0, frequency_penalty=0)


def test_info_tells_what_the_file_holds(f1, executor):
    info = executor(f1).info
    assert (info.name, info.n_layer, info.n_embd, info.vocab_size, info.device, info.dtype) == ("f1", 2, 128, 65536, "cpu", "float32")
    assert pickle.loads(pickle.dumps(info)) == info


def test_memory_is_weights_states_and_tables(f1, executor):
    engine = executor(f1, rows=5)
    in_use, peak, _ = engine.memory()
    tables = 5 * 65536 * (4 + 4 + 1) + 65536 * 4
    assert in_use == peak == engine.info.weight_bytes + 5 * engine.info.state_bytes_per_slot + tables


def test_close_releases_weights_states_and_memory(tmp_path, executor, greedy):
    path = tiny.write(tmp_path / "m.pth", tiny.random_checkpoint(layers=2, width=256))
    process = psutil.Process()
    used = []
    for _ in range(4):
        engine = executor(path)
        greedy(engine, [[5, 6, 7]], count=2)
        held = [weakref.ref(engine._model._weights), weakref.ref(engine._pool), weakref.ref(engine._sampler)]
        assert isinstance(held[1](), StatePool) and isinstance(held[2](), Sampler)
        gc.disable()
        try:
            engine.close()
            assert [reference() for reference in held] == [None] * 3, "something needs the collector"
        finally:
            gc.enable()
        used.append(process.memory_info().rss)
    # The embedding and the head alone are 128 MiB: one model that stays behind would show.
    assert used[3] - used[1] < 64 * 2**20


def test_mem_1_an_engine_is_unloaded_without_a_collection_per_worker(f1):
    collected: list[str] = []

    def watch(phase: str, info: dict[str, int]) -> None:
        collected.append(phase)

    model = AlbatrossRWKV(str(f1), 8, 2, device="cpu")
    held = weakref.ref(shared_weights(str(f1), torch.device("cpu"), 65530, lambda loaded, total: None))
    assert list(model.generate(SimpleNamespace(max_tokens=2, ignore_eos=True), "a")) and held() is not None
    gc.disable()
    gc.callbacks.append(watch)
    try:
        model.shutdown()
    finally:
        gc.callbacks.remove(watch)
        gc.enable()
    assert collected.count("start") <= 1
    assert held() is None


@pytest.mark.parametrize("batch", [10**8, 10**12])
def test_str_1_a_batch_beyond_all_memory_is_refused_at_once(f1, batch):
    started = time.monotonic()
    with pytest.raises(EngineInitError, match=rf"batch={batch} needs .*; batch=\d+ would fit"):
        AlbatrossRWKV(str(f1), 1, batch, device="cpu")
    assert time.monotonic() - started < 5


def test_close_twice_is_harmless(f1, executor):
    engine = executor(f1)
    engine.close()
    engine.close()


def test_two_workers_run_at_the_same_time_with_one_set_of_weights(f1, prompts, executor, greedy):
    expected = greedy(executor(f1), prompts)
    engines = [executor(f1) for _ in range(2)]
    results: list[list[list[int]]] = [[], []]

    def work(index: int) -> None:
        results[index] = greedy(engines[index], prompts)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [expected, expected]


def test_a_step_that_only_admits_gives_an_empty_result(f1, executor):
    engine = executor(f1)
    result = engine.collect(engine.launch(StepPlan(4, [Admission(0, Request(0, (1,), GREEDY))])))
    assert (result.step, result.tokens, result.failures) == (4, [], {})


def test_a_step_that_samples_nothing_gives_no_tokens(f1, executor):
    engine = executor(f1)
    result = engine.collect(engine.launch(StepPlan(0, [Admission(0, Request(0, (1, 2), GREEDY))], [], [Chunk(0, (1,), False)])))
    assert (result.tokens, result.failures, result.logprobs) == ([], {}, None)


def test_an_id_outside_the_table_raises_and_leaves_others_alone(f1, prompts, executor, greedy):
    engine = executor(f1)
    expected = greedy(engine, prompts[:2])
    with pytest.raises(Exception, match="out of range"):
        engine.launch(StepPlan(0, [Admission(0, Request(0, (70000,), GREEDY))], [], [Chunk(0, (70000,), True)]))
    assert greedy(engine, prompts[:2]) == expected


@pytest.mark.parametrize(("slots", "lengths"), [([3, 4, 5, 1], [1, 1, 1, 1]), ([6, 0, 2, 1], [2, 5, 1, 5]), ([0], [1]), ([2], [9])])
def test_a_packed_batch_links_every_token_with_its_predecessor(slots, lengths):
    batch = pack(slots, lengths, torch.device("cpu"), 2, 4)
    rows = [[100 * i + t for t in range(length)] for i, length in enumerate(lengths)]
    ids = time_major(batch, rows)
    assert len(ids) == batch.padded >= 4 and batch.tokens == sum(lengths)
    assert sorted(ids[: batch.tokens]) == sorted(token for row in rows for token in row)
    if batch.previous is not None and batch.last is not None:
        before = [f"state {i}" for i in batch.order] + ids
        for position, token in enumerate(ids[: batch.tokens]):
            expected = token - 1 if token % 100 else f"state {token // 100}"
            assert before[int(batch.previous[position])] == expected
        assert [ids[int(i)] for i in batch.last] == [rows[i][-1] for i in batch.order]
    covered = [(start, stop) for block in batch.blocks for start, stop in block.spans(batch.offsets)]
    assert sorted(position for start, stop in covered for position in range(start, stop)) == list(range(batch.tokens))
    assert all(block.rows <= 2 for block in batch.blocks)


def test_a_state_that_is_kept_is_copied_to_whoever_shares_the_prompt(f1, executor, greedy):
    prompt = tuple(range(100, 140))
    engine = executor(f1, rows=7, kept=2)
    said = kept_states.check(engine, prompt, GREEDY)
    alone = greedy(engine, [list(prompt)], count=6)[0]
    assert [tokens[:6] for tokens in said] == [alone, alone, alone, alone, [], alone[: len(said[5])]]
