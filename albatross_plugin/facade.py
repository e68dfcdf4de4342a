"""What a host reaches for behind a model object: ``model.pipeline`` and ``model.model``, as far as it uses them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from albatross_plugin.tokenizer import WorldTokenizer


class PipelineFacade:
    """``encode``, ``decode`` and ``tokenizer`` of the host's pipeline object."""

    def __init__(self, tokenizer: WorldTokenizer) -> None:
        self.tokenizer = tokenizer

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text)

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids)


class _LayerStrategy:
    """Where the host's state loader shall put the tensors of one layer: plain float32 on the CPU."""

    device = "cpu"

    @property
    def atype(self) -> Any:
        import torch

        return torch.float32


class ModelFacade:
    """The attributes that a host's state-file loader and constructor read; it holds no weights."""

    def __init__(self, n_layer: int, n_embd: int, vocab_size: int) -> None:
        self.version = 7
        self.args = SimpleNamespace(n_layer=n_layer, n_embd=n_embd, vocab_size=vocab_size)
        self.strategy = [_LayerStrategy()] * n_layer
