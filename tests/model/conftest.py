"""Models on disk, executors that are closed, and a driver that feeds hand-made plans to an executor."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import peers
import pytest
import tiny
import torch
from gpu.card import worker_spec
from model.plans import MARGIN_ON_A_CARD, SCRIPT, VOCAB
from model.pretended_card import Card, pretend

from albatross_plugin.engine.messages import TokenLogprobs
from albatross_plugin.engine.request import Request, SamplingParams
from albatross_plugin.engine.step import Admission, Chunk, StepPlan, WorkerSpec
from albatross_plugin.model.cuda_executor import CudaExecutor
from albatross_plugin.model.executor import TorchExecutor

TOKEN_LIMIT = 65530
GREEDY = SamplingParams(temperature=0, frequency_penalty=0, max_tokens=64)
# Greedy texts of different implementations are equal only while no two logits are as close as their rounding
# errors (about 1e-5 here). The seeds below were chosen for that, and the tests check the margin.
LEAST_MARGIN = 1e-3


@dataclass
class Outcome:
    """What a driven batch gave, per request."""

    tokens: list[list[int]]
    failures: dict[int, str] = field(default_factory=dict)
    logprobs: list[list[TokenLogprobs]] = field(default_factory=list)
    prompt_logprobs: list[list[TokenLogprobs]] = field(default_factory=list)


@pytest.fixture(scope="session")
def f1(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("f1") / "f1.pth", tiny.random_checkpoint())


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Eight prompts of 1 to 300 random token ids."""
    source = random.Random(39)
    return [[source.randrange(256, TOKEN_LIMIT) for _ in range(length)] for length in (1, 2, 3, 9, 17, 64, 130, 300)]


@pytest.fixture
def executor() -> Iterator[Callable[..., TorchExecutor]]:
    made: list[TorchExecutor] = []

    def make(path: Path, rows: int = 9, threads: int = 1, limit: int = TOKEN_LIMIT, kept: int = 0) -> TorchExecutor:
        spec = WorkerSpec("albatross_plugin.model.executor:TorchExecutor", str(path), "cpu", 0, rows, limit, threads, kept=kept)
        made.append(TorchExecutor(spec, lambda loaded, total: None))
        return made[-1]

    yield make
    for item in made:
        item.close()


def drive(
    executor: TorchExecutor,
    requests: Sequence[Request],
    count: int,
    chunk: int = 10**9,
    slots: Sequence[int] | None = None,
    allowed: dict[int, bytes] | None = None,
) -> Outcome:
    """Run all ``requests`` at once for ``count`` tokens each, prompts cut into pieces of ``chunk``; a failed one stops."""
    slots = list(range(len(requests))) if slots is None else list(slots)
    where = {slot: i for i, slot in enumerate(slots)}
    outcome = Outcome([[] for _ in requests], {}, [[] for _ in requests], [[] for _ in requests])
    fed = [0] * len(requests)
    admit = [Admission(slot, request) for slot, request in zip(slots, requests, strict=True)]
    step = 0
    while True:
        running = [i for i in range(len(requests)) if i not in outcome.failures and len(outcome.tokens[i]) < count]
        if not running:
            return outcome
        decode = [slots[i] for i in running if fed[i] >= len(requests[i].prompt_ids)]
        pieces = [(i, requests[i].prompt_ids[fed[i] : fed[i] + chunk]) for i in running if fed[i] < len(requests[i].prompt_ids)]
        prefill = [Chunk(slots[i], piece, fed[i] + len(piece) == len(requests[i].prompt_ids)) for i, piece in pieces]
        plan = StepPlan(step, admit, decode, prefill, allowed)
        result = executor.collect(executor.launch(plan))
        admit, step = [], step + 1
        for i, piece in pieces:
            fed[i] += len(piece)
        outcome.failures.update({where[slot]: text for slot, text in result.failures.items()})
        for slot, token in zip(plan.sampled, result.tokens, strict=True):
            if slot not in result.failures:
                outcome.tokens[where[slot]].append(token)
        for slot, entry in (result.logprobs or {}).items():
            outcome.logprobs[where[slot]].append(entry)
        for slot, entries in (result.prompt_logprobs or {}).items():
            outcome.prompt_logprobs[where[slot]].extend(entries)


@pytest.fixture(name="drive")
def _drive() -> Callable[..., Outcome]:
    return drive


@pytest.fixture
def greedy() -> Callable[..., list[list[int]]]:
    """Greedy tokens of some prompts, all in one batch."""

    def run(executor: TorchExecutor, prompts: Sequence[Sequence[int]], count: int = 32, state: Any = None, **more: Any) -> list[list[int]]:
        requests = [Request(i, tuple(prompt), GREEDY, initial_state=state) for i, prompt in enumerate(prompts)]
        outcome = drive(executor, requests, count, **more)
        assert not outcome.failures
        return outcome.tokens

    return run


@pytest.fixture
def package_greedy(tmp_path: Path) -> Callable[..., list[list[int]]]:
    """Greedy tokens of PyPI's rwkv package for the same file, in a process of its own."""
    peers.need("rwkv")

    def run(path: Path, prompts: Sequence[Sequence[int]], count: int = 32, state: Any = None) -> list[list[int]]:
        job, result = tmp_path / "job.pt", tmp_path / "result.json"
        torch.save({"prompts": [list(p) for p in prompts], "count": count, "limit": TOKEN_LIMIT, "state": state}, job)
        environ = {**os.environ, "RWKV_JIT_ON": "0"}
        script = Path(__file__).with_name("rwkv_greedy.py")
        done = subprocess.run([sys.executable, str(script), str(path), str(job), str(result)], env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        answer = json.loads(result.read_text())
        assert answer["margin"] > LEAST_MARGIN, "the model's texts hang on a near-tie; choose another seed"
        tokens: list[list[int]] = answer["tokens"]
        return tokens

    return run


# --- the CUDA engine on a pretended card ---------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("script") / "script.pth", tiny.script_checkpoint(SCRIPT, 2, 64, VOCAB))


@pytest.fixture(scope="session")
def random_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny.write(tmp_path_factory.mktemp("random") / "random.pth", tiny.random_checkpoint(2, 128, VOCAB, 4, torch.float16, 4.0))


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Card:
    return pretend(monkeypatch)


@pytest.fixture
def make(card: Card) -> Iterator[Callable[..., CudaExecutor]]:
    made: list[CudaExecutor] = []

    def build(path: Path, batch: int = 8, progress: Callable[[int, int], None] = lambda loaded, total: None, **more: Any) -> CudaExecutor:
        made.append(CudaExecutor(worker_spec(path, batch, VOCAB, **{"pass_tokens": 64, **more}), progress))
        return made[-1]

    yield build
    for item in made:
        item.close()
    assert card.graphs == 0


@pytest.fixture
def reference(executor: Callable[..., TorchExecutor], drive: Callable[..., Any]) -> Callable[..., Any]:
    """What TorchExecutor makes of the requests in float32, with an assurance that its texts do not hang on rounding."""

    def run(path: Path, requests: Sequence[Request], count: int, **more: Any) -> Any:
        outcome = drive(executor(path, rows=len(requests) + 1, limit=VOCAB), requests, count, **more)
        for entry in (entry for entries in outcome.logprobs for entry in entries if len(entry.top) > 1):
            assert entry.top[0][1] - entry.top[1][1] > MARGIN_ON_A_CARD, "a near-tie; choose another prompt"
        return outcome

    return run
