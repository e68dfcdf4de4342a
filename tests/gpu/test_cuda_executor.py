"""Steps as the engine plans them on a card: graphs, feedback of tokens, failures, memory."""

from __future__ import annotations

import gc
import logging
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import tiny

pytestmark = pytest.mark.gpu

if not torch.cuda.is_available():
    pytest.skip("no CUDA device here", allow_module_level=True)

from gpu.card import generate, greedy, worker_spec
from model import kept_states

from albatross_plugin.adapter import AlbatrossRWKV
from albatross_plugin.engine.request import Request, SamplingParams
from albatross_plugin.engine.step import Admission, Chunk, StepPlan
from albatross_plugin.errors import DeviceError, EngineInitError
from albatross_plugin.model import cuda_steps
from albatross_plugin.model.cuda_executor import CudaExecutor
from albatross_plugin.model.executor import TorchExecutor

SCRIPT = [34, 1097, 47, 40640, 11, 300, 17, 999]


def nothing(loaded: int, total: int) -> None:
    pass


def test_a_script_alone_and_in_batches(tmp_path: Path) -> None:
    """F2 says the same whoever sits beside it, and says it through graphs of every size."""
    path = tiny.write(tmp_path / "script.pth", tiny.script_checkpoint(SCRIPT))
    executor = CudaExecutor(worker_spec(path, 320), nothing)
    try:
        for count in (1, 2, 7, 33, 320):
            said = generate(
                executor, {slot: [34] if slot % 2 else [5, 6, 34] for slot in range(count)}, greedy(len(SCRIPT) - 1), len(SCRIPT) - 1
            )
            assert set(map(tuple, said.values())) == {tuple(SCRIPT[1:])}, count
    finally:
        executor.close()


def test_graphs_and_eager_steps_agree_with_the_reference(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "random.pth", tiny.random_checkpoint(3, 256))
    prompts = {0: [11, 12, 13], 1: [500], 2: list(range(100, 180)), 3: [65529, 1, 2]}
    said = []
    for graphs in (True, False):
        executor = CudaExecutor(worker_spec(path, 4, graphs=graphs), nothing)
        said.append(generate(executor, prompts, greedy(), 16))
        executor.close()
    reference = TorchExecutor(worker_spec(path, 4), nothing)
    said.append(generate(reference, prompts, greedy(), 16))
    reference.close()
    assert said[0] == said[1]
    agree = sum(a == b for slot in prompts for a, b in zip(said[0][slot], said[2][slot], strict=True))
    assert agree >= 60, "the reference and the kernels part only where two logits are nearly equal"


def test_smp_5_a_row_that_overflows_ends_alone(tmp_path: Path) -> None:
    trigger = SCRIPT[-1]
    path = tiny.write(tmp_path / "poison.pth", tiny.poison_checkpoint(SCRIPT, trigger))
    executor = CudaExecutor(worker_spec(path, 4), nothing)
    try:
        requests = {0: [34], 1: [trigger], 2: [5, 34]}
        admissions = [Admission(slot, Request(slot + 1, tuple(ids), greedy())) for slot, ids in requests.items()]
        chunks = [Chunk(slot, tuple(ids), True) for slot, ids in requests.items()]
        result = executor.collect(executor.launch(StepPlan(0, admissions, [], chunks)))
        assert list(result.failures) == [1] and "not finite" in result.failures[1]
        assert [result.tokens[0], result.tokens[2]] == [SCRIPT[1]] * 2
        again = generate(executor, {1: [34], 0: [34]}, greedy(), 4)
        assert set(map(tuple, again.values())) == {tuple(SCRIPT[1:5])}
    finally:
        executor.close()


def test_str_1_a_batch_that_does_not_fit_is_refused_with_one_that_does(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "random.pth", tiny.random_checkpoint(12, 768))
    # Whatever is loaded once and stays, such as the kernels' code, is there after a first load.
    CudaExecutor(worker_spec(path, 1), nothing).close()
    before = torch.cuda.mem_get_info()[0]
    for batch in (1_000_000, 100_000_000):
        with pytest.raises(DeviceError, match=r"Choose batch=\d+ or fewer") as raised:
            CudaExecutor(worker_spec(path, batch), nothing)
        fits = int(str(raised.value).split("Choose batch=")[1].split()[0])
        assert 1000 < fits < batch
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info()[0] >= before - (64 << 20)


def test_capture_that_fails_leaves_the_eager_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tiny.write(tmp_path / "script.pth", tiny.script_checkpoint(SCRIPT))

    def refuse(*_: object) -> None:
        raise RuntimeError("no graphs today")

    monkeypatch.setattr(cuda_steps, "capture", refuse)
    with caplog.at_level(logging.WARNING):
        executor = CudaExecutor(worker_spec(path, 4), nothing)
    assert [r.getMessage() for r in caplog.records].count(caplog.records[0].getMessage()) == 1 and "no graphs today" in caplog.text
    assert generate(executor, {0: [34]}, greedy(), 4)[0] == SCRIPT[1:5]
    executor.close()


def test_logprobs_of_prompts_and_tokens(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "random.pth", tiny.random_checkpoint(3, 256))
    prompt = tuple(range(50, 90))
    params = SamplingParams(max_tokens=2, temperature=0.0, logprobs=5, prompt_logprobs=True)
    results = []
    for kind in (CudaExecutor, TorchExecutor):
        executor = kind(worker_spec(path, 4), nothing)
        plan = StepPlan(0, [Admission(1, Request(1, prompt, params))], [], [Chunk(1, prompt, True)])
        results.append(executor.collect(executor.launch(plan)))
        executor.close()
    found, wanted = results
    assert found.tokens == wanted.tokens
    for mine, theirs in zip(found.prompt_logprobs[1] + [found.logprobs[1]], wanted.prompt_logprobs[1] + [wanted.logprobs[1]], strict=True):
        assert mine.token_id == theirs.token_id and abs(mine.logprob - theirs.logprob) < 0.02
        assert abs(mine.top[0][1] - theirs.top[0][1]) < 0.02 and len(mine.top) == len(theirs.top) == 5


def test_mem_1_everything_is_given_back(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "random.pth", tiny.random_checkpoint(4, 512))
    free = []
    for _ in range(10):
        model = AlbatrossRWKV(str(path), 1, 32, device="cuda")
        list(model.generate(None, "hello"))
        model.shutdown()
        del model
        gc.collect()
        torch.cuda.empty_cache()
        free.append(torch.cuda.mem_get_info()[0])
    assert free[-1] >= free[1] - (8 << 20), free


def test_lod_2_a_small_vocabulary_is_refused(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "small.pth", tiny.random_checkpoint(2, 128, vocab=50304))
    with pytest.raises(EngineInitError, match="50304 rows"):
        AlbatrossRWKV(str(path), 1, 4, device="cuda")


def test_a_state_that_is_kept_is_copied_to_whoever_shares_the_prompt(tmp_path: Path) -> None:
    path = tiny.write(tmp_path / "random.pth", tiny.random_checkpoint(3, 256))
    executor = CudaExecutor(worker_spec(path, 6, kept=2), nothing)
    try:
        said = kept_states.check(executor, tuple(range(100, 140)), greedy(), 2)
    finally:
        executor.close()
    assert said[0] == said[1] == said[2] == said[3] and said[5] == said[0][:3]
