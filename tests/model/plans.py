"""Small models, requests and comparisons for the tests of the CUDA engine on a pretended card."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from gpu.card import greedy

from albatross_plugin.engine.request import Request
from albatross_plugin.engine.step import Admission, Chunk
from albatross_plugin.model.cuda_executor import CudaExecutor

CUDA = "albatross_plugin.model.cuda_executor:CudaExecutor"
VOCAB = 256
SCRIPT = [34, 97, 47, 140, 11, 200, 17, 99]
LENGTHS = (1, 2, 3, 7, 16, 17, 40)
# Float16 against float32: texts may part where two logits are closer than this.
MARGIN_ON_A_CARD = 0.02


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    return tuple(torch.randint(1, VOCAB, (length,), generator=torch.Generator().manual_seed(100 * seed + length)).tolist())


def ask(number: int, ids: Sequence[int], state: Any = None, **more: Any) -> Request:
    return Request(number, tuple(ids), greedy(64, **more), initial_state=state)


def start(request: Request, slot: int) -> tuple[Admission, Chunk]:
    return Admission(slot, request), Chunk(slot, request.prompt_ids, True)


def slot_state(executor: CudaExecutor, slot: int) -> list[torch.Tensor]:
    pool, sampler = executor._pool, executor._sampler
    tables = (sampler._settings, sampler._numbers, sampler._bias, sampler._counts, sampler._touched, sampler._seen, sampler._allowed)
    parts = [part[:, slot] for part in (pool.att_shift, pool.wkv, pool.ffn_shift)]
    return [part.clone() for part in [*parts, *(table[slot] for table in tables)]]


def assert_equal(before: Sequence[torch.Tensor], after: Sequence[torch.Tensor]) -> None:
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))


def assert_close(found: Any, wanted: Any) -> None:
    """Two lists of log-probabilities, but for what float16 costs."""
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.token_id == theirs.token_id and abs(mine.logprob - theirs.logprob) < 0.05
        assert len(mine.top) == len(theirs.top)
        assert all(abs(a[1] - b[1]) < 0.05 for a, b in zip(mine.top, theirs.top, strict=True))
