"""Greedy text is the same however the work is cut, and the same as that of two independent implementations."""

from __future__ import annotations

import json
import random
from pathlib import Path

import peers
import pytest
import tiny
import torch


def test_greedy_text_does_not_depend_on_neighbours_or_chunks_and_equals_the_rwkv_package(f1, prompts, executor, greedy, package_greedy):
    engine = executor(f1)
    together = greedy(engine, prompts)
    assert [greedy(engine, [prompt])[0] for prompt in prompts] == together
    for chunk in (1, 7, 64):
        assert greedy(engine, prompts, chunk=chunk) == together
    assert package_greedy(f1, prompts) == together


def test_greedy_text_equals_llama_cpp(f1, prompts, executor, greedy, tmp_path):
    xllamacpp = peers.load("xllamacpp")
    params = xllamacpp.CommonParams()
    params.model.path = str(tiny.write_gguf(f1, tmp_path / "f1.gguf"))
    params.n_ctx, params.n_parallel, params.warmup = 1024, 1, False
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    ours = greedy(executor(f1), prompts)
    for prompt, expected in zip(prompts, ours, strict=True):
        body = {"prompt": prompt, "n_predict": len(expected), "temperature": 0, "ignore_eos": True, "cache_prompt": False, "logprobs": 1}
        answer = server.handle_completions(body)
        answer = json.loads(answer) if isinstance(answer, str) else answer
        assert [entry["id"] for entry in answer["choices"][0]["logprobs"]["content"]] == expected


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_greedy_text_of_the_01b_shape_for_every_prompt_and_cut(prompts, executor, greedy, package_greedy, tmp_path):
    path = tiny.write(tmp_path / "shape01b.pth", tiny.random_checkpoint(layers=12, width=768, seed=3, dtype=torch.bfloat16))
    engine = executor(path)
    together = greedy(engine, prompts)
    assert len(together) == 8 and all(len(tokens) == 32 for tokens in together)
    assert [greedy(engine, [prompt])[0] for prompt in prompts] == together
    for chunk in (1, 7, 64):
        assert greedy(engine, prompts, chunk=chunk) == together
    assert package_greedy(path, prompts) == together


def test_greedy_text_does_not_depend_on_the_slot_or_on_random_neighbours(f1, prompts, executor, greedy):
    engine = executor(f1, rows=12)
    together = greedy(engine, prompts)
    assert greedy(engine, prompts, slots=[10, 3, 7, 0, 8, 1, 5, 9]) == together
    assert greedy(engine, prompts, slots=list(range(8))[::-1]) == together


def test_sch_4_prompt_lengths_round_the_chunk_size(f1, executor, greedy):
    chunk = 20
    source = random.Random(5)
    lengths = (1, 2, 9, 10, 11, chunk - 1, chunk, chunk + 1, 2 * chunk - 1, 2 * chunk, 2 * chunk + 1, 10 * chunk + 6)
    prompts = [[source.randrange(65530) for _ in range(length)] for length in lengths]
    engine = executor(f1, rows=13)
    one_token_at_a_time = greedy(engine, prompts, count=16, chunk=1)
    assert greedy(engine, prompts, count=16, chunk=chunk) == one_token_at_a_time
    assert [greedy(engine, [prompt], count=16, chunk=chunk)[0] for prompt in prompts] == one_token_at_a_time


def test_the_numbers_of_a_row_are_bit_equal_alone_and_in_a_batch(f1, prompts, executor, greedy):
    engine = executor(f1)
    greedy(engine, prompts, count=1)
    together = [engine._pool.read(slot) for slot in range(8)]
    for i, prompt in enumerate(prompts):
        greedy(engine, [prompt], count=1, chunk=13)
        alone = engine._pool.read(0)
        assert all(torch.equal(a, b) for a, b in zip(alone, together[i], strict=True)), f"prompt {i}"


def test_two_threads_give_the_same_text(f1, prompts, executor, greedy):
    single = greedy(executor(f1, threads=1), prompts)
    assert greedy(executor(f1, threads=2), prompts) == single
    torch.set_num_threads(1)


def test_a_script_model_says_its_script(executor, greedy, tmp_path: Path):
    script = [33, 3319, 153, 129, 261, 24281, 59]
    path = tiny.write(tmp_path / "script.pth", tiny.script_checkpoint(script))
    engine = executor(path)
    assert greedy(engine, [[5, 9, 33], [33]], count=7) == [[*script[1:], 0]] * 2
    assert greedy(engine, [[24281]], count=2) == [[59, 0]]
