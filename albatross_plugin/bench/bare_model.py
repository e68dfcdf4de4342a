"""The engine's own model, sampler and captured steps on a card, without the engine around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from albatross_plugin.bench.card_clock import Replay
from albatross_plugin.bench.official import TRAINED_ZEROS, official_checkpoint
from albatross_plugin.bench.roofline import OFFICIAL, ModelSizes
from albatross_plugin.engine.request import Request, SamplingParams

if TYPE_CHECKING:
    import torch

    from albatross_plugin.model.cuda_weights import CudaWeights
    from albatross_plugin.model.products import Ways

# The end of the World vocabulary.
TOKENS = 65530
_PROMPT_TOKEN = 5


def usual_requests(count: int) -> list[tuple[int, Request]]:
    """(slot, request) for so many slots, with the settings of a usual chat: temperature 1, top_p 0.5, penalties on."""
    settings = [SamplingParams(temperature=1.0, top_p=0.5, seed=slot, ignore_eos=True) for slot in range(count)]
    return [(slot, Request(slot + 1, (_PROMPT_TOKEN,), params)) for slot, params in enumerate(settings)]


@dataclass(frozen=True)
class Source:
    """A model on the card: random weights in an official shape, or a file."""

    name: str
    sizes: ModelSizes
    weights: CudaWeights

    @classmethod
    def random(cls, shape: str, device: torch.device) -> Source:
        from albatross_plugin.model.cuda_weights import load_cuda_weights
        from albatross_plugin.model.spec import read_spec

        checkpoint = official_checkpoint(shape, device=str(device), zeros=TRAINED_ZEROS)
        spec = read_spec(shape, checkpoint)
        return cls(shape, OFFICIAL[shape], load_cuda_weights(spec, checkpoint, device, lambda loaded, total: None))

    @classmethod
    def file(cls, path: Path, device: torch.device) -> Source:
        """Raises CheckpointError; ValueError for a channel mix that is not four times as wide as the model."""
        from albatross_plugin.model.cuda_weights import load_cuda_weights, open_for_cuda

        spec, tensors = open_for_cuda(str(path), TOKENS)
        if spec.n_ffn != 4 * spec.n_embd:
            raise ValueError(f"{path}: the channel mix is {spec.n_ffn} wide; the roofline is written for 4 x {spec.n_embd}")
        w, a, v, g = (int(tensors[f"blocks.{spec.n_layer - 1}.att.{lora}1"].shape[1]) for lora in "wavg")
        sizes = ModelSizes(spec.n_layer, spec.n_embd, (w, a, v, g), spec.vocab_size)
        return cls(path.stem, sizes, load_cuda_weights(spec, tensors, device, lambda loaded, total: None))


class BareModel:
    """What one executor holds: states of ``state`` (fp16 or fp32) for the largest of ``batches``, and its steps, captured.

    ``batches`` are numbers of rows, ``passes`` numbers of tokens of passes with prompts. Makes its stream the current one, where everything
    runs. Every slot holds a usual request.
    """

    def __init__(self, source: Source, state: str, batches: Sequence[int], passes: Sequence[int], device: torch.device) -> None:
        import torch

        from albatross_plugin.model.arena import Arena
        from albatross_plugin.model.cuda_model import CudaRWKV7
        from albatross_plugin.model.cuda_sampler import CudaSampler
        from albatross_plugin.model.cuda_steps import CudaSteps
        from albatross_plugin.model.kernels import ops
        from albatross_plugin.model.products import Products
        from albatross_plugin.model.state import StatePool

        kernels, weights = ops(), source.weights
        sizes, lengths = sorted(set(batches)), sorted(set(passes)) or [16]
        self._device = device
        # What made the weights ran on another stream.
        torch.cuda.synchronize(device)
        stream: Any = torch.cuda.Stream
        torch.cuda.set_stream(stream(device))
        recurrent = torch.float16 if state == "fp16" else torch.float32
        batch = sizes[-1]
        pool = StatePool(weights.spec, batch + 1, device, torch.float16, recurrent)
        sampler = CudaSampler(batch + 1, weights.spec.vocab_size, TOKENS, device)
        sampler.admit_many(usual_requests(batch))
        arena = Arena(weights, max(lengths[-1], batch + 1), batch + 1, device)
        self._products = Products(weights, arena, kernels, device)
        self._model = CudaRWKV7(weights, pool, arena, self._products, kernels)
        self._steps = CudaSteps(self._model, self._products, sampler, batch, lengths[-1], device, (sizes, lengths))
        self._steps.prepare(True)
        self._steps.last.fill_(_PROMPT_TOKEN)

    def ways(self, tokens: int) -> Ways:
        """Which products were chosen for so many rows."""
        return self._products.ways(tokens)

    def step(self, rows: int) -> Callable[[], object]:
        """What the engine replays for a step of ``rows`` rows: forward, sampling, feedback of the tokens."""
        slots = tuple(range(rows))
        return lambda: self._steps.decode(slots)

    def forward(self, rows: int) -> Callable[[], object]:
        """The same graph without sampling: up to the logits."""
        import torch

        from albatross_plugin.model.cuda_model import Rows

        slots = torch.arange(rows, dtype=torch.int32, device=self._device)
        fed = Rows(-1 - slots, slots, None, None)

        def run() -> None:
            self._model.logits(self._model.forward(fed, self._steps.last), None, rows)

        return Replay(run)

    def prefill(self, prompts: int, tokens: int) -> Callable[[], object]:
        """What runs for ``prompts`` prompts of ``tokens`` tokens fed in one pass: its graph, then a first token for each of them."""
        import torch

        generator = torch.Generator().manual_seed(prompts)
        pieces = [(slot, torch.randint(1, TOKENS, (tokens,), generator=generator).tolist()) for slot in range(prompts)]
        views = self._steps.forward(pieces)
        graph = self._steps.pass_graph(prompts * tokens)
        last, slots = [tokens * (slot + 1) - 1 for slot in range(prompts)], list(range(prompts))

        def run() -> None:
            if graph is None:
                self._steps.forward(pieces)
            else:
                graph.replay()
            self._steps.sample(views, last, slots)

        return run

    def close(self) -> None:
        """Give the states and graphs back; the weights belong to the source."""
        import torch

        torch.cuda.synchronize(self._device)
        self._steps.release()
        del self._steps, self._model, self._products
        torch.cuda.empty_cache()
