"""Products: which way each matrix product of the forward pass is computed, for each number of rows, by measurement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from albatross_plugin.model.arena import SPARSE_ROWS, Arena, Views
from albatross_plugin.model.cuda_weights import CudaLayer, CudaWeights
from albatross_plugin.model.graphs import capture

GEMV_ROWS = 8
CANDIDATES = 8
_LAYERS_TIMED = 8
_REPLAYS = 3
_LIBRARY_UP_FROM = 256
# The share of zeros in the channel mix's hidden layer for one token, as real checkpoints have it.
_ZEROS = 0.86
NONE, TANH, SIGMOID, RELU_SQUARE = range(4)
_DOWN_ACTIVATIONS = (TANH, NONE, NONE, SIGMOID)


@dataclass
class Ways:
    """For one number of rows: the chosen candidate of cuBLASLt per product, or None for our own kernel.

    ``narrow``: r, k, v and the LoRAs' first halves are one launch of gemv. ``aside``: the LoRAs run beside r, k, v on a stream
    of their own. ``grouped``: the operator for the LoRAs; ``up``: the same for their second halves, or "matmul" for cuBLASLt.
    """

    narrow: bool = False
    aside: bool = False
    grouped: str = "grouped_gemm"
    up: str = "grouped_gemm"
    choice: dict[str, int | None] = field(default_factory=dict)

    def of(self, name: str) -> int | None:
        return self.choice.get(name, 0)


class Products:
    """Runs the products of one model. ``ways`` holds what was measured; other sizes take cuBLASLt's own first guess."""

    def __init__(self, weights: CudaWeights, arena: Arena, ops: Any, device: torch.device) -> None:
        self._weights, self._arena, self._ops = weights, arena, ops
        self._device = device
        self._ways: dict[int, Ways] = {}
        self._heads: dict[int, int | None] = {}
        self._side = torch.cuda.Stream(device)
        # What runs beside the main stream must not share its workspace.
        self._side_workspace = torch.empty_like(arena.workspace)

    def ways(self, tokens: int) -> Ways:
        return self._ways.get(tokens) or _usual_ways(tokens)

    # --- the forward pass calls these ----------------------------------------------------------------------------------

    def time_mix(self, layer: CudaLayer, views: Views, ways: Ways) -> None:
        """r, k, v into ``views.rkv`` and the LoRAs' outputs into ``views.up``, from ``views.mixed``."""
        if ways.narrow:
            inputs = [views.mixed[0], views.mixed[1], views.mixed[2]] + [views.mixed[lora.mixed] for lora in layer.loras]
            outputs = [views.rkv[0], views.rkv[1], views.rkv[2]] + [views.low[lora.kind] for lora in layer.loras]
            weights = [layer.rkv[0], layer.rkv[1], layer.rkv[2]] + [lora.down for lora in layer.loras]
            self._ops.gemv(weights, inputs, outputs, [NONE] * 3 + _activations(layer), False)
            self._up(layer, views, ways.up)
        elif ways.aside:
            here = torch.cuda.current_stream(self._device)
            self._side.wait_stream(here)
            with torch.cuda.stream(self._side):
                self._down(layer, views, ways.grouped)
                self._up(layer, views, ways.up)
            self._matmul("rkv", ways, views.mixed[:3], layer.rkv, False, views.rkv, 0.0)
            here.wait_stream(self._side)
        else:
            self._down(layer, views, ways.grouped)
            self._up(layer, views, ways.up)
            self._matmul("rkv", ways, views.mixed[:3], layer.rkv, False, views.rkv, 0.0)

    def output(self, layer: CudaLayer, views: Views, ways: Ways) -> None:
        """x += y Wo."""
        if ways.of("output") is None:
            self._ops.gemv([layer.output], [views.y], [views.x], [NONE], True)
        else:
            self._matmul("output", ways, views.y, layer.output, False, views.x, 1.0)

    def channel_mix(self, layer: CudaLayer, views: Views, ways: Ways) -> None:
        """x += relu(ffn_in Wk)^2 Wv."""
        self._key(layer, views, ways)
        self._value(layer, views, ways)

    def head(self, normed: Tensor, logits: Tensor) -> None:
        choice = self._heads.get(normed.shape[0], 0)
        if choice is None:
            self._ops.gemv([self._weights.head], [normed], [logits], [NONE], False)
        else:
            self._ops.matmul(normed, self._weights.head, False, logits, 0.0, self._arena.workspace, choice)

    def _key(self, layer: CudaLayer, views: Views, ways: Ways) -> None:
        if ways.of("key") is None:
            self._ops.gemv([layer.ffn_key], [views.ffn_in], [views.hidden], [RELU_SQUARE], False)
        else:
            self._matmul("key", ways, views.ffn_in, layer.ffn_key, False, views.hidden, 0.0)
            self._ops.relu_square(views.hidden)

    def _value(self, layer: CudaLayer, views: Views, ways: Ways) -> None:
        if ways.of("value") is None:
            self._ops.sparse_linear(views.hidden, layer.ffn_value, views.x, self._arena.partial, self._arena.counters)
        else:
            self._matmul("value", ways, views.hidden, layer.ffn_value, True, views.x, 1.0)

    def _matmul(self, name: str, ways: Ways, x: Tensor, weight: Tensor, transposed: bool, out: Tensor, beta: float) -> None:
        self._ops.matmul(x, weight, transposed, out, beta, self._arena.workspace, ways.of(name))

    def _down(self, layer: CudaLayer, views: Views, how: str) -> None:
        inputs, outputs = [views.mixed[lora.mixed] for lora in layer.loras], [views.low[lora.kind] for lora in layer.loras]
        getattr(self._ops, how)([lora.down for lora in layer.loras], inputs, outputs, _activations(layer), False)

    def _up(self, layer: CudaLayer, views: Views, how: str) -> None:
        inputs, outputs = [views.low[lora.kind] for lora in layer.loras], [views.up[lora.kind] for lora in layer.loras]
        if how == "matmul":
            for lora, low, out in zip(layer.loras, inputs, outputs, strict=True):
                self._ops.matmul(low, lora.up, False, out, 0.0, self._side_workspace, 0)
            return
        getattr(self._ops, how)([lora.up for lora in layer.loras], inputs, outputs, [NONE] * len(inputs), False)

    # --- measuring -----------------------------------------------------------------------------------------------------

    def measure(self, tokens: int, heads: bool = True) -> None:
        """Time every way of each product for ``tokens`` rows on this card with the model's own weights, and keep the fastest."""
        views = self._arena.views(tokens, min(tokens, self._arena.rows))
        ways = _usual_ways(tokens)
        layers = self._timed_layers(tokens)
        _fill(views)
        for name in ("rkv", "output", "key", "value"):
            run = self._trial(name, views, layers)
            ways.choice[name] = self._best(name, tokens, run)
        self._ways[tokens] = ways
        if heads and tokens <= self._arena.rows:
            self._heads[tokens] = self._best_head(views, tokens)
        if tokens >= _LIBRARY_UP_FROM:
            self._choose_up(views, ways, tokens)
        self._choose_arrangement(views, ways, tokens)

    def _timed_layers(self, tokens: int) -> list[CudaLayer]:
        """Several layers' weights in turn, so that they come from memory as in a step; a large pass takes long enough with one."""
        return self._weights.layers[: _LAYERS_TIMED if tokens < 512 else 2 if tokens < 2048 else 1]

    def _choose_up(self, views: Views, ways: Ways, tokens: int) -> None:
        """The LoRAs' second halves: one launch of ours, or one of cuBLASLt for each?"""
        layers = self._timed_layers(tokens)

        def spent(how: str) -> float:
            def run() -> None:
                for layer in layers:
                    self._up(layer, views, how)

            return self._time(run)

        ways.up = min(("grouped_gemm", "matmul"), key=spent)

    def _choose_arrangement(self, views: Views, ways: Ways, tokens: int) -> None:
        """Few rows: one launch for all that reads the mixed inputs, or several? Many: the LoRAs beside r, k, v, or before?"""
        layers = self._timed_layers(tokens)

        def run() -> None:
            for layer in layers:
                self.time_mix(layer, views, ways)

        usual = self._time(run)
        flag = "narrow" if tokens <= GEMV_ROWS else "aside"
        setattr(ways, flag, True)
        if self._time(run) > usual:
            setattr(ways, flag, False)

    def _trial(self, name: str, views: Views, layers: list[CudaLayer]) -> Callable[[Ways], None]:
        def run(ways: Ways) -> None:
            for layer in layers:
                if name == "rkv":
                    self._matmul("rkv", ways, views.mixed[:3], layer.rkv, False, views.rkv, 0.0)
                elif name == "output":
                    self.output(layer, views, ways)
                elif name == "key":
                    self._key(layer, views, ways)
                else:
                    self._value(layer, views, ways)

        return run

    def _own(self, name: str, tokens: int) -> bool:
        """Whether a kernel of ours can do this product for so many rows."""
        return tokens <= (SPARSE_ROWS if name == "value" else 0 if name == "rkv" else GEMV_ROWS)

    def _best(self, name: str, tokens: int, run: Callable[[Ways], None]) -> int | None:
        if name == "value" and tokens <= SPARSE_ROWS:
            views = self._arena.views(tokens, min(tokens, self._arena.rows))
            views.hidden.mul_(torch.rand_like(views.hidden) > _ZEROS)
        return self._fastest(self._count(name, tokens), self._own(name, tokens), lambda option: run(Ways(choice={name: option})))

    def _best_head(self, views: Views, tokens: int) -> int | None:
        def run(option: int | None) -> None:
            self._heads[tokens] = option
            self.head(views.normed, views.logits)

        shape = (views.normed, self._weights.head, False, views.logits, 0.0, self._arena.workspace)
        return self._fastest(int(self._ops.matmul_candidates(*shape, CANDIDATES)), self._own("head", tokens), run)

    def _fastest(self, candidates: int, own: bool, run: Callable[[int | None], None]) -> int | None:
        """Which of cuBLASLt's ``candidates``, and of our kernel (None) where there is an ``own`` one, takes the least time."""
        options: list[int | None] = [*range(candidates), *([None] if own else [])]
        return min(options, key=lambda option: self._time(lambda: run(option)))

    def _count(self, name: str, tokens: int) -> int:
        layer, views = self._weights.layers[0], self._arena.views(tokens, min(tokens, self._arena.rows))
        shapes: dict[str, tuple[Tensor, Tensor, bool, Tensor, float]] = {
            "rkv": (views.mixed[:3], layer.rkv, False, views.rkv, 0.0),
            "output": (views.y, layer.output, False, views.x, 1.0),
            "key": (views.ffn_in, layer.ffn_key, False, views.hidden, 0.0),
            "value": (views.hidden, layer.ffn_value, True, views.x, 1.0),
        }
        return int(self._ops.matmul_candidates(*shapes[name], self._arena.workspace, CANDIDATES))

    def _time(self, run: Callable[[], object]) -> float:
        """Milliseconds of one run on the device, launches excluded: the calls are captured and replayed."""
        run()
        stream = torch.cuda.current_stream(self._device)
        graph = capture(run)
        graph.replay()
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(_REPLAYS + 1)]
        marks[0].record(stream)
        for mark in marks[1:]:
            graph.replay()
            mark.record(stream)
        marks[-1].synchronize()
        return float(min(first.elapsed_time(second) for first, second in pairwise(marks)))


def _usual_ways(tokens: int) -> Ways:
    kernel = "gemv" if tokens <= GEMV_ROWS else "grouped_gemm"
    return Ways(grouped=kernel, up=kernel)


def _activations(layer: CudaLayer) -> list[int]:
    return [_DOWN_ACTIVATIONS[lora.kind] for lora in layer.loras]


def _fill(views: Views) -> None:
    """Random inputs: products of zeros draw less power and run faster than real ones."""
    for tensor in (views.mixed, views.y, views.ffn_in, views.normed, views.hidden):
        tensor.normal_()
    views.x.zero_()
