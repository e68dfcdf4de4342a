"""CudaExecutor: runs StepPlans on one NVIDIA card, whole steps as CUDA graphs where the batch allows it."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from albatross_plugin.engine.messages import ModelInfo, TokenLogprobs
from albatross_plugin.engine.request import MAX_LOGPROBS, Request
from albatross_plugin.engine.step import Kept, Memory, StepPlan, StepResult, WorkerSpec, by_row
from albatross_plugin.errors import CheckpointError, DeviceError, DeviceLostError, RequestError
from albatross_plugin.model.archive import Checksums
from albatross_plugin.model.arena import Arena, Views
from albatross_plugin.model.cuda_memory import check_fits, drop_locals, give_back
from albatross_plugin.model.cuda_model import CudaRWKV7
from albatross_plugin.model.cuda_sampler import CudaSampler
from albatross_plugin.model.cuda_steps import CudaSteps, upload
from albatross_plugin.model.cuda_weights import load_cuda_weights, open_for_cuda, weight_bytes
from albatross_plugin.model.graphs import pass_sizes
from albatross_plugin.model.kernels import ops as load_kernels
from albatross_plugin.model.products import Products
from albatross_plugin.model.rehearsal import rehearse
from albatross_plugin.model.sampler import token_logprobs
from albatross_plugin.model.spec import ModelSpec
from albatross_plugin.model.state import StatePool, state_bytes

logger = logging.getLogger(__name__)

_STATES = {"fp16": torch.float16, "fp32": torch.float32, "auto": torch.float16}
_DEPTH = 2
_WIDEST = 8192
# The second dimension of a grid.
_MOST_ROWS = 65535
_LOGIT_ROWS = 32


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
        _check_sizes(sizes)
        if spec.rows > _MOST_ROWS:
            raise DeviceError(f"batch={spec.rows - 1} is more than the kernels can take. Choose batch={_MOST_ROWS - 1} or fewer.")
        self._ops = load_kernels()
        recurrent = _STATES[spec.state]
        # What an earlier load left in torch's keeping counts as free.
        give_back()
        free, _ = torch.cuda.mem_get_info(self._device)
        check_fits(sizes, weight_bytes(tensors), spec.rows - 1, spec.pass_tokens, recurrent, spec.graphs, free, spec.kept)
        self._stream = torch.cuda.Stream(self._device)
        self._batch = spec.rows - 1
        self._limit = min(spec.token_limit, sizes.vocab_size)
        self._requests: dict[int, Request] = {}
        self._fed: dict[int, int] = {}
        self._broken: dict[int, str] = {}
        try:
            with torch.inference_mode(), torch.cuda.stream(self._stream):
                loaded = self._load(spec, sizes, tensors, recurrent, progress)
        except BaseException as error:
            # Called off, or failed half way: nobody will close this object, and the next load needs the memory.
            drop_locals(error)
            vars(self).clear()
            give_back()
            raise
        name = os.path.splitext(os.path.basename(spec.model_path))[0]
        slot_bytes = state_bytes(sizes, torch.float16, recurrent)
        kind = "float16" if recurrent == torch.float16 else "float16, state float32"
        self.info = ModelInfo(name, sizes.n_layer, sizes.n_embd, sizes.vocab_size, str(self._device), kind, loaded, slot_bytes)

    def _load(
        self, spec: WorkerSpec, sizes: ModelSpec, tensors: dict[str, Tensor], recurrent: torch.dtype, progress: Callable[[int, int], None]
    ) -> int:
        """Weights, states and working memory on the card, everything measured and captured; returns the bytes of the weights."""
        file_bytes = sum(tensor.numel() * tensor.itemsize for tensor in tensors.values())
        with Checksums(spec.model_path, lambda: progress(file_bytes, file_bytes)):
            weights = load_cuda_weights(sizes, tensors, self._device, progress)
        tensors.clear()
        self._pool = StatePool(sizes, spec.rows, self._device, torch.float16, recurrent, spec.kept)
        self._sampler = CudaSampler(spec.rows, sizes.vocab_size, spec.token_limit, self._device)
        longest = pass_sizes(spec.pass_tokens + spec.rows)[-1]
        arena = Arena(weights, longest, spec.rows, self._device)
        products = Products(weights, arena, self._ops, self._device)
        self._model = CudaRWKV7(weights, self._pool, arena, products, self._ops)
        self._steps = CudaSteps(self._model, products, self._sampler, self._batch, longest, self._device)
        ring = range(_DEPTH + 1)
        self._host = [torch.zeros(spec.rows, 4, dtype=torch.int32, pin_memory=True) for _ in ring]
        self._host_tops = [torch.zeros(spec.rows, 2, MAX_LOGPROBS, dtype=torch.int32, pin_memory=True) for _ in ring]
        self._turn = 0
        # Reported again between sizes, so that a load that is called off ends there too.
        self._steps.prepare(spec.graphs, lambda: progress(file_bytes, file_bytes))
        rehearse(self, self._batch, spec.pass_tokens, sizes.vocab_size, self._pool.read(0), spec.kept)
        self._requests.clear()
        self._fed.clear()
        return weights.bytes

    def launch(self, plan: StepPlan) -> _Ticket:
        """Queue the step and the copy of its results; nothing waits for the card. Raises DeviceLostError."""
        with self._watch():
            return self._launch(plan)

    @contextmanager
    def _watch(self) -> Iterator[None]:
        """Tell a step that failed from a card that did: after an illegal access every later call fails too."""
        try:
            yield
        except RuntimeError as error:
            try:
                self._stream.query()
            except RuntimeError:
                raise DeviceLostError(f"{self._device} has failed, and only a restart of this process brings it back: {error}") from error
            raise

    @torch.inference_mode()
    def _launch(self, plan: StepPlan) -> _Ticket:
        with torch.cuda.stream(self._stream):
            if plan.admit:
                self._admit([(admission.slot, admission.request) for admission in plan.admit])
            if plan.copy:
                self._restore(plan.copy)
            if not plan.decode and not plan.prefill:
                return _Ticket(plan.step, (), None, None, None, {}, {})
            if plan.allowed:
                self._sampler.set_masks(plan.allowed)
            prompt_logprobs: dict[int, list[TokenLogprobs]] = {}
            if plan.prefill:
                prompt_logprobs = self._mixed_step(plan)
            else:
                self._steps.decode(plan.decode)
            for kept in plan.keep:
                self._pool.keep(kept.slot, kept.row)
            sampled = plan.sampled
            failures = {slot: self._broken[slot] for slot in plan.slots if slot in self._broken} if self._broken else {}
            results, tops, ready = self._fetch(sampled)
        return _Ticket(plan.step, sampled, results, tops, ready, failures, prompt_logprobs)

    def collect(self, ticket: _Ticket) -> StepResult:
        if ticket.ready is not None:
            # Also where nobody is sampled: else all passes of a long prompt would be queued at once, and a newcomer behind them.
            with self._watch():
                ticket.ready.synchronize()
        if ticket.results is None:
            return StepResult(ticket.step, [], ticket.failures, None, ticket.prompt_logprobs or None)
        tokens, failures, logprobs = self._sampler.read(ticket.results, ticket.tops, ticket.slots)
        if ticket.failures:
            failures = {**failures, **ticket.failures}
        return StepResult(ticket.step, tokens, failures, logprobs or None, ticket.prompt_logprobs or None)

    def memory(self) -> Memory:
        """What torch's allocator counts for this process, and what the driver says is free on the card."""
        used, peak = torch.cuda.memory_allocated(self._device), torch.cuda.max_memory_allocated(self._device)
        return Memory(used, peak, torch.cuda.mem_get_info(self._device)[0])

    def close(self) -> None:
        """Wait for the card, then drop every reference to its memory and give it back to the driver."""
        if not hasattr(self, "_model"):
            return
        try:
            self._stream.synchronize()
        finally:
            steps = self._steps
            for name in ("_model", "_steps", "_pool", "_sampler", "_host", "_host_tops"):
                delattr(self, name)
            self._requests.clear()
            # Last, and after the references: on a card that has failed this raises too.
            try:
                steps.release()
            finally:
                del steps
                give_back()

    # --- parts of launch -----------------------------------------------------------------------------------------------

    def _admit(self, admissions: list[tuple[int, Request]]) -> None:
        for slot, request in admissions:
            self._requests[slot], self._fed[slot] = request, 0
            self._broken.pop(slot, None)
        self._pool.reset_many(upload([slot for slot, _ in admissions], self._device).long())
        for slot, request in admissions:
            if request.initial_state is not None:
                try:
                    self._pool.load(slot, request.initial_state)
                except RequestError as error:
                    # Only this request ends; the step that admits it carries others.
                    self._broken[slot] = str(error)
        self._sampler.admit_many(admissions)

    def _restore(self, copies: Sequence[Kept]) -> None:
        for row, slots in by_row(copies):
            self._pool.restore(row, upload(slots, self._device).long())
            for slot in slots:
                self._fed[slot] = len(self._requests[slot].prompt_ids) - 1

    def _mixed_step(self, plan: StepPlan) -> dict[int, list[TokenLogprobs]]:
        """Decoding rows and pieces of prompts in one ragged pass."""
        pieces: list[tuple[int, Sequence[int]]] = [(slot, (-1 - slot,)) for slot in plan.decode]
        index = list(range(len(pieces)))
        starts, end = [], len(pieces)
        for chunk in plan.prefill:
            pieces.append((chunk.slot, chunk.token_ids))
            starts.append(end)
            end += len(chunk.token_ids)
            if chunk.final:
                index.append(end - 1)
        views = self._steps.forward(pieces)
        prompt_logprobs = self._prompt_logprobs(plan, starts, views)
        for chunk in plan.prefill:
            self._fed[chunk.slot] += len(chunk.token_ids)
        if index:
            self._steps.sample(views, index, plan.sampled)
        return prompt_logprobs

    def _fetch(self, sampled: Sequence[int]) -> tuple[Tensor | None, Tensor | None, torch.cuda.Event]:
        """Queue the copy of the results to pinned memory; the event comes after it."""
        self._turn = (self._turn + 1) % len(self._host)
        results = tops = None
        if sampled:
            results = self._host[self._turn][: len(sampled)]
            results.copy_(self._steps.results[: len(sampled)], non_blocking=True)
            if self._sampler.wants_logprobs(sampled):
                tops = self._host_tops[self._turn][: len(sampled)]
                tops.copy_(self._steps.tops[: len(sampled)], non_blocking=True)
        # A blocking event lets the processor sleep instead of spinning.
        ready = torch.cuda.Event(blocking=True)
        ready.record(self._stream)
        return results, tops, ready

    def _prompt_logprobs(self, plan: StepPlan, starts: list[int], views: Views) -> dict[int, list[TokenLogprobs]]:
        """Numbers for the prompt tokens that follow the ones fed in this step, for the rows that want them. Waits for the card."""
        result: dict[int, list[TokenLogprobs]] = {}
        # Few at a time: the log-softmax is memory that was not reserved.
        most = min(self._batch, _LOGIT_ROWS)
        for start, chunk in zip(starts, plan.prefill, strict=True):
            request, fed = self._requests[chunk.slot], self._fed[chunk.slot]
            if not request.params.prompt_logprobs:
                continue
            targets = request.prompt_ids[fed + 1 : fed + 1 + len(chunk.token_ids)]
            entries: list[TokenLogprobs] = []
            for first in range(0, len(targets), most):
                part = targets[first : first + most]
                index = upload(range(start + first, start + first + len(part)), self._device)
                numbers = self._model.logits(views, index, len(part)).log_softmax(1).cpu()
                count = request.params.logprobs or 0
                entries += [token_logprobs(line, token, count, self._limit) for line, token in zip(numbers, part, strict=True)]
            result[chunk.slot] = entries
        return result


def _check_sizes(sizes: ModelSpec) -> None:
    for what, size, of in (("the channel mix's width", sizes.n_ffn, 64), ("the number of rows of emb.weight", sizes.vocab_size, 8)):
        if size % of:
            raise CheckpointError(f"{sizes.name}: {what} is {size}, and the CUDA kernels need a multiple of {of}; device=cpu takes any")
    if sizes.n_embd > _WIDEST:
        raise CheckpointError(f"{sizes.name} is {sizes.n_embd} wide, and the CUDA kernels end at {_WIDEST}")
