"""Every kernel of the engine as it is called in a step or a pass, with buffers of its own, and what the call takes at least."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from albatross_plugin.bench.official import TRAINED_ZEROS
from albatross_plugin.bench.roofline import HALF, HEAD, STATE_BYTES, ModelSizes, Work, recurrence_flops

if TYPE_CHECKING:
    import torch
    from torch import Tensor

CANDIDATES = 8
GEMV_ROWS, SPARSE_ROWS, GROUPED_FROM = (1, 8), (1, 4), 16
PASSES = ((1, 4096), (32, 32))
_FLOAT = 4
_EPS = 1e-5
_NONE, _TANH, _SIGMOID, _RELU_SQUARE = range(4)
_DOWN = (_TANH, _NONE, _NONE, _SIGMOID)
# Buffers in turn hold this many times the second-level cache, so that a call finds none of its own there.
_CACHES = 3
_MOST_SETS = 256
_WORKSPACE = 32 << 20

Call = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One kernel at one size. ``ways``: for each way to do it, calls on different buffers; all but products have one way."""

    kernel: str
    rows: int
    variant: str
    work: Work
    ways: list[list[Call]]


def rotations(moved: float, cache: int) -> int:
    """How many sets of buffers are used in turn when a call moves ``moved`` bytes and the card's cache holds ``cache``."""
    return max(2, min(_MOST_SETS, -(-_CACHES * cache // max(1, int(moved)))))


def product_work(rows: int, inputs: int, outputs: int, count: int = 1, added: bool = False, out_bytes: int = HALF) -> Work:
    """``count`` products [rows, inputs] x [inputs, outputs]: operands read and results written once, results read where added to."""
    moved = HALF * inputs * (outputs + rows) + out_bytes * rows * outputs * (2 if added else 1)
    return Work(count * moved, 2 * count * rows * inputs * outputs)


def sparse_work(rows: int, inputs: int, outputs: int) -> Work:
    """A product that reads only the weight rows that some of ``rows`` needs, hidden values being zero as in trained models."""
    needed = inputs * (1 - TRAINED_ZEROS**rows)
    return Work(HALF * (needed * outputs + rows * (inputs + 2 * outputs)), 2 * rows * inputs * (1 - TRAINED_ZEROS) * outputs)


def wkv_work(sizes: ModelSizes, rows: int, tokens: int, state: str) -> Work:
    """One layer: states read and written, eight vectors read and one written for each token, eight constants."""
    matrix = sizes.heads * HEAD * HEAD * STATE_BYTES[state]
    return Work(rows * 2 * matrix + HALF * sizes.width * (9 * rows * tokens + 8), rows * tokens * recurrence_flops(sizes))


def mix_work(sizes: ModelSizes, tokens: int, rows: int, mixes: int) -> Work:
    """The residual stream read, ``mixes`` vectors written for each token; the last input of each row read and written; constants."""
    return Work(HALF * sizes.width * (tokens * (1 + mixes) + 2 * rows + 2 + mixes))


class KernelCases:
    """Cases for one model's sizes on one card. Buffers live as long as their case, so take one case after the other."""

    def __init__(self, sizes: ModelSizes, kernels: Any, device: torch.device, cache: int) -> None:
        import torch

        self._sizes, self._ops, self._device, self._cache = sizes, kernels, device, cache
        self._workspace = torch.empty(_WORKSPACE, device=device, dtype=torch.uint8)

    def all(self, batches: Sequence[int], only: str = "") -> Iterator[Case]:
        """Decoding with so many rows; the kernels for few rows and those of prompts always at their own sizes.

        ``only``: kernels whose name holds this text.
        """
        wide = [*(rows for rows in batches if rows >= GROUPED_FROM), PASSES[0][1]]
        steps = [(rows, 1) for rows in batches]
        plan: list[tuple[str, Iterator[Case]]] = [
            ("wkv", (self._wkv(*shape, state) for state in STATE_BYTES for shape in [*steps, *PASSES])),
            ("mix", (self._mix(*shape, mixes) for mixes in (6, 1) for shape in [*steps, PASSES[0]])),
            ("gemv", (case for rows in GEMV_ROWS for case in self._gemvs(rows))),
            ("sparse_linear", (self._sparse(rows) for rows in SPARSE_ROWS)),
            ("grouped_gemm", (self._lora("grouped_gemm", rows, down) for rows in wide for down in (True, False))),
            ("matmul", (case for rows in wide for case in self._products(rows, head=rows in batches))),
            ("matmul", (self._lora("matmul", rows, False) for rows in wide)),
            ("relu_square", (self._relu_square(rows) for rows in wide)),
            ("sample", (self._sample(rows) for rows in batches)),
        ]
        for name, cases in plan:
            if only in name:
                yield from cases

    # --- buffers -------------------------------------------------------------------------------------------------------

    def _half(self, *shape: int, scale: float = 1.0) -> Tensor:
        import torch

        return torch.randn(shape, device=self._device, dtype=torch.float16).mul_(scale)

    def _ints(self, values: Sequence[int]) -> Tensor:
        import torch

        return torch.tensor(values, dtype=torch.int32, device=self._device)

    def _case(self, kernel: str, rows: int, variant: str, work: Work, make: Callable[[], Call]) -> Case:
        return Case(kernel, rows, variant, work, [[make() for _ in range(rotations(work.bytes, self._cache))]])

    # --- the kernels ---------------------------------------------------------------------------------------------------

    def _wkv(self, rows: int, tokens: int, state: str) -> Case:
        import torch

        sizes, width, count = self._sizes, self._sizes.width, rows * tokens
        dtype = torch.float16 if state == "fp16" else torch.float32
        slots, constants = self._ints(range(rows)), self._half(8, width, scale=0.5)
        starts = self._ints(range(0, count + 1, tokens)) if tokens > 1 else None

        def make() -> Call:
            matrices = torch.randn(rows, sizes.heads, HEAD, HEAD, device=self._device, dtype=dtype)
            r, k, v, w_up, a_up, v_up, g, first, out = self._half(9, count, width).unbind(0)
            w0, a0, v0, k_k, k_a, r_k, weight, bias = constants.unbind(0)
            token = (r, k, v, w_up, a_up, v_up, g, first, w0, a0, v0, k_k, k_a, r_k.view(-1, HEAD), weight, bias, out)
            return lambda: self._ops.wkv(matrices, slots, starts, *token, rows)

        name = "wkv sequence" if tokens > 1 else "wkv step"
        return self._case(name, rows, f"{tokens} tokens, {state}" if tokens > 1 else state, wkv_work(sizes, rows, tokens, state), make)

    def _mix(self, rows: int, tokens: int, mixes: int) -> Case:
        width, count = self._sizes.width, rows * tokens
        ragged = tokens > 1
        slots, mu, gamma, beta = self._ints(range(rows)), self._half(mixes, width), self._half(width), self._half(width)
        starts = self._ints(range(0, count + 1, tokens)) if ragged else None
        token_row = self._ints([token // tokens for token in range(count)]) if ragged else None

        def make() -> Call:
            x, shift, out = self._half(count, width), self._half(rows, width), self._half(mixes, count, width)
            tail = self._half(rows, width) if ragged else None
            return lambda: self._ops.mix(x, gamma, beta, mu, shift, slots, starts, token_row, tail, out, _EPS)

        work = mix_work(self._sizes, count, rows, mixes)
        return self._case(f"mix {mixes}", rows, f"{tokens} tokens" if ragged else "", work, make)

    def _gemvs(self, rows: int) -> Iterator[Case]:
        width, hidden, ranks = self._sizes.width, self._sizes.hidden, self._sizes.ranks
        squares = [(width, width)] * 3
        yield self._linear("gemv", "r k v, LoRA down", rows, [*squares, *((width, rank) for rank in ranks)], (_NONE,) * 3 + _DOWN)
        yield self._lora("gemv", rows, False)
        yield self._linear("gemv", "output", rows, [(width, width)], (_NONE,), added=True)
        yield self._linear("gemv", "key", rows, [(width, hidden)], (_RELU_SQUARE,))
        yield self._linear("gemv", "head", rows, [(width, self._sizes.vocab)], (_NONE,), is_float=True)

    def _lora(self, operator: str, rows: int, down: bool) -> Case:
        width = self._sizes.width
        shapes = [(width, rank) if down else (rank, width) for rank in self._sizes.ranks]
        return self._linear(operator, f"LoRA {'down' if down else 'up'}", rows, shapes, _DOWN if down else (_NONE,) * 4)

    def _linear(
        self,
        operator: str,
        variant: str,
        rows: int,
        shapes: Sequence[tuple[int, int]],
        activations: Sequence[int],
        added: bool = False,
        is_float: bool = False,
    ) -> Case:
        """Independent products [rows, inputs] x [inputs, outputs] in one launch."""
        parts = [product_work(rows, inputs, outputs, 1, added, _FLOAT if is_float else HALF) for inputs, outputs in shapes]
        work = Work(sum(part.bytes for part in parts), sum(part.flops for part in parts))
        run = self._one_by_one if operator == "matmul" else getattr(self._ops, operator)

        def make() -> Call:
            weights = [self._half(outputs, inputs, scale=inputs**-0.5) for inputs, outputs in shapes]
            sources = [self._half(rows, inputs) for inputs, _ in shapes]
            results = [self._half(rows, outputs) for _, outputs in shapes]
            if is_float:
                results = [result.float() for result in results]
            return lambda: run(weights, sources, results, list(activations), added)

        return self._case(operator, rows, variant, work, make)

    def _one_by_one(self, weights: list[Tensor], sources: list[Tensor], results: list[Tensor], activations: list[int], added: bool) -> None:
        """What a grouped product does, by cuBLASLt's first guess for each part."""
        for weight, source, result in zip(weights, sources, results, strict=True):
            self._ops.matmul(source, weight, False, result, float(added), self._workspace, 0)

    def _sparse(self, rows: int) -> Case:
        import torch

        inputs, outputs = self._sizes.hidden, self._sizes.width
        partial = torch.zeros(max(1, self._ops.sparse_partials(rows, inputs, outputs)), device=self._device)
        counters = self._ints([0] * max(1, outputs // 64))

        def make() -> Call:
            hidden, weight, x = self._half(rows, inputs).abs(), self._half(inputs, outputs, scale=inputs**-0.5), self._half(rows, outputs)
            hidden *= torch.rand(rows, inputs, device=self._device) > TRAINED_ZEROS
            return lambda: self._ops.sparse_linear(hidden, weight, x, partial, counters)

        return self._case("sparse_linear", rows, "value", sparse_work(rows, inputs, outputs), make)

    def _relu_square(self, rows: int) -> Case:
        count = rows * self._sizes.hidden

        def make() -> Call:
            # Zeros and ones stay what they are, however often they are squared.
            hidden = self._half(rows, self._sizes.hidden).gt(0).half()
            return lambda: self._ops.relu_square(hidden)

        return self._case("relu_square", rows, "", Work(2 * HALF * count), make)

    def _products(self, rows: int, head: bool) -> Iterator[Case]:
        width, hidden, vocab = self._sizes.width, self._sizes.hidden, self._sizes.vocab
        yield self._product("r k v", rows, width, width, count=3)
        yield self._product("output", rows, width, width, added=True)
        yield self._product("key", rows, width, hidden)
        yield self._product("value", rows, hidden, width, added=True, transposed=True)
        if head:
            yield self._product("head", rows, width, vocab, is_float=True)

    def _product(
        self,
        variant: str,
        rows: int,
        inputs: int,
        outputs: int,
        count: int = 1,
        added: bool = False,
        transposed: bool = False,
        is_float: bool = False,
    ) -> Case:
        work = product_work(rows, inputs, outputs, count, added, _FLOAT if is_float else HALF)
        several = (count,) if count > 1 else ()
        shape = (*several, inputs, outputs) if transposed else (*several, outputs, inputs)

        def buffers() -> tuple[Tensor, Tensor, bool, Tensor, float, Tensor]:
            out = self._half(*several, rows, outputs)
            weight = self._half(*shape, scale=inputs**-0.5)
            return self._half(*several, rows, inputs), weight, transposed, out.float() if is_float else out, float(added), self._workspace

        sets = [buffers() for _ in range(rotations(work.bytes, self._cache))]
        candidates = range(self._ops.matmul_candidates(*sets[0], CANDIDATES))

        def call(given: tuple[Any, ...], choice: int) -> Call:
            return lambda: self._ops.matmul(*given, choice)

        return Case("matmul", rows, variant, work, [[call(given, choice) for given in sets] for choice in candidates])

    def _sample(self, rows: int) -> Case:
        import torch

        from albatross_plugin.bench.bare_model import TOKENS, usual_requests
        from albatross_plugin.model.cuda_sampler import CudaSampler

        vocab = self._sizes.vocab
        sampler = CudaSampler(rows + 1, vocab, TOKENS, self._device)
        sampler.admit_many(usual_requests(rows))
        slots, last = self._ints(range(rows)), self._ints([0] * (rows + 1))
        results = torch.zeros(rows, 4, dtype=torch.int32, device=self._device)
        tops = torch.zeros(rows, 2, 20, dtype=torch.int32, device=self._device)

        def make() -> Call:
            logits = torch.randn(rows, vocab, device=self._device).mul_(3)
            return lambda: sampler.sample(logits, slots, last, results, tops)

        # The logits once, and two masks of a bit for each token.
        return self._case("sample", rows, "", Work(rows * (_FLOAT * vocab + 2 * vocab / 8)), make)
