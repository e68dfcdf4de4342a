"""What the tests on a card share: a model without an engine, fed by hand, and executors fed with plans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor

from albatross_plugin.engine.request import Request, SamplingParams
from albatross_plugin.engine.step import Admission, Chunk, StepPlan, WorkerSpec
from albatross_plugin.model.arena import Arena
from albatross_plugin.model.cuda_model import CudaRWKV7, Rows
from albatross_plugin.model.cuda_weights import load_cuda_weights
from albatross_plugin.model.kernels import ops
from albatross_plugin.model.products import Products
from albatross_plugin.model.spec import read_spec
from albatross_plugin.model.state import StatePool

DEVICE = "cuda"


class Model:
    """A CudaRWKV7 with ``slots`` slots and a scratch row."""

    def __init__(
        self, checkpoint: Mapping[str, Tensor], slots: int = 8, tokens: int = 1024, recurrent: torch.dtype = torch.float16
    ) -> None:
        device = torch.device(DEVICE, torch.cuda.current_device())
        spec = read_spec("test", checkpoint)
        self.weights = load_cuda_weights(spec, dict(checkpoint), device, lambda loaded, total: None)
        self.pool = StatePool(spec, slots + 1, device, torch.float16, recurrent)
        arena = Arena(self.weights, tokens, max(slots, 1), device)
        self.products = Products(self.weights, arena, ops(), device)
        self.model = CudaRWKV7(self.weights, self.pool, arena, self.products, ops())
        self._last = torch.zeros(slots + 1, dtype=torch.int32, device=device)
        self._slots = slots

    def ints(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.int32, device=DEVICE)

    def feed(self, pieces: Mapping[int, Sequence[int]], ragged: bool | None = None) -> dict[int, Tensor]:
        """Feed tokens to slots in one pass; logits [T, V] of every token by slot. ``ragged`` None: only where it is needed."""
        ids = [token for piece in pieces.values() for token in piece]
        ragged = len(ids) != len(pieces) if ragged is None else ragged
        starts, token_row = [0], []
        for row, piece in enumerate(pieces.values()):
            starts.append(starts[-1] + len(piece))
            token_row += [row] * len(piece)
        rows = Rows(self.ints(ids), self.ints(pieces), self.ints(starts) if ragged else None, self.ints(token_row) if ragged else None)
        views = self.model.forward(rows, self._last)
        parts = []
        for first in range(0, len(ids), self._slots):
            index = self.ints(range(first, min(first + self._slots, len(ids))))
            parts.append(self.model.logits(views, index, len(index)).clone())
        logits = torch.cat(parts)
        return {slot: logits[starts[row] : starts[row + 1]] for row, slot in enumerate(pieces)}


def worker_spec(path: Path, batch: int, limit: int = 65530, **more: object) -> WorkerSpec:
    spec = {"executor": "", "model_path": str(path), "device": "cuda", "worker": 0, "rows": batch + 1, "token_limit": limit, "threads": 1}
    return WorkerSpec(**{**spec, **more})  # type: ignore[arg-type]


def greedy(tokens: int = 16, **more: object) -> SamplingParams:
    return SamplingParams(**{"max_tokens": tokens, "temperature": 0.0, "frequency_penalty": 0.0, "ignore_eos": True, **more})  # type: ignore[arg-type]


def generate(executor: object, prompts: Mapping[int, Sequence[int]], params: SamplingParams, steps: int) -> dict[int, list[int]]:
    """Tokens by slot: one prefill pass, then ``steps - 1`` decode steps, two steps in flight."""
    slots = tuple(prompts)
    requests = {slot: Request(slot + 1, tuple(prompt), params) for slot, prompt in prompts.items()}
    plans = [StepPlan(0, [Admission(s, requests[s]) for s in slots], [], [Chunk(s, requests[s].prompt_ids, True) for s in slots])]
    decode = list(slots)
    plans += [StepPlan(step, [], decode) for step in range(1, steps)]
    said: dict[int, list[int]] = {slot: [] for slot in slots}
    open_tickets: list[object] = []

    def collect() -> None:
        result = executor.collect(open_tickets.pop(0))  # type: ignore[attr-defined]
        assert not result.failures, result.failures
        for slot, token in zip(slots, result.tokens, strict=True):
            said[slot].append(token)

    for plan in plans:
        open_tickets.append(executor.launch(plan))  # type: ignore[attr-defined]
        if len(open_tickets) == 2:
            collect()
    while open_tickets:
        collect()
    return said
