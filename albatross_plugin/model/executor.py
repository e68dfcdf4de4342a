"""TorchExecutor: runs StepPlans on one device. The only class of this folder that the engine's worker knows, by name."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from albatross_plugin.engine.messages import ModelInfo, TokenLogprobs
from albatross_plugin.engine.request import Request
from albatross_plugin.engine.step import Kept, Memory, StepPlan, StepResult, WorkerSpec, by_row
from albatross_plugin.errors import NO_CARD_MEMORY, NO_MEMORY, DeviceError, RequestError
from albatross_plugin.model.batch import PackedBatch, pack, time_major
from albatross_plugin.model.rwkv7 import RWKV7
from albatross_plugin.model.sampler import Sampled, Sampler, token_logprobs
from albatross_plugin.model.spec import HEAD_SIZE, ModelSpec
from albatross_plugin.model.state import StatePool, state_bytes
from albatross_plugin.model.weights import shared_weights, weight_dtype

logger = logging.getLogger(__name__)

# The state of one block of rows shall stay in a core's second-level cache while a time step reads and writes it.
_CACHE_BYTES = 1 << 20
_LOGIT_ROWS = 32
_TABLE_BYTES_PER_TOKEN = 9
_closing = threading.Lock()


@dataclass(frozen=True)
class _Ticket:
    step: int
    sampled: Sampled
    order: list[int]
    failures: dict[int, str]
    prompt_logprobs: dict[int, list[TokenLogprobs]]


class TorchExecutor:
    """Implements the engine's Executor with torch operators, on the CPU (float32) or on one GPU (float16)."""

    def __init__(self, spec: WorkerSpec, progress: Callable[[int, int], None]) -> None:
        self.pipeline_depth = 1
        self._device = torch.device("cpu" if spec.device == "cpu" else f"cuda:{spec.worker}")
        if self._device.type == "cpu":
            torch.set_num_threads(spec.threads)
        with torch.inference_mode():
            dtype = weight_dtype(self._device)

            def fits(sizes: ModelSpec, to_load: int) -> None:
                _check_memory(sizes, spec.rows, spec.kept, self._device, dtype, to_load)

            weights = shared_weights(spec.model_path, self._device, spec.token_limit, progress, fits)
            sizes = weights.spec
            self._model = RWKV7(weights)
            self._ops = weights.ops
            self._pool = StatePool(sizes, spec.rows, self._device, dtype, kept=spec.kept)
            self._sampler = Sampler(spec.rows, sizes.vocab_size, spec.token_limit, self._device)
            self._last = torch.zeros(spec.rows, dtype=torch.int64, device=self._device)
        self._requests: dict[int, Request] = {}
        self._fed: dict[int, int] = {}
        self._broken: dict[int, str] = {}
        self._limit = min(spec.token_limit, sizes.vocab_size)
        row_bytes = sizes.n_head * HEAD_SIZE * HEAD_SIZE * 4
        self._block_rows = max(1, _CACHE_BYTES // row_bytes) if self._device.type == "cpu" else spec.rows
        name = os.path.splitext(os.path.basename(spec.model_path))[0]
        kind = str(dtype).removeprefix("torch.")
        slot_bytes = state_bytes(sizes, dtype)
        device = str(self._device)
        self.info = ModelInfo(name, sizes.n_layer, sizes.n_embd, sizes.vocab_size, device, kind, weights.bytes, slot_bytes)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> _Ticket:
        """Run the step; on a GPU its kernels are queued, and ``collect`` waits for the tokens."""
        for admission in plan.admit:
            self._admit(admission.slot, admission.request)
        if plan.copy:
            self._restore(plan.copy)
        if not plan.slots:
            nothing = Sampled(torch.zeros(0, dtype=torch.int64), {}, {})
            return _Ticket(plan.step, nothing, [], {}, {})
        batch, tokens = self._pack(plan)
        hidden = self._model.forward(tokens, batch, self._pool)
        prompt_logprobs = self._prompt_logprobs(plan, batch, hidden)
        for chunk in plan.prefill:
            self._fed[chunk.slot] += len(chunk.token_ids)
        for kept in plan.keep:
            self._pool.keep(kept.slot, kept.row)
        sampled, order = self._sample(plan, batch, hidden)
        failures = {slot: self._broken[slot] for slot in plan.slots if slot in self._broken}
        return _Ticket(plan.step, sampled, order, failures, prompt_logprobs)

    def collect(self, ticket: _Ticket) -> StepResult:
        tokens = ticket.sampled.tokens.tolist()
        failures = {**ticket.sampled.failures, **ticket.failures}
        return StepResult(
            ticket.step,
            [tokens[i] for i in ticket.order],
            failures,
            ticket.sampled.logprobs or None,
            ticket.prompt_logprobs or None,
        )

    def memory(self) -> Memory:
        """What torch has allocated on a GPU; weights, states and sampling tables on the CPU."""
        if self._device.type == "cuda":
            used, peak = torch.cuda.memory_allocated(self._device), torch.cuda.max_memory_allocated(self._device)
            return Memory(used, peak, _free_bytes(self._device))
        total = self.info.weight_bytes + self._pool.memory_bytes + self._sampler.memory_bytes
        return Memory(total, total, _free_bytes(self._device))

    def close(self) -> None:
        """Drop every reference to weights and states and give the memory back to the system."""
        # No collection here: nothing of a model hangs in a cycle, and a collection per worker holds up every thread.
        if not hasattr(self, "_model"):
            return
        weights = weakref.ref(self._model.weights)
        with _closing:
            for name in ("_model", "_ops", "_pool", "_sampler", "_last"):
                delattr(self, name)
            last = weights() is None
        self._requests.clear()
        if self._device.type == "cuda":
            # cuBLAS keeps a workspace of some 30 MiB per thread and stream in torch's pool.
            clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
            if clear is not None:
                clear()
            torch.cuda.empty_cache()
        elif last and sys.platform == "linux":
            # glibc keeps freed memory of this size in its arenas; unloading a model should show. It walks over all
            # of them, so only the last of the workers that share the weights asks for it.
            trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
            if trim is not None:
                trim(0)

    def _admit(self, slot: int, request: Request) -> None:
        self._requests[slot], self._fed[slot] = request, 0
        self._broken.pop(slot, None)
        try:
            self._pool.load(slot, request.initial_state)
        except RequestError as error:
            # Only this request ends; the step that admits it carries others.
            self._pool.reset(slot)
            self._broken[slot] = str(error)
        self._sampler.admit(slot, request)

    def _restore(self, copies: Sequence[Kept]) -> None:
        for row, slots in by_row(copies):
            self._pool.restore(row, torch.tensor(slots, dtype=torch.int64, device=self._device))
            for slot in slots:
                self._fed[slot] = len(self._requests[slot].prompt_ids) - 1

    def _pack(self, plan: StepPlan) -> tuple[PackedBatch, Tensor]:
        lengths = [1] * len(plan.decode) + [len(chunk.token_ids) for chunk in plan.prefill]
        batch = pack(plan.slots, lengths, self._device, self._block_rows, self._ops.minimum_rows)
        rows = [(0,)] * len(plan.decode) + [chunk.token_ids for chunk in plan.prefill]
        tokens = torch.tensor(time_major(batch, rows), dtype=torch.int64, device=self._device)
        if plan.decode:
            # The input of a decode row never leaves the device: it is the first and only token of its row.
            decoding = [(i, slot) for i, (at, slot) in enumerate(zip(batch.order, batch.slot_list, strict=True)) if at < len(plan.decode)]
            positions, slots = torch.tensor(decoding, dtype=torch.int64, device=self._device).unbind(1)
            tokens[positions] = self._last[slots]
        return batch, tokens

    def _sample(self, plan: StepPlan, batch: PackedBatch, hidden: Tensor) -> tuple[Sampled, list[int]]:
        """Sample in the order of the slots; the list says where each of ``plan.sampled`` is in there."""
        wanted = set(plan.sampled)
        rows = sorted((slot, row) for row, slot in enumerate(batch.slot_list) if slot in wanted)
        slots = [slot for slot, _ in rows]
        if not rows:
            return Sampled(torch.zeros(0, dtype=torch.int64), {}, {}), []
        index = torch.tensor([batch.offsets[batch.lengths[row] - 1] + row for _, row in rows], device=self._device)
        logits = self._model.logits(hidden.index_select(0, index))
        sampled = self._sampler.sample(logits, slots, plan.allowed)
        self._last[torch.tensor(slots, device=self._device)] = sampled.tokens
        place = {slot: i for i, slot in enumerate(slots)}
        return sampled, [place[slot] for slot in plan.sampled]

    def _prompt_logprobs(self, plan: StepPlan, batch: PackedBatch, hidden: Tensor) -> dict[int, list[TokenLogprobs]]:
        """Numbers for the prompt tokens that follow the ones fed in this step, for the rows that want them."""
        result: dict[int, list[TokenLogprobs]] = {}
        rows = {slot: row for row, slot in enumerate(batch.slot_list)}
        for chunk in plan.prefill:
            request, fed = self._requests[chunk.slot], self._fed[chunk.slot]
            if not request.params.prompt_logprobs:
                continue
            targets = request.prompt_ids[fed + 1 : fed + 1 + len(chunk.token_ids)]
            entries: list[TokenLogprobs] = []
            for first in range(0, len(targets), _LOGIT_ROWS):
                part = targets[first : first + _LOGIT_ROWS]
                at = [batch.offsets[first + i] + rows[chunk.slot] for i in range(len(part))]
                numbers = self._model.logits(hidden[torch.tensor(at, device=self._device)]).log_softmax(1)
                count = request.params.logprobs or 0
                entries += [token_logprobs(row, token, count, self._limit) for row, token in zip(numbers, part, strict=True)]
            result[chunk.slot] = entries
        return result


def _check_memory(spec: ModelSpec, rows: int, kept: int, device: torch.device, dtype: torch.dtype, to_load: int) -> None:
    """Refuse more slots than fit beside ``to_load`` bytes of weights, before anything is allocated, and say how many would."""
    per_slot = state_bytes(spec, dtype) + _TABLE_BYTES_PER_TOKEN * spec.vocab_size
    free = _free_bytes(device)
    if free is None or to_load + (rows + kept) * per_slot <= free:
        return
    fits = max(0, (free - to_load) // per_slot - 1 - kept)
    need = f"batch={rows - 1} needs {_gib((rows + kept) * per_slot)} GiB for its states"
    if to_load:
        need += f" beside {_gib(to_load)} GiB of weights"
    where = NO_CARD_MEMORY if device.type == "cuda" else NO_MEMORY
    advice = f"batch={fits} would fit" if fits else "not even batch=1 fits beside the weights"
    raise DeviceError(f"{where}: {need}, and {_gib(free)} GiB are free; {advice}")


def _gib(size: int) -> str:
    """With one decimal; whole numbers all the way, as a batch may be too large for a float."""
    tenths = size * 10 >> 30
    return f"{tenths // 10}.{tenths % 10}"


def _free_bytes(device: torch.device) -> int | None:
    """Bytes that can still be had, or None where this is not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    return None
