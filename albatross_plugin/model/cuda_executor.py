"""CudaExecutor: runs StepPlans on one NVIDIA card, whole steps as CUDA graphs where the batch allows it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from albatross_plugin.engine.messages import ModelInfo, TokenLogprobs
from albatross_plugin.engine.request import Request
from albatross_plugin.engine.step import StepPlan, StepResult, WorkerSpec
from albatross_plugin.errors import CheckpointError, RequestError
from albatross_plugin.model.arena import Arena, Views
from albatross_plugin.model.cuda_memory import check_fits
from albatross_plugin.model.cuda_model import CudaRWKV7, Rows
from albatross_plugin.model.cuda_sampler import CudaSampler
from albatross_plugin.model.cuda_weights import load_cuda_weights, open_for_cuda, weight_bytes
from albatross_plugin.model.graphs import bucket_for, bucket_sizes, capture
from albatross_plugin.model.kernels import ops as load_kernels
from albatross_plugin.model.products import GEMV_ROWS, Products
from albatross_plugin.model.sampler import token_logprobs
from albatross_plugin.model.state import StatePool, state_bytes

logger = logging.getLogger(__name__)

_STATES = {"fp16": torch.float16, "fp32": torch.float32, "auto": torch.float16}
_DEPTH = 2
_ALIGN = 4
_TOPS = 20


@dataclass(frozen=True)
class _Ticket:
    step: int
    slots: Sequence[int]
    results: Tensor | None
    tops: Tensor | None
    ready: torch.cuda.Event | None
    failures: dict[int, str]
    prompt_logprobs: dict[int, list[TokenLogprobs]]


class CudaExecutor:
    """Implements the engine's Executor with the CUDA kernels: float16 weights, float32 sums, state in float16 or float32.

    Everything is queued on one stream, so a step needs no wait for the one before: its inputs are tokens that are still
    on the card. Raises CheckpointError, DeviceError (no kernels, too little memory).
    """

    def __init__(self, spec: WorkerSpec, progress: Callable[[int, int], None]) -> None:
        self.pipeline_depth = _DEPTH
        self._device = torch.device("cuda", spec.worker)
        torch.cuda.set_device(self._device)
        sizes, tensors = open_for_cuda(spec.model_path, spec.token_limit)
        if sizes.n_ffn % 64:
            raise CheckpointError(f"{sizes.name}: the channel mix is {sizes.n_ffn} wide; the CUDA kernels need a multiple of 64")
        self._ops = load_kernels()
        recurrent = _STATES[spec.state]
        free, _ = torch.cuda.mem_get_info(self._device)
        check_fits(sizes, weight_bytes(tensors), spec.rows - 1, spec.pass_tokens, recurrent, spec.graphs, free)
        self._stream = torch.cuda.Stream(self._device)
        self._batch = spec.rows - 1
        self._limit = min(spec.token_limit, sizes.vocab_size)
        self._requests: dict[int, Request] = {}
        self._fed: dict[int, int] = {}
        self._broken: dict[int, str] = {}
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            weights = load_cuda_weights(sizes, tensors, self._device, progress)
            del tensors
            self._pool = StatePool(sizes, spec.rows, self._device, torch.float16, recurrent)
            self._sampler = CudaSampler(spec.rows, sizes.vocab_size, spec.token_limit, self._device)
            arena = Arena(weights, spec.pass_tokens + spec.rows, spec.rows, self._device)
            self._products = Products(weights, arena, self._ops, self._device)
            self._model = CudaRWKV7(weights, self._pool, arena, self._products, self._ops)
            self._allocate(spec.rows)
            self._prepare(spec)
        name = os.path.splitext(os.path.basename(spec.model_path))[0]
        slot_bytes = state_bytes(sizes, torch.float16, recurrent)
        kind = "float16" if recurrent == torch.float16 else "float16, state float32"
        self.info = ModelInfo(name, sizes.n_layer, sizes.n_embd, sizes.vocab_size, str(self._device), kind, weights.bytes, slot_bytes)

    def _allocate(self, rows: int) -> None:
        """Buffers whose addresses the graphs hold, and pinned ones that results are copied to."""

        def ints(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=self._device)

        self._last = ints(rows)
        self._slots, self._ids = ints(rows + _ALIGN), ints(rows + _ALIGN)
        self._results, self._tops = ints(rows, 4), ints(rows, 2, _TOPS)
        ring = range(_DEPTH + 1)
        self._host = [torch.zeros(rows, 4, dtype=torch.int32, pin_memory=True) for _ in ring]
        self._host_tops = [torch.zeros(rows, 2, _TOPS, dtype=torch.int32, pin_memory=True) for _ in ring]
        self._turn = 0
        self._decoding: Sequence[int] | None = None
        self._bucket: int | None = None

    def _prepare(self, spec: WorkerSpec) -> None:
        """Measure the products and capture a graph for each size of batch; without graphs every step is launched kernel by kernel."""
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}
        self._sizes = bucket_sizes(self._batch)
        self._graph_pool = None
        self._slots.fill_(spec.rows - 1)
        self._ids.fill_(-spec.rows)
        for tokens in _tuned_passes(spec.pass_tokens):
            self._products.measure(tokens, heads=False)
        for size in _with_progress(self._sizes):
            self._products.measure(size)
            self._decode_step(size)
        self._stream.synchronize()
        if not spec.graphs:
            return
        try:
            for size in self._sizes:
                graph = capture(lambda size=size: self._decode_step(size), self._graph_pool)  # type: ignore[misc]
                self._graph_pool = self._graph_pool or graph.pool()
                self._graphs[size] = graph
        except RuntimeError as error:
            self._graphs.clear()
            logger.warning("CUDA graphs could not be captured (%s); every step is launched kernel by kernel, which is slower", error)

    def _decode_step(self, size: int) -> None:
        """Forward, sampling and feedback for the first ``size`` entries of the static slots. Queues only, so it can be captured."""
        slots = self._slots[:size]
        views = self._model.forward(Rows(self._ids[:size], slots, None, None), self._last)
        logits = self._model.logits(views, None, size)
        self._sampler.sample(logits, slots, self._last, self._results, self._tops)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> _Ticket:
        """Queue the step and the copy of its results; nothing waits for the card."""
        with torch.cuda.stream(self._stream):
            if plan.admit:
                self._admit([(admission.slot, admission.request) for admission in plan.admit])
            if not plan.decode and not plan.prefill:
                return _Ticket(plan.step, (), None, None, None, {}, {})
            if plan.allowed:
                self._sampler.set_masks(plan.allowed)
            prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
            if plan.prefill:
                prompt_logprobs = self._mixed_step(plan)
            else:
                self._replay(plan.decode)
            sampled = plan.sampled
            failures = {slot: self._broken[slot] for slot in plan.slots if slot in self._broken} if self._broken else {}
            results, tops, ready = self._fetch(sampled)
        return _Ticket(plan.step, sampled, results, tops, ready, failures, prompt_logprobs)

    def collect(self, ticket: _Ticket) -> StepResult:
        if ticket.ready is None or ticket.results is None:
            return StepResult(ticket.step, [], ticket.failures, None, ticket.prompt_logprobs or None)
        ticket.ready.synchronize()
        tokens, failures, logprobs = self._sampler.read(ticket.results, ticket.tops, ticket.slots)
        if ticket.failures:
            failures = {**failures, **ticket.failures}
        return StepResult(ticket.step, tokens, failures, logprobs or None, ticket.prompt_logprobs or None)

    def memory(self) -> tuple[int, int]:
        """(bytes in use, peak bytes) of this process on the card, as torch's allocator counts them."""
        return torch.cuda.memory_allocated(self._device), torch.cuda.max_memory_allocated(self._device)

    def close(self) -> None:
        """Wait for the card, then drop every reference to its memory and give it back to the driver."""
        if not hasattr(self, "_model"):
            return
        try:
            self._stream.synchronize()
        finally:
            for graph in self._graphs.values():
                graph.reset()
            self._graphs.clear()
            for name in ("_model", "_products", "_pool", "_sampler", "_last", "_slots", "_ids", "_results", "_tops", "_host", "_host_tops"):
                delattr(self, name)
            self._requests.clear()
            clear = getattr(torch._C, "_cuda_clearCublasWorkspaces", None)
            if clear is not None:
                clear()
            torch.cuda.empty_cache()

    # --- parts of launch -----------------------------------------------------------------------------------------------

    def _admit(self, admissions: list[tuple[int, Request]]) -> None:
        for slot, request in admissions:
            self._requests[slot], self._fed[slot] = request, 0
            self._broken.pop(slot, None)
        self._pool.reset_many(self._upload([slot for slot, _ in admissions]).long())
        for slot, request in admissions:
            if request.initial_state is not None:
                try:
                    self._pool.load(slot, request.initial_state)
                except RequestError as error:
                    # Only this request ends; the step that admits it carries others.
                    self._broken[slot] = str(error)
        self._sampler.admit_many(admissions)

    def _upload(self, numbers: Sequence[int]) -> Tensor:
        """int32 on the card, through pinned memory that torch keeps until the copy has run."""
        return torch.tensor(numbers, dtype=torch.int32).pin_memory().to(self._device, non_blocking=True)

    def _replay(self, decode: Sequence[int]) -> None:
        """A step of decoding rows alone. The slots are sent only when they have changed since the step before."""
        if decode is not self._decoding:
            size = bucket_for(len(decode), self._sizes)
            assert size is not None
            padding = size - len(decode)
            padded = [*decode, *([self._batch] * padding)]
            self._slots[:size].copy_(self._upload(padded), non_blocking=True)
            torch.sub(-1, self._slots[:size], out=self._ids[:size])
            self._decoding, self._bucket = decode, size
        assert self._bucket is not None
        graph = self._graphs.get(self._bucket)
        if graph is not None:
            graph.replay()
        else:
            self._decode_step(self._bucket)

    def _mixed_step(self, plan: StepPlan) -> dict[int, list[TokenLogprobs]]:
        """Decoding rows and pieces of prompts in one ragged pass."""
        lengths = [1] * len(plan.decode) + [len(chunk.token_ids) for chunk in plan.prefill]
        ids = [-1 - slot for slot in plan.decode]
        for chunk in plan.prefill:
            ids += chunk.token_ids
        starts, token_row = [0], []
        for row, length in enumerate(lengths):
            starts.append(starts[-1] + length)
            token_row += [row] * length
        final = [True] * len(plan.decode) + [chunk.final for chunk in plan.prefill]
        index = [starts[row + 1] - 1 for row, ends in enumerate(final) if ends]
        padding = padded_tokens(len(ids)) - len(ids)
        parts = self._upload_all(ids + [0] * padding, plan.slots, starts, token_row + [0] * padding, index, plan.sampled)
        views = self._model.forward(Rows(parts[0], parts[1], parts[2], parts[3]), self._last)
        prompt_logprobs = self._prompt_logprobs(plan, starts, views)
        for chunk in plan.prefill:
            self._fed[chunk.slot] += len(chunk.token_ids)
        if index:
            logits = self._model.logits(views, parts[4], len(index))
            self._sampler.sample(logits, parts[5], self._last, self._results, self._tops)
        return prompt_logprobs

    def _upload_all(self, *lists: Sequence[int]) -> list[Tensor]:
        """Several lists in one copy, each beginning at a multiple of 16 bytes."""
        numbers: list[int] = []
        places = []
        for part in lists:
            places.append((len(numbers), len(part)))
            numbers += part
            numbers += [0] * (-len(numbers) % _ALIGN)
        block = self._upload(numbers)
        return [block[start : start + count] for start, count in places]

    def _fetch(self, sampled: Sequence[int]) -> tuple[Tensor | None, Tensor | None, torch.cuda.Event]:
        """Queue the copy of the results to pinned memory; the event comes after it."""
        self._turn = (self._turn + 1) % len(self._host)
        results = tops = None
        if sampled:
            results = self._host[self._turn][: len(sampled)]
            results.copy_(self._results[: len(sampled)], non_blocking=True)
            if self._sampler.wants_logprobs(sampled):
                tops = self._host_tops[self._turn][: len(sampled)]
                tops.copy_(self._tops[: len(sampled)], non_blocking=True)
        # A blocking event lets the processor sleep instead of spinning.
        ready = torch.cuda.Event(blocking=True)
        ready.record(self._stream)
        return results, tops, ready

    def _prompt_logprobs(self, plan: StepPlan, starts: list[int], views: Views) -> dict[int, list[TokenLogprobs]]:
        """Numbers for the prompt tokens that follow the ones fed in this step, for the rows that want them. Waits for the card."""
        result: dict[int, list[TokenLogprobs]] = {}
        for row, chunk in enumerate(plan.prefill, len(plan.decode)):
            request, fed = self._requests[chunk.slot], self._fed[chunk.slot]
            if not request.params.prompt_logprobs:
                continue
            targets = request.prompt_ids[fed + 1 : fed + 1 + len(chunk.token_ids)]
            entries: list[TokenLogprobs] = []
            for first in range(0, len(targets), self._batch):
                part = targets[first : first + self._batch]
                index = self._upload(range(starts[row] + first, starts[row] + first + len(part)))
                numbers = self._model.logits(views, index, len(part)).log_softmax(1).cpu()
                count = request.params.logprobs or 0
                entries += [token_logprobs(line, token, count, self._limit) for line, token in zip(numbers, part, strict=True)]
            result[chunk.slot] = entries
        return result


def padded_tokens(tokens: int) -> int:
    """A pass is filled up to a size that products like; the extra tokens belong to no row."""
    step = 16 if tokens <= 256 else 64 if tokens <= 1024 else 128
    return -(-tokens // step) * step


def _tuned_passes(pass_tokens: int) -> list[int]:
    """Sizes of prompt passes for which the products are measured; others take cuBLASLt's first guess."""
    return [size for size in (128, 256, 512, 1024, 2048, 4096) if GEMV_ROWS < size <= pass_tokens]


def _with_progress(sizes: list[int]) -> Any:
    """A progress bar where somebody looks at a terminal and tqdm is there; log lines in any case."""
    logger.info("measuring and capturing steps of %s rows", ", ".join(map(str, sizes)))
    if sys.stderr.isatty():
        try:
            from tqdm import tqdm
        except ImportError:
            return sizes
        return tqdm(sizes, desc="CUDA graphs", unit="size", leave=False)
    return sizes
